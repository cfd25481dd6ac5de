// What the command shows and does when agent and guardian were killed with the program that they
// acted for, on a driver that does not resume what they suspended: the simulated H100.

#include "agent_processes.hpp"
#include "command.hpp"
#include "gpu_program.hpp"
#include "simulated_device.hpp"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/os/node_lock.hpp"

namespace sluice::test::orphan_test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

struct finished {
  int code;
  std::string out;
  std::string err;
};

class Orphan : public testing::Test {
 protected:
  Orphan() { program_.ask("open"); }

  std::string directory() const { return device_.root() + "/run"; }
  std::string pid() const { return std::to_string(program_.pid()); }
  std::string name() const { return "process " + pid() + " (" + command_of(program_.pid()) + ")"; }
  std::unique_ptr<command> start(std::vector<std::string> words) const {
    words.insert(words.end(), {"--directory", directory()});
    auto environment = device_.environment();
    environment.push_back("SLUICE_BREAKERS=" + device_.root() + "/breakers");
    return std::make_unique<command>(SLUICE_PROGRAM, std::move(words), std::move(environment));
  }
  finished run(std::vector<std::string> words) const {
    const auto made = start(std::move(words));
    const auto code = made->ends();
    return {code.value_or(-1), made->out(), made->err()};
  }
  /// By a `sluice suspend` that is killed with its agent and its guardian.
  void leave_suspended() const {
    const auto holder = start({"suspend", pid()});
    ASSERT_TRUE(holder->says("held by process")) << holder->err();
    ASSERT_EQ(held_channels(device_), 8);
    holder->signal(SIGSTOP);  // so that it does not start `sluice-agent --rescue`
    ASSERT_TRUE(kill_agent_and_guardian(agent_of(directory() + "/owner.1")));
    holder->signal(SIGKILL);
    ASSERT_TRUE(holder->ends());
    ASSERT_EQ(held_channels(device_), 8);
  }

  simulated_device device_{fast_h100()};
  gpu_program program_{device_};
};

TEST_F(Orphan, IsShownUntilItIsRescued) {
  const std::string advice = "run 'sluice rescue --directory " + directory() + "' as root";
  {
    const auto holder = start({"suspend", pid()});
    ASSERT_TRUE(holder->says("held by process")) << holder->err();
    EXPECT_THAT(run({"doctor"}).out, HasSubstr("records: no process was left suspended"));
    EXPECT_THAT(run({"queues"}).out, Not(HasSubstr("orphaned")));
    holder->signal(SIGTERM);
    EXPECT_EQ(holder->ends(), 0);
  }
  ASSERT_NO_FATAL_FAILURE(leave_suspended());

  const auto doctor = run({"doctor"});
  EXPECT_EQ(doctor.code, 1);
  EXPECT_THAT(doctor.out, AllOf(ContainsRegex("BLOCKED +records: still held by an agent that was "
                                              "killed together with its guardian: "),
                                HasSubstr(name()), HasSubstr(advice)));
  const auto queues = run({"queues"});
  EXPECT_EQ(queues.code, 0);
  EXPECT_THAT(queues.out, ContainsRegex(pid() + " .* compute +- +- +orphaned "));
  EXPECT_THAT(queues.err, AllOf(HasSubstr(name() + " is still held"), HasSubstr(advice)));
  const auto shown = boost::json::parse(run({"queues", "--json"}).out);
  EXPECT_EQ(shown.at("processes").at(0).at("orphaned"), true);
  EXPECT_TRUE(shown.at("processes").at(0).at("queues").at(0).at("ring_bytes").is_null());
  for (const char* const word : {"resume", "suspend"}) {
    const auto refused = run({word, pid()});
    EXPECT_EQ(refused.code, 1);
    EXPECT_EQ(refused.out, "");
    EXPECT_THAT(refused.err, AllOf(HasSubstr(name() + " is still held"), HasSubstr(advice)));
  }
  EXPECT_EQ(held_channels(device_), 8);

  const auto rescued = run({"rescue"});
  EXPECT_EQ(rescued.code, 0) << rescued.err;
  EXPECT_EQ(rescued.out, "resumed: 1 of 1\n  " + name() + "\n");
  EXPECT_EQ(rescued.err, "");
  EXPECT_EQ(held_channels(device_), 0);
  EXPECT_THAT(run({"doctor"}).out, HasSubstr("records: no process was left suspended"));
  EXPECT_THAT(run({"queues"}).out, Not(HasSubstr("orphaned")));
  EXPECT_EQ(run({"suspend", pid(), "--for", "50ms"}).code, 0);
  EXPECT_EQ(held_channels(device_), 0);
}

TEST_F(Orphan, IsRescuedWithoutARecord) {
  ASSERT_NO_FATAL_FAILURE(leave_suspended());
  std::filesystem::remove(directory() + "/owner.1.holds");
  const auto lost = run({"rescue"});
  EXPECT_EQ(lost.code, 0) << lost.err;
  EXPECT_THAT(lost.out, AllOf(HasSubstr("no agent has recorded in " + directory()),
                              HasSubstr("if a record was lost, run 'sluice rescue --everything'")));
  EXPECT_EQ(held_channels(device_), 8);
  const auto all = run({"rescue", "--everything"});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_EQ(all.out, "everything that uses the driver nvidia runs\n");
  EXPECT_THAT(all.err, HasSubstr("sluice: time slices that offline_quantum shortened are restored "
                                 "only from a record"));
  EXPECT_EQ(held_channels(device_), 0);
}

TEST_F(Orphan, IsNotMissedBecauseARescueLooksInTheWrongPlace) {
  const auto absent = run({"rescue"});
  EXPECT_EQ(absent.code, 1);
  EXPECT_EQ(absent.out, "");
  EXPECT_EQ(absent.err, "sluice: cannot rescue: cannot look in " + directory() +
                            ": No such file or directory; name the directory of the daemon "
                            "(--directory or --config)\n");
  std::filesystem::create_directory(directory());
  const auto other = run({"rescue", "--everything", "--driver", "kfd"});
  EXPECT_EQ(other.code, 1);
  EXPECT_EQ(other.out, "");
  EXPECT_THAT(other.err, HasSubstr("sluice: cannot resume everything: No such file or directory"));
}

}  // namespace
}  // namespace sluice::test::orphan_test
