// The whole path: real processes, real ioctls through the mounted simulated device, the agent (or
// in-process lanes), the scheduler. What must hold whatever happens: no online or unmatched process
// is ever suspended or traced, and whoever was suspended runs again.

#include "command.hpp"
#include "device_view.hpp"
#include "simulated_device.hpp"
#include "target_process.hpp"

#include <sys/inotify.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/breaker_store.hpp"
#include "sluice/discovery.hpp"
#include "sluice/kfd/driver.hpp"
#include "sluice/kfd/in_process_backend.hpp"
#include "sluice/kfd/survey.hpp"
#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/scheduler.hpp"

namespace sluice::test::preemption_test {
namespace {

using namespace std::chrono_literals;

/// A busy machine keeps the agent from its processor for longer than the default, 500 ms, and no
/// test here is about that.
constexpr auto lease = 4s;

enum class acting { in_agent, in_process };

/// Who acts, and on which simulated GPU: mi300x has a runlist, gfx1100 a MES, mi300x-batch a
/// patched driver's batch commands, untraced a driver that authorises the debugging process.
struct variant {
  acting where;
  std::string profile = "mi300x";
  std::uint32_t gpus = 0;                ///< 0: as the profile has.
  variant(acting acts) : where{acts} {}  // NOLINT: most tests care about the first only.
  variant(acting acts, std::string gpu, std::uint32_t count = 0)
      : where{acts}, profile{std::move(gpu)}, gpus{count} {}
};

/// A device, and a scheduler that embeds in this process, on a thread of its own.
class node {
 public:
  explicit node(const variant& how, scheduler_config config = quick())
      : where_{how.where},
        config_{config},
        device_{{.profile = how.profile == "untraced"
                                ? profile_text("authority = \"debugger_process\"\n", "")
                                : how.profile,
                 .gpus = how.gpus}},
        view_{device_.root()} {
    start();
  }

  /// With the breakers that the last scheduler left open.
  void restart() {
    stop();
    scheduler_.reset();
    start();
  }

  void start() {
    const std::string lock = device_.root() + "/owner";
    std::unique_ptr<backend> driver;
    if (where_ == acting::in_agent) {
      driver = agent::make_agent_backend({.driver = kfd::acting({.where = device_.roots()}),
                                          .agent_path = SLUICE_AGENT_PROGRAM,
                                          .owner_lock = lock,
                                          .lease = lease});
    } else {
      driver = kfd::make_in_process_backend({.roots = device_.roots(), .owner_lock = lock});
    }
    std::vector<std::unique_ptr<source>> sources;
    sources.push_back(
        make_discovery(kfd::make_survey(device_.roots()), {.role_store = role_store()}));
    sources.push_back(make_breaker_keeper(breakers().path()));
    auto loop = reactor::create();
    if (!loop) throw std::runtime_error("reactor: " + loop.error().message());
    auto made =
        scheduler::create(config_, std::move(*loop), std::move(driver),
                          make_fixed_timeslice({.slice = 20ms, .release = release_on::client_done}),
                          std::move(sources), {.record = {.file = recording()}});
    if (!made) throw std::runtime_error("scheduler: " + made.error().message());
    scheduler_ = std::move(*made);
    if (const auto started = scheduler_->start(); !started) {
      throw std::runtime_error("start: " + started.error().message());
    }
    thread_ = std::thread([this] { scheduler_->run(); });
  }

  /// Whoever is not offline was never suspended, however shortly: the device counts it.
  ~node() {
    stop();
    for (const pid_t pid : untouchable_) {
      const auto seen = view_.process(pid);
      EXPECT_TRUE(seen.known) << "the device does not know process " << pid;
      EXPECT_EQ(seen.queue_suspends, 0u) << "process " << pid << " was suspended";
    }
  }

  void stop() {
    if (!thread_.joinable()) return;
    scheduler_->stop();
    thread_.join();
  }

  static scheduler_config quick() {
    scheduler_config config;
    config.attach_after = 50ms;
    config.max_suspend = 5s;
    return config;
  }

  /// A process whose queues are always full of kernels of `kernel` length.
  std::unique_ptr<target_process> start_target(const std::string& tag, int queues = 1,
                                               std::chrono::microseconds kernel = 2ms,
                                               const std::vector<std::string>& more = {},
                                               bool all_gpus = false) {
    std::vector<std::string> environment = device_.environment();
    environment.insert(environment.end(), more.begin(), more.end());
    if (!tag.empty()) environment.push_back("AMD_QUEUE_TAG=" + tag);
    std::vector<std::string> arguments{std::to_string(queues), std::to_string(kernel.count())};
    if (all_gpus) arguments.emplace_back("all-gpus");
    auto started =
        std::make_unique<target_process>(SLUICE_INTEGRATION_TARGET, arguments, environment);
    if (started->hear(patience) != "ready") throw std::runtime_error("the target did not start");
    if (tag != "OFFLINE_AI") untouchable_.push_back(started->pid());
    return started;
  }

  std::unique_ptr<target_process> start_offline(int queues = 1,
                                                std::chrono::microseconds kernel = 2ms,
                                                bool all_gpus = false) {
    const auto before = scheduler_->stats().attaches.value();
    auto started = start_target("OFFLINE_AI", queues, kernel, {}, all_gpus);
    if (!eventually(patience, [&] { return scheduler_->stats().attaches.value() > before; })) {
      throw std::runtime_error("the offline target was not attached");
    }
    return started;
  }

  /// One of two ranks of a gang; it is not waited for.
  std::unique_ptr<target_process> start_rank(int rank) {
    return start_target("OFFLINE_AI", 1, 2ms,
                        {"RANK=" + std::to_string(rank), "WORLD_SIZE=2", "MASTER_ADDR=localhost",
                         "MASTER_PORT=29500"});
  }

  online_client client(std::vector<gpu_id> gpus = {}) {
    auto made = scheduler_->register_client({.name = "test", .gpus = std::move(gpus)});
    if (!made) throw std::runtime_error("register_client: " + made.error().message());
    return std::move(*made);
  }

  std::uint64_t suspended(const target_process& who) const {
    return view_.process(who.pid()).suspended_queues;
  }
  bool runs(const target_process& who) const { return suspended(who) == 0; }
  bool becomes(const target_process& who, std::uint64_t queues) const {
    return eventually(patience, [&] { return suspended(who) == queues; });
  }
  /// Whether it completes a kernel from now on.
  bool progresses(const target_process& who) const {
    const auto before = view_.process(who.pid()).kernels_completed;
    return eventually(patience,
                      [&] { return view_.process(who.pid()).kernels_completed > before; });
  }

  breaker_store breakers() const { return breaker_store{device_.root() + "/breakers"}; }
  /// Whether so many are open, in the scheduler and in the store.
  bool has_open_breakers(std::size_t count) const {
    return eventually(patience, [&] {
      std::string message;
      const auto stored = breakers().read(message);
      return stored && stored->size() == count &&
             scheduler_->stats().open_breakers.value() == count;
    });
  }

  std::string role_store() const { return device_.root() + "/roles"; }
  std::string recording() const { return device_.root() + "/recording"; }
  /// The GPUs of all driver calls that were answered, in the order in which they began.
  std::vector<gpu_id> driver_calls() const {
    const auto number = [](const std::string& line, const std::string& name) {
      return std::stoull(line.substr(line.find("\"" + name + "\":") + name.size() + 3));
    };
    std::map<std::uint64_t, gpu_id> begun;
    std::ifstream lines(recording());
    for (std::string line; std::getline(lines, line);) {
      if (line.find("\"is\":\"done\"") == line.npos) continue;
      begun[number(line, "started")] = gpu_id{static_cast<std::uint32_t>(number(line, "gpu"))};
    }
    std::vector<gpu_id> gpus;
    for (const auto& [when, gpu] : begun) gpus.push_back(gpu);
    return gpus;
  }
  struct finished {
    int code = -1;  ///< -1: it does not end.
    std::string err;
  };
  /// Runs the command `sluice` as an operator does.
  finished command_line(std::vector<std::string> words) const {
    auto environment = device_.environment();
    environment.push_back("SLUICE_ROLES=store = '" + role_store() + "'");
    environment.push_back("SLUICE_BREAKERS=" + breakers().path());
    test::command made{SLUICE_PROGRAM, std::move(words), std::move(environment)};
    const int code = made.ends().value_or(-1);
    return {code, made.err()};
  }
  /// A line for the device's sim/control.
  void command(const std::string& line) const {
    std::ofstream control(device_.root() + "/sim/control");
    control << line << std::endl;
    if (!control) throw std::runtime_error("sim/control refuses '" + line + "'");
  }

  scheduler& sluice() { return *scheduler_; }
  const device_view& view() const { return view_; }
  simulated_device& device() { return device_; }

 private:
  acting where_;
  scheduler_config config_;
  simulated_device device_;
  device_view view_;
  std::vector<pid_t> untouchable_;
  std::unique_ptr<scheduler> scheduler_;
  std::thread thread_;
};

pid_t tracer_of(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("TracerPid:")) return std::stoi(line.substr(10));
  }
  return -1;
}

/// What does not wait for its targets as their parent: there in-process lanes cannot serve (see
/// in_process_backend.hpp), and the tests below named PreemptionByTheAgent do.
class Preemption : public testing::TestWithParam<variant> {};

class PreemptionByTheAgent : public testing::TestWithParam<variant> {};

std::string name_of(const testing::TestParamInfo<variant>& each) {
  std::string name =
      (each.param.where == acting::in_agent ? "Agent_" : "InProcess_") + each.param.profile;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Drivers, PreemptionByTheAgent,
                         testing::Values(variant{acting::in_agent},
                                         variant{acting::in_agent, "mi300x-batch"},
                                         variant{acting::in_agent, "untraced"}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Backends, Preemption,
                         testing::Values(variant{acting::in_agent}, variant{acting::in_process},
                                         variant{acting::in_agent, "gfx1100"},
                                         variant{acting::in_agent, "mi300x-batch"},
                                         variant{acting::in_agent, "untraced"}),
                         name_of);

// Its peers elsewhere would spin while this one is off.
TEST_P(Preemption, LeavesAGangAloneUntilAllItsRanksAreHereAndSuspendsThemTogether) {
  node here{GetParam()};
  auto first = here.start_rank(0);
  auto alone = here.start_offline();  // Attached after the one before it would have been.
  EXPECT_EQ(tracer_of(first->pid()), 0);
  auto client = here.client();
  {
    const auto busy = client.busy();
    EXPECT_TRUE(here.becomes(*alone, 1));
    EXPECT_EQ(here.suspended(*first), 0u);
  }
  EXPECT_TRUE(here.becomes(*alone, 0));
  auto second = here.start_rank(1);
  ASSERT_TRUE(eventually(patience, [&] { return here.sluice().stats().attaches.value() >= 3; }));
  {
    const auto busy = client.busy();
    for (const auto* each : {&alone, &first, &second}) EXPECT_TRUE(here.becomes(**each, 1));
  }
  for (const auto* each : {&alone, &first, &second}) EXPECT_TRUE(here.becomes(**each, 0));
  second.reset();
  EXPECT_TRUE(eventually(patience, [&] { return tracer_of(first->pid()) == 0; }));
}

TEST_P(Preemption, SuspendsOfflineWhileOnlineIsBusyAndResumesItAfterwards) {
  node here{GetParam()};
  auto offline = here.start_offline(2);
  auto client = here.client();
  {
    auto busy = client.busy();
    ASSERT_TRUE(here.becomes(*offline, 2));
  }
  ASSERT_TRUE(here.becomes(*offline, 0));
  EXPECT_TRUE(here.progresses(*offline));
  // The driver clears the flag when the call begins; the outcome follows when it ends.
  EXPECT_TRUE(eventually(patience, [&] { return here.sluice().stats().resumes.value() == 2u; }));
  const auto stats = here.sluice().stats();
  EXPECT_EQ(stats.suspends.value(), 2u);
  EXPECT_EQ(stats.resumes.value(), 2u);
  EXPECT_EQ(stats.failed_outcomes.value(), 0u);
  EXPECT_EQ(offline->ask("drain", 30s), "0") << "kernels lost, repeated, reordered or cut short";
}

TEST_P(Preemption, NeverSuspendsOrTracesOnlineAndUnmatchedProcesses) {
  node here{GetParam()};
  auto offline = here.start_offline();
  auto online = here.start_target("ONLINE_AI");
  auto stranger = here.start_target("");
  auto client = here.client();
  for (int round = 0; round < 5; ++round) {
    auto busy = client.busy();
    ASSERT_TRUE(here.becomes(*offline, 1));
    for (int look = 0; look < 20; ++look) {
      ASSERT_EQ(here.suspended(*online), 0u);
      ASSERT_EQ(here.suspended(*stranger), 0u);
    }
    EXPECT_EQ(tracer_of(online->pid()), 0);
    EXPECT_EQ(tracer_of(stranger->pid()), 0);
    EXPECT_EQ(tracer_of(getpid()), 0);
    EXPECT_EQ(tracer_of(offline->pid()) != 0, GetParam().profile != "untraced");
    busy.end();
    ASSERT_TRUE(here.becomes(*offline, 0));
  }
  EXPECT_TRUE(here.progresses(*online));
  EXPECT_TRUE(here.progresses(*stranger));
  EXPECT_GE(here.view().process(offline->pid()).queue_suspends, 5u) << "the device does not count";
}

TEST_P(Preemption, HoldsOfflineUntilTheLastOfTwoClientsIsDone) {
  node here{GetParam()};
  auto offline = here.start_offline();
  auto first = here.client();
  auto second = here.client();
  auto one = first.busy();
  ASSERT_TRUE(here.becomes(*offline, 1));
  auto two = second.busy();
  one.end();
  const auto checked_until = clock::now() + 200ms;  // Ten slices, in which it must not run.
  while (clock::now() < checked_until) ASSERT_EQ(here.suspended(*offline), 1u);
  two.end();
  EXPECT_TRUE(here.becomes(*offline, 0));
}

TEST_P(Preemption, SuspendsAgainWhenOnlineArrivesDuringTheResume) {
  node here{GetParam()};
  auto online = here.start_target("ONLINE_AI");
  auto offline = here.start_offline();
  auto client = here.client();
  for (int round = 0; round < 10; ++round) {
    auto busy = client.busy();
    ASSERT_TRUE(here.becomes(*offline, 1));
    const auto resumes = here.sluice().stats().resumes.value();
    busy.end();
    // The resume call takes 10 ms; the driver has changed the flag when it begins.
    ASSERT_TRUE(here.becomes(*offline, 0));
    auto again = client.busy();
    ASSERT_TRUE(here.becomes(*offline, 1));
    EXPECT_GT(here.sluice().stats().resumes.value(), resumes);
    again.end();
    ASSERT_TRUE(here.becomes(*offline, 0));
  }
  EXPECT_EQ(offline->ask("drain", 30s), "0");
}

TEST_P(Preemption, LetsADestroyOfASuspendedQueueReturnOnceItIsResumed) {
  node here{GetParam()};
  auto offline = here.start_offline(2, 0us);
  auto client = here.client();
  auto busy = client.busy();
  ASSERT_TRUE(here.becomes(*offline, 2));
  offline->send("destroy 0");
  if (GetParam().profile == "mi300x-batch") {
    EXPECT_EQ(offline->hear(patience), "destroyed") << "what a batch command holds is let go";
    busy.end();
  } else {
    EXPECT_FALSE(offline->hear(200ms).has_value()) << "destroy must wait for the resume";
    busy.end();
    EXPECT_EQ(offline->hear(patience), "destroyed");
  }
  EXPECT_TRUE(here.becomes(*offline, 0));
  auto again = client.busy();
  EXPECT_TRUE(here.becomes(*offline, 1)) << "the queue that is left is still managed";
}

/// Whether a process may trace this one: strace's first step.
bool traceable(pid_t pid) {
  const pid_t tool = fork();
  if (tool == 0) _exit(ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0 ? 0 : 1);
  int status = -1;
  return waitpid(tool, &status, 0) == tool && status == 0;
}

TEST_P(Preemption, GivesAProcessBackForATimeAndManagesItAgainAfterwards) {
  auto config = node::quick();
  config.max_suspend = 60s;  // What runs below does not run by this.
  config.attach_at_latest = 100ms;
  node here{GetParam(), config};
  const bool traces = GetParam().profile != "untraced";
  auto given_back = here.start_offline(2);
  auto other = here.start_offline();
  const auto pid = std::to_string(given_back->pid());
  auto client = here.client();
  auto busy = client.busy();
  ASSERT_TRUE(here.becomes(*given_back, 2));
  ASSERT_TRUE(here.becomes(*other, 1));
  const auto attaches = here.sluice().stats().attaches.value();
  const auto resumed = here.command_line({"resume", pid});
  EXPECT_EQ(resumed.code, 1);
  EXPECT_NE(resumed.err.find("'sluice release " + pid + "'"), std::string::npos)
      << resumed.err << "does not say what helps";
  EXPECT_EQ(resumed.err.find("(sluice-agent)") != std::string::npos,
            GetParam().where == acting::in_agent && traces)
      << resumed.err;
  const auto released = clock::now();
  ASSERT_EQ(here.command_line({"release", pid, "--for", "3s"}).code, 0);
  if (traces) {
    EXPECT_EQ(tracer_of(given_back->pid()), 0) << "the command waits for that";
  }
  EXPECT_TRUE(here.becomes(*given_back, 0));
  EXPECT_TRUE(here.progresses(*given_back)) << "and online work goes on";
  EXPECT_TRUE(eventually(patience, [&] { return here.sluice().stats().detaches.value() == 1; }));
  EXPECT_TRUE(traceable(given_back->pid()));
  EXPECT_EQ(here.suspended(*other), 1u);
  if (clock::now() < released + 2s) {
    EXPECT_EQ(here.sluice().stats().attaches.value(), attaches);
    EXPECT_EQ(here.suspended(*given_back), 0u);
  }

  EXPECT_TRUE(here.becomes(*given_back, 2)) << "its time is over";
  EXPECT_GE(clock::now() - released, 2900ms);
  EXPECT_EQ(tracer_of(given_back->pid()) != 0, traces);

  ASSERT_EQ(here.command_line({"release", pid, "--for", "1h"}).code, 0);
  EXPECT_TRUE(here.becomes(*given_back, 0));
  ASSERT_EQ(here.command_line({"release", pid, "--end"}).code, 0);
  EXPECT_TRUE(here.becomes(*given_back, 2));
  busy.end();
  EXPECT_TRUE(here.becomes(*given_back, 0));
  EXPECT_TRUE(here.becomes(*other, 0));
  EXPECT_EQ(given_back->ask("drain", 30s), "0");
}

TEST(PreemptionUntraced, LeavesTheTargetToItsTools) {
  node here{variant{acting::in_agent, "untraced"}};
  auto offline = here.start_offline();
  auto client = here.client();
  auto busy = client.busy();
  ASSERT_TRUE(here.becomes(*offline, 1));
  EXPECT_TRUE(traceable(offline->pid())) << "another tracer was refused";
  busy.end();
  EXPECT_TRUE(here.becomes(*offline, 0));
}

// --- Several GPUs, and faults of the device ---

TEST(PreemptionOfEightGpus, ServesTheOneWithOnlineWorkFirst) {
  node here{variant{acting::in_agent, "mi300x", 8}};
  auto offline = here.start_offline(8, 2ms, true);
  const gpu_id last{51110 + 7 * 257};  // As set_gpu_count numbers them.
  auto client = here.client({last});
  {
    // An attach is answered before the target's queues are reported: until all are, some are late.
    auto busy = client.busy();
    ASSERT_TRUE(here.becomes(*offline, 8));
  }
  ASSERT_TRUE(here.becomes(*offline, 0));
  ASSERT_TRUE(
      eventually(patience, [&] { return here.sluice().stats().suspended_now.value() == 0; }));
  const auto before = here.sluice().stats();
  // The recording comes after what it tells of.
  ASSERT_TRUE(
      eventually(patience, [&] { return here.driver_calls().size() == before.driver_calls; }));
  auto busy = client.busy();
  ASSERT_TRUE(here.becomes(*offline, 8));
  std::vector<gpu_id> calls;
  ASSERT_TRUE(eventually(patience, [&] {
    calls = here.driver_calls();
    return calls.size() == before.driver_calls + 8;
  })) << "one for each GPU";
  EXPECT_EQ(calls[before.driver_calls], last)
      << "which somebody waits for; one call takes its time after the other";
  // By the end of the turn that took the answers in.
  EXPECT_TRUE(eventually(patience, [&] {
    return here.sluice().stats().arrival_to_off.count() - before.arrival_to_off.count() == 1;
  }));
  busy.end();
  EXPECT_TRUE(here.becomes(*offline, 0));
  EXPECT_EQ(offline->ask("drain", 30s), "0");
}

TEST(PreemptionWithFaults, AFailedPreemptionOpensTheBreakerAndEverythingRuns) {
  node here{variant{acting::in_agent, "mi300x"}};
  auto offline = here.start_offline();
  auto client = here.client();
  here.command("fail-cycle 51110 100ms goes-on");
  auto busy = client.busy();
  ASSERT_TRUE(
      eventually(patience, [&] { return here.sluice().stats().open_breakers.value() == 1; }));
  EXPECT_TRUE(here.becomes(*offline, 0)) << "while online work goes on";
  EXPECT_TRUE(here.progresses(*offline));
  busy.end();
  {
    auto again = client.busy();
    const auto until = clock::now() + 200ms;
    while (clock::now() < until) ASSERT_EQ(here.suspended(*offline), 0u);
  }
  here.sluice().rearm(gpu_id{51110});
  auto later = client.busy();
  EXPECT_TRUE(here.becomes(*offline, 1)) << "an operator has re-armed it";
}

TEST(PreemptionWithFaults, AResetOpensTheBreakerOfTheHive) {
  node here{variant{acting::in_agent, "mi300x", 2}};
  auto offline = here.start_offline(2, 2ms, true);
  here.command("reset 51110");
  EXPECT_TRUE(
      eventually(patience, [&] { return here.sluice().stats().open_breakers.value() == 2; }));
  auto client = here.client();
  auto busy = client.busy();
  const auto until = clock::now() + 200ms;
  while (clock::now() < until) ASSERT_EQ(here.suspended(*offline), 0u);
}

TEST(PreemptionWithFaults, ARestartedSchedulerLeavesTheGpuAloneUntilAnOperatorSaysSo) {
  node here{variant{acting::in_agent, "mi300x", 2}};
  const auto lost = here.start_offline();
  here.command("reset 51110");
  ASSERT_TRUE(here.has_open_breakers(2)) << "of the hive";
  here.restart();
  EXPECT_TRUE(here.has_open_breakers(2)) << "without another reset";
  // Queues that were made after the reset, and are not to be suspended all the same.
  const auto offline = here.start_target("OFFLINE_AI", 2, 2ms, {}, true);
  auto client = here.client();
  auto busy = client.busy();
  const auto until = clock::now() + 200ms;
  while (clock::now() < until) ASSERT_EQ(here.suspended(*offline), 0u);

  ASSERT_EQ(here.command_line({"breaker", "rearm", "51110"}).code, 0);
  EXPECT_TRUE(here.has_open_breakers(1));
  ASSERT_EQ(here.command_line({"breaker", "rearm", "--all"}).code, 0);
  EXPECT_TRUE(here.has_open_breakers(0));
  EXPECT_TRUE(here.becomes(*offline, 2));
  busy.end();
  EXPECT_TRUE(here.becomes(*offline, 0));
  here.restart();
  EXPECT_TRUE(here.has_open_breakers(0)) << "it stays re-armed";
}

TEST(PreemptionWithFaults, AStuckCallLosesItsGpuAndTheOtherGoesOn) {
  node here{variant{acting::in_agent, profile_text("", "") + "[[gpu]]\ngpu_id = 7\n"}};
  auto stuck = here.start_offline();
  auto both = here.start_offline(2, 2ms, true);
  here.command("delay DBG_TRAP:SUSPEND_QUEUES 5s target=" + std::to_string(stuck->pid()));
  auto client = here.client();
  auto busy = client.busy();
  ASSERT_TRUE(
      eventually(patience, [&] { return here.sluice().stats().open_breakers.value() == 1; }));
  EXPECT_TRUE(here.becomes(*both, 1)) << "its queue on the other GPU";
  EXPECT_TRUE(here.becomes(*stuck, 0)) << "once its call is back";
  EXPECT_TRUE(here.progresses(*stuck));
}

TEST(PreemptionWithFaults, ATargetKilledInMidCallHarmsNobodyElse) {
  node here{acting::in_agent};
  auto victim = here.start_offline();
  auto stayer = here.start_offline();
  here.command("kill-target 1ms target=" + std::to_string(victim->pid()));
  auto client = here.client();
  {
    auto busy = client.busy();
    const auto status = victim->wait_for(patience);
    ASSERT_TRUE(status.has_value());
    EXPECT_TRUE(WIFSIGNALED(*status));
    EXPECT_TRUE(here.becomes(*stayer, 1));
  }
  EXPECT_TRUE(here.becomes(*stayer, 0));
  EXPECT_EQ(stayer->ask("drain", 30s), "0");
}

TEST(PreemptionWithFaults, InterruptedCallsAndAnotherDebuggersSessionAreOvercome) {
  node here{acting::in_agent};
  here.command("answer DBG_TRAP:ENABLE EALREADY times=3");
  auto offline = here.start_offline();
  here.command("answer DBG_TRAP:SUSPEND_QUEUES EINTR times=3");
  auto client = here.client();
  auto busy = client.busy();
  EXPECT_TRUE(here.becomes(*offline, 1));
  here.command("answer DBG_TRAP:RESUME_QUEUES EINTR times=3");
  busy.end();
  EXPECT_TRUE(here.becomes(*offline, 0));
  EXPECT_EQ(offline->ask("drain", 30s), "0");
}

TEST(PreemptionByBatch, FallsBackToTheDebugTrapOnce) {
  node here{variant{acting::in_agent, "mi300x-batch"}};
  auto offline = here.start_offline(2);
  here.command("answer BATCH_UNMAP_QUEUES EIO");
  auto client = here.client();
  {
    auto busy = client.busy();
    ASSERT_TRUE(here.becomes(*offline, 2));
  }
  EXPECT_TRUE(here.becomes(*offline, 0));
  EXPECT_EQ(here.sluice().stats().mechanism_fallbacks.value(), 1u);
  {
    auto busy = client.busy();
    ASSERT_TRUE(here.becomes(*offline, 2));
  }
  EXPECT_TRUE(here.becomes(*offline, 0));
  EXPECT_EQ(here.sluice().stats().mechanism_fallbacks.value(), 1u);
  EXPECT_EQ(offline->ask("drain", 30s), "0");
}

TEST(PreemptionByBatch, ARefusedRemapStillEndsWithEverythingRunning) {
  node here{variant{acting::in_agent, "mi300x-batch"}};
  auto offline = here.start_offline(2);
  auto client = here.client();
  {
    auto busy = client.busy();
    ASSERT_TRUE(here.becomes(*offline, 2));
    // The call that resumes, and the one that takes everything back: then only the end of the
    // process that holds the queues is left.
    here.command("answer FAST_REMAP EIO times=2");
  }
  EXPECT_TRUE(here.becomes(*offline, 0));
  EXPECT_TRUE(here.progresses(*offline));
}

TEST(PreemptionByBatch, SuspendsAllTargetsOfAGpuInOneCycle) {
  node here{variant{acting::in_agent, "mi300x-batch"}};
  std::vector<std::unique_ptr<target_process>> offline;
  for (int i = 0; i < 4; ++i) offline.push_back(here.start_offline(2));
  auto client = here.client();
  std::uint64_t fewest = 100;
  // On a busy machine the agent may find the first command before the last is there.
  for (int round = 0; round < 10 && fewest != 1; ++round) {
    const auto before = here.view().gpu_count("debug_cycles");
    auto busy = client.busy();
    for (const auto& each : offline) ASSERT_TRUE(here.becomes(*each, 2));
    fewest = std::min(fewest, here.view().gpu_count("debug_cycles") - before);
    busy.end();
    for (const auto& each : offline) ASSERT_TRUE(here.becomes(*each, 0));
  }
  EXPECT_EQ(fewest, 1u);
  for (const auto& each : offline) EXPECT_EQ(each->ask("drain", 30s), "0");
}

TEST(PreemptionByBatch, TheAgentsDeathMapsWhatItHeld) {
  node here{variant{acting::in_agent, "mi300x-batch"}};
  auto offline = here.start_offline(2);
  auto client = here.client();
  auto busy = client.busy();
  ASSERT_TRUE(here.becomes(*offline, 2));
  const pid_t agent = tracer_of(offline->pid());
  ASSERT_GT(agent, 0);
  ASSERT_EQ(kill(agent, SIGKILL), 0);  // A thread's id reaches its process.
  EXPECT_TRUE(here.progresses(*offline));
}

TEST_P(PreemptionByTheAgent, SurvivesAnOfflineProcessThatExitsWhileSuspended) {
  node here{GetParam()};
  auto leaver = here.start_offline(1, 0us);
  auto stayer = here.start_offline();
  auto client = here.client();
  auto busy = client.busy();
  ASSERT_TRUE(here.becomes(*leaver, 1));
  ASSERT_TRUE(here.becomes(*stayer, 1));
  leaver->send("exit 7");
  const auto status = leaver->wait_for(patience);
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(WIFEXITED(*status));
  EXPECT_EQ(WEXITSTATUS(*status), 7);
  busy.end();
  EXPECT_TRUE(here.becomes(*stayer, 0));
  EXPECT_TRUE(here.progresses(*stayer));
}

TEST_P(PreemptionByTheAgent, SurvivesAnOfflineProcessThatIsKilledWhileSuspended) {
  node here{GetParam()};
  auto online = here.start_target("ONLINE_AI");
  auto victim = here.start_offline();
  auto stayer = here.start_offline();
  auto client = here.client();
  auto busy = client.busy();
  ASSERT_TRUE(here.becomes(*victim, 1));
  ASSERT_TRUE(here.becomes(*stayer, 1));
  kill(victim->pid(), SIGKILL);
  const auto status = victim->wait_for(patience);
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(WIFSIGNALED(*status));
  busy.end();
  EXPECT_TRUE(here.becomes(*stayer, 0));
  EXPECT_TRUE(here.progresses(*stayer));
}

TEST_P(PreemptionByTheAgent, SurvivesAnOfflineProcessThatExecsWhileSuspended) {
  node here{GetParam()};
  auto changer = here.start_offline(1, 0us);
  auto stayer = here.start_offline();
  auto client = here.client();
  auto busy = client.busy();
  ASSERT_TRUE(here.becomes(*changer, 1));
  ASSERT_EQ(changer->ask("exec", patience), "exec");
  // The new program must run, not stay in the exec stop: it answers to signals of its own.
  ASSERT_TRUE(eventually(patience, [&] {
    std::ifstream name("/proc/" + std::to_string(changer->pid()) + "/comm");
    std::string text;
    std::getline(name, text);
    return text == "sleep";
  }));
  busy.end();
  EXPECT_TRUE(here.becomes(*stayer, 0));
  EXPECT_TRUE(here.progresses(*stayer));
  kill(changer->pid(), SIGTERM);
  const auto status = changer->wait_for(patience);
  ASSERT_TRUE(status.has_value()) << "the exec'd program hangs";
  EXPECT_TRUE(WIFSIGNALED(*status));
}

TEST_P(PreemptionByTheAgent, LeavesSignalsAndWaitsOfATracedProcessAlone) {
  node here{GetParam()};
  auto offline = here.start_offline(1, 0us);
  ASSERT_EQ(tracer_of(offline->pid()) != 0, GetParam().profile != "untraced");

  ASSERT_EQ(offline->ask("handle " + std::to_string(SIGUSR1), patience), "handling");
  kill(offline->pid(), SIGUSR1);
  EXPECT_TRUE(eventually(patience, [&] { return offline->ask("handled", patience) == "1"; }));

  for (const int stop : {SIGSTOP, SIGTSTP}) {
    kill(offline->pid(), stop);
    const auto stopped = offline->wait_for(patience, WUNTRACED);
    ASSERT_TRUE(stopped.has_value()) << "the parent does not hear of the stop";
    EXPECT_TRUE(WIFSTOPPED(*stopped));
    EXPECT_EQ(WSTOPSIG(*stopped), stop);
    offline->send("handled");
    EXPECT_FALSE(offline->hear(200ms).has_value()) << "it runs although it was stopped";
    kill(offline->pid(), SIGCONT);
    const auto continued = offline->wait_for(patience, WCONTINUED);
    ASSERT_TRUE(continued.has_value());
    EXPECT_TRUE(WIFCONTINUED(*continued));
    EXPECT_EQ(offline->hear(patience), "1");
  }

  // Attached and detached, suspended and resumed around an epoll_wait: it must not see EINTR.
  auto client = here.client();
  offline->send("epoll 1500");
  {
    auto busy = client.busy();
    ASSERT_TRUE(here.becomes(*offline, 1));
  }
  ASSERT_TRUE(here.becomes(*offline, 0));
  here.stop();
  EXPECT_EQ(tracer_of(offline->pid()), 0) << "stopping the scheduler lets go of its targets";
  EXPECT_EQ(offline->hear(patience), "timeout");

  offline->send("exit 5");
  const auto status = offline->wait_for(patience);
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(WIFEXITED(*status));
  EXPECT_EQ(WEXITSTATUS(*status), 5);
}

// For how long: MaxSuspend.* in virtual time (tests/core).
TEST_P(Preemption, LetsOfflineRunForMinRunAfterMaxSuspend) {
  auto config = node::quick();
  config.max_suspend = 300ms;
  config.min_run = 150ms;
  node here{GetParam(), config};
  auto online = here.start_target("ONLINE_AI");
  auto offline = here.start_offline(1, 1ms);
  auto client = here.client();
  auto busy = client.busy();
  ASSERT_TRUE(here.becomes(*offline, 1));
  ASSERT_TRUE(here.becomes(*offline, 0)) << "max_suspend must free it although online never ends";
  ASSERT_TRUE(here.becomes(*offline, 1)) << "and after min_run online has the GPU again";
  EXPECT_GE(here.sluice().stats().forced_resumes.value(), 1u);
}

TEST_P(Preemption, LeavesEveryQueueRunningWhenStoppedInTheMiddle) {
  node here{GetParam()};
  auto online = here.start_target("ONLINE_AI");
  auto first = here.start_offline(3);
  auto second = here.start_offline(1);
  auto client = here.client();
  auto busy = client.busy();
  ASSERT_TRUE(here.becomes(*first, 3));
  ASSERT_TRUE(here.becomes(*second, 1));
  here.stop();
  EXPECT_EQ(here.suspended(*first), 0u);
  EXPECT_EQ(here.suspended(*second), 0u);
  EXPECT_TRUE(here.progresses(*first));
  EXPECT_EQ(first->ask("drain", 30s), "0");
}

TEST_P(Preemption, ManagesQueuesThatAreCreatedLater) {
  node here{GetParam()};
  auto offline = here.start_offline(1);
  auto late = here.start_offline(2);
  auto client = here.client();
  auto busy = client.busy();
  EXPECT_TRUE(here.becomes(*offline, 1));
  EXPECT_TRUE(here.becomes(*late, 2));
}

TEST(SimulatedNode, ShowsNothingToAWatchOnSysfsWhileQueuesComeAndGo) {
  node here{acting::in_process};
  const int watcher = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  ASSERT_GE(inotify_add_watch(watcher, (here.device().roots().sysfs + "/proc").c_str(),
                              IN_CREATE | IN_DELETE | IN_MODIFY | IN_MOVE),
            0);
  {
    auto offline = here.start_offline(2);
    EXPECT_TRUE(here.progresses(*offline));
  }
  char events[512];
  EXPECT_EQ(read(watcher, events, sizeof events), -1);
  EXPECT_EQ(errno, EAGAIN);
  close(watcher);
}

}  // namespace
}  // namespace sluice::test::preemption_test
