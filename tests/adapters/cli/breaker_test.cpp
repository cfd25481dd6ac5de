// What the command says after a reset: of breakers, and of queues that look alive.

#include "command.hpp"
#include "family.hpp"
#include "offline_target.hpp"
#include "simulated_device.hpp"

#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/breaker_store.hpp"
#include "sluice/kfd/device.hpp"
#include "sluice/sim/client.hpp"

namespace sluice::test::breaker_test {
namespace {

using namespace std::chrono_literals;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr gpu_id first{51110};
constexpr gpu_id second{51367};

class SluiceBreaker : public testing::Test {
 protected:
  command start(std::vector<std::string> words) const {
    auto environment = device_.environment();
    environment.push_back("SLUICE_BREAKERS=" + store_.path());
    return {SLUICE_PROGRAM, std::move(words), std::move(environment)};
  }
  /// Runs `sluice`. \return its exit code.
  int run(std::vector<std::string> words) {
    auto made = start(std::move(words));
    const auto code = made.ends();
    out_ = made.out();
    err_ = made.err();
    return code.value_or(-1);
  }
  void open(gpu_id gpu) {
    const stored_breaker made{
        .why = breaker_cause::reset, .first = first, .since = wall_time_now()};
    std::string message;
    ASSERT_TRUE(store_.change({{gpu, made}}, {}, message)) << message;
  }
  void control(const std::string& line) const {
    std::ofstream{device_.root() + "/sim/control"} << line << std::endl;
  }
  void write(const std::string& text) const { std::ofstream{store_.path()} << text; }

  simulated_device device_{
      {.profile = profile_text("", "reset_time = \"20ms\"\nhive_id = 7\n"), .gpus = 2}};
  const breaker_store store_{device_.root() + "/breakers"};
  std::string out_;
  std::string err_;
};

TEST_F(SluiceBreaker, ListsAndRearms) {
  EXPECT_EQ(run({"breaker", "list"}), 0) << err_;
  EXPECT_EQ(out_, store_.path() + ": no breaker is open; the file does not exist\n");
  open(first);
  open(second);
  EXPECT_EQ(run({"breaker", "list"}), 0) << err_;
  EXPECT_THAT(out_, ContainsRegex(" 0 +51110 +20[-0-9]+ [:0-9]+ UTC +re-armed +reset +51110\n"));
  EXPECT_THAT(out_, ContainsRegex(" 1 +51367 .* reset +51110\n"));

  ASSERT_EQ(run({"breaker", "rearm", "1", "--json"}), 0) << err_;
  auto said = boost::json::parse(out_);
  EXPECT_EQ(said.at("rearmed").at(0).at("gpu_id"), 51367);
  EXPECT_EQ(said.at("breakers").as_array().size(), 1U);
  ASSERT_EQ(run({"breaker", "list", "--json"}), 0) << err_;
  said = boost::json::parse(out_);
  EXPECT_EQ(said.at("breakers").at(0).at("gpu_id"), 51110);
  EXPECT_EQ(said.at("breakers").at(0).at("cause"), "reset");
  EXPECT_TRUE(said.at("breakers").at(0).at("until_unix_ms").is_null());

  EXPECT_EQ(run({"breaker", "rearm", "51367"}), 1) << "not open any more";
  EXPECT_THAT(err_, HasSubstr("GPU 1 (gpu_id 51367) has no open breaker in " + store_.path()));
  EXPECT_EQ(run({"breaker", "rearm", "51110", "7"}), 1) << "all that are named, or none";
  EXPECT_THAT(
      err_, ContainsRegex("^sluice: [^\n]+ gpu_id 7 has no open breaker [^\n]+, so no breaker was "
                          "re-armed; [^\n]+\n$"));
  EXPECT_EQ(run({"breaker", "rearm", "51110", "gpu"}), 1);
  EXPECT_THAT(
      err_,
      HasSubstr("gpu: no such GPU, so no breaker was re-armed; 'sluice queues' lists the GPUs"));
  EXPECT_EQ(run({"breaker", "rearm"}), 2);
  EXPECT_EQ(run({"breaker", "rearm", "--all"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("GPU 0 (gpu_id 51110) is re-armed"));
  EXPECT_EQ(run({"breaker", "rearm", "--all"}), 0) << "none is none";
  EXPECT_EQ(run({"breaker", "list"}), 0) << err_;
  EXPECT_EQ(out_, store_.path() + ": no breaker is open\n");
}

TEST_F(SluiceBreaker, SaysWhatIsWrongWithTheStore) {
  write("not ours\n");
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"breaker", "list"}, {"breaker", "rearm", "--all"}}) {
    EXPECT_EQ(run(words), 1);
    EXPECT_THAT(err_, ContainsRegex("^sluice: " + store_.path() + ":1: [^\n]+\n$"));
  }
  EXPECT_EQ(run({"queues", "--interval", "0s"}), 0) << "which works without";
  EXPECT_THAT(err_, HasSubstr("cannot check for open breakers"));
}

TEST_F(SluiceBreaker, IsShownWithTheProcessesThatMayHaveLostQueues) {
  const offline_target target{device_.roots()};
  ASSERT_TRUE(target.says('r'));
  const auto pid = std::to_string(target.pid());
  open(first);
  open(second);
  EXPECT_EQ(run({"queues", "--interval", "0s"}), 0);
  EXPECT_THAT(err_,
              HasSubstr("warning: GPU 0 (gpu_id 51110): its breaker is open: the driver reset"));
  EXPECT_THAT(err_, HasSubstr("; end process " + pid +
                              ": queues that are older than the failure may be lost"));
  EXPECT_THAT(err_, ContainsRegex("GPU 1 [^\n]+ until re-armed; end process " + pid +
                                  ": [^\n]+; when the GPU works again, run sluice"))
      << "a reset stops work on all GPUs";
  ASSERT_EQ(run({"queues", "--interval", "0s", "--json"}), 0);
  EXPECT_EQ(boost::json::parse(out_).at("breakers").as_array().size(), 2U);
  EXPECT_EQ(run({"doctor"}), 1) << "no other GPU is left";
  EXPECT_THAT(out_, HasSubstr("BLOCKED  breakers: GPU 0 (gpu_id 51110): its breaker is open: "));

  EXPECT_EQ(run({"suspend", pid}), 1);
  EXPECT_THAT(
      err_,
      ContainsRegex(
          "^sluice: GPU 0 \\(gpu_id 51110\\): its breaker is open: [^\n]+\n"
          "sluice: process " +
          pid + " was not suspended, because a breaker is open; --force suspends it anyway\n$"));
  EXPECT_EQ(out_, "");
  EXPECT_TRUE(target.runs());
  auto holder = start({"suspend", "--force", pid});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  EXPECT_THAT(holder.err(), HasSubstr("warning: GPU 0 (gpu_id 51110): its breaker is open"));
  EXPECT_THAT(holder.err(), Not(HasSubstr("GPU 1"))) << "it has no queue there";
  holder.signal(SIGTERM);
  EXPECT_EQ(holder.ends(), 0) << "what is lost cannot be told";

  EXPECT_EQ(run({"breaker", "rearm", "--all"}), 0);
  EXPECT_EQ(run({"queues", "--interval", "0s"}), 0);
  EXPECT_THAT(err_, Not(HasSubstr("breaker")));
}

// Symptom: `suspend` went on holding dead queues, and ended with 0.
TEST_F(SluiceBreaker, SuspendTellsOfAResetWhileItHolds) {
  const offline_target target{device_.roots()};
  ASSERT_TRUE(target.says('r'));
  auto holder = start({"suspend", std::to_string(target.pid())});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  std::ofstream{device_.root() + "/sim/control"} << "reset 51110\n" << std::flush;
  EXPECT_EQ(holder.ends(), 1);
  EXPECT_THAT(holder.err(),
              HasSubstr("GPU 51110 was reset while process " + std::to_string(target.pid()) +
                        " was held: its queues on that GPU are dead"));
  EXPECT_THAT(holder.out(), Not(HasSubstr("runs again")));
  EXPECT_THAT(holder.err(), HasSubstr("GPU 0 (gpu_id 51110): its breaker is open now (file " +
                                      store_.path() + ")"));
  std::string message;
  const auto stored = store_.read(message);
  ASSERT_TRUE(stored) << message;
  ASSERT_TRUE(stored->contains(first));
  EXPECT_EQ(stored->at(first).why, breaker_cause::reset);
  ASSERT_TRUE(stored->at(first).until);
  EXPECT_EQ(*stored->at(first).until - stored->at(first).since, 24h);
  EXPECT_TRUE(stored->contains(second)) << "of its hive";
  EXPECT_EQ(run({"suspend", std::to_string(target.pid())}), 1);
  EXPECT_THAT(err_, HasSubstr("--force suspends it anyway"));
}

// Symptom: "runs again", exit code 0, errno 0, no breaker; and the reset ended the process.
TEST_F(SluiceBreaker, SuspendTellsOfAResumeThatFailsInHardware) {
  for (const std::string how : {"20ms", "20ms goes-on"}) {
    const offline_target target{device_.roots()};
    ASSERT_TRUE(target.says('r'));
    auto holder = start({"suspend", "--json", std::to_string(target.pid())});
    ASSERT_TRUE(holder.says("}\n")) << holder.err();
    control("fail-cycle 51110 " + how);
    holder.signal(SIGTERM);
    EXPECT_EQ(holder.ends(), 1) << how;
    EXPECT_THAT(holder.err(), ContainsRegex("failed in hardware|was reset")) << how;
    const auto text = holder.out();
    const auto end = boost::json::parse(text.substr(text.find('\n') + 1));
    EXPECT_EQ(end.at("event"), "end");
    EXPECT_EQ(end.at("reason"), "reset") << how;
    EXPECT_EQ(end.at("queues").at(0).at("errno"), EIO) << how;
    EXPECT_EQ(run({"breaker", "list"}), 0);
    EXPECT_THAT(out_, ContainsRegex(" 0 +51110 .* (preemption_failed|reset) +51110\n")) << how;
    ASSERT_EQ(run({"breaker", "rearm", "--all"}), 0);
  }
}

TEST_F(SluiceBreaker, ResumeTellsOfAResumeThatFailsInHardware) {
  const offline_target target{device_.roots()};
  ASSERT_TRUE(target.says('r'));
  const auto pid = std::to_string(target.pid());
  auto holder = start({"suspend", pid});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  control("fail-cycle 51110 20ms");
  EXPECT_EQ(run({"resume", pid}), 1);
  EXPECT_THAT(err_, ContainsRegex("failed in hardware|was reset"));
  EXPECT_EQ(holder.ends(), 1) << holder.err();
  EXPECT_THAT(holder.out(), Not(HasSubstr("runs again")));
}

TEST_F(SluiceBreaker, SuspendOpensItWhereTheHardwareFailsIt) {
  const offline_target target{device_.roots()};
  ASSERT_TRUE(target.says('r'));
  control("fail-cycle 51110 20ms");  // in the attach
  EXPECT_EQ(run({"suspend", std::to_string(target.pid())}), 1);
  EXPECT_THAT(err_, HasSubstr("if a preemption failed in hardware, the driver resets the GPU"));
  EXPECT_THAT(err_, HasSubstr("GPU 51110 was reset: all work on it is lost"));
  EXPECT_THAT(err_, HasSubstr("GPU 0 (gpu_id 51110): its breaker is open now"));
  EXPECT_THAT(err_, HasSubstr("GPU 1 (gpu_id 51367): its breaker is open now")) << "its hive";
  EXPECT_EQ(run({"breaker", "list"}), 0);
  EXPECT_THAT(out_, HasSubstr(" 51110"));
}

TEST(SluiceReset, IsToldWhileItLasts) {
  const simulated_device device{{.profile = profile_text("", "reset_time = \"25s\"\n")}};
  std::ofstream{device.root() + "/sim/control"} << "reset 51110\n" << std::flush;
  const auto says = [&](const std::string& verb, const std::string& sentence) {
    return eventually(patience, [&] {
      command made{SLUICE_PROGRAM, {verb}, device.environment()};
      const auto code = made.ends();
      return code == 1 && made.out().find(sentence) != std::string::npos;
    });
  };
  EXPECT_TRUE(says("doctor", "BLOCKED  device: " + device.roots().device +
                                 " cannot be opened: a GPU is being reset"));
  std::string message;
  const auto refused =
      kfd::device::open(device.roots().device, [&](std::string_view words) { message = words; });
  EXPECT_FALSE(refused);
  EXPECT_THAT(message, HasSubstr("; a GPU is being reset; try again in a few seconds"));
}

/// A process that breaks its second queue when told to. The driver remembers what went wrong only
/// while a session watches, and a session reads the list of queues when there is another queue.
int live_and_break(const kfd::roots& where, int said, int told) {
  auto client = sim::gpu_client::open({.device = where.device, .sysfs = where.sysfs});
  if (!client) return 1;
  auto good = (*client)->create_queue({.packets = 64});
  auto bad = (*client)->create_queue({.packets = 64});
  if (!good || !bad || !(*bad)->has_doorbell()) return 2;
  char order = 0;
  if (::write(said, "r", 1) != 1 || ::read(told, &order, 1) != 1) return 3;
  if (!(*bad)->submit({.length = 1ms})) return 4;
  // A barrier, which this device does not know. Nobody looks before the doorbell rings.
  *reinterpret_cast<std::uint16_t*>((*bad)->ring_base()) = 5;
  (*bad)->ring();
  if (::write(said, "b", 1) != 1 || ::read(told, &order, 1) != 1) return 5;
  const auto more = (*client)->create_queue({.packets = 64});
  if (!more) return 6;
  for (;;) ::pause();
}

TEST_F(SluiceBreaker, SuspendTellsOfAQueueInAnErrorState) {
  const auto where = device_.roots();
  const family target{[&](int said, int told) { return live_and_break(where, said, told); }};
  ASSERT_EQ(target.heard(), 'r');
  const auto pid = std::to_string(target.pid());
  auto holder = start({"suspend", pid, "0"});
  ASSERT_TRUE(holder.says("held by process")) << holder.err();
  target.tell('b');
  ASSERT_EQ(target.heard(), 'b');
  ASSERT_TRUE(eventually(
      patience, [&] { return device_.stats().find("\"broken_queues\":1") != std::string::npos; }));
  target.tell('q');
  EXPECT_TRUE(eventually(patience, [&] { return !holder.err().empty(); }));
  holder.signal(SIGTERM);
  EXPECT_EQ(holder.ends(), 1);
  EXPECT_THAT(holder.err(), ContainsRegex("^sluice: queue 1 of process " + pid +
                                          " is in an error state \\(QUEUE_PACKET_[A-Z_]+\\) and "
                                          "may never run[^\n]+\n$"));
}

}  // namespace
}  // namespace sluice::test::breaker_test
