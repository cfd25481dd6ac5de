// An online server that embeds the scheduler: its serving loop is the online work, and while a
// request is in flight the offline processes of the node are off the GPU. It needs no privilege of
// its own for that; sluice-agent, which it starts, does.

#include "control_channel.hpp"
#include "options.hpp"
#include "policy_choice.hpp"
#include "print.hpp"
#include "scheduling_options.hpp"
#include "serving_loop.hpp"
#include "serving_options.hpp"
#include "stop_request.hpp"
#include "wire_report.hpp"
#include "workload.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/breaker_store.hpp"
#include "sluice/discovery.hpp"
#include "sluice/driver.hpp"
#include "sluice/kfd/driver.hpp"
#include "sluice/nvidia/driver.hpp"
#include "sluice/observe/timeline_thread.hpp"
#include "sluice/os/standard_error.hpp"
#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/policy.hpp"
#include "sluice/roles/classification.hpp"
#include "sluice/scheduler.hpp"
#include "sluice/sim/client.hpp"

namespace {

using namespace std::chrono_literals;
using demo::checked;
using demo::failure;
using sluice::clock;
using sluice::duration;

constexpr duration go_limit = 60s;

struct settings {
  demo::arrival_options arrivals;
  demo::serving_options serving;
  demo::scheduling_options scheduling;
  bool no_scheduler = false;
  unsigned wait_for_offline = 0;
  std::string record_file;
  std::string trace_file;
  std::string policy_text;  ///< For the recording.
  std::string agent;
  std::string owner_lock = "/run/sluice/owner";
  int control_fd = -1;
};

/// The driver of the device that sim::gpu_client::open() opens.
std::unique_ptr<sluice::driver> driver_of_device() {
  auto amd = sluice::kfd::make_driver();
  return amd->present() ? std::move(amd) : sluice::nvidia::make_driver();
}

/// What a policy's name leaves open.
std::string policy_settings(const demo::scheduling_options& with) {
  if (!with.policy.empty()) return fmt::format(" ({})", with.policy);
  if (!with.config_file.empty()) return "";
  return fmt::format(" (slice {}, release {})", demo::rounded_text(with.slice), with.release);
}

/// A scheduler on a thread of its own.
class embedded_scheduler {
 public:
  static checked<std::unique_ptr<embedded_scheduler>> start(
      const settings& with, std::unique_ptr<sluice::policy> policy) {
    sluice::scheduler_config config;
    std::string message;
    auto rules = sluice::roles::load_classification(with.scheduling.config_file, message);
    if (rules.has_error()) return failure(message);
    if (!with.scheduling.config_file.empty()) {
      auto loaded = sluice::load_config(with.scheduling.config_file, message, {"kfd", "nvidia"});
      if (loaded.has_error()) return failure(message);
      config = *loaded;
    }
    if (with.scheduling.attach_after) {
      config.attach_after = *with.scheduling.attach_after;
      config.attach_at_latest = std::max(config.attach_at_latest, config.attach_after);
    }

    auto loop = sluice::reactor::create();
    if (loop.has_error()) return failure("cannot create an event loop: " + loop.error().message());
    const std::shared_ptr<const sluice::driver> driver = driver_of_device();
    auto backend = sluice::agent::make_agent_backend(
        {.driver = driver->acting(), .agent_path = with.agent, .owner_lock = with.owner_lock});
    const std::string settings_text = fmt::format(
        "{}{}, max_suspend {}, min_run {}, offline floor {:g} % of {}, attach after {}",
        policy->name(), policy_settings(with.scheduling), demo::rounded_text(config.max_suspend),
        demo::rounded_text(config.min_run), 100 * config.offline_floor,
        demo::rounded_text(config.floor_window), demo::rounded_text(config.attach_after));
    const std::string reactor_name =
        (*loop)->backend() == sluice::reactor_backend::io_uring ? "io_uring" : "epoll";

    std::unique_ptr<sluice::observe::timeline_thread> timeline;
    if (!with.trace_file.empty()) {
      auto begun = sluice::observe::timeline_thread::start(
          with.trace_file, {.simulated = [driver] { return driver->simulated(); }});
      if (begun.has_error())
        return failure(with.trace_file + ": cannot be written: " + begun.error().message());
      timeline = std::move(*begun);
    }

    std::vector<std::unique_ptr<sluice::source>> sources;
    sources.push_back(sluice::make_discovery(driver->make_survey(sluice::messages_to_stderr()),
                                             std::move(*rules)));
    sources.push_back(
        sluice::make_breaker_keeper(sluice::breaker_store::default_path(driver->device_key())));
    auto made = sluice::scheduler::create(
        config, std::move(*loop), std::move(backend), std::move(policy), std::move(sources),
        {.fallback = [] { return sluice::make_fixed_timeslice(); },
         .record = {.file = with.record_file, .policy = with.policy_text, .device = "simulated"},
         .journal = timeline ? &timeline->sink() : nullptr});
    if (made.has_error()) {
      const std::string problem = config.problem();
      if (problem.empty() && !with.record_file.empty()) {
        return failure(with.record_file + ": cannot be written: " + made.error().message());
      }
      return failure("cannot create the scheduler: " +
                     (problem.empty() ? made.error().message() : problem));
    }
    if (auto started = (*made)->start(); started.has_error()) {
      return failure("cannot start the scheduler: " + started.error().message());
    }
    return std::unique_ptr<embedded_scheduler>(
        new embedded_scheduler(std::move(timeline), std::move(*made), settings_text, reactor_name));
  }

  ~embedded_scheduler() { stop(); }
  embedded_scheduler(const embedded_scheduler&) = delete;
  embedded_scheduler& operator=(const embedded_scheduler&) = delete;

  sluice::scheduler& operator*() { return *scheduler_; }
  sluice::scheduler* operator->() { return scheduler_.get(); }

  /// Lets everything run again. Once is enough.
  void stop() {
    if (!thread_.joinable()) return;
    scheduler_->stop();
    thread_.join();
  }

  /// Whole when it has stopped: the last resumes may be part of that.
  demo::scheduler_report report() const {
    const auto seen = std::make_unique<sluice::statistics>(scheduler_->stats());
    return {.settings = settings_,
            .reactor = reactor_,
            .suspends = seen->suspends,
            .resumes = seen->resumes,
            .driver_calls = seen->driver_calls,
            .failed_outcomes = seen->failed_outcomes,
            .invalid_outcomes = seen->invalid_outcomes,
            .forced_resumes = seen->forced_resumes,
            .backend_restarts = seen->backend_restarts,
            .policy_ejections = seen->policy_ejections,
            .suspend_calls = seen->suspend_call.count(),
            .resume_calls = seen->resume_call.count(),
            .suspend_p50 = seen->suspend_call.percentile(50),
            .suspend_p99 = seen->suspend_call.percentile(99),
            .resume_p50 = seen->resume_call.percentile(50),
            .resume_p99 = seen->resume_call.percentile(99),
            .decision_p50 = seen->decision.percentile(50),
            .decision_p99 = seen->decision.percentile(99),
            .off_p50 = seen->arrival_to_off.percentile(50),
            .off_p99 = seen->arrival_to_off.percentile(99)};
  }

 private:
  embedded_scheduler(std::unique_ptr<sluice::observe::timeline_thread> timeline,
                     std::unique_ptr<sluice::scheduler> made, std::string settings,
                     std::string reactor)
      : timeline_(std::move(timeline)),
        scheduler_(std::move(made)),
        settings_(std::move(settings)),
        reactor_(std::move(reactor)) {
    const demo::signals_for_main_only blocked;
    thread_ = std::thread([this] { scheduler_->run(); });
  }

  std::unique_ptr<sluice::observe::timeline_thread> timeline_;  // the scheduler writes to it
  std::unique_ptr<sluice::scheduler> scheduler_;
  std::string settings_;
  std::string reactor_;
  std::thread thread_;
};

/// Waits for `condition`, looking every few milliseconds. \return what it was at the end.
template <class Condition>
bool wait_for(duration limit, Condition condition) {
  const auto deadline = clock::now() + limit;
  while (!condition()) {
    if (clock::now() >= deadline || demo::stop_signal() != 0) return condition();
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

duration mean_of(const std::vector<duration>& samples) {
  if (samples.empty()) return {};
  return std::accumulate(samples.begin(), samples.end(), duration{}) /
         static_cast<duration::rep>(samples.size());
}

void print(const demo::online_report& report) {
  std::vector<duration> all = report.finished;
  all.insert(all.end(), report.unfinished.begin(), report.unfinished.end());
  const demo::percentiles latency = demo::percentiles_of(all);
  demo::print(
      "{} requests, {} unfinished; latency p50 {} p90 {} p99 {} max {}; wake-up p50 {} p99 {}\n",
      all.size(), report.unfinished.size(), demo::rounded_text(latency.p50),
      demo::rounded_text(latency.p90), demo::rounded_text(latency.p99),
      demo::rounded_text(latency.max), demo::rounded_text(report.wake_up.p50),
      demo::rounded_text(report.wake_up.p99));
  if (!report.scheduler) return;
  const demo::scheduler_report& by = *report.scheduler;
  demo::print(
      "{}; reactor on {}\n{} queue suspends, {} resumes in {} driver calls, {} failed "
      "outcomes; suspend p50 {}, resume p50 {}\n",
      by.settings, by.reactor, by.suspends, by.resumes, by.driver_calls, by.failed_outcomes,
      demo::rounded_text(by.suspend_p50), demo::rounded_text(by.resume_p50));
}

checked<int> run(const settings& with, const demo::arrivals& work,
                 std::unique_ptr<sluice::policy> policy) {
  demo::control_channel control(with.control_fd);
  // The default slack of 50 us would be a quarter of the host gap.
  prctl(PR_SET_TIMERSLACK, 1);

  auto gpu = sluice::sim::gpu_client::open({});
  if (gpu.has_error()) {
    return failure(
        "cannot open the device: " + gpu.error().message() +
        (gpu.error() == boost::system::errc::resource_unavailable_try_again
             ? "; a GPU is being reset, try again in a few seconds"
             : "; set SLUICE_KFD_DEVICE or SLUICE_NVIDIA_DEVICE to a node of a simulated device"));
  }
  // Priority 11 is what ROCr gives a stream of high priority.
  auto queue = (*gpu)->create_queue({.packets = demo::serving_packets, .priority = 11});
  if (queue.has_error()) return failure("cannot create a queue: " + queue.error().message());

  std::unique_ptr<embedded_scheduler> scheduler;
  sluice::online_client client;
  if (!with.no_scheduler) {
    auto started = embedded_scheduler::start(with, std::move(policy));
    if (started.has_error()) return started.error();
    scheduler = std::move(*started);
    auto registered = (*scheduler)->register_client({.name = "online_demo", .gpus = {}});
    if (registered.has_error()) {
      return failure("cannot register a client: " + registered.error().message());
    }
    client = std::move(*registered);
    if (!wait_for(go_limit, [&] {
          return (*scheduler)->stats().attaches.value() >= with.wait_for_offline;
        })) {
      const auto left_alone = (*scheduler)->stats().open_breakers.value();
      return failure(
          left_alone == 0
              ? "the scheduler did not attach to the offline processes (see its log above)"
              : "the scheduler did not attach to the offline processes: the breaker is open on " +
                    std::to_string(left_alone) + (left_alone == 1 ? " GPU" : " GPUs") +
                    "; see 'sluice breaker list'");
    }
  }

  const auto go = control.ready_then_go(clock::now() + go_limit);
  if (go.has_error()) return go.error();
  const demo::token_costs costs = demo::scale_to_load(work, with.arrivals.online_load);
  auto served = demo::serve(**queue, (*gpu)->wave_slots(), work, costs, with.serving, client);
  if (served.has_error()) return served.error();
  control.say("done");

  const demo::percentiles wake_up = demo::percentiles_of(served->wake_ups);
  demo::online_report report{std::move(served->finished),
                             std::move(served->unfinished),
                             std::move(served->arrivals),
                             wake_up,
                             mean_of(served->turnarounds),
                             served->kernels,
                             std::nullopt};
  if (scheduler) {
    // The last hold ends by itself, or at a signal by the scheduler's end.
    wait_for(with.scheduling.slice + 2s,
             [&] { return (*scheduler)->stats().suspended_now.value() == 0; });
    scheduler->stop();
    report.scheduler = scheduler->report();
  }
  if (control) {
    control.say(demo::to_line(report));
  } else {
    print(report);
  }
  if (!report.kernels.clean()) {
    return failure(fmt::format(
        "KERNELS FAILED VERIFICATION: {} lost, {} repeated, {} out of order, {} too short",
        report.kernels.lost, report.kernels.repeated, report.kernels.out_of_order,
        report.kernels.too_short));
  }
  if (demo::stop_signal() != 0) return demo::exit_code_for(demo::stop_signal());
  // Who holds the control channel has the report, and may have asked for more than can be served.
  if (!control && !report.unfinished.empty()) {
    return failure(
        fmt::format("{} of {} requests were not finished within the drain limit of {}: the GPU is "
                    "overloaded or does not respond (see dmesg)",
                    report.unfinished.size(), report.unfinished.size() + report.finished.size(),
                    demo::rounded_text(with.serving.drain_limit)));
  }
  return 0;
}

/// Where the kernel refuses io_uring, the sibling built on epoll does the same work.
void switch_to_epoll_if_needed(char** argv) {
#ifdef SLUICE_DEMO_EPOLL_SIBLING
  const auto allowed = sluice::probe_io_uring();
  if (allowed.has_value()) return;
  const std::string sibling = demo::program_directory() + "/" SLUICE_DEMO_EPOLL_SIBLING;
  demo::print(stderr, "online_demo: the kernel refuses io_uring ({}); continuing as {}\n",
              allowed.error().message(), SLUICE_DEMO_EPOLL_SIBLING);
  execv(sibling.c_str(), argv);
  demo::print(stderr, "online_demo: {}: cannot be run: {}\n", sibling, std::strerror(errno));
  std::exit(1);
#else
  static_cast<void>(argv);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  settings with;
  CLI::App app(
      "Serve requests as a language-model server does, with an embedded scheduler, on a simulated\n"
      "device. Its paths: SLUICE_KFD_DEVICE, SLUICE_KFD_SYSFS and SLUICE_KFD_DEBUGFS, or\n"
      "SLUICE_NVIDIA_DEVICE and SLUICE_NVIDIA_PROC.",
      "online_demo");
  with.arrivals.add_to(app);
  with.serving.add_to(app);
  with.scheduling.add_to(app, "2 s");
  app.footer(std::string(demo::arrival_options::notes) +
             std::string(demo::scheduling_options::notes));
  auto* const no_scheduler =
      app.add_flag("--no-scheduler", with.no_scheduler, "Serve without a scheduler");
  demo::add_number(app, "--wait-for-offline", with.wait_for_offline, 0u, 1000u,
                   "Number of offline processes that must be attached before serving starts");
  app.add_option("--record", with.record_file,
                 "Record the input and the decisions of the scheduler for 'sluice replay'")
      ->type_name("FILE")
      ->excludes(no_scheduler);
  app.add_option("--trace-out", with.trace_file,
                 "Write a timeline of the scheduler for ui.perfetto.dev")
      ->type_name("FILE")
      ->excludes(no_scheduler);
  app.add_option("--agent", with.agent,
                 "Path of the agent program (default: sluice-agent in this program's directory)")
      ->type_name("FILE");
  app.add_option("--owner-lock", with.owner_lock,
                 "Lock file that identifies the owner of this node")
      ->capture_default_str();
  demo::add_control_fd(app, with.control_fd);
  if (const int code = demo::parse(app, argc, argv); code >= 0) return code;

  switch_to_epoll_if_needed(argv);
  const auto work = with.arrivals.load();
  if (work.has_error()) {
    demo::print(stderr, "online_demo: {}\n", work.error().message);
    return 2;
  }
  auto policy = demo::make_policy(with.scheduling, &with.policy_text);
  if (policy.has_error()) {
    demo::print(stderr, "online_demo: {}\n", policy.error().message);
    return 2;
  }
  demo::catch_stop_signals();
  const auto code = run(with, *work, std::move(*policy));
  if (code.has_error()) {
    demo::print(stderr, "online_demo: {}\n", code.error().message);
    return 1;
  }
  return *code;
}
