// `sluice accept` on the simulated device: that all steps pass there, and that whatever goes wrong
// in a step ends it with the right word, with nothing suspended and no victim left.

#include "command.hpp"
#include "cost_draw.hpp"
#include "profile_file.hpp"
#include "simulated_device.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/sim/client.hpp"

namespace sluice::test::accept_test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class SluiceAccept : public testing::Test {
 protected:
  explicit SluiceAccept(const std::string& profile = fast_profile())
      : device_{{.profile = profile}} {}

  std::string file(const std::string& name) const { return device_.root() + "/../" + name; }
  void control(const std::string& line) const {
    std::ofstream{device_.root() + "/sim/control"} << line << std::endl;
  }
  command start(std::vector<std::string> words, const std::string& victim = "",
                const std::string& sysfs = "", const std::string& leaves = "") const {
    auto environment = environment_;
    for (auto& each : device_.environment()) environment.push_back(std::move(each));
    if (!sysfs.empty()) environment.insert(environment.begin(), "SLUICE_KFD_SYSFS=" + sysfs);
    environment.push_back("SLUICE_SIM_ROOT=" + device_.root());
    environment.push_back("SLUICE_BREAKERS=" + file("breakers"));
    if (!victim.empty()) environment.push_back("BAD_VICTIM=" + victim);
    if (!leaves.empty()) environment.push_back("BAD_VICTIM_LEAVES=" + leaves);
    // Of a reset it hears as soon as it comes: so long waits only who expects one.
    const std::vector<std::string> first{"accept",
                                         "--owner-lock=" + file("owner"),
                                         "--report=" + file("accept.md"),
                                         "--profile=" + file("measured.toml"),
                                         "--window=200ms",
                                         leaves.empty() ? "--settle=100ms" : "--settle=20s"};
    words.insert(words.begin(), first.begin(), first.end());
    if (!victim.empty()) words.push_back(std::string{"--victim="} + SLUICE_BAD_VICTIM);
    return {SLUICE_PROGRAM, std::move(words), std::move(environment)};
  }
  std::string report() const { return read_file(file("accept.md")); }

  /// Whether nobody has the device open any more, so that nothing is suspended.
  bool all_gone() const {
    return eventually(
        patience, [this] { return device_.stats().find("\"alive\":true") == std::string::npos; });
  }

  simulated_device device_;
  std::vector<std::string> environment_;  ///< Put before the device's.
};

const char* const every_step =
    "attach pointers speed attach-stall suspend-1-idle suspend-4-idle suspend-10-idle doorbell "
    "suspend-1-busy suspend-4-busy suspend-10-busy call-stall exit assert fault agent-killed";

TEST_F(SluiceAccept, PassesEveryStepOnTheSimulatedDevice) {
  auto all = start({"--repeat=3"});
  ASSERT_EQ(all.ends(60s), 0) << all.out() << all.err();
  std::istringstream names{every_step};
  for (std::string name; names >> name;) {
    EXPECT_THAT(all.out(), ContainsRegex("(^|\n)" + name + " +passed\n"));
    EXPECT_THAT(report(), HasSubstr("| " + name + " | passed |"));
  }
  EXPECT_THAT(all.out(), HasSubstr("The device is SIMULATED"));
  EXPECT_THAT(report(), StartsWith("# sluice accept, on a SIMULATED device"));
  EXPECT_TRUE(all_gone());

  // The costs of fast_profile(), and what a call takes besides; the size of what was measured.
  EXPECT_THAT(all.out(), HasSubstr("\naccepted; see "));
  EXPECT_THAT(report(), HasSubstr("- result: accepted\n"));
  EXPECT_THAT(read_file(file("measured.toml")), HasSubstr("simulated = true\naccepted = true\n"));
  const auto measured = sim::load_profile(file("measured.toml"));
  ASSERT_EQ(measured.gpus.size(), 1U);
  const auto& gpu = measured.gpus[0];
  EXPECT_GE(gpu.suspend_cost, 1ms);
  EXPECT_GE(gpu.resume_cost, 1ms);
  EXPECT_GE(gpu.resume_cost_p99, gpu.resume_cost);
  EXPECT_EQ(gpu.gpu_id, 51110U);
  EXPECT_EQ(gpu.wave_slots(), sim::default_profile().gpus[0].wave_slots());
}

TEST_F(SluiceAccept, IsReadByTheSimulatorTheLabAndThePolicySlo) {
  auto measures = start({"--repeat=2", "--steps=suspend-1-busy"});
  ASSERT_EQ(measures.ends(), 0) << measures.out() << measures.err();
  const auto cost = sim::load_profile(file("measured.toml")).gpus[0].suspend_cost;
  const simulated_device again{{.profile = file("measured.toml")}};
  EXPECT_THAT(again.output(), HasSubstr("profile 'measured'"));
  command lab{SLUICE_PROGRAM,
              {"lab", "--profile", file("measured.toml"), "--policy",
               "slo:request.p99=300ms,profile=" + file("measured.toml"), "--duration=10s",
               "--load=0.3", "--json", file("lab.json")},
              {}};
  EXPECT_EQ(lab.ends(), 0) << lab.err();
  std::ofstream{file("node.toml")} << "[policy]\nname = \"slo\"\nrequest.p99 = \"300ms\"\n"
                                      "profile = \"measured.toml\"\n";
  command shows{SLUICE_PROGRAM, {"check", file("node.toml")}, {}};
  EXPECT_EQ(shows.ends(), 0) << shows.err();
  EXPECT_THAT(shows.out(), HasSubstr("suspend_cost=" + std::to_string(cost / 1us) + "us"));
  EXPECT_THAT(shows.err(), HasSubstr("was measured on a simulated device"));
}

TEST_F(SluiceAccept, GivesThePolicySloNoCostsOfARunThatFailed) {
  auto measures = start({"--repeat=2", "--steps=suspend-1-idle,exit", "--limit=2s"}, "stays");
  ASSERT_EQ(measures.ends(), 1) << measures.out() << measures.err();
  EXPECT_THAT(measures.out(), HasSubstr("\nNOT ACCEPTED: exit failed; see "));
  EXPECT_EQ(sim::load_profile(file("measured.toml")).gpus.size(), 1U);
  std::ofstream{file("node.toml")} << "[policy]\nname = \"slo\"\nrequest.p99 = \"300ms\"\n"
                                      "profile = \"measured.toml\"\n";
  command shows{SLUICE_PROGRAM, {"check", file("node.toml")}, {}};
  EXPECT_EQ(shows.ends(), 1);
  EXPECT_THAT(shows.out() + shows.err(), HasSubstr("measured.toml contains accepted = false"));
}

/// What goes wrong, where, and what is said of it.
struct fault {
  const char* step;
  std::vector<std::string> control;  ///< Before the start.
  const char* victim;                ///< Of bad_victim; "": the good one.
  const char* says;
  std::vector<std::string> words{};
};
void PrintTo(const fault& which, std::ostream* out) { *out << which.step << ": " << which.says; }

class SluiceAcceptFault : public SluiceAccept, public testing::WithParamInterface<fault> {};

TEST_P(SluiceAcceptFault, EndsTheStepAndWhatWouldFollow) {
  const auto& what = GetParam();
  for (const auto& line : what.control) control(line);
  std::vector<std::string> words{"--repeat=60", std::string{"--steps=agent-killed,"} + what.step};
  const bool last = std::string{what.step} == "agent-killed";
  if (last) words.back() = "--steps=agent-killed";
  words.insert(words.end(), what.words.begin(), what.words.end());
  auto run = start(words, what.victim);
  EXPECT_EQ(run.ends(90s), 1) << run.out();
  EXPECT_THAT(run.out(),
              ContainsRegex(std::string{"(^|\n)"} + what.step + " +FAILED: [^\n]*" + what.says));
  EXPECT_THAT(run.out(), HasSubstr("NOT ACCEPTED"));
  EXPECT_THAT(report(), HasSubstr(std::string{"| "} + what.step + " | FAILED |"));
  if (!last) {
    EXPECT_THAT(report(), HasSubstr("| agent-killed | not run |"));
  }
  EXPECT_TRUE(all_gone()) << device_.stats();
}

INSTANTIATE_TEST_SUITE_P(
    EveryStep, SluiceAcceptFault,
    testing::Values(
        fault{"attach", {"answer DBG_TRAP:ENABLE EPERM times=100"}, "", "attach refused"},
        fault{"attach",
              {},
              "silent",
              "step time limit of 1s exceeded while waiting for the victim to start",
              {"--limit=1s"}},
        fault{"pointers", {}, "pretends", "the write pointers did not change"},
        fault{"speed", {}, "slow", "the attached victim ran at [0-9]+ % of its unattached speed"},
        fault{"attach-stall", {}, "pauses", "the bystander stalled for 1"},
        fault{"suspend-1-idle", {}, "fail-cycle 51110 20ms", "the driver reported ERROR"},
        fault{"suspend-4-idle",
              {"delay DBG_TRAP:SUSPEND_QUEUES 3500ms"},
              "",
              "driver call on GPU 51110 timed out"},
        fault{"suspend-10-idle", {}, "reset 51110", "the driver reset GPU 51110"},
        fault{"doorbell", {"kill-target 0ms"}, "", "the victim ended unexpectedly"},
        fault{"suspend-1-busy", {}, "fail-cycle 51110 20ms goes-on", "the driver reported ERROR"},
        fault{"suspend-4-busy",
              {"answer DBG_TRAP:SUSPEND_QUEUES EINVAL"},
              "",
              "did not suspend queue [0-9]: Invalid argument"},
        fault{"suspend-10-busy", {}, "dies", "the victim ended unexpectedly"},
        fault{"call-stall", {}, "pauses", "the bystander stalled for 1"},
        fault{"exit",
              {},
              "stays",
              "the attached victim received 'exit' but did not end",
              {"--limit=2s"}},
        fault{"assert", {}, "differs", "the unattached victim ended with signal 6 .*exit code 7"},
        fault{"fault", {}, "reset 51110", "the driver reset GPU 51110"},
        fault{"agent-killed", {}, "stops", "no kernel of the victim completed after the agent"}),
    [](const auto& each) {
      std::string name = each.param.step;
      std::erase(name, '-');
      return name + "N" + std::to_string(each.index);
    });

// Symptom: it said "accepted" where the GPU was reset for the last preemption, that of the victim's
// end.
TEST_F(SluiceAccept, HearsOfAResetThatComesOnceTheVictimIsGone) {
  auto run = start({"--steps=suspend-1-idle", "--repeat=1"}, "good", "", "reset 51110");
  EXPECT_EQ(run.ends(), 1) << run.out();
  EXPECT_THAT(run.out(), HasSubstr("suspend-1-idle   FAILED: the driver reset GPU 51110"));
  EXPECT_THAT(run.out(), HasSubstr("\nNOT ACCEPTED: suspend-1-idle failed; see "));
  EXPECT_THAT(report(), HasSubstr("| suspend-1-idle | FAILED |"));
  EXPECT_THAT(run.err(), HasSubstr("its breaker is open"));
}

TEST_F(SluiceAccept, HearsOfAResetAfterAStepThatWasNotPossible) {
  auto run = start({"--steps=suspend-4-idle,exit", "--repeat=1"}, "few", "", "reset 51110");
  EXPECT_EQ(run.ends(), 1) << run.out();
  EXPECT_THAT(run.out(), HasSubstr("suspend-4-idle   FAILED: the driver reset GPU 51110"));
  EXPECT_THAT(report(), HasSubstr("| exit | not run |"));
}

TEST_F(SluiceAccept, OpensTheBreakerOfAGpuThatFailed) {
  auto fails = start({"--steps=suspend-1-idle", "--repeat=60"}, "fail-cycle 51110 20ms");
  EXPECT_EQ(fails.ends(), 1);
  EXPECT_THAT(fails.err(), HasSubstr("its breaker is open"));
  auto refused = start({"--steps=attach"});
  EXPECT_EQ(refused.ends(), 1);
  EXPECT_THAT(refused.err(), HasSubstr("no step was started; use --force"));
}

TEST_F(SluiceAccept, GoesOnWhereTheVictimHasTooFewQueues) {
  auto few = start({"--steps=attach,suspend-4-idle,agent-killed", "--repeat=1"}, "few");
  EXPECT_EQ(few.ends(), 0) << few.out();
  EXPECT_THAT(few.out(),
              HasSubstr("not possible here: the victim was started with --queues 4 but has only 2 "
                        "compute queues"));
  const std::string but =
      "accepted, but 2 steps were not possible here: suspend-4-idle, agent-killed";
  EXPECT_THAT(few.out(), HasSubstr("\n" + but + "; see "));
  EXPECT_THAT(report(), HasSubstr("- result: " + but + "\n"));
  EXPECT_TRUE(all_gone());
}

// Symptom: it said "accepted" of a node where it could try nothing.
TEST_F(SluiceAccept, AcceptsNothingWhereNothingWasPossible) {
  auto none = start({"--steps=suspend-4-idle", "--repeat=1"}, "few");
  EXPECT_EQ(none.ends(), 1) << none.out();
  EXPECT_THAT(none.out(), HasSubstr("\nNOT ACCEPTED: no step was possible here; see "));
}

// Symptom: where the driver's list could not be read, nobody was on it.
TEST_F(SluiceAccept, FailsWhereItCannotSeeWhoElseIsThere) {
  const auto where = device_.roots();
  const auto seen = file("sysfs");
  std::filesystem::create_directory(seen);
  std::filesystem::create_symlink(where.sysfs + "/topology", seen + "/topology");
  std::filesystem::create_symlink(where.sysfs + "/proc", seen + "/proc");
  auto run = start({"--steps=attach-stall,speed", "--repeat=2"}, "", seen);
  ASSERT_TRUE(
      eventually(patience, [&] { return report().find("| speed | started") != report().npos; }));
  std::filesystem::remove(seen + "/proc");
  EXPECT_EQ(run.ends(), 1) << run.out();
  EXPECT_THAT(run.out(), HasSubstr("FAILED: cannot list the processes that use the driver: cannot "
                                   "read " +
                                   seen + "/proc: No such file or directory"));
}

TEST_F(SluiceAccept, RefusesBesideOtherProcesses) {
  const auto where = device_.roots();
  auto other = sim::gpu_client::open({.device = where.device, .sysfs = where.sysfs});
  ASSERT_TRUE(other);
  auto refused = start({"--steps=attach"});
  EXPECT_EQ(refused.ends(), 1);
  EXPECT_THAT(refused.err(),
              HasSubstr("other processes use the driver: " + std::to_string(::getpid()) + " ("));
  auto told = start({"--steps=attach", "--beside-others"});
  EXPECT_EQ(told.ends(), 0) << told.out() << told.err();
}

// Symptom: whoever was named as the agent is, once that was there, might use the driver beside it.
TEST_F(SluiceAccept, TakesNobodyForItsAgentByTheName) {
  auto run = start({"--steps=speed,attach-stall", "--repeat=2"});
  ASSERT_TRUE(
      eventually(patience, [&] { return report().find("| speed | started") != report().npos; }));
  std::array<char, 16> own{};
  ::prctl(PR_GET_NAME, own.data());
  ::prctl(PR_SET_NAME, "sluice-agent");
  const auto where = device_.roots();
  auto other = sim::gpu_client::open({.device = where.device, .sysfs = where.sysfs});
  ASSERT_TRUE(other);
  EXPECT_EQ(run.ends(), 1) << run.out();
  ::prctl(PR_SET_NAME, own.data());
  EXPECT_THAT(run.out(), ContainsRegex(" +FAILED: other processes use the driver: .*" +
                                       std::to_string(::getpid()) + " \\(sluice-agent\\)"));
}

TEST_F(SluiceAccept, LeavesNothingSuspendedHoweverItEnds) {
  for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
    auto run = start({"--steps=attach,suspend-4-busy", "--repeat=10000"});
    ASSERT_TRUE(run.says("attach           passed"));
    // In the midst of its suspends.
    ASSERT_TRUE(eventually(patience, [&] {
      return device_.stats().find("\"suspended_queues\":4") != std::string::npos;
    })) << device_.stats();
    run.signal(signal);
    EXPECT_EQ(run.ends(), signal == SIGKILL ? 128 + SIGKILL : 1);
    EXPECT_TRUE(all_gone()) << device_.stats();
    // As when the machine hangs: what was found before is there, and where it stood.
    if (signal == SIGKILL) {
      EXPECT_THAT(report(), HasSubstr("| attach | passed |"));
      EXPECT_THAT(report(), HasSubstr("| suspend-4-busy | started, not finished |"));
      EXPECT_THAT(report(), HasSubstr("NOT ACCEPTED so far: suspend-4-busy was started"));
      break;
    }
    EXPECT_THAT(run.out(), HasSubstr("FAILED: a signal interrupted this command"));
    EXPECT_THAT(report(), HasSubstr("NOT ACCEPTED"));
  }
}

TEST_F(SluiceAccept, SaysWhatItWouldDoWithoutDoingIt) {
  auto list = start({"--list"});
  EXPECT_EQ(list.ends(), 0);
  std::istringstream names{every_step};
  for (std::string name; names >> name;)
    EXPECT_THAT(list.out(), ContainsRegex("\n" + name + " +[^\n]+\n +at worst: "));
  auto dry = start({"--dry-run", "--steps=fault,attach"});
  EXPECT_EQ(dry.ends(), 0) << dry.err();
  EXPECT_THAT(dry.out(), HasSubstr("; steps: attach, fault\n"));
  EXPECT_EQ(report(), "");
  auto wrong = start({"--steps=attach,nonesuch"});
  EXPECT_EQ(wrong.ends(), 2);
  EXPECT_THAT(wrong.err(), HasSubstr("unknown step 'nonesuch'; available: attach, pointers,"));
  auto time = start({"--limit=5"});
  EXPECT_EQ(time.ends(), 2);
  auto none = start({"--steps=attach", "--victim=/no/such/program"});
  EXPECT_EQ(none.ends(), 1);
  EXPECT_THAT(none.err(), HasSubstr("cannot run the victim program /no/such/program"));
}

// Symptom: one GPU whose resets it heard of was enough.
TEST(SluiceAcceptOnTwoGpus, SaysOfHowManyItHearsNoResets) {
  const simulated_device two{{.profile = fast_profile(), .gpus = 2}};
  std::ofstream{two.root() + "/sim/control"} << "answer SMI_EVENTS EPERM" << std::endl;
  auto environment = two.environment();
  environment.push_back("SLUICE_SIM_ROOT=" + two.root());
  environment.push_back("SLUICE_BREAKERS=" + two.root() + "/../breakers");
  command run{
      SLUICE_PROGRAM,
      {"accept", "--steps=attach", "--owner-lock=" + two.root() + "/../owner",
       "--report=" + two.root() + "/../accept.md", "--profile=" + two.root() + "/../measured.toml"},
      std::move(environment)};
  EXPECT_EQ(run.ends(), 0) << run.out() << run.err();
  EXPECT_THAT(run.err(),
              HasSubstr("the driver does not report resets of 1 of 2 GPUs to this process"));
}

class SluiceAcceptOnMes : public SluiceAccept {
 protected:
  SluiceAcceptOnMes() : SluiceAccept{"gfx1100"} {}
};

// A call takes four commands there, and the profile has what one costs.
TEST_F(SluiceAcceptOnMes, MeasuresWhatOneQueueCosts) {
  auto run = start({"--steps=suspend-4-busy", "--repeat=5"});
  ASSERT_EQ(run.ends(), 0) << run.out() << run.err();
  const auto measured = sim::load_profile(file("measured.toml"));
  EXPECT_EQ(measured.gpus[0].scheduler, sim::queue_scheduler::mes);
  EXPECT_GE(measured.gpus[0].suspend_cost, 1ms);
  EXPECT_LT(measured.gpus[0].suspend_cost, 3ms);
}

class SluiceAcceptOnNvidia : public SluiceAccept {
 protected:
  SluiceAcceptOnNvidia() : SluiceAccept{"h100"} {}
};

TEST_F(SluiceAcceptOnNvidia, PassesTheStepsThatApplyToTheDriver) {
  auto run = start({"--driver=nvidia", "--repeat=2", "--limit=5min",
                    "--steps=attach,pointers,suspend-1-idle,suspend-10-idle,doorbell,"
                    "suspend-4-busy,quantum,exit,assert,agent-killed"});
  ASSERT_EQ(run.ends(5min), 0) << run.out() << run.err();
  EXPECT_TRUE(all_gone()) << device_.stats();
  for (const char* const name : {"attach", "suspend-1-idle", "suspend-10-idle", "doorbell",
                                 "suspend-4-busy", "quantum", "exit", "agent-killed"})
    EXPECT_THAT(report(), HasSubstr(std::string{"| "} + name + " | passed |"));
  for (const char* const name : {"pointers", "assert"})
    EXPECT_THAT(report(), HasSubstr(std::string{"- "} + name +
                                    ": skipped: does not apply to driver nvidia: the "));
  EXPECT_THAT(run.out(), HasSubstr("\naccepted; see "));
  EXPECT_THAT(report(), StartsWith("# sluice accept, on a SIMULATED device"));
  EXPECT_THAT(report(), HasSubstr("| request beside the victim with a quantum of 50 us | "));

  // The costs of the profile h100, and what a call takes besides.
  EXPECT_THAT(read_file(file("measured.toml")), HasSubstr("simulated = true\naccepted = true\n"));
  const auto measured = sim::load_profile(file("measured.toml"));
  EXPECT_EQ(measured.driver, sim::driver_kind::nvidia);
  EXPECT_EQ(measured.driver_version, "580.159.04");
  ASSERT_EQ(measured.gpus.size(), 1U);
  EXPECT_EQ(measured.gpus[0].scheduler, sim::queue_scheduler::channels);
  EXPECT_EQ(measured.gpus[0].gpu_id, 0x400U);
  EXPECT_TRUE(measured.gpus[0].time_sliced);
  EXPECT_GE(measured.gpus[0].suspend_cost, 640us);
  EXPECT_GE(measured.gpus[0].resume_cost, 350us);
}

TEST_F(SluiceAcceptOnNvidia, MeasuresTheQuantumWithoutAStepBefore) {
  auto run = start({"--repeat=2", "--steps=suspend-1-idle,quantum"});
  ASSERT_EQ(run.ends(), 0) << run.out() << run.err();
  const auto text = read_file(file("measured.toml"));
  for (const char* const key : {"request_alone", "request_beside", "request_with_quantum"})
    EXPECT_THAT(text, AllOf(HasSubstr(std::string{key} + "_p50 = "),
                            HasSubstr(std::string{key} + "_p99 = ")));
  EXPECT_NO_THROW(sim::load_profile(file("measured.toml")));
  auto alone = start({"--repeat=1", "--steps=quantum"});
  EXPECT_EQ(alone.ends(), 0) << alone.out();
  EXPECT_THAT(report(), HasSubstr("| quantum | passed |"));
}

TEST_F(SluiceAcceptOnNvidia, NamesTheRisksOfTheDriver) {
  auto list = start({"--list"});
  EXPECT_EQ(list.ends(), 0);
  EXPECT_THAT(list.out(), ContainsRegex("\nsuspend-1-idle +[^\n]+\n +at worst: [^\n]+ Xid"));
  EXPECT_THAT(list.out(), AllOf(Not(HasSubstr("runlist")), Not(HasSubstr("hive"))));
}

TEST_F(SluiceAcceptOnNvidia, RecordsThatTheReleaseWasNotTested) {
  const std::string proc = file("proc_of_another");
  std::filesystem::create_directory(proc);
  std::filesystem::create_directory_symlink(device_.nvidia_proc() + "/gpus", proc + "/gpus");
  std::ofstream{proc + "/version"}
      << "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release\n";
  environment_ = {"SLUICE_NVIDIA_PROC=" + proc};
  auto run = start({"--repeat=1", "--steps=suspend-1-idle"});
  EXPECT_EQ(run.ends(), 0) << run.out() << run.err();
  const char* const note = "driver release 595.45.04 was not tested with sluice\n";
  EXPECT_THAT(run.err(), HasSubstr(std::string{"warning: "} + note));
  EXPECT_THAT(report(), HasSubstr(std::string{"\n- "} + note));
}

TEST_F(SluiceAcceptOnNvidia, FailsAStepWhoseSuspendTheDriverRefuses) {
  control("answer FIFO_DISABLE_CHANNELS:DISABLE GPU_IS_LOST times=100");
  auto run = start({"--repeat=1", "--steps=suspend-1-idle,exit"});
  EXPECT_EQ(run.ends(), 1) << run.out();
  EXPECT_THAT(run.out(), ContainsRegex("(^|\n)suspend-1-idle +FAILED: the driver did not suspend"));
  EXPECT_THAT(report(), HasSubstr("| exit | not run |"));
  EXPECT_TRUE(all_gone()) << device_.stats();
}

// Both quantiles are kept, so that a simulation of what was measured measures it again.
TEST(CostDraw, KeepsTheMedianAndTheNinetyNinthPercentile) {
  sim::cost_draw draw;
  std::vector<duration> all;
  for (int i = 0; i < 100000; ++i) all.push_back(draw.next(2ms, 50ms));
  std::ranges::sort(all);
  EXPECT_EQ(all.front(), 2ms);
  EXPECT_NEAR(static_cast<double>(all[50000].count()), 2e6, 1e5);
  EXPECT_NEAR(static_cast<double>(all[98999].count()), 50e6, 5e6);
  EXPECT_LT(all.back(), 55ms);
  EXPECT_EQ(sim::cost_draw{}.next(2ms, 0ms), 2ms);
}

}  // namespace
}  // namespace sluice::test::accept_test
