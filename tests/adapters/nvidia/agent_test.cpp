// Host, agent and target as separate processes on the simulated device, and what becomes of
// suspended channels when one of them fails.

#include "agent_processes.hpp"
#include "backend_loop.hpp"
#include "family.hpp"
#include "gpu_program.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/nvidia/driver.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::nvidia::agent_test {
namespace {

using namespace std::chrono_literals;
using test::backend_loop;
using test::eventually;
using test::gpu_program;
using test::held_channels;
using test::patience;
using test::slice_of;
using test::stat_of;
using ::testing::HasSubstr;

constexpr process_id target_id{1};
constexpr gpu_id gpu{0x400};
constexpr std::int64_t usual_slice = 2048;
/// So that no lapse of it, while a test waits, does what the test is about.
constexpr duration long_lease = 20s;

class NvidiaAgent : public testing::Test {
 protected:
  explicit NvidiaAgent(std::uint32_t gpus = 1) : device_{{.profile = "h100", .gpus = gpus}} {
    opened_ = program_.ask(gpus == 1 ? "open" : "open both");
  }

  std::unique_ptr<driver> make_driver() const {
    return nvidia::make_driver(
        {.where = {.device = device_.nvidia_device(), .proc = device_.nvidia_proc()}});
  }
  agent::agent_options options(duration lease = long_lease) {
    return {.driver = make_driver()->acting(),
            .agent_path = SLUICE_AGENT_PROGRAM,
            .owner_lock = owner_lock(),
            .lease = lease,
            .say = [this](std::string_view words) {
              const std::lock_guard lock{mutex_};
              said_ += std::string{words} + "\n";
            }};
  }
  std::string said() {
    const std::lock_guard lock{mutex_};
    return said_;
  }
  std::string owner_lock() const { return device_.root() + "/owner"; }
  pid_t agent_pid() const { return test::agent_of(owner_lock()); }
  std::uint32_t group() const { return opened_.at(2); }

  static bool attach(backend_loop& loop, const gpu_program& to, process_id id = target_id,
                     std::size_t channels = 20) {
    if (!loop->attach(id, to.pid(), to.start_time())) return false;
    return loop.until([&] { return loop.queues[id].size() == channels; }, patience);
  }
  static batch batch_of(const backend_loop& loop, command_kind what, process_id id = target_id,
                        gpu_id on = gpu) {
    static std::uint64_t last = 1000;
    batch work;
    work.id = ++last;
    work.target = id;
    work.gpu = on;
    work.kind = what;
    // Channels that a lost agent reported are reported again by the next one.
    std::set<driver_queue_id> computing;
    for (const queue_info& each : loop.added)
      if (each.target == id && each.gpu == on && each.type == queue_kind::compute)
        computing.insert(each.id);
    for (const driver_queue_id each : computing) work.queues[work.count++] = each;
    return work;
  }
  /// All 8 computing channels of a GPU.
  static bool act(backend_loop& loop, command_kind what, process_id id, gpu_id on = gpu) {
    const batch work = batch_of(loop, what, id, on);
    if (work.count != 8 || !loop->submit(work)) return false;
    if (!loop.until([&] { return loop.results.contains(work.id); }, patience)) return false;
    const batch_result& answer = loop.results.at(work.id);
    return std::all_of(answer.outcomes.begin(), answer.outcomes.begin() + work.count,
                       [](outcome each) { return each == outcome::done; });
  }
  static bool suspend(backend_loop& loop, process_id id = target_id) {
    return act(loop, command_kind::suspend, id);
  }
  static bool resume(backend_loop& loop) { return act(loop, command_kind::resume, target_id); }
  static bool shorten(backend_loop& loop, gpu_id on = gpu) {
    loop.quanta.clear();
    if (!loop->set_quantum(target_id, on, 100us)) return false;
    return loop.until([&] { return loop.quanta.contains(target_id); }, patience) &&
           !loop.quanta[target_id];
  }
  bool runs_again() {
    const bool free = eventually(patience, [&] {
      return held_channels(device_) == 0 && slice_of(device_, group()) == usual_slice;
    });
    if (free) program_.ask("run");
    return free;
  }

  test::simulated_device device_;
  gpu_program program_{device_};
  std::vector<std::uint32_t> opened_;
  std::mutex mutex_;
  std::string said_;
};

TEST_F(NvidiaAgent, SuspendsWhatTheSurveyFinds) {
  const auto survey = make_driver()->make_survey([](std::string_view) {});
  ASSERT_EQ(survey->gpus().size(), 1U);
  EXPECT_EQ(survey->gpus().front().id, gpu);
  std::vector<pid_t> pids;
  ASSERT_TRUE(survey->list_processes(pids));
  EXPECT_THAT(pids, testing::Contains(program_.pid()));

  backend_loop loop{agent::make_agent_backend(options())};
  ASSERT_TRUE(loop.start()) << said();
  ASSERT_TRUE(attach(loop, program_)) << said();
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(suspend(loop)) << said();
    EXPECT_EQ(held_channels(device_), 8);
    ASSERT_TRUE(resume(loop)) << said();
    EXPECT_EQ(held_channels(device_), 0);
  }
  ASSERT_TRUE(shorten(loop)) << said();
  EXPECT_EQ(slice_of(device_, group()), 100);
  ASSERT_TRUE(suspend(loop)) << said();
  loop->stop();
  EXPECT_TRUE(runs_again()) << said();
}

TEST_F(NvidiaAgent, LimitsTheLatencyOfProcessorsWhileAProcessIsAttached) {
  const unique_fd device{::open("/dev/cpu_dma_latency", O_RDONLY | O_CLOEXEC)};
  if (!device) GTEST_SKIP() << "this machine has no /dev/cpu_dma_latency";
  const auto limit_us = [&] {
    std::int32_t value = -1;
    return ::pread(device.get(), &value, sizeof value, 0) == sizeof value ? value : -1;
  };
  const std::int32_t before = limit_us();  // Another program may limit it, too.
  ASSERT_GE(before, 0);
  auto with = options();
  with.cpu_latency = 0us;
  backend_loop loop{agent::make_agent_backend(with)};
  ASSERT_TRUE(loop.start()) << said();
  EXPECT_EQ(limit_us(), before);
  ASSERT_TRUE(attach(loop, program_)) << said();
  EXPECT_TRUE(loop.until([&] { return limit_us() == 0; }, patience)) << said();
  ASSERT_TRUE(loop->detach(target_id));
  EXPECT_TRUE(loop.until([&] { return limit_us() == before; }, patience));
  // Also if the agent is killed.
  ASSERT_TRUE(attach(loop, program_)) << said();
  EXPECT_TRUE(loop.until([&] { return limit_us() == 0; }, patience));
  ASSERT_EQ(::kill(agent_pid(), SIGKILL), 0);
  EXPECT_TRUE(eventually(patience, [&] { return limit_us() == before; }));
  loop->stop();
}

// The host starts another agent only when it turns.
TEST_F(NvidiaAgent, IsFollowedByItsGuardianWhenItIsKilled) {
  backend_loop loop{agent::make_agent_backend(options())};
  ASSERT_TRUE(loop.start());
  ASSERT_TRUE(attach(loop, program_));
  ASSERT_TRUE(shorten(loop) && suspend(loop)) << said();
  const pid_t agent = agent_pid();
  const pid_t guardian = test::guardian_of(agent);
  ASSERT_NE(guardian, 0);
  ::kill(agent, SIGKILL);
  EXPECT_TRUE(runs_again());
  EXPECT_TRUE(eventually(patience, [&] { return test::is_gone(guardian); }));

  ASSERT_TRUE(loop.until([&] { return loop.restorations == 1; }, patience));
  ASSERT_TRUE(attach(loop, program_)) << said();
  ASSERT_TRUE(suspend(loop)) << said();
  EXPECT_EQ(held_channels(device_), 8);
  ASSERT_TRUE(resume(loop)) << said();
  EXPECT_EQ(held_channels(device_), 0);
}

TEST_F(NvidiaAgent, IsFollowedByTheNextAgentWhenItsGuardianIsKilledToo) {
  {
    test::child_process host{[this](test::channel& line) {
      backend_loop loop{agent::make_agent_backend(options())};
      if (!loop.start() || !attach(loop, program_) || !shorten(loop) || !suspend(loop)) return 1;
      line.send("suspended");
      for (;;) loop.turn(50ms);
    }};
    ASSERT_TRUE(host.says("suspended", patience));
    host.signal(SIGSTOP);
    ASSERT_TRUE(test::kill_agent_and_guardian(agent_pid()));
  }
  EXPECT_EQ(held_channels(device_), 8);
  EXPECT_EQ(slice_of(device_, group()), 100);
  backend_loop loop{agent::make_agent_backend(options())};
  ASSERT_TRUE(loop.start()) << said();
  EXPECT_TRUE(runs_again());
  EXPECT_THAT(said(), HasSubstr("ended without resuming 1 process; now resumed: 1"));
}

// The guardian goes on with a client that another process has, though the target ended.
TEST_F(NvidiaAgent, IsFollowedByItsGuardianWhenTheDriverRefusesAnEndedTarget) {
  backend_loop loop{agent::make_agent_backend(options())};
  ASSERT_TRUE(loop.start()) << said();
  const auto child = static_cast<pid_t>(program_.ask("fork").at(0));
  ASSERT_TRUE(attach(loop, program_)) << said();
  ASSERT_TRUE(shorten(loop) && suspend(loop)) << said();
  const pid_t guardian = test::guardian_of(agent_pid());
  control(device_, "answer FIFO_DISABLE_CHANNELS:ENABLE GPU_IS_LOST times=1000000");
  program_.tell("exit");
  EXPECT_TRUE(program_.process().succeeds(patience));
  EXPECT_TRUE(loop.until([&] { return loop.losses == 1; }, patience));
  EXPECT_THAT(said(), HasSubstr("cannot resume process " + std::to_string(program_.pid())));
  EXPECT_EQ(held_channels(device_), 8);
  control(device_, "no-faults");
  EXPECT_TRUE(eventually(patience, [&] {
    return held_channels(device_) == 0 && slice_of(device_, group()) == usual_slice;
  }));
  EXPECT_TRUE(eventually(patience, [&] { return test::is_gone(guardian); }));
  ::kill(child, SIGKILL);
}

// With the user, the cgroups and the environment of its parent.
TEST_F(NvidiaAgent, SuspendsNothingThatAnOnlineChildShares) {
  backend_loop loop{agent::make_agent_backend(options())};
  ASSERT_TRUE(loop.start()) << said();
  const auto child = static_cast<pid_t>(program_.ask("fork").at(0));
  ASSERT_TRUE(attach(loop, program_)) << said();
  ASSERT_TRUE(suspend(loop)) << said();
  ASSERT_TRUE(resume(loop)) << said();
  observation seen;
  seen.kind = observation_kind::process_seen;
  seen.pid = child;
  seen.start_time = start_time_of(child).value();
  for (int round = 0; round < 2; ++round) {
    seen.what = role::online;
    loop->observed(0, seen);
    EXPECT_FALSE(suspend(loop));
    EXPECT_EQ(held_channels(device_), 0);
    seen.what = role::unmatched;
    loop->observed(0, seen);
    EXPECT_TRUE(suspend(loop)) << said();
    EXPECT_TRUE(resume(loop)) << said();
  }
  EXPECT_THAT(said(), HasSubstr("shares its connection to the driver with process " +
                                std::to_string(child) + " ("));
  ::kill(child, SIGKILL);
}

// While it is stopped, its duplicates of descriptors keep the memory of the target allocated.
TEST_F(NvidiaAgent, LetsGoOfTargetsThatEndWhileItIsStopped) {
  gpu_program execs{device_};
  gpu_program closes{device_};
  gpu_program exits{device_};
  constexpr duration lease = 6s;
  constexpr duration slack = 6s;  ///< For a busy machine.
  backend_loop loop{agent::make_agent_backend(options(lease))};
  ASSERT_TRUE(loop.start()) << said();
  std::uint64_t last = 0;
  for (gpu_program* const each : {&program_, &execs, &closes, &exits}) {
    if (each != &program_) each->ask("open");
    each->ask("memory");
    ASSERT_TRUE(attach(loop, *each, process_id{++last})) << said();
    ASSERT_TRUE(suspend(loop, process_id{last})) << said();
  }
  EXPECT_EQ(held_channels(device_), 32);
  const pid_t agent = agent_pid();
  const time_point stopped = clock::now();
  ::kill(agent, SIGSTOP);
  ASSERT_TRUE(execs.execs("exec"));
  closes.ask("close");
  exits.tell("exit");
  ASSERT_TRUE(exits.process().succeeds(patience));
  // The host or the guardian kills it after its lease.
  EXPECT_TRUE(loop.until([&] { return test::is_gone(agent); }, patience));
  // One of the four has a client.
  EXPECT_TRUE(loop.until(
      [&] {
        return held_channels(device_) == 0 && stat_of(device_, "channels") == 20 &&
               stat_of(device_, "memory_bytes") == 1 << 30;
      },
      patience))
      << device_.stats();
  EXPECT_LE(clock::now() - stopped, lease + 1s + slack);
  program_.ask("run");
}

/// A program that has one client for two GPUs, as a CUDA program has.
class NvidiaAgentOnTwoGpus : public NvidiaAgent {
 protected:
  NvidiaAgentOnTwoGpus() : NvidiaAgent(2) {}
  static constexpr gpu_id second{0x500};
  std::uint32_t second_group() const { return opened_.at(4); }
  bool both_run_again() {
    const bool free =
        eventually(patience, [&] { return slice_of(device_, second_group()) == usual_slice; });
    if (!runs_again() || !free) return false;
    program_.ask("run 1");
    return true;
  }
};

TEST_F(NvidiaAgentOnTwoGpus, SuspendsEachGpuByItself) {
  const auto survey = make_driver()->make_survey([](std::string_view) {});
  EXPECT_EQ(survey->gpus().size(), 2U);
  std::vector<pid_t> pids;
  ASSERT_TRUE(survey->list_processes(pids));
  ASSERT_THAT(pids, testing::Contains(program_.pid()));
  std::vector<surveyed_queue> listed;
  const auto process = survey->open({program_.pid(), program_.start_time()});
  ASSERT_TRUE(process && process->list_queues(listed));
  std::set<gpu_id> on;
  for (const surveyed_queue& each : listed) on.insert(each.gpu);
  EXPECT_EQ(on, (std::set{gpu, second}));

  backend_loop loop{agent::make_agent_backend(options())};
  ASSERT_TRUE(loop.start()) << said();
  ASSERT_TRUE(attach(loop, program_, target_id, 40)) << said();
  ASSERT_TRUE(suspend(loop)) << said();
  EXPECT_EQ(held_channels(device_), 8);
  program_.ask("run 1");
  ASSERT_TRUE(act(loop, command_kind::suspend, target_id, second)) << said();
  EXPECT_EQ(held_channels(device_), 16);
  ASSERT_TRUE(resume(loop)) << said();
  EXPECT_EQ(held_channels(device_), 8);
  program_.ask("run 0");
  ASSERT_TRUE(shorten(loop, second)) << said();
  EXPECT_EQ(slice_of(device_, group()), usual_slice);
  EXPECT_EQ(slice_of(device_, second_group()), 100);
  loop->stop();
  EXPECT_TRUE(both_run_again()) << said();
}

TEST_F(NvidiaAgentOnTwoGpus, IsFollowedByItsGuardianWhenItIsKilled) {
  backend_loop loop{agent::make_agent_backend(options())};
  ASSERT_TRUE(loop.start());
  ASSERT_TRUE(attach(loop, program_, target_id, 40));
  for (const gpu_id each : {gpu, second})
    ASSERT_TRUE(shorten(loop, each) && act(loop, command_kind::suspend, target_id, each)) << said();
  EXPECT_EQ(held_channels(device_), 16);
  ::kill(agent_pid(), SIGKILL);
  EXPECT_TRUE(both_run_again()) << said();
}

/// Three targets in the midst of a batch: of two of them a call is under way, or waits for it.
class StoppedNvidiaAgent : public NvidiaAgent {
 protected:
  StoppedNvidiaAgent() {
    second_.ask("open");
    third_.ask("open");
  }
  std::array<gpu_program*, 3> programs() { return {&program_, &second_, &third_}; }
  bool attach_all(backend_loop& loop) {
    std::uint64_t last = 0;
    return std::ranges::all_of(
        programs(), [&](gpu_program* each) { return attach(loop, *each, process_id{++last}); });
  }
  /// Stops the agent while the driver performs its call.
  void stop_within(backend_loop& loop, command_kind what) {
    control(device_, std::string{"hang FIFO_DISABLE_CHANNELS:"} +
                         (what == command_kind::suspend ? "DISABLE" : "ENABLE"));
    const auto calls = stat_of(device_, "FIFO_DISABLE_CHANNELS");
    for (const std::uint64_t id : {1U, 2U}) {
      const batch work = batch_of(loop, what, process_id{id});
      batches_.push_back(work.id);
      ASSERT_TRUE(loop->submit(work));
    }
    loop->flush();
    ASSERT_TRUE(
        eventually(patience, [&] { return stat_of(device_, "FIFO_DISABLE_CHANNELS") > calls; }));
    ::kill(agent_pid(), SIGSTOP);
    ASSERT_TRUE(eventually(patience, [&] { return test::state_of(agent_pid()) == 'T'; }));
  }
  bool are_done(backend_loop& loop) {
    return loop.until(
        [&] {
          return std::ranges::all_of(batches_, [&](std::uint64_t id) {
            const auto found = loop.results.find(id);
            return found != loop.results.end() && found->second.count == 8 &&
                   std::all_of(found->second.outcomes.begin(), found->second.outcomes.begin() + 8,
                               [](outcome each) { return each == outcome::done; });
          });
        },
        patience);
  }
  void all_run() {
    EXPECT_TRUE(eventually(patience, [&] { return held_channels(device_) == 0; }));
    for (gpu_program* const each : programs()) each->ask("run");
  }

  gpu_program second_{device_};
  gpu_program third_{device_};
  std::vector<std::uint64_t> batches_;
};

TEST_F(StoppedNvidiaAgent, GoesOnWithItsBatchAndCountsNothingTwice) {
  backend_loop loop{agent::make_agent_backend(options())};
  ASSERT_TRUE(loop.start()) << said();
  ASSERT_TRUE(attach_all(loop)) << said();
  ASSERT_TRUE(suspend(loop, process_id{3})) << said();
  const pid_t agent = agent_pid();
  for (const command_kind what : {command_kind::suspend, command_kind::resume}) {
    batches_.clear();
    stop_within(loop, what);
    // The driver performs the call, and the agent does not see it yet.
    const auto before = held_channels(device_);
    control(device_, "no-faults");
    ASSERT_TRUE(eventually(patience, [&] { return held_channels(device_) != before; }));
    ::kill(agent, SIGCONT);
    ASSERT_TRUE(are_done(loop)) << said();
    EXPECT_EQ(held_channels(device_), what == command_kind::suspend ? 24 : 8);
  }
  ASSERT_TRUE(act(loop, command_kind::resume, process_id{3})) << said();
  all_run();
  EXPECT_EQ(loop.losses, 0) << said();
  EXPECT_EQ(agent_pid(), agent);
}

TEST_F(StoppedNvidiaAgent, LeavesNothingSuspendedWhenItGoesOnAfterItsLease) {
  backend_loop loop{agent::make_agent_backend(options(1s))};
  ASSERT_TRUE(loop.start()) << said();
  ASSERT_TRUE(attach_all(loop)) << said();
  ASSERT_TRUE(suspend(loop, process_id{3})) << said();
  const pid_t agent = agent_pid();
  const pid_t guardian = test::guardian_of(agent);
  ASSERT_NE(guardian, 0);
  stop_within(loop, command_kind::suspend);
  // It cannot end before the driver's call does, which then holds two more.
  ASSERT_TRUE(loop.until(
      [&] { return said().find("silent for longer than its lease") != std::string::npos; },
      patience));
  ::kill(agent, SIGCONT);
  control(device_, "no-faults");
  ASSERT_TRUE(loop.until([&] { return loop.losses == 1; }, patience));
  ASSERT_TRUE(eventually(patience, [&] { return test::is_gone(guardian); }));
  all_run();
  ASSERT_TRUE(loop.until([&] { return loop.restorations == 1; }, patience));
  ASSERT_TRUE(attach_all(loop)) << said();
  ASSERT_TRUE(suspend(loop) && suspend(loop, process_id{2})) << said();
  EXPECT_EQ(held_channels(device_), 16);
  ASSERT_TRUE(resume(loop)) << said();
  EXPECT_EQ(held_channels(device_), 8) << "suspended once";
  loop->stop();
  all_run();
}

TEST_F(NvidiaAgent, RefusesAProcessOfAnotherUserAndLeavesNothingThere) {
  constexpr uid_t user = 64003;
  const std::string own = device_.root() + "/own";
  // The directory above is the test's alone.
  ASSERT_EQ(::chmod((device_.root() + "/..").c_str(), 0755), 0);
  ASSERT_TRUE(std::filesystem::create_directory(own));
  std::filesystem::copy_file(SLUICE_AGENT_PROGRAM, own + "/sluice-agent");
  ASSERT_EQ(::chown(own.c_str(), user, user), 0);
  test::child_process host{[&](test::channel& line) {
    if (::setgid(user) != 0 || ::setuid(user) != 0 || ::prctl(PR_SET_DUMPABLE, 1) != 0) return 2;
    auto with = options();
    with.agent_path = own + "/sluice-agent";
    with.owner_lock = own + "/owner";
    backend_loop loop{agent::make_agent_backend(with)};
    if (!loop.start()) {
      line.send(said());
      return 3;
    }
    const pid_t agent = test::agent_of(with.owner_lock);
    const pid_t guardian = test::guardian_of(agent);
    if (!loop->attach(target_id, program_.pid(), program_.start_time())) return 4;
    if (!loop.until([&] { return loop.attachments.contains(target_id); }, patience)) return 5;
    if (loop.attachments[target_id] != errc::not_managed || !loop.queues[target_id].empty())
      return 6;
    line.send(loop.refusals[target_id]);
    loop->stop();
    return eventually(patience, [&] { return test::is_gone(agent) && test::is_gone(guardian); })
               ? 0
               : 7;
  }};
  EXPECT_THAT(
      host.line().receive(patience).value_or(""),
      testing::AllOf(HasSubstr("process " + std::to_string(program_.pid()) + " ("),
                     HasSubstr("cannot be read: "), HasSubstr("; the agent needs CAP_SYS_PTRACE")));
  EXPECT_TRUE(host.succeeds(patience));
  EXPECT_EQ(stat_of(device_, "FIFO_DISABLE_CHANNELS"), 0);
  EXPECT_EQ(slice_of(device_, group()), usual_slice);
  program_.ask("close");  // No duplicate is left.
  EXPECT_TRUE(eventually(patience, [&] { return is_empty(device_); }));
}

TEST_F(NvidiaAgent, IsFollowedByItsGuardianWhenItIsKilledInTheMidstOfASuspend) {
  backend_loop loop{agent::make_agent_backend(options())};
  ASSERT_TRUE(loop.start());
  ASSERT_TRUE(attach(loop, program_));
  const pid_t agent = agent_pid();
  const pid_t guardian = test::guardian_of(agent);
  ASSERT_NE(guardian, 0);
  control(device_, "hang FIFO_DISABLE_CHANNELS:DISABLE");
  const batch work = batch_of(loop, command_kind::suspend);
  ASSERT_EQ(work.count, 8);
  ASSERT_TRUE(loop->submit(work));
  loop->flush();
  ASSERT_TRUE(eventually(patience, [&] { return stat_of(device_, "FIFO_DISABLE_CHANNELS") == 1; }));
  ::kill(agent, SIGSTOP);
  ::kill(agent, SIGKILL);
  // The driver performs the call all the same.
  control(device_, "no-faults");
  EXPECT_TRUE(eventually(patience, [&] { return test::is_gone(guardian); }));
  EXPECT_TRUE(runs_again());
  EXPECT_EQ(stat_of(device_, "queue_suspends"), 8);
}

/// The work of a program that is online and marks nothing.
class NvidiaFollow : public NvidiaAgent {
 protected:
  using NvidiaAgent::NvidiaAgent;
  void follow(const gpu_program& which) {
    if (!loop_) {
      loop_.emplace(agent::make_agent_backend(options()));
      ASSERT_TRUE(loop_->start()) << said();
    }
    observation online;
    online.kind = observation_kind::process_seen;
    online.what = role::online;
    online.pid = which.pid();
    online.start_time = which.start_time();
    (*loop_)->observed(0, online);
    (*loop_)->poll_work(100us);
  }
  online_work work() {
    const auto& seen = loop_->observations;
    return seen.empty() ? online_work::unknown : seen.back().work;
  }
  bool comes_to(online_work wanted) {
    return loop_->until([&] { return work() == wanted; }, patience);
  }
  std::uint64_t came() {
    std::uint64_t sum = 0;
    for (const observation& each : loop_->observations) sum += each.count;
    return sum;
  }
  /// Until its words are known.
  bool learn(gpu_program& which) {
    const time_point give_up = clock::now() + patience;
    while (clock::now() < give_up) {
      which.ask("run");
      if (loop_->until([&] { return work() == online_work::finished; }, 20ms)) return true;
    }
    return false;
  }
  std::optional<backend_loop> loop_;
};

TEST_F(NvidiaFollow, SeesSubmissionsAndEnds) {
  follow(program_);
  ASSERT_TRUE(learn(program_)) << said();
  for (int round = 0; round < 3; ++round) {
    const std::uint64_t before = came();
    program_.ask("launch 1000000");  // So that a busy machine sees it.
    ASSERT_TRUE(comes_to(online_work::running)) << said();
    // A look that saw the count before the launch, and the state after it, is followed by another.
    EXPECT_TRUE(loop_->until([&] { return came() - before == 1; }, patience)) << said();
    program_.ask("wait");
    ASSERT_TRUE(comes_to(online_work::finished)) << said();
  }
  for (int round = 0; round < 200; ++round) {
    const std::uint64_t before = came();
    program_.ask("run");
    ASSERT_TRUE(loop_->until([&] { return came() - before == 1; }, patience)) << round;
  }
  EXPECT_THAT(said(), testing::Not(HasSubstr("no ends")));
}

// Never an end while a kernel runs: not while the words are being found either.
TEST_F(NvidiaFollow, DeclaresNoEndWhileAKernelRuns) {
  follow(program_);
  for (int round = 0; round < 40; ++round) {
    const std::uint64_t before = came();
    const time_point launched = clock::now();
    program_.ask("launch 100000");
    if (!loop_->until([&] { return came() != before; }, 50ms)) {
      program_.ask("wait");
      continue;  // its channel is not known yet
    }
    const std::size_t first = loop_->observations.size() - 1;
    (void)loop_->until([] { return false; }, 20ms);
    // A slow machine shows nothing: it may have ended.
    const bool runs = clock::now() - launched < 100ms;
    for (std::size_t index = first; runs && index < loop_->observations.size(); ++index) {
      EXPECT_NE(loop_->observations[index].work, online_work::finished) << "round " << round;
    }
    program_.ask("wait");
  }
  EXPECT_TRUE(comes_to(online_work::finished)) << said();
}

// Symptom: an end while a kernel ran, of a program whose words are somewhere else.
TEST_F(NvidiaFollow, AssumesNoEndWhereTheWordsCannotBeFound) {
  gpu_program hidden{device_};
  hidden.ask("open hidden");
  follow(hidden);
  const time_point give_up = clock::now() + patience;
  while (said().find("no ends") == std::string::npos && clock::now() < give_up) {
    hidden.ask("run");
    loop_->turn(1ms);
  }
  EXPECT_THAT(said(), HasSubstr("whether kernels run"));
  for (const observation& each : loop_->observations) EXPECT_NE(each.work, online_work::finished);
  EXPECT_GE(came(), 1U);
}

TEST_F(NvidiaFollow, GoesOnAfterAnExecOfWhatItFollowed) {
  follow(program_);
  ASSERT_TRUE(learn(program_));
  ASSERT_TRUE(program_.execs("exec"));
  // The agent lives, and sees the next one.
  gpu_program next{device_};
  next.ask("open");
  follow(next);
  loop_->observations.clear();
  EXPECT_TRUE(learn(next)) << said();
}

// A host with fewer rights than its agent learns nothing of processes that are not online.
TEST_F(NvidiaFollow, LooksOnlyAtWhatTheAgentsOwnRulesTakeForOnline) {
  gpu_program other{device_};
  other.ask("open");
  const std::string rules = device_.root() + "/sluice.toml";
  std::ofstream{rules} << "[roles]\npids = [{pid = " << program_.pid() << ", role = \"online\"}]\n";
  agent::agent_options with = options();
  with.roles = rules;
  loop_.emplace(agent::make_agent_backend(std::move(with)));
  ASSERT_TRUE(loop_->start()) << said();
  follow(other);
  follow(program_);
  ASSERT_TRUE(loop_->until([&] { return said().find("refused") != std::string::npos; }, patience));
  EXPECT_THAT(said(), HasSubstr("refused to look at the work of process " +
                                std::to_string(other.pid()) + ": it is not online"));
  other.ask("run");
  ASSERT_TRUE(learn(program_)) << said();
  for (const observation& each : loop_->observations) EXPECT_EQ(each.pid, program_.pid());
}

TEST_F(NvidiaFollow, LeavesAProcessAloneThatMarksItsRequests) {
  follow(program_);
  ASSERT_TRUE(learn(program_));
  (*loop_)->marks_requests(program_.pid(), true);
  (*loop_)->poll_work(100us);
  // Whatever was on its way has come once the agent has answered something later.
  ASSERT_TRUE(attach(*loop_, program_));
  loop_->observations.clear();
  for (int round = 0; round < 10; ++round) program_.ask("run");
  ASSERT_TRUE(shorten(*loop_));
  EXPECT_THAT(loop_->observations, testing::IsEmpty());
}

/// A program that has one client for two GPUs, as a CUDA program has.
class NvidiaFollowOnTwoGpus : public NvidiaFollow {
 protected:
  NvidiaFollowOnTwoGpus() : NvidiaFollow(2) {}
  static constexpr std::array gpus{gpu_id{0x400}, gpu_id{0x500}};
  online_work work_on(std::size_t index) const {
    const auto& all = loop_->observations;
    const auto last = std::find_if(
        all.rbegin(), all.rend(), [&](const observation& each) { return each.gpu == gpus[index]; });
    return last == all.rend() ? online_work::unknown : last->work;
  }
  bool comes_to(std::size_t index, online_work wanted) {
    return loop_->until([&] { return work_on(index) == wanted; }, patience);
  }
  std::uint64_t came_on(std::size_t index) const {
    std::uint64_t sum = 0;
    for (const observation& each : loop_->observations)
      if (each.gpu == gpus[index]) sum += each.count;
    return sum;
  }
  bool rest(std::size_t index) const { return work_on(index) == online_work::finished; }
  void sees_work_where_it_is() {
    for (const std::size_t busy : {0U, 1U}) {
      ASSERT_TRUE(loop_->until([&] { return rest(0) && rest(1); }, patience)) << said();
      const auto came = std::array{came_on(0), came_on(1)};
      program_.ask("launch 1000000 " + std::to_string(busy));
      ASSERT_TRUE(comes_to(busy, online_work::running)) << said();
      EXPECT_TRUE(rest(1 - busy)) << said();
      program_.ask("wait");
      ASSERT_TRUE(comes_to(busy, online_work::finished)) << said();
      EXPECT_EQ(came_on(busy), came[busy] + 1);
      EXPECT_EQ(came_on(1 - busy), came[1 - busy]);
    }
  }
};

TEST_F(NvidiaFollowOnTwoGpus, SeesWorkOnTheGpuWhereItIs) {
  follow(program_);
  for (const std::size_t each : {0U, 1U}) {
    const time_point give_up = clock::now() + patience;
    do program_.ask("run " + std::to_string(each));
    while (!loop_->until([&] { return rest(each); }, 20ms) && clock::now() < give_up);
  }
  sees_work_where_it_is();
}

// As a model that is spread over both.
TEST_F(NvidiaFollowOnTwoGpus, SeesWorkThatIsAlwaysOnBoth) {
  follow(program_);
  const time_point give_up = clock::now() + patience;
  do {
    program_.ask("launch 20 0");
    program_.ask("launch 20 1");
    program_.ask("wait");
  } while (!loop_->until([&] { return rest(0) && rest(1); }, 20ms) && clock::now() < give_up);
  sees_work_where_it_is();
}

}  // namespace
}  // namespace sluice::nvidia::agent_test
