// The demo: starts a simulated GPU, an offline process and an online process that embeds the
// scheduler, runs them alone and together, and prints what each got.
//
// Needs what mounting a FUSE file system and tracing a process need: run it as root, best in a
// mount namespace of its own (`unshare -m`), as demo.sh does.

#include "child_process.hpp"
#include "demo_page.hpp"
#include "demo_report.hpp"
#include "device_stats.hpp"
#include "options.hpp"
#include "policy_choice.hpp"
#include "print.hpp"
#include "scheduling_options.hpp"
#include "serving_options.hpp"
#include "stop_request.hpp"
#include "wire_report.hpp"
#include "workload.hpp"

#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "sluice/config.hpp"
#include "sluice/lab/page.hpp"
#include "sluice/roles/classification.hpp"

namespace {

using namespace std::chrono_literals;
using demo::checked;
using demo::failure;
using sluice::clock;
using sluice::duration;
using sluice::time_point;

constexpr duration offline_alone_at_least = 2s;
constexpr duration answer_limit =
    20s;  ///< For anything that takes well under a second when healthy.

struct settings {
  demo::arrival_options arrivals;
  demo::serving_options serving;
  demo::scheduling_options scheduling;
  std::string load = "both";
  std::string profile = "mi300x";
  std::string json_file;
  std::string record_file;
  std::string trace_file;
  std::string report_file;
  std::string command;  ///< As it was given.
  std::string root;
};

/// The device's directory, which goes when we go if we made it; one that was there already loses
/// what the demo put into it.
class device_directory {
 public:
  static checked<device_directory> make(const std::string& wanted) {
    if (!wanted.empty()) {
      const bool made = mkdir(wanted.c_str(), 0755) == 0;
      if (!made && errno != EEXIST) {
        return failure(wanted + ": cannot be created: " + std::strerror(errno));
      }
      return device_directory(wanted, made);
    }
    std::string path = std::filesystem::temp_directory_path() / "sluice-demo-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) {
      return failure(path + ": cannot be created: " + std::strerror(errno));
    }
    return device_directory(path, true);
  }
  device_directory(device_directory&& other) noexcept
      : path_(std::exchange(other.path_, {})), ours_(other.ours_) {}
  device_directory& operator=(device_directory&&) = delete;
  ~device_directory() {
    if (path_.empty()) return;
    if (!ours_) {
      unlink(owner_lock().c_str());
      return;
    }
    // The device has unmounted by now, unless it was killed: then its mount is dead and in the way.
    umount2((path_ + "/fuse").c_str(), MNT_DETACH);
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string owner_lock() const { return path_ + "/owner"; }

 private:
  device_directory(std::string path, bool ours) : path_(std::move(path)), ours_(ours) {}
  std::string path_;
  bool ours_;
};

/// One line that is rewritten in place on a terminal, and written once elsewhere.
class progress {
 public:
  explicit progress(std::string what) : what_(std::move(what)), terminal_(isatty(STDERR_FILENO)) {
    demo::print(stderr, "{} ...{}", what_, terminal_ ? "" : "\n");
  }
  ~progress() {
    if (terminal_) demo::print(stderr, "\r\033[K");
  }
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  void at(duration passed, duration expected) {
    if (!terminal_) return;
    demo::print(stderr, "\r\033[K{} ... {:.1f} of about {:.1f} s", what_,
                std::chrono::duration<double>(passed).count(),
                std::chrono::duration<double>(expected).count());
  }

 private:
  std::string what_;
  bool terminal_;
};

enum class scheduling { off, on };

/// What one phase left behind.
struct phase_result {
  std::optional<demo::online_report> online;
  demo::offline_run offline;
  demo::verdict offline_kernels;
  demo::device_stats after_all;  ///< When both programs had ended their part.
  duration online_disturbed{};
  std::uint64_t driver_cycles = 0;  ///< As online_disturbed: until the last request was done.
  duration driver_cycle_time{};
};

class demo_run {
 public:
  demo_run(const settings& with, const demo::arrivals& work, const device_directory& directory)
      : with_(with),
        work_(work),
        root_(directory.path()),
        owner_lock_(directory.owner_lock()),
        programs_(demo::program_directory()) {}

  checked<bool> start_device() {
    auto started = demo::child_process::start(
        {{programs_ + "/sluice-sim", "--root", root_, "--profile", with_.profile, "--ready-fd",
          std::to_string(demo::child_control_fd)},
         {}});
    if (started.has_error()) return started.error();
    device_.emplace(std::move(*started));
    if (const auto ready = device_->control().hear_anything(clock::now() + answer_limit);
        ready.has_error()) {
      return failure("the simulated device did not start: " + ready.error().message);
    }
    return true;
  }

  /// Ends the device: it unmounts what it mounted.
  checked<bool> stop_device() {
    device_->terminate();
    const auto code = device_->wait(clock::now() + answer_limit);
    if (code.has_error()) return code.error();
    if (*code != 0) return failure(fmt::format("sluice-sim exited with code {}", *code));
    return true;
  }

  checked<demo::device_stats> stats() const { return demo::read_device_stats(root_); }

  checked<phase_result> offline_alone(demo::load_kind load) {
    progress shown(fmt::format("{}: offline alone", demo::to_string(load)));
    auto offline = start_offline(load);
    if (offline.has_error()) return offline.error();
    const auto before = stats();
    if (before.has_error()) return before.error();
    // As long as the runs that it is compared with: with few kernels, one more or less would show.
    const duration length = std::max(work_.window, offline_alone_at_least);
    const time_point start = clock::now();
    while (clock::now() < start + length && demo::stop_signal() == 0) {
      std::this_thread::sleep_for(50ms);
      shown.at(clock::now() - start, length);
    }
    if (demo::stop_signal() != 0) return failure("interrupted");
    const auto after = stats();
    if (after.has_error()) return after.error();
    phase_result seen;
    seen.offline = offline_between(*before, *after, offline->pid(), 0);
    return finish_offline(*offline, seen);
  }

  checked<phase_result> online_alone() {
    progress shown("online alone");
    return with_online(nullptr, scheduling::off, shown);
  }

  checked<phase_result> together(demo::load_kind load, scheduling how) {
    progress shown(fmt::format("{}: both, {}", demo::to_string(load),
                               how == scheduling::on ? "scheduled" : "no scheduler"));
    auto offline = start_offline(load);
    if (offline.has_error()) return offline.error();
    auto seen = with_online(&*offline, how, shown);
    if (seen.has_error()) return seen;
    return finish_offline(*offline, *seen);
  }

 private:
  std::vector<std::pair<std::string, std::string>> device_environment() const {
    return {{"SLUICE_KFD_DEVICE", root_ + "/dev/kfd"},
            {"SLUICE_KFD_SYSFS", root_ + "/sys/class/kfd/kfd"},
            {"SLUICE_KFD_DEBUGFS", root_ + "/sys/kernel/debug/kfd"},
            {"SLUICE_NVIDIA_DEVICE", root_ + "/dev/nvidiactl"},
            {"SLUICE_NVIDIA_PROC", root_ + "/proc/driver/nvidia"}};
  }

  checked<demo::child_process> start(demo::program what) {
    const std::string name = what.arguments.front();
    auto started = demo::child_process::start(what);
    if (started.has_error()) return started;
    const auto ready = started->control().hear(clock::now() + answer_limit);
    if (ready.has_error()) return failure(name + " did not start: " + ready.error().message);
    if (*ready != "ready") return failure(name + " sent '" + *ready + "'; expected 'ready'");
    return started;
  }

  checked<demo::child_process> start_offline(demo::load_kind load) {
    demo::program what{{programs_ + "/offline_demo", "--load", std::string(demo::to_string(load)),
                        "--seed", std::to_string(with_.arrivals.seed), "--control-fd",
                        std::to_string(demo::child_control_fd)},
                       device_environment()};
    what.environment.emplace_back("AMD_QUEUE_TAG", "OFFLINE_AI");
    return start(std::move(what));
  }

  checked<demo::child_process> start_online(scheduling how) {
    demo::program what{
        {programs_ + "/online_demo", "--control-fd", std::to_string(demo::child_control_fd)},
        device_environment()};
    // For policies that look at the pointers of online queues.
    what.environment.emplace_back("AMD_QUEUE_TAG", "ONLINE_AI");
    auto add = [&](const std::vector<std::string>& more) {
      what.arguments.insert(what.arguments.end(), more.begin(), more.end());
    };
    add(with_.arrivals.arguments());
    add(with_.serving.arguments());
    if (how == scheduling::on) {
      add(with_.scheduling.arguments());
      add({"--owner-lock", owner_lock_, "--wait-for-offline", "1"});
      // Of several loads the first one's.
      if (!recorded_ && !with_.record_file.empty()) add({"--record", with_.record_file});
      if (!recorded_ && !with_.trace_file.empty()) add({"--trace-out", with_.trace_file});
      recorded_ = true;
    } else {
      add({"--no-scheduler"});
    }
    auto started = start(std::move(what));
    if (how == scheduling::on && started.has_error() &&
        started.error().message.ends_with(demo::no_answer_yet)) {
      return failure(
          started.error().message +
          "; online_demo waits until its scheduler has attached to the offline process; check "
          "that decide() of the policy returns");
    }
    return started;
  }

  /// Runs the online program to its end, beside `offline` if there is one.
  checked<phase_result> with_online(demo::child_process* offline, scheduling how, progress& shown) {
    auto online = start_online(how);
    if (online.has_error()) return online.error();
    const auto before = stats();
    if (before.has_error()) return before.error();
    online->control().say("go");

    // "done" when the last request is, the report when the scheduler has let everything run again.
    const time_point start = clock::now();
    const time_point served_by = start + work_.window + with_.serving.drain_limit + answer_limit;
    for (;;) {
      const auto said = online->control().hear(clock::now() + 100ms);
      if (said.has_value()) {
        if (*said != "done") return failure("online_demo sent '" + *said + "'; expected 'done'");
        break;
      }
      if (demo::stop_signal() != 0 || clock::now() >= served_by ||
          said.error().message != demo::no_answer_yet) {
        return failure("online_demo: " + said.error().message);
      }
      shown.at(clock::now() - start, work_.window);
    }
    const auto after = stats();
    if (after.has_error()) return after.error();
    const auto line = online->control().hear(clock::now() + answer_limit);
    if (line.has_error()) return failure("online_demo sent no report: " + line.error().message);
    auto report = demo::parse_online_report(*line);
    if (report.has_error()) return report.error();
    const pid_t online_pid = online->pid();
    const auto code = online->wait(clock::now() + answer_limit);
    if (code.has_error()) return code.error();
    if (*code != 0) return failure(fmt::format("online_demo exited with code {}", *code));
    auto at_rest = stats();
    if (at_rest.has_error()) return at_rest.error();

    phase_result seen;
    seen.online = std::move(*report);
    if (offline != nullptr) {
      seen.offline = offline_between(*before, *after, offline->pid(), online_pid);
    }
    seen.online_disturbed = after->of(online_pid).disturbed - before->of(online_pid).disturbed;
    seen.driver_cycles = after->driver_cycles - before->driver_cycles;
    seen.driver_cycle_time = after->driver_cycle_time - before->driver_cycle_time;
    seen.after_all = std::move(*at_rest);
    return seen;
  }

  static demo::offline_run offline_between(const demo::device_stats& before,
                                           const demo::device_stats& after, pid_t offline,
                                           pid_t online) {
    demo::offline_run run;
    run.wall = after.now - before.now;
    run.gpu_time = after.of(offline).busy - before.of(offline).busy;
    run.kernels = after.of(offline).kernels_completed - before.of(offline).kernels_completed;
    run.online_unfinished = after.of(online).unfinished - before.of(online).unfinished;
    return run;
  }

  /// Asks the offline program to end, and for its books.
  checked<phase_result> finish_offline(demo::child_process& offline, phase_result& seen) {
    offline.terminate();
    const auto line = offline.control().hear(clock::now() + 2 * answer_limit);
    if (line.has_error()) return failure("offline_demo sent no report: " + line.error().message);
    const auto books = demo::parse_verdict(*line);
    if (books.has_error()) return books.error();
    seen.offline_kernels = *books;
    const auto code = offline.wait(clock::now() + answer_limit);
    if (code.has_error()) return code.error();
    // Books that are not clean have a code of their own, and the report says it: no failure of
    // ours.
    if (*code != 0 && books->clean()) {
      return failure(fmt::format("offline_demo exited with code {}", *code));
    }
    return std::move(seen);
  }

  const settings& with_;
  const demo::arrivals& work_;
  std::string root_;
  std::string owner_lock_;
  std::string programs_;
  std::optional<demo::child_process> device_;
  bool recorded_ = false;
};

checked<demo::load_report> measure(demo_run& run, demo::load_kind load,
                                   const demo::online_report& online_alone) {
  demo::load_report report;
  report.load = load;
  report.online_alone = demo::summarize(online_alone);

  const auto alone = run.offline_alone(load);
  if (alone.has_error()) return alone.error();
  report.offline_alone = alone->offline;

  const auto unscheduled = run.together(load, scheduling::off);
  if (unscheduled.has_error()) return unscheduled.error();
  report.unscheduled = demo::summarize(*unscheduled->online);
  report.unscheduled_offline = unscheduled->offline;

  const auto scheduled = run.together(load, scheduling::on);
  if (scheduled.has_error()) return scheduled.error();
  report.scheduled = demo::summarize(*scheduled->online);
  report.scheduled_offline = scheduled->offline;
  if (!scheduled->online->scheduler) return failure("online_demo reported no scheduler");
  report.scheduler = *scheduled->online->scheduler;
  report.still_suspended = scheduled->after_all.suspended_queues();
  report.online_disturbed = scheduled->online_disturbed;
  report.driver_cycles = scheduled->driver_cycles;
  report.driver_cycle_time = scheduled->driver_cycle_time;
  report.lateness_p50 = scheduled->after_all.lateness_p50;
  report.lateness_p99 = scheduled->after_all.lateness_p99;

  report.offline_kernels += alone->offline_kernels;
  report.offline_kernels += unscheduled->offline_kernels;
  report.offline_kernels += scheduled->offline_kernels;
  return report;
}

/// What would be found out only after a run or at the end: one line, or nothing.
std::string problem_with_settings(const settings& with) {
  std::string message;
  if (!with.scheduling.config_file.empty() &&
      sluice::load_config(with.scheduling.config_file, message, {"kfd", "nvidia"}).has_error())
    return message;
  if (sluice::roles::load_classification(with.scheduling.config_file, message).has_error())
    return message;
  if (const auto policy = demo::make_policy(with.scheduling); policy.has_error()) {
    return policy.error().message;
  }
  for (const std::string& each :
       {with.json_file, with.record_file, with.trace_file, with.report_file}) {
    if (each.empty()) continue;
    std::error_code ignored;
    const bool was_there = std::filesystem::exists(each, ignored);
    errno = 0;
    if (!std::ofstream(each, std::ios::app)) {
      return each + ": cannot be written: " + std::strerror(errno);
    }
    if (!was_there) std::filesystem::remove(each, ignored);
  }
  return {};
}

checked<bool> write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path);
  out << text << std::flush;
  if (!out) return failure(path + ": cannot be written: " + std::strerror(errno));
  return true;
}

void print_head(const settings& with, const demo::arrivals& work, const std::string& profile) {
  const demo::token_costs costs = demo::scale_to_load(work, with.arrivals.online_load);
  demo::print(
      "The GPU is simulated (profile {}): times were measured on this machine, none on GPU "
      "hardware.\n",
      profile);
  demo::print("arrivals: {}\n", with.arrivals.description(work));
  demo::print(
      "online work: load {:g} = {} of GPU time; {:.2f} us per context token, {:.1f} us per "
      "generated token\n",
      with.arrivals.online_load,
      demo::rounded_text(std::chrono::round<duration>(work.window * with.arrivals.online_load)),
      costs.prefill.count() / 1e3, costs.decode.count() / 1e3);
  demo::print("            {}\n", with.serving.description());
  std::fflush(stdout);
}

checked<int> run_demo(const settings& with, const demo::arrivals& work) {
  auto directory = device_directory::make(with.root);
  if (directory.has_error()) return directory.error();
  demo_run run(with, work, *directory);
  if (const auto started = run.start_device(); started.has_error()) return started.error();
  const auto device = run.stats();
  if (device.has_error()) return device.error();
  print_head(with, work, device->profile);

  const auto online_alone = run.online_alone();
  if (online_alone.has_error()) return online_alone.error();
  std::vector<demo::load_kind> loads;
  if (with.load != "train") loads.push_back(demo::load_kind::long_kernels);
  if (with.load != "long") loads.push_back(demo::load_kind::training);
  std::string broken;
  bool removed = false;
  std::vector<demo::load_report> reports;
  for (const demo::load_kind load : loads) {
    const auto report = measure(run, load, *online_alone->online);
    if (report.has_error()) return report.error();
    if (load == loads.front()) {
      demo::print("scheduler: {}; reactor on {}\n", report->scheduler.settings,
                  report->scheduler.reactor);
    }
    demo::print("{}", demo::table(*report));
    std::fflush(stdout);
    if (broken.empty()) broken = report->broken_promise();
    removed = removed || report->scheduler.policy_ejections > 0;
    reports.push_back(*report);
  }
  if (!with.json_file.empty()) {
    if (const auto done = write_file(with.json_file, demo::json(reports.front(), device->profile,
                                                                with.arrivals, work.window));
        done.has_error()) {
      return done.error();
    }
  }
  if (!with.report_file.empty()) {
    const demo::page_head head{device->profile, with.command, with.arrivals.description(work)};
    if (const auto done = write_file(with.report_file, demo::page(head, reports)); done.has_error())
      return done.error();
  }
  std::string files;
  for (const std::string& each :
       {with.json_file, with.report_file, with.record_file, with.trace_file}) {
    if (!each.empty()) files += (files.empty() ? "" : ", ") + each;
  }
  if (!files.empty()) demo::print("written: {}\n", files);
  if (const auto stopped = run.stop_device(); stopped.has_error()) return stopped.error();
  if (!broken.empty()) return failure("GUARANTEE VIOLATED: " + broken);
  if (removed)
    return failure("the scheduler removed the policy during a scheduled run; see its log above");
  demo::print(
      "next: other loads, arrivals and policies: examples/README.md; run the daemon: "
      "adapters/cli/README.md\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  settings with;
  CLI::App app(
      "Run online and offline work on a simulated GPU: alone, together, and together under "
      "sluice.\n"
      "Print a table of the results. Needs root (FUSE mount, ptrace); demo.sh sets that up.",
      "sluice-demo");
  app.add_option("--load", with.load, "Offline load: long, train or both")
      ->check(CLI::IsMember({"long", "train", "both"}))
      ->capture_default_str();
  app.add_option("--json", with.json_file, "Write the figures to this file, as JSON")
      ->type_name("FILE");
  app.add_option("--report", with.report_file,
                 "Write an HTML page that compares the runs to this file")
      ->type_name("FILE");
  app.add_option("--record", with.record_file, "Record the scheduled run for 'sluice replay'")
      ->type_name("FILE");
  app.add_option("--trace-out", with.trace_file,
                 "Write a timeline of the scheduled run for ui.perfetto.dev")
      ->type_name("FILE");
  app.add_option("--profile", with.profile, "Profile of the simulated GPU: a name or a TOML file")
      ->capture_default_str();
  app.add_option("--root", with.root,
                 "Directory for the simulated device (default: a temporary directory)")
      ->check([](const std::string& path) { return path.empty() ? "must not be empty" : ""; })
      ->type_name("DIR");
  with.arrivals.add_to(app);
  with.serving.add_to(app);
  with.scheduling.add_to(app, "200 ms");
  app.footer(
      "With --load both, --json, --record and --trace-out refer to long.\n"
      "If the demo creates the directory of --root, the demo also removes it.\n" +
      std::string(demo::arrival_options::notes) + std::string(demo::scheduling_options::notes));
  if (const int code = demo::parse(app, argc, argv); code >= 0) return code;
  std::vector<std::string> words(argv, argv + argc);
  words.front() = "examples/demo.sh";
  with.command = sluice::lab::page::shell_text(words);
  // A demo of seconds cannot wait for seconds until it attaches.
  if (with.scheduling.config_file.empty() && !with.scheduling.attach_after) {
    with.scheduling.attach_after = 200ms;
  }

  const auto work = with.arrivals.load();
  if (work.has_error()) {
    demo::print(stderr, "sluice-demo: {}\n", work.error().message);
    return 2;
  }
  if (const std::string problem = problem_with_settings(with); !problem.empty()) {
    demo::print(stderr, "sluice-demo: {}\n", problem);
    return 2;
  }
  demo::catch_stop_signals();
  const auto code = run_demo(with, *work);
  if (const int signal = demo::stop_signal(); signal != 0) {
    demo::print(stderr, "sluice-demo: stopped by signal {}; the device was unmounted\n", signal);
    return demo::exit_code_for(signal);
  }
  if (code.has_error()) {
    demo::print(stderr, "sluice-demo: {}\n", code.error().message);
    return 1;
  }
  return *code;
}
