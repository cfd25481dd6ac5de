/// Processes that no debug session can suspend, paused as a whole, and what undoes that when host,
/// agent, guardian or target end. Real processes, on the simulated device.

#include "agent_processes.hpp"
#include "backend_loop.hpp"
#include "offline_target.hpp"
#include "simulated_device.hpp"
#include "test_seed.hpp"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/kfd/driver.hpp"

namespace sluice::agent::process_pause_test {
namespace {

using namespace std::chrono_literals;
using test::backend_loop;
using test::channel;
using test::child_process;
using test::eventually;
using test::find_guardian_of;
using test::guardian_of;
using test::is_gone;
using test::offline_target;
using ::testing::HasSubstr;

/// What a machine that does other things as well may take to bring the target back.
constexpr duration soon = 10s;
/// So that no lapse of it, while a test waits, does what the test is about. A loop ticks four times
/// in it.
constexpr duration long_lease = 2 * soon;
constexpr process_id target_id{1};

class ProcessPause : public ::testing::Test {
 protected:
  explicit ProcessPause(const std::string& driver = "")
      : device_({.profile = test::fast_profile(driver), .gpus = 2}) {}

  void begin(offline_target::options how = {.runtime = false}) {
    target_ = std::make_unique<offline_target>(device_.roots(), how);
    ASSERT_TRUE(target_->says('r'));
    queues_ = static_cast<std::size_t>(how.queues);
  }
  void TearDown() override {
    loop_.reset();
    if (target_) {
      EXPECT_EQ(target_->wrong(), 0U);
    }
  }

  agent_options options(bool criu_pause = true) {
    return {.driver = kfd::acting({.where = device_.roots(), .criu_pause = criu_pause}),
            .agent_path = SLUICE_AGENT_PROGRAM,
            .owner_lock = device_.root() + "/owner",
            .lease = lease_,
            .say = [this](std::string_view words) {
              const std::lock_guard lock{mutex_};
              said_ += std::string{words} + "\n";
            }};
  }
  std::string said() {
    const std::lock_guard lock{mutex_};
    return said_;
  }

  /// A target, and a scheduler's loop that has attached to it.
  backend_loop& attached(offline_target::options how = {.runtime = false}) {
    begin(how);
    loop_.emplace(make_agent_backend(options()));
    if (!loop_->start() || !attach(*loop_))
      throw std::runtime_error("the target was not attached: " + said());
    return *loop_;
  }
  bool attach(backend_loop& loop) const {
    if (!loop->attach(target_id, target_->pid(), target_->start_time())) return false;
    return loop.until([&] { return loop.queues[target_id].size() == queues_; });
  }
  static bool suspend(backend_loop& loop, const std::vector<std::uint32_t>& ids = {0}) {
    return done(loop.suspend(target_id, ids), ids.size());
  }
  static bool resume(backend_loop& loop, const std::vector<std::uint32_t>& ids = {0}) {
    return done(loop.resume(target_id, ids), ids.size());
  }
  /// For queue 0; does not wait.
  static bool hand_over(backend_loop& loop, command_kind kind) {
    batch work;
    work.id = 1000;
    work.target = target_id;
    work.gpu = gpu_id{51110};
    work.kind = kind;
    work.count = 1;
    work.queues[0] = driver_queue_id{0};
    if (!loop->submit(work)) return false;
    loop->flush();
    return true;
  }
  static bool done(const std::optional<batch_result>& answer, std::size_t count) {
    if (!answer || answer->count != count) return false;
    return std::all_of(answer->outcomes.begin(),
                       answer->outcomes.begin() + static_cast<std::ptrdiff_t>(count),
                       [](outcome each) { return each == outcome::done; });
  }

  pid_t agent_pid() const { return test::agent_of(device_.root() + "/owner"); }

  /// A line for the device's sim/control.
  void control(const std::string& line) const {
    std::ofstream file{device_.root() + "/sim/control"};
    file << line << std::endl;
    if (!file) throw std::runtime_error("sim/control refuses '" + line + "'");
  }

  /// Milliseconds that the driver counted, on the GPUs together.
  std::uint64_t evicted_ms() const {
    std::uint64_t sum = 0;
    for (const auto& each : std::filesystem::directory_iterator{device_.roots().sysfs + "/proc/" +
                                                                std::to_string(target_->pid())}) {
      if (!each.path().filename().string().starts_with("stats_")) continue;
      sum += std::stoull(test::read_file(each.path() / "evicted_ms"));
    }
    return sum;
  }
  /// While the driver counts so much more time, none of the target's kernels finishes. (One that
  /// finished before may be counted late.)
  bool stays_paused() const {
    constexpr std::uint64_t enough_ms = 100;  // A kernel takes 0.3 ms.
    auto kernels = target_->kernels();
    auto since = evicted_ms();
    return eventually(soon, [&] {
      const auto paused = evicted_ms();
      const auto finished = target_->kernels();
      if (std::exchange(kernels, finished) != finished) since = paused;
      return paused >= since + enough_ms;
    });
  }
  bool runs_again() const {
    if (!target_->runs(soon)) return false;
    // Not evicted any more on any GPU: the clocks stand.
    return eventually(soon, [&] {
      const auto before = evicted_ms();
      ::usleep(20'000);
      return evicted_ms() == before;
    });
  }

  /// SIGSTOP reaches it past its tracer; SIGCONT lets it go on.
  bool stops_when_told() const {
    ::kill(target_->pid(), SIGSTOP);
    const auto stopped = target_->process().status();
    ::kill(target_->pid(), SIGCONT);
    return stopped && WIFSTOPPED(*stopped) && WSTOPSIG(*stopped) == SIGSTOP;
  }

  /// `sluice-agent --rescue`. \return its exit status; `output` is what it said.
  int rescue(std::string& output) const {
    const std::string command = std::string{SLUICE_AGENT_PROGRAM} + " --rescue --owner-lock " +
                                device_.root() + "/owner 2>&1";
    FILE* const pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return -1;
    output.assign(1000, '\0');
    output.resize(::fread(output.data(), 1, output.size(), pipe));
    return WEXITSTATUS(::pclose(pipe));
  }

  /// A target, and a scheduler in a process of its own that has paused it.
  child_process& paused_by_another(offline_target::options how = {.runtime = false}) {
    begin(how);
    host_.emplace([this](channel& line) {
      backend_loop loop{make_agent_backend(options())};
      if (!loop.start() || !attach(loop) || !suspend(loop)) return 1;
      line.send("paused");
      for (;;) loop.turn(50ms);
    });
    if (!host_->says("paused", 20s)) throw std::runtime_error("the target was not paused");
    return *host_;
  }
  /// Leaves it paused by an agent that is dead. \return the guardian, which is stopped.
  pid_t paused_by_the_dead() {
    child_process& host = paused_by_another();
    const pid_t agent = agent_pid();
    const pid_t guardian = guardian_of(agent);
    host.signal(SIGSTOP);
    ::kill(guardian, SIGSTOP);
    ::kill(agent, SIGKILL);
    return guardian;
  }

  test::simulated_device device_;
  std::unique_ptr<offline_target> target_;
  std::size_t queues_ = 0;
  duration lease_ = long_lease;
  std::mutex mutex_;
  std::string said_;
  std::optional<backend_loop> loop_;
  std::optional<child_process> host_;
};

TEST_F(ProcessPause, PausesAndUnpausesWhatNoSessionCanSuspend) {
  backend_loop& loop = attached();
  EXPECT_EQ(evicted_ms(), 0U) << "attaching pauses nothing";
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(suspend(loop));
    EXPECT_TRUE(stays_paused());
    ASSERT_TRUE(resume(loop));
    EXPECT_TRUE(runs_again());
  }
  EXPECT_THAT(said(), HasSubstr("each suspend pauses the whole process"));
}

TEST_F(ProcessPause, IsNeverChosenWithoutTheOption) {
  begin();
  backend_loop loop{make_agent_backend(options(false))};
  ASSERT_TRUE(loop.start());
  EXPECT_EQ(find_guardian_of(agent_pid()), 0);
  ASSERT_TRUE(loop->attach(target_id, target_->pid(), target_->start_time()));
  ASSERT_TRUE(loop.until([&] { return loop.attachments.contains(target_id); }));
  EXPECT_EQ(loop.attachments[target_id], errc::not_managed);
  EXPECT_FALSE(suspend(loop));
  EXPECT_TRUE(target_->runs());
  EXPECT_EQ(evicted_ms(), 0U);
  EXPECT_THAT(said(), HasSubstr("without enabling the ROCm runtime's debug support"));
}

TEST_F(ProcessPause, LeavesWhatASessionCanSuspendToTheSession) {
  backend_loop& loop = attached({.queues = 2});
  ASSERT_TRUE(suspend(loop, {0, 1}));
  EXPECT_TRUE(target_->stands_still());
  ASSERT_TRUE(resume(loop, {0, 1}));
  EXPECT_TRUE(target_->runs());
  EXPECT_EQ(evicted_ms(), 0U);
}

// The driver counts pauses, and one unpause takes back one of them.
TEST_F(ProcessPause, LastsFromTheFirstSuspendedQueueToTheLastResumedOneOfAllGpus) {
  backend_loop& loop = attached({.queues = 3, .runtime = false, .every_gpu = true});
  std::set<gpu_id> gpus;
  for (const auto& each : loop.added) gpus.insert(each.gpu);
  ASSERT_EQ(gpus.size(), 2U);
  ASSERT_TRUE(suspend(loop, {0, 2}));
  EXPECT_TRUE(stays_paused()) << "queue 1 on the other GPU, too";
  ASSERT_TRUE(suspend(loop, {1}));
  ASSERT_TRUE(suspend(loop, {0, 1, 2}));
  ASSERT_TRUE(resume(loop, {1}));
  ASSERT_TRUE(resume(loop, {0}));
  EXPECT_TRUE(stays_paused());
  ASSERT_TRUE(resume(loop, {2}));
  EXPECT_TRUE(runs_again());
  ASSERT_TRUE(resume(loop, {0, 1, 2}));
  EXPECT_TRUE(runs_again());
}

TEST_F(ProcessPause, EndsWhenTheLastSuspendedQueueIsDestroyed) {
  backend_loop& loop = attached({.queues = 2, .runtime = false});
  ASSERT_TRUE(suspend(loop, {1}));
  EXPECT_TRUE(stays_paused());
  ASSERT_TRUE(target_->obeys('d'));  // Its newest, which is 1.
  ASSERT_TRUE(loop.until([&] { return loop.queues[target_id].size() == 1; }));
  EXPECT_TRUE(runs_again());
}

TEST_F(ProcessPause, HearsOfNewQueuesAndPausesForThem) {
  backend_loop& loop = attached();
  const auto unknown = loop.suspend(target_id, {1});
  ASSERT_TRUE(unknown);
  EXPECT_EQ(unknown->outcomes[0], outcome::invalid);
  EXPECT_EQ(evicted_ms(), 0U) << "paused for a queue that does not exist";
  ASSERT_TRUE(target_->obeys('q'));
  ASSERT_TRUE(suspend(loop, {1})) << "before it has been reported";
  EXPECT_TRUE(loop.until([&] { return loop.queues[target_id].size() == 2; }));
  EXPECT_TRUE(stays_paused());
  ASSERT_TRUE(resume(loop, {1}));
  EXPECT_TRUE(runs_again());
}

TEST_F(ProcessPause, EndsWithTheAttachment) {
  backend_loop& loop = attached();
  ASSERT_TRUE(suspend(loop));
  ASSERT_TRUE(loop->detach(target_id));
  ASSERT_TRUE(loop.until([&] { return loop.detachments.contains(target_id); }));
  EXPECT_TRUE(runs_again());
  EXPECT_EQ(tracer_of(target_->pid()), 0);
}

TEST_F(ProcessPause, EndsWhenTheHostStopsIt) {
  backend_loop& loop = attached();
  ASSERT_TRUE(suspend(loop));
  const pid_t guardian = guardian_of(agent_pid());
  ASSERT_NE(guardian, 0);
  loop->stop();
  EXPECT_TRUE(runs_again());
  EXPECT_TRUE(eventually(soon, [&] { return is_gone(guardian); }));
}

TEST_F(ProcessPause, IsUndoneWhenTheAgentIsKilled) {
  backend_loop& loop = attached({.queues = 2, .runtime = false, .every_gpu = true});
  ASSERT_TRUE(suspend(loop, {0, 1}));
  EXPECT_TRUE(stays_paused());
  const pid_t first = agent_pid();
  const pid_t guardian = guardian_of(first);
  ASSERT_NE(guardian, 0);
  const time_point since = clock::now();
  ::kill(first, SIGKILL);
  EXPECT_TRUE(target_->runs(soon));
  RecordProperty("running_again_after_ms", static_cast<int>((clock::now() - since) / 1ms));
  EXPECT_TRUE(runs_again());
  EXPECT_TRUE(eventually(soon, [&] { return is_gone(guardian); })) << "it has nothing left to do";
  ASSERT_TRUE(loop.until([&] { return loop.restorations == 1; }));
  ASSERT_TRUE(attach(loop));
  ASSERT_TRUE(suspend(loop, {0, 1}));
  EXPECT_TRUE(stays_paused());
  ASSERT_TRUE(resume(loop, {0, 1}));
  EXPECT_TRUE(runs_again());
}

// Whatever the agent was in the middle of. Its successor's guardian has nothing to do with it.
TEST_F(ProcessPause, IsUndoneWheneverTheAgentIsKilled) {
  begin();
  const sluice::test::random_seed seed;
  std::mt19937 random{seed.value()};
  for (int round = 0; round < 20; ++round) {
    backend_loop loop{make_agent_backend(options())};
    ASSERT_TRUE(loop.start());
    ASSERT_TRUE(attach(loop));
    const auto kind = random() % 2 == 0 ? command_kind::resume : command_kind::suspend;
    if (kind == command_kind::resume) {
      ASSERT_TRUE(suspend(loop));
    }
    ASSERT_TRUE(hand_over(loop, kind));
    std::this_thread::sleep_for(std::chrono::microseconds{random() % 1500});
    ::kill(agent_pid(), SIGKILL);
    ASSERT_TRUE(runs_again()) << "round " << round;
  }
}

TEST_F(ProcessPause, IsUndoneWhenTheHostIsKilled) {
  child_process& host = paused_by_another();
  EXPECT_TRUE(stays_paused());
  host.signal(SIGKILL);
  EXPECT_TRUE(runs_again());
}

TEST_F(ProcessPause, IsUndoneWhenTheHostIsStopped) {
  lease_ = 500ms;
  child_process& host = paused_by_another();
  EXPECT_TRUE(stays_paused());
  host.signal(SIGSTOP);
  EXPECT_TRUE(runs_again());
  host.signal(SIGCONT);
}

// The order in which a service manager or an operator kills is not ours to choose.
TEST_F(ProcessPause, IsUndoneWhenHostAndAgentAreKilled) {
  child_process& host = paused_by_another();
  const pid_t agent = agent_pid();
  host.signal(SIGSTOP);
  ::kill(agent, SIGKILL);
  host.signal(SIGKILL);
  EXPECT_TRUE(runs_again());
}

TEST_F(ProcessPause, IsUndoneByTheAgentWhenItsGuardianIsKilled) {
  backend_loop& loop = attached();
  ASSERT_TRUE(suspend(loop));
  EXPECT_TRUE(stays_paused());
  const pid_t first = guardian_of(agent_pid());
  ASSERT_NE(first, 0);
  ::kill(first, SIGKILL);
  EXPECT_TRUE(runs_again());
  ASSERT_TRUE(loop.until([&] { return loop.restorations == 1; }));
  EXPECT_TRUE(loop.until([&] {
    const pid_t second = find_guardian_of(agent_pid());
    return second != 0 && second != first;
  }));
  EXPECT_THAT(said(), HasSubstr("its guardian has exited"));
}

TEST_F(ProcessPause, TheGuardianIsDeafToWhatEndsTheAgent) {
  paused_by_another();
  const pid_t guardian = guardian_of(agent_pid());
  ASSERT_NE(guardian, 0);
  EXPECT_EQ(::getsid(guardian), guardian);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) ::kill(guardian, signal);
  EXPECT_TRUE(stays_paused());
  EXPECT_FALSE(is_gone(guardian));
}

TEST_F(ProcessPause, OutlivesAgentAndGuardianUntilAnOperatorUndoesIt) {
  paused_by_another({.queues = 2, .runtime = false, .every_gpu = true}).signal(SIGSTOP);
  ASSERT_TRUE(test::kill_agent_and_guardian(agent_pid()));
  host_.reset();
  EXPECT_TRUE(stays_paused());
  std::string output;
  EXPECT_EQ(rescue(output), 0) << output;
  EXPECT_THAT(output, HasSubstr("resumed: 1 of 1\n  process " + std::to_string(target_->pid())));
  EXPECT_TRUE(runs_again());
  EXPECT_EQ(rescue(output), 0) << output;
  EXPECT_EQ(output, "nothing is held\n");
  EXPECT_TRUE(runs_again());
  EXPECT_EQ(tracer_of(target_->pid()), 0);
}

TEST_F(ProcessPause, IsNotUndoneByARescueWhileTheAgentLives) {
  backend_loop& loop = attached();
  ASSERT_TRUE(suspend(loop));
  std::string output;
  EXPECT_EQ(rescue(output), 1);
  EXPECT_THAT(output, HasSubstr("that agent resumes what it suspended"));
  EXPECT_TRUE(stays_paused());
}

TEST_F(ProcessPause, OutlivesAgentAndGuardianUntilTheNextAgentStarts) {
  paused_by_another().signal(SIGSTOP);
  ASSERT_TRUE(test::kill_agent_and_guardian(agent_pid()));
  host_.reset();
  EXPECT_TRUE(stays_paused());
  backend_loop loop{make_agent_backend(options())};
  ASSERT_TRUE(loop.start());
  EXPECT_TRUE(runs_again());
  EXPECT_THAT(said(), HasSubstr("ended without resuming 1 process; now resumed: 1"));
}

TEST_F(ProcessPause, EndsWithTheTarget) {
  backend_loop& loop = attached();
  ASSERT_TRUE(suspend(loop));
  EXPECT_TRUE(stays_paused());
  ::kill(target_->pid(), SIGKILL);
  EXPECT_TRUE(loop.until([&] { return loop.detachments.contains(target_id); }));
  const auto status = target_->process().status();
  ASSERT_TRUE(status);
  EXPECT_EQ(WTERMSIG(*status), SIGKILL);
  const pid_t guardian = guardian_of(agent_pid());
  ::kill(agent_pid(), SIGKILL);
  EXPECT_TRUE(eventually(soon, [&] { return is_gone(guardian); }));
}

TEST_F(ProcessPause, EndsWithTheTargetThatTheDeadAgentPaused) {
  const pid_t guardian = paused_by_the_dead();
  ::kill(target_->pid(), SIGKILL);
  ASSERT_TRUE(target_->process().status());
  ::kill(guardian, SIGCONT);
  EXPECT_TRUE(eventually(soon, [&] { return is_gone(guardian); }));
}

TEST_F(ProcessPause, EndsWhenTheTargetRunsAnotherProgram) {
  backend_loop& loop = attached();
  ASSERT_TRUE(suspend(loop));
  target_->tell('x');
  EXPECT_TRUE(loop.until([&] { return loop.queues[target_id].empty(); }));
  EXPECT_TRUE(eventually(soon, [&] { return command_of(target_->pid()) == "sleep"; }));
  const pid_t guardian = guardian_of(agent_pid());
  ::kill(agent_pid(), SIGKILL);
  EXPECT_TRUE(eventually(soon, [&] { return is_gone(guardian); }));
}

TEST_F(ProcessPause, EndsWhenTheTargetThatTheDeadAgentPausedRunsAnotherProgram) {
  const pid_t guardian = paused_by_the_dead();
  target_->tell('x');
  EXPECT_TRUE(eventually(soon, [&] { return command_of(target_->pid()) == "sleep"; }));
  ::kill(guardian, SIGCONT);
  EXPECT_TRUE(eventually(soon, [&] { return is_gone(guardian); }));
}

TEST_F(ProcessPause, IsUndoneWhenTheAgentIsKilledInTheMidstOfPausing) {
  backend_loop& loop = attached();
  control("delay CRIU_OP:PROCESS_INFO 1s");
  ASSERT_TRUE(hand_over(loop, command_kind::suspend));
  const pid_t agent = agent_pid();
  const pid_t guardian = guardian_of(agent);
  std::this_thread::sleep_for(300ms);
  ::kill(agent, SIGKILL);
  EXPECT_TRUE(eventually(soon, [&] { return is_gone(guardian); }));
  EXPECT_TRUE(runs_again());
}

TEST_F(ProcessPause, IsNotBegunWhenTheDriverRefuses) {
  backend_loop& loop = attached();
  control("answer CRIU_OP:PROCESS_INFO EIO times=1");
  const auto refused = loop.suspend(target_id, {0});
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->outcomes[0], outcome::invalid);
  EXPECT_EQ(refused->driver_errno, EIO);
  EXPECT_TRUE(runs_again());
  ASSERT_TRUE(suspend(loop));
  EXPECT_TRUE(stays_paused());
  ASSERT_TRUE(resume(loop));
  EXPECT_TRUE(runs_again());
}

TEST_F(ProcessPause, IsUndoneAsSoonAsTheDriverAllows) {
  backend_loop& loop = attached();
  ASSERT_TRUE(suspend(loop));
  control("answer CRIU_OP:UNPAUSE EIO times=1000000");
  const auto refused = loop.resume(target_id, {0});
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->outcomes[0], outcome::failed) << "it is not known to run";
  EXPECT_FALSE(loop.until([&] { return loop.detachments.contains(target_id); }, 1s));
  EXPECT_TRUE(stays_paused());
  EXPECT_EQ(loop.losses, 0) << "the agent's end would not help";
  control("no-faults");
  ASSERT_TRUE(loop.until([&] { return loop.detachments.contains(target_id); }));
  EXPECT_TRUE(runs_again());
  EXPECT_THAT(said(), HasSubstr("the driver refuses; retrying until it succeeds"));
}

TEST_F(ProcessPause, GoesOnAfterARefusalThatPassed) {
  backend_loop& loop = attached();
  ASSERT_TRUE(suspend(loop));
  control("answer CRIU_OP:UNPAUSE EIO times=1");
  const auto refused = loop.resume(target_id, {0});
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->outcomes[0], outcome::failed);
  EXPECT_TRUE(runs_again());
  ASSERT_TRUE(resume(loop));
  ASSERT_TRUE(suspend(loop));
  EXPECT_TRUE(stays_paused());
}

TEST_F(ProcessPause, IsUndoneByTheGuardianAsSoonAsTheDriverAllows) {
  backend_loop& loop = attached();
  ASSERT_TRUE(suspend(loop));
  const pid_t guardian = guardian_of(agent_pid());
  control("answer CRIU_OP:UNPAUSE EIO times=1000000");
  ::kill(agent_pid(), SIGKILL);
  ASSERT_TRUE(eventually(soon, [&] { return tracer_of(target_->pid()).value_or(0) != 0; }));
  EXPECT_TRUE(stays_paused());
  EXPECT_FALSE(is_gone(guardian));
  // It is the target's tracer meanwhile, and a good one.
  EXPECT_TRUE(stops_when_told());
  control("no-faults");
  EXPECT_TRUE(runs_again());
  EXPECT_TRUE(eventually(soon, [&] { return is_gone(guardian); }));
}

// Its signals pass as those of any target, paused or not.
TEST_F(ProcessPause, DisturbsNoSignals) {
  backend_loop& loop = attached();
  ASSERT_TRUE(suspend(loop));
  EXPECT_TRUE(stops_when_told());
  ASSERT_TRUE(resume(loop));
  EXPECT_TRUE(runs_again());
}

/// Where others are not traced for long, or are suspended by other means.
class ProcessPauseBesides : public ProcessPause, public ::testing::WithParamInterface<const char*> {
 protected:
  ProcessPauseBesides() : ProcessPause(GetParam()) {}
};

TEST_P(ProcessPauseBesides, PausesAndIsUndone) {
  backend_loop& loop = attached();
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(suspend(loop));
    EXPECT_TRUE(stays_paused());
    ASSERT_TRUE(resume(loop));
    EXPECT_TRUE(runs_again());
  }
  EXPECT_TRUE(stops_when_told());
  ASSERT_TRUE(suspend(loop));
  ::kill(agent_pid(), SIGKILL);
  EXPECT_TRUE(runs_again());
}
INSTANTIATE_TEST_SUITE_P(Drivers, ProcessPauseBesides,
                         ::testing::Values("authority = \"debugger_process\"\n",
                                           "batch_commands = true\n"));

TEST_F(ProcessPause, NamesTheCapabilityThatIsMissing) {
  begin();
  child_process host{[this](channel& line) {
    // What the agent, a program without file capabilities, then does not have either.
    if (::prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN) != 0 ||
        ::prctl(PR_CAPBSET_DROP, CAP_CHECKPOINT_RESTORE) != 0)
      return 2;
    backend_loop loop{make_agent_backend(options())};
    if (!loop.start() || !loop->attach(target_id, target_->pid(), target_->start_time())) return 3;
    if (!loop.until([&] { return loop.attachments.contains(target_id); })) return 4;
    const bool refused = loop.attachments[target_id] == errc::not_managed;
    loop.turn(100ms);
    line.send(refused ? said() : "attached");
    return 0;
  }};
  EXPECT_THAT(host.line().receive(20s).value_or(""), HasSubstr("CAP_CHECKPOINT_RESTORE"));
  EXPECT_TRUE(target_->runs());
}

}  // namespace
}  // namespace sluice::agent::process_pause_test
