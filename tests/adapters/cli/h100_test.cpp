// The command on the simulated H100, whose driver does not resume what an agent suspended when that
// is killed, and needs no tracer.

#include "agent_processes.hpp"
#include "command.hpp"
#include "gpu_program.hpp"
#include "simulated_device.hpp"

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/os/node_lock.hpp"

namespace sluice::test::h100_test {
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

class SluiceOnH100 : public testing::Test {
 protected:
  explicit SluiceOnH100(std::uint32_t gpus = 1) : device_{{.profile = "h100", .gpus = gpus}} {
    program_.ask(gpus == 1 ? "open" : "open both");
  }

  std::string directory() const { return device_.root() + "/run"; }
  std::string pid() const { return std::to_string(program_.pid()); }
  std::string name() const { return "process " + pid() + " (" + command_of(program_.pid()) + ")"; }
  std::unique_ptr<command> start(std::vector<std::string> words, bool with_directory = true) const {
    if (with_directory) words.insert(words.end(), {"--directory", directory()});
    auto environment = environment_;
    for (auto& each : device_.environment()) environment.push_back(std::move(each));
    environment.push_back("SLUICE_BREAKERS=" + device_.root() + "/breakers");
    return std::make_unique<command>(SLUICE_PROGRAM, std::move(words), std::move(environment));
  }
  finished run(std::vector<std::string> words, bool with_directory = true) const {
    const auto made = start(std::move(words), with_directory);
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

  void configure(const std::string& more = {}) const {
    std::ofstream{config()} << "[daemon]\nmode = \"enforce\"\ndriver = \"nvidia\"\n"
                            << "clients = false\ndirectory = \"" << directory() << "\"\n"
                            << "[scheduler]\nattach_after = \"10ms\"\nmax_suspend = \"60s\"\n"
                            << "offline_floor = 0\n"
                            << "[policy]\nplugin = \"" SLUICE_HOLD_ALL "\"\n"
                            << "[roles]\nstore = \"\"\npids = [{ pid = " << pid()
                            << ", role = \"offline\" }]\n"
                            << more;
  }
  std::string config() const { return device_.root() + "/sluice.toml"; }
  /// A daemon that has suspended the program.
  std::unique_ptr<command> run_daemon() const {
    configure();
    auto daemon = start({"run", "--config", config()}, false);
    EXPECT_TRUE(eventually(patience, [&] { return held_channels(device_) == 8; })) << daemon->err();
    return daemon;
  }
  /// Kills it, its agent and its guardian. \return whether none of them resumed the program: while
  /// one of them is stopped, another one may act after its lease.
  bool kill_all(command& daemon) const {
    const pid_t agent = agent_of(directory() + "/owner");
    const pid_t guardian = guardian_of(agent);
    if (agent <= 1 || guardian <= 1) return false;
    ::kill(guardian, SIGSTOP);
    ::kill(agent, SIGSTOP);
    daemon.signal(SIGKILL);
    ::kill(agent, SIGKILL);
    ::kill(guardian, SIGKILL);
    return daemon.ends() &&
           eventually(patience, [&] { return is_gone(agent) && is_gone(guardian); }) &&
           held_channels(device_) == 8;
  }

  simulated_device device_;
  gpu_program program_{device_};
  std::vector<std::string> environment_;  ///< Put before the device's.
};

TEST_F(SluiceOnH100, ShowsWhatAKilledAgentLeftSuspended) {
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
  EXPECT_THAT(doctor.out,
              AllOf(ContainsRegex("BLOCKED +records: the agent was killed together with its "
                                  "guardian, so these may still be suspended, or have "
                                  "a shortened time slice: "),
                    HasSubstr(name()), HasSubstr(advice)));
  const auto queues = run({"queues"});
  EXPECT_EQ(queues.code, 0);
  EXPECT_THAT(queues.out,
              ContainsRegex(pid() + " .* compute +- +- +orphaned .*\n.* copy +- +- +- "));
  EXPECT_THAT(queues.err, AllOf(HasSubstr(name() + " may still be suspended"), HasSubstr(advice)));
  const auto shown = boost::json::parse(run({"queues", "--json"}).out);
  EXPECT_EQ(shown.at("processes").at(0).at("orphaned"), true);
  EXPECT_TRUE(shown.at("processes").at(0).at("queues").at(0).at("ring_bytes").is_null());
  for (const char* const word : {"resume", "suspend"}) {
    const auto refused = run({word, pid()});
    EXPECT_EQ(refused.code, 1);
    EXPECT_EQ(refused.out, "");
    EXPECT_THAT(refused.err,
                AllOf(HasSubstr(name() + " may still be suspended"), HasSubstr(advice)));
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

TEST_F(SluiceOnH100, RescuesWithoutARecord) {
  ASSERT_NO_FATAL_FAILURE(leave_suspended());
  std::filesystem::remove(directory() + "/owner.1.holds");
  const auto lost = run({"rescue"});
  EXPECT_EQ(lost.code, 0) << lost.err;
  EXPECT_THAT(lost.out,
              HasSubstr("nothing is known to be held: " + directory() + " has no record"));
  EXPECT_EQ(held_channels(device_), 8);
  const auto all = run({"rescue", "--everything"});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_EQ(all.out, "everything that uses the driver nvidia runs\n");
  EXPECT_THAT(all.err, HasSubstr("sluice: time slices that offline_quantum shortened are restored "
                                 "only from a record"));
  EXPECT_EQ(held_channels(device_), 0);
}

// Symptom: it printed that time slices stay short, though the record restored them.
TEST_F(SluiceOnH100, RescuesEverythingAfterARecord) {
  ASSERT_NO_FATAL_FAILURE(leave_suspended());
  const auto all = run({"rescue", "--everything"});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_EQ(all.out,
            "resumed: 1 of 1\n  " + name() + "\neverything that uses the driver nvidia runs\n");
  EXPECT_EQ(all.err, "");
  EXPECT_EQ(held_channels(device_), 0);
}

TEST_F(SluiceOnH100, RescuesThroughTheDaemonThatOwnsTheNode) {
  const auto daemon = run_daemon();
  const auto untouched = run({"rescue", "--no-pause"});
  EXPECT_THAT(untouched.out, HasSubstr("run 'sluice pause --directory " + directory() + "'"));
  EXPECT_FALSE(std::filesystem::exists(directory() + "/disabled"));

  const auto rescued = run({"rescue", "--config", config()}, false);
  EXPECT_EQ(rescued.code, 0) << rescued.err;
  EXPECT_THAT(rescued.out,
              AllOf(HasSubstr("resumed: 1 of 1\n  " + name() + "\n"),
                    HasSubstr("process " + std::to_string(daemon->pid())),
                    HasSubstr(" stays paused and suspends nothing; 'sluice unpause --directory " +
                              directory() + "' ends the pause\n")));
  EXPECT_EQ(rescued.err, "");
  EXPECT_EQ(held_channels(device_), 0);
  EXPECT_TRUE(std::filesystem::exists(directory() + "/disabled"));
  const auto again = run({"rescue"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr(" owns the node, and has suspended no process\n"));

  const auto all = run({"rescue", "--everything"});
  EXPECT_EQ(all.code, 1);
  EXPECT_THAT(all.err, HasSubstr("'sluice rescue --everything --directory " + directory() + "'"));
  EXPECT_EQ(run({"unpause"}).code, 0);
  EXPECT_TRUE(eventually(patience, [&] { return held_channels(device_) == 8; }));
  // It cannot answer, and its agent resumes everything after the lease.
  daemon->signal(SIGSTOP);
  const auto silent = run({"rescue"});
  EXPECT_EQ(silent.code, 0);
  EXPECT_THAT(silent.err, HasSubstr("warning: "));
  EXPECT_EQ(held_channels(device_), 0);
  daemon->signal(SIGCONT);
}

TEST_F(SluiceOnH100, NamesAStoppedGuardianWhoseAgentWasKilled) {
  const auto daemon = run_daemon();
  const pid_t agent = agent_of(directory() + "/owner");
  const pid_t guardian = guardian_of(agent);
  ASSERT_GT(guardian, 1);
  ::kill(guardian, SIGSTOP);
  ::kill(agent, SIGKILL);
  ASSERT_TRUE(eventually(patience, [&] { return is_gone(agent); }));
  ASSERT_EQ(held_channels(device_), 8);
  const std::string number = std::to_string(guardian);
  const auto advice = AllOf(HasSubstr("its guardian, process " + number + ", is stopped"),
                            HasSubstr("run 'kill -CONT " + number + "', or 'kill -KILL " + number +
                                      "' and then 'sluice rescue --directory " + directory()));
  const auto doctor = run({"doctor"});
  EXPECT_EQ(doctor.code, 1);
  EXPECT_THAT(doctor.out, AllOf(ContainsRegex("BLOCKED +records: "), HasSubstr(name()), advice));
  const auto queues = run({"queues"});
  EXPECT_THAT(queues.out, ContainsRegex(pid() + " .* compute +- +- +guardian-stopped "));
  EXPECT_THAT(queues.err, AllOf(HasSubstr(name()), advice));
  for (const char* const word : {"resume", "suspend"}) {
    const auto refused = run({word, pid()});
    EXPECT_EQ(refused.code, 1);
    EXPECT_THAT(refused.err, AllOf(HasSubstr(name()), advice));
  }
  // The daemon waits for its next agent, which waits for the guardian.
  const auto why = run({"why", pid()});
  EXPECT_THAT(why.out, AllOf(ContainsRegex("^process " + pid() + " .* may still be suspended"),
                             advice, Not(HasSubstr("is running"))));
  EXPECT_EQ(why.err, "");
  const auto told = boost::json::parse(run({"why", pid(), "--json"}).out);
  EXPECT_EQ(told.at("why").at("state"), "guardian-stopped");
  const auto status = run({"status"});
  EXPECT_THAT(status.out, ContainsRegex("\ng[0-9]+ +offline +" + pid() + " .* guardian-stopped "));
  EXPECT_THAT(status.err, advice);
  std::smatch group;
  ASSERT_TRUE(std::regex_search(status.out, group, std::regex{"\n(g[0-9]+) +offline"}));
  EXPECT_THAT(run({"why", group[1]}).out, AllOf(HasSubstr("may still be suspended"), advice));
  EXPECT_THAT(run({"top", "--once"}).out, HasSubstr("guardian-stopped"));
  const auto rescue = run({"rescue"});
  EXPECT_EQ(rescue.code, 1);
  EXPECT_EQ(rescue.out, "");
  EXPECT_THAT(rescue.err, advice);
  EXPECT_FALSE(std::filesystem::exists(directory() + "/disabled"));
  EXPECT_EQ(held_channels(device_), 8);

  EXPECT_EQ(run({"pause"}).code, 0);
  ::kill(guardian, SIGCONT);
  EXPECT_TRUE(eventually(patience, [&] { return held_channels(device_) == 0; }));
  EXPECT_TRUE(
      eventually(patience, [&] { return run({"doctor"}).out.find(name()) == std::string::npos; }));
}

TEST_F(SluiceOnH100, NamesMissingRightsWhereItDoesNotSeeAProgram) {
  ASSERT_EQ(::geteuid(), 0U);
  for (const auto& each :
       {std::filesystem::path{device_.root()}, std::filesystem::path{device_.root()}.parent_path()})
    std::filesystem::permissions(each, std::filesystem::perms{0755});
  const auto as_nobody = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"--reuid=65534", "--regid=65534", "--clear-groups",
                                 "--bounding-set", "-all", SLUICE_PROGRAM});
    words.insert(words.end(), {"--directory", directory()});
    auto environment = device_.environment();
    environment.push_back("SLUICE_BREAKERS=" + device_.root() + "/breakers");
    command made{"/usr/bin/setpriv", std::move(words), std::move(environment)};
    const auto code = made.ends();
    return finished{code.value_or(-1), made.out(), made.err()};
  };
  const auto queues = as_nobody({"queues"});
  EXPECT_EQ(queues.code, 0);
  EXPECT_THAT(queues.out, HasSubstr("no process that this user may see uses a GPU\n"));
  EXPECT_THAT(queues.err, HasSubstr("warning: processes of other users are not listed"));
  const auto suspend = as_nobody({"suspend", pid()});
  EXPECT_EQ(suspend.code, 1);
  EXPECT_THAT(suspend.err, HasSubstr("cannot determine whether " + name() +
                                     " uses NVIDIA's driver: this user may not read its "
                                     "descriptors; run as root"));
  EXPECT_THAT(as_nobody({"doctor"}).out, ContainsRegex("note +discovery: this user may not read"));
  EXPECT_THAT(run({"doctor"}).out, ContainsRegex("ok +discovery: "));
}

// Symptom: it named a file of the driver kfd, which does not exist here.
TEST_F(SluiceOnH100, HasNoListOfHardwareQueues) {
  const auto shown = run({"hqds"}, false);
  EXPECT_EQ(shown.code, 1);
  EXPECT_EQ(shown.out, "");
  EXPECT_EQ(shown.err,
            "sluice: the driver nvidia has no list of hardware queues; run 'sluice queues' for the "
            "queues of processes\n");
}

TEST_F(SluiceOnH100, RescuesNothingInTheWrongPlace) {
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
  EXPECT_THAT(
      other.err,
      HasSubstr("/dev/kfd: No such file or directory\nsluice: not everything was resumed\n"));
}

TEST_F(SluiceOnH100, ShowsWhatADaemonHasSuspended) {
  const auto state = [&](const std::string& of) {
    return ContainsRegex(pid() + " .* compute +- +- +" + of + " .*\n.* copy +- +- +- ");
  };
  EXPECT_THAT(run({"queues"}).out, state("-"));
  bool orphaned = false;
  for (int count = 0; count < 5 && !orphaned; ++count) {
    const auto daemon = run_daemon();
    ASSERT_EQ(held_channels(device_), 8) << daemon->err();
    // It may have had to resume and suspend it again.
    finished queues;
    EXPECT_TRUE(eventually(patience, [&] {
      queues = run({"queues"});
      return testing::Matches(state("suspended"))(queues.out);
    })) << queues.out;
    EXPECT_EQ(queues.err, "");
    orphaned = kill_all(*daemon);
  }
  ASSERT_TRUE(orphaned);
  EXPECT_THAT(run({"queues"}).out, ContainsRegex(pid() + " .* compute +- +- +orphaned "));
  EXPECT_THAT(run({"doctor", "--config", config()}, false).out,
              AllOf(HasSubstr("killed together with its guardian, so"), HasSubstr(name())));
  const auto rescued = run({"rescue", "--config", config()}, false);
  EXPECT_EQ(rescued.out, "resumed: 1 of 1\n  " + name() + "\n") << rescued.err;
  EXPECT_EQ(held_channels(device_), 0);
}

TEST_F(SluiceOnH100, ShowsWhatIsSeenOfAProgramWithoutAClient) {
  gpu_program serving{device_};
  serving.ask("open");
  std::ofstream{config()} << "[daemon]\nmode = \"enforce\"\ndriver = \"nvidia\"\n"
                          << "clients = false\ndirectory = \"" << directory() << "\"\n"
                          << "[scheduler]\nattach_after = \"10ms\"\nmax_suspend = \"60s\"\n"
                          << "offline_floor = 0\n[policy]\nname = \"pointer_polling\"\n"
                          << "[roles]\nstore = \"\"\npids = [{ pid = " << pid()
                          << ", role = \"offline\" }, { pid = " << serving.pid()
                          << ", role = \"online\" }]\n";
  const auto daemon = start({"run", "--config", config()}, false);
  // Until the words are known that show whether kernels run.
  ASSERT_TRUE(eventually(patience, [&] {
    serving.ask("run");
    return run({"status", "--json"}).out.find("\"online_work\":\"finished\"") != std::string::npos;
  })) << daemon->err();
  boost::json::value gpu;
  EXPECT_TRUE(eventually(patience, [&] {
    gpu = boost::json::parse(run({"status", "--json"}).out).at("gpus").at(0);
    return gpu.at("offline_queues") == 8;  // once the agent is attached
  })) << gpu;
  // Symptom: 1, and 0 bytes.
  EXPECT_TRUE(gpu.at("online_queues").is_null());
  EXPECT_TRUE(gpu.at("vram_used_bytes").is_null());
  serving.ask("launch 10000000");
  std::string why;
  EXPECT_TRUE(eventually(patience, [&] {
    why = run({"why", pid()}).out;
    return testing::Matches(
        ContainsRegex("is held by policy pointer_polling[^\n]* has been busy on "
                      "GPU [0-9]+ for [^\n]* \\(seen: kernels running for "
                      "[0-9.]+ m?s\\)"))(why);
  })) << why;
}

TEST_F(SluiceOnH100, ChecksWhetherUnmarkedWorkCanBeSeen) {
  const auto found = [&](const std::string& mode, const std::string& driver) {
    std::ofstream{config()} << "[daemon]\nmode = \"" << mode << "\"\ndriver = \"" << driver
                            << "\"\n[scheduler]\nsee_unmarked = true\n"
                            << "[policy]\nname = \"fixed_timeslice\"\n";
    const auto checked = run({"check", config()}, false);
    EXPECT_EQ(checked.code, 0) << checked.err;
    return checked.out;
  };
  EXPECT_THAT(found("observe", "nvidia"),
              HasSubstr("not ready here: see_unmarked of [scheduler] has no effect: with the "
                        "driver nvidia, "));
  EXPECT_THAT(found("enforce", "nvidia"), Not(HasSubstr("see_unmarked")));
  EXPECT_THAT(found("observe", "kfd"), Not(HasSubstr("see_unmarked")));
}

TEST_F(SluiceOnH100, ActsOnAnUntestedReleaseIfTheDaemonDoes) {
  const std::string proc = device_.root() + "/proc_of_another";
  std::filesystem::create_directory(proc);
  std::filesystem::create_directory_symlink(device_.nvidia_proc() + "/gpus", proc + "/gpus");
  std::ofstream{proc + "/version"}
      << "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release\n";
  environment_ = {"SLUICE_NVIDIA_PROC=" + proc};
  configure();
  EXPECT_THAT(
      run({"check", config()}, false).out,
      HasSubstr("not ready here: driver: release 595.45.04, open kernel modules: not tested "
                "with sluice; "));
  const auto blocked = run({"doctor", "--config", config()}, false);
  EXPECT_THAT(blocked.out, ContainsRegex("BLOCKED +driver: release 595.45.04"));
  const auto refused = run({"suspend", pid(), "--for", "10ms", "--config", config()}, false);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("allow_untested_driver = true"));

  configure("[nvidia]\nallow_untested_driver = true\n");
  EXPECT_THAT(run({"check", config()}, false).out, Not(HasSubstr("not tested")));
  const auto allowed = run({"doctor", "--config", config()}, false);
  EXPECT_THAT(allowed.out, ContainsRegex("note +driver: release 595.45.04"));
  const auto held = run({"suspend", pid(), "--for", "10ms", "--config", config()}, false);
  EXPECT_EQ(held.code, 0) << held.err;
  EXPECT_THAT(held.out, HasSubstr("process " + pid() + " runs again"));
  EXPECT_TRUE(std::filesystem::exists(directory() + "/owner.1")) << "in the daemon's directory";
}

/// The program has one client for two GPUs, as a CUDA program has.
class SluiceOnTwoH100 : public SluiceOnH100 {
 protected:
  SluiceOnTwoH100() : SluiceOnH100(2) {}
  /// How many of the program's queues are suspended, by gpu_id. -1: it has others than 20 there.
  std::map<std::int64_t, int> suspended_by_gpu() const {
    const auto shown = boost::json::parse(run({"queues", "--json"}).out);
    std::map<std::int64_t, int> queues;
    std::map<std::int64_t, int> suspended;
    for (const auto& each : shown.at("processes").at(0).at("queues").as_array()) {
      const auto gpu = each.at("gpu_id").as_int64();
      ++queues[gpu];
      suspended[gpu] += each.at("suspended") == true ? 1 : 0;
    }
    for (const auto& [gpu, count] : queues)
      if (count != 20) suspended[gpu] = -1;
    return suspended;
  }
};

TEST_F(SluiceOnTwoH100, SuspendsAProgramOnBothGpus) {
  using by_gpu = std::map<std::int64_t, int>;
  EXPECT_EQ(suspended_by_gpu(), (by_gpu{{0x400, 0}, {0x500, 0}}));
  const auto holder = start({"suspend", pid()});
  ASSERT_TRUE(holder->says("held by process")) << holder->err();
  EXPECT_EQ(held_channels(device_), 16);
  EXPECT_EQ(suspended_by_gpu(), (by_gpu{{0x400, 8}, {0x500, 8}}));
  program_.ask("launch 20 0");
  program_.ask("launch 20 1");
  EXPECT_EQ(run({"resume", pid()}).code, 0);
  EXPECT_EQ(holder->ends(), 0);
  EXPECT_EQ(held_channels(device_), 0);
  program_.ask("wait");
}

TEST_F(SluiceOnTwoH100, HasADaemonThatSuspendsAProgramOnBothGpus) {
  configure();
  const auto daemon = start({"run", "--config", config()}, false);
  EXPECT_TRUE(eventually(patience, [&] { return held_channels(device_) == 16; })) << daemon->err();
  EXPECT_TRUE(eventually(patience, [&] {
    return suspended_by_gpu() == std::map<std::int64_t, int>{{0x400, 8}, {0x500, 8}};
  }));
  daemon->signal(SIGTERM);
  EXPECT_EQ(daemon->ends(), 0);
  EXPECT_EQ(held_channels(device_), 0);
}

}  // namespace
}  // namespace sluice::test::h100_test
