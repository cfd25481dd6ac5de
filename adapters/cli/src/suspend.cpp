// sluice suspend: the foreground process that holds what it suspended.

#include "agent_holder.hpp"
#include "breakers.hpp"
#include "control_link.hpp"
#include "daemon_choice.hpp"
#include "driver_choice.hpp"
#include "holder_link.hpp"
#include "lost_queues.hpp"
#include "orphans.hpp"
#include "output.hpp"
#include "subcommand.hpp"
#include "table.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <set>
#include <string_view>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "sluice/duration_text.hpp"
#include "sluice/node_files.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/queue_holder.hpp"

namespace sluice::cli {

namespace {

namespace json = boost::json;
using namespace std::chrono_literals;

/// A second longer than the driver itself waits for the hardware.
constexpr duration driver_patience = 10s;
/// How often to look whether the process is still there, and has new queues.
constexpr duration look_interval = 100ms;
/// Of --for. Whoever waits for the GPU waits as long.
constexpr duration longest_hold = 24h;
/// For another 'sluice suspend' to say that it holds the process.
constexpr duration holder_look = 1s;
/// For the driver to tell of a reset after an attach that may have caused it.
constexpr duration reset_look = 1s;

struct suspend_options {
  pid_t pid = 0;
  std::vector<std::uint32_t> queues;
  duration limit = duration::max();
  bool force = false;
  bool json = false;
  std::string driver;
  std::string config;
  node_files files;
};

/// How long an order to exit waits while a release does not succeed.
constexpr auto release_look = 1s;
time_point soon() { return clock::now() + driver_patience; }

/// What a line of JSON tells of.
enum class event : std::uint8_t { suspend, resume, end };

std::string_view to_string(event what) {
  switch (what) {
    case event::suspend: return "suspend";
    case event::resume: return "resume";
    case event::end: break;
  }
  return "end";
}

class holding {
 public:
  holding(const suspend_options& chosen, const driver& on, std::unique_ptr<queue_holder> by)
      : chosen_(chosen), driver_(on), by_(std::move(by)) {}

  /// \return the exit code, once everything runs again.
  int run(int signals) {
    // Our resume would not end that hold.
    if (const auto left = why_orphaned(chosen_.pid, chosen_.files)) {
      complain(*left);
      return exit_failed;
    }
    // To attach takes runlist cycles already, on every GPU of the process.
    const auto open = breakers_of(driver_, chosen_.pid);
    for (const auto& each : open) complain(chosen_.force ? "warning: " + each : each);
    if (!open.empty() && !chosen_.force) {
      complain(fmt::format(
          "process {} was not suspended, because a breaker is open; --force suspends it anyway",
          chosen_.pid));
      return exit_failed;
    }
    if (const auto no = by_->attach(chosen_.pid, soon())) {
      const auto other = ask_holder(list_holders(), chosen_.pid, "status", holder_look);
      complain(other ? fmt::format("process {} ({}) is already held by 'sluice suspend' (process "
                                   "{}); run 'sluice resume {}' first",
                                   chosen_.pid, command_of(chosen_.pid), other->holder, chosen_.pid)
                     : no.what);
      const time_point until = clock::now() + reset_look;
      // A process that has ended may have ended because of a reset, which was announced before.
      while (!other && !look_for_failures() && no.error == EPERM && clock::now() < until)
        ::poll(nullptr, 0, 10);
      return exit_failed;
    }
    attached_ = true;
    // Before the first suspend, in which the driver may stay for long.
    const auto link = holder_server::open(chosen_.pid);
    if (!link)
      complain(
          "cannot open a socket, so 'sluice resume' cannot reach this command; end this command to "
          "resume the process");
    const int first = suspend_first();
    if (suspended().empty()) {
      look_for_failures();
      if (chosen_.queues.empty() && first == exit_done)
        complain(fmt::format("process {} has no compute queue", chosen_.pid));
      if (reason_.empty() && first != exit_done) reason_ = "refused";
      report_end();
      (void)by_->release(chosen_.pid, soon());
      return exit_failed;
    }
    if (!chosen_.json)
      print(fmt::format(
          "held by process {}{}; Ctrl-C, SIGTERM or 'sluice resume {}' resumes everything\n",
          ::getpid(), chosen_.limit == duration::max() ? "" : " for " + to_text(chosen_.limit),
          chosen_.pid));
    hold(signals, link);
    const int last = let_go(signals);
    return first != exit_done || lost_ ? exit_failed : last;
  }

 private:
  std::vector<queue_order> change(command_kind kind, const std::vector<driver_queue_id>& ids,
                                  hold_failure& why) {
    std::vector<queue_order> orders;
    for (const auto id : ids) orders.push_back({.pid = chosen_.pid, .queue = id});
    why = by_->change(kind, orders, soon());
    return orders;
  }

  std::vector<driver_queue_id> suspended() const {
    std::vector<driver_queue_id> ids;
    for (const auto& queue : by_->queues(chosen_.pid))
      if (queue.suspended) ids.push_back(queue.about.id);
    return ids;
  }

  /// Compute queues that nobody has named yet, where the whole process was meant.
  std::vector<driver_queue_id> unnamed() const {
    std::vector<driver_queue_id> ids;
    if (!chosen_.queues.empty()) return ids;
    for (const auto& queue : by_->queues(chosen_.pid))
      if (queue.about.type == queue_kind::compute && !queue.suspended &&
          !let_run_.contains(queue.about.id))
        ids.push_back(queue.about.id);
    return ids;
  }

  int suspend_first() {
    std::vector<driver_queue_id> ids;
    for (const auto id : chosen_.queues) ids.push_back(driver_queue_id{id});
    if (ids.empty()) ids = unnamed();
    hold_failure why;
    const auto orders = change(command_kind::suspend, ids, why);
    remember_failures(orders);
    report(event::suspend, orders);
    complain_of(orders, why);
    look_for_lost();
    return why ? exit_failed : exit_done;
  }

  void complain_of(const std::vector<queue_order>& orders, const hold_failure& why) const {
    if (why) complain(why.what);
    // What is wrong with the whole process is said once.
    std::set<std::string> said{why.what};
    for (const auto& order : orders) {
      if (order.error != ENOENT && order.error != EBUSY && order.error != EIO) continue;
      const auto sentence =
          fmt::format("cannot suspend queue {} of process {}: {}", number(order.queue), order.pid,
                      by_->reason_of(command_kind::suspend, order));
      if (said.insert(sentence).second) complain(sentence);
    }
  }

  /// What befell the hardware: says it, and opens breakers.
  /// \return whether something did.
  bool look_for_failures() {
    const auto failed = by_->take_gpu_failures();
    if (failed.empty()) return false;
    lost_ = true;
    reason_ = "reset";
    for (const auto& each : failed) {
      if (!failed_gpus_.insert(each.gpu).second) continue;
      if (each.why == breaker_cause::reset)
        complain(fmt::format(
            "GPU {} was reset{}; see dmesg", number(each.gpu),
            attached_
                ? fmt::format(" while process {} was held: its queues on that GPU are dead, and "
                              "their work is lost",
                              chosen_.pid)
                : ": all work on it is lost"));
      else
        complain(fmt::format(
            "GPU {}: a preemption failed in hardware: the driver resets the GPU and its "
            "hive, and all GPU work on this node may be lost; see dmesg",
            number(each.gpu)));
    }
    open_breakers_of(driver_, failed);
    return true;
  }

  /// Without those on GPUs whose breakers are open.
  std::vector<driver_queue_id> allowed(std::vector<driver_queue_id> ids) {
    if (ids.empty() || chosen_.force) return ids;
    const auto open = open_breakers(driver_);
    for (const auto& queue : by_->queues(chosen_.pid)) {
      if (!open.contains(queue.about.gpu) || std::erase(ids, queue.about.id) == 0) continue;
      let_run_.insert(queue.about.id);
      complain(fmt::format(
          "queue {} keeps running: the breaker of GPU {} is open; see 'sluice breaker list'",
          number(queue.about.id), number(queue.about.gpu)));
    }
    return ids;
  }

  /// The driver suspends dead queues as it does live ones.
  void look_for_lost() {
    auto queues = by_->queues(chosen_.pid);
    std::erase_if(queues, [&](const auto& each) {
      return each.about.fault == 0 || !said_.insert(each.about.id).second;
    });
    for (const auto& each : error_states(*by_, chosen_.pid, queues)) complain(each);
    lost_ = lost_ || !queues.empty();
  }

  /// What cannot be suspended is not tried again and again.
  void remember_failures(const std::vector<queue_order>& orders) {
    for (const auto& order : orders)
      if (order.error != 0) let_run_.insert(order.queue);
  }

  /// \param reason of the end.
  void report(event what, const std::vector<queue_order>& orders,
              std::string_view reason = {}) const {
    if (chosen_.json) {
      json::array queues;
      for (const auto& order : orders)
        queues.push_back(json::object{
            {"queue_id", number(order.queue)},
            {"gpu_id",
             order.gpu == gpu_id::none ? json::value(nullptr) : json::value(number(order.gpu))},
            {"suspended", what == event::suspend
                              ? order.error == 0
                              : order.error != 0 && order.error != ENOENT && !order.hardware},
            {"errno", order.error}});
      print(json::object{{"version", 1},
                         {"event", to_string(what)},
                         {"reason", reason.empty() ? json::value(nullptr) : json::value(reason)},
                         {"pid", chosen_.pid},
                         {"holder", ::getpid()},
                         {"queues", std::move(queues)}});
      return;
    }
    if (what != event::suspend) {
      for (const auto& order : orders)
        if (what == event::resume && order.error == 0)
          print(fmt::format("queue {} runs again\n", number(order.queue)));
      return;
    }
    using enum table::align;
    table rows{{{"QUEUE", right}, {"GPU_ID", right}, {"OUTCOME"}}};
    for (const auto& order : orders)
      rows.add({std::to_string(number(order.queue)),
                order.gpu == gpu_id::none ? "-" : std::to_string(number(order.gpu)),
                order.error == 0 ? "suspended" : "not suspended"});
    if (!rows.empty()) print(rows.text(terminal_width()));
  }

  void hold(int signals, const std::optional<holder_server>& link) {
    const time_point begun = clock::now();
    while (!released_) {
      const duration held = clock::now() - begun;
      if (held >= chosen_.limit) {
        reason_ = "time";
        return;
      }
      if (look_for_failures() || by_->stranded() || !by_->holds(chosen_.pid)) return;
      if (const auto fresh = allowed(unnamed()); !fresh.empty()) {
        hold_failure why;
        const auto orders = change(command_kind::suspend, fresh, why);
        remember_failures(orders);
        report(event::suspend, orders);
        complain_of(orders, why);
      }
      look_for_lost();
      const auto wait = std::min(look_interval, chosen_.limit - held);
      std::array<pollfd, 2> sources{
          {{signals, POLLIN, 0}, {link ? link->ready_fd() : -1, POLLIN, 0}}};
      ::poll(sources.data(), sources.size(),
             static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count()));
      if (sources[0].revents != 0) {
        reason_ = "signal";
        return;
      }
      if (sources[1].revents != 0)
        link->serve([this](std::string_view request) { return answer(request); });
    }
  }

  std::string answer(std::string_view request) {
    constexpr std::string_view resume = "resume";
    if (request == "status") {
      std::string text = "suspended";
      for (const auto id : suspended()) text += fmt::format(" {}", number(id));
      return text;
    }
    if (!request.starts_with(resume))
      return "error unknown request; use the same version of sluice for both commands";
    const auto ids = parse_ids(request.substr(resume.size()));
    if (!ids) return "error invalid list of queue ids";
    if (!ids->empty()) {
      const auto queues = by_->queues(chosen_.pid);
      for (const auto id : *ids)
        if (std::ranges::none_of(queues, [id](const auto& each) { return each.about.id == id; }))
          return fmt::format("error process {} has no queue {}; nothing was resumed", chosen_.pid,
                             number(id));
      hold_failure why;
      const auto orders = change(command_kind::resume, *ids, why);
      report(event::resume, orders);
      if (why) return "error " + why.what;
      let_run_.insert(ids->begin(), ids->end());
      if (!suspended().empty()) return "ok";
    }
    released_ = true;
    reason_ = "resume";
    remember_suspended();
    refused_ = by_->release(chosen_.pid, soon());
    return refused_ && refused_.error != ESRCH ? "error " + refused_.what : "ok";
  }

  /// What the end resumes.
  void remember_suspended() {
    for (const auto& queue : by_->queues(chosen_.pid))
      if (queue.suspended)
        last_.push_back({.pid = chosen_.pid, .queue = queue.about.id, .gpu = queue.about.gpu});
  }

  void report_end() const {
    if (chosen_.json) report(event::end, last_, reason_);
  }

  /// Whether a process has ended, or does so in a moment: with its memory, the driver's session
  /// goes before the process does.
  static bool ends(pid_t pid) {
    constexpr int patience_ms = 1000;
    const unique_fd process{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
    if (!process) return errno == ESRCH;
    pollfd end{process.get(), POLLIN, 0};
    return ::poll(&end, 1, patience_ms) == 1;
  }

  int let_go(int signals) {
    look_for_failures();
    if (!released_ && !by_->stranded() && !by_->holds(chosen_.pid)) {
      if (ends(chosen_.pid)) {
        if (failed_gpus_.empty()) reason_ = "exit";
        report_end();
        say(fmt::format("process {} has ended\n", chosen_.pid));
        return exit_done;
      }
      if (failed_gpus_.empty()) reason_ = "session";
      report_end();
      if (!failed_gpus_.empty()) return exit_failed;
      complain(by_->why_ended(chosen_.pid));
      return exit_failed;
    }
    if (!released_) {
      remember_suspended();
      refused_ = by_->release(chosen_.pid, soon());
    }
    if (refused_.error == ETIMEDOUT && !by_->stranded()) {
      complain(refused_.what +
               "; to exit without resuming the process, press Ctrl-C (again) or send SIGTERM");
      signalfd_siginfo again;
      while (::read(signals, &again, sizeof again) > 0) {
      }
      // Our end would end neither a call that hangs nor a session that another debugger has.
      while (refused_.error == ETIMEDOUT && !by_->stranded()) {
        if (::read(signals, &again, sizeof again) > 0) {
          reason_ = "refused";
          for (auto& order : last_) order.error = refused_.error;
          report_end();
          complain(fmt::format("process {} may stay suspended until it ends", chosen_.pid));
          std::_Exit(exit_failed);
        }
        refused_ = by_->release(chosen_.pid, clock::now() + release_look);
      }
    }
    look_for_failures();
    const bool known = refused_.error == EIO && !failed_gpus_.empty();
    for (auto& order : last_) {
      if (!failed_gpus_.contains(order.gpu)) continue;
      order.error = EIO;
      order.hardware = breaker_cause::reset;
    }
    if (by_->stranded() || (refused_ && refused_.error != ESRCH && !known)) {
      reason_ = "refused";
      for (auto& order : last_) order.error = refused_ ? refused_.error : EIO;
      report_end();
      complain(refused_
                   ? refused_.what
                   : fmt::format("the driver refused to resume process {}; this command exits, so "
                                 "that the kernel resumes the process",
                                 chosen_.pid));
      // Destructors would wait for the driver; the kernel resumes everything with our death.
      std::_Exit(exit_failed);
    }
    report_end();
    say(fmt::format("process {} {}\n", chosen_.pid,
                    lost_ ? "is released; some of its queues are dead" : "runs again"));
    return exit_done;
  }

  void say(const std::string& text) const {
    if (!chosen_.json) print(text);
  }

  const suspend_options& chosen_;
  const driver& driver_;
  const std::unique_ptr<queue_holder> by_;
  std::set<driver_queue_id> let_run_;  // resumed on request, or not to be had
  bool attached_ = false;
  bool released_ = false;
  std::set<gpu_id> failed_gpus_;         // in hardware, or reset
  std::set<driver_queue_id> said_;       // to be in an error state
  bool lost_ = false;                    // some queue is dead, whatever else went well
  hold_failure refused_;                 // by release()
  std::vector<queue_order> last_;        // what the end resumes
  std::string_view reason_ = "refused";  // of the end
};

int hold(suspend_options& chosen, const driver_list& known) {
  // Before any thread starts, so that each has them blocked.
  sigset_t ends;
  sigemptyset(&ends);
  for (const int each : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&ends, each);
  ::sigprocmask(SIG_BLOCK, &ends, nullptr);
  // Stopped from its terminal it would hold for as long as it stood still, whatever --for says.
  for (const int each : {SIGTSTP, SIGTTIN, SIGTTOU}) ::signal(each, SIG_IGN);
  const unique_fd signals{::signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK)};
  if (!signals) {
    complain(fmt::format("out of file descriptors: {}; raise RLIMIT_NOFILE (ulimit -n)",
                         error_text(errno)));
    return exit_failed;
  }
  const auto daemon = choose_daemon(chosen.config, chosen.files, chosen.driver, known);
  if (!daemon) return exit_failed;
  chosen.files = daemon->files;
  const auto driver = daemon->on ? daemon->on : find_driver_of(known, chosen.driver, chosen.pid);
  if (!driver) return exit_failed;
  hold_failure why;
  auto by = driver->open_holder(why);
  if (!by && why) {
    complain(why.what);
    return exit_failed;
  }
  if (!by) by = make_agent_holder(driver, chosen.files, daemon->agent);
  return holding{chosen, *driver, std::move(by)}.run(signals.get());
}

}  // namespace

subcommand add_suspend(CLI::App& program, const driver_list& known) {
  const auto chosen = std::make_shared<suspend_options>();
  auto* const command =
      program.add_subcommand("suspend", "Suspend a process's GPU queues while this command runs");
  command->footer(
      "Holds the queues until Ctrl-C, SIGTERM, 'sluice resume PID' or the end of --for.\n"
      "If it is killed, the kernel or its agent resumes them. Without QIDs, queues that\n"
      "the process creates later are suspended, too. kfd needs the right to trace the\n"
      "process; with most versions, gdb cannot attach meanwhile. GPU memory is kept.\n"
      "Exit code 0: all queues were suspended and run again; 1: some were not;\n"
      "2: invalid command line.");
  command->add_option("PID", chosen->pid, "Process to suspend")
      ->required()
      ->check(a_process_id())
      ->type_name("");
  command->add_option("QID", chosen->queues, "Suspend only these queues [all compute queues]")
      ->check(queue_number())
      ->type_name("");
  command
      ->add_option_function<std::string>(
          "--for",
          [chosen](const std::string& text) {
            const auto value = parse_duration(text);
            if (!value || *value <= 0s || *value > longest_hold)
              throw CLI::ValidationError(
                  "--for", "invalid duration '" + text +
                               "': expected more than 0s, up to 24h, e.g. 30s, 10min or 2h");
            chosen->limit = *value;
          },
          "Resume after this time, up to 24h")
      ->type_name("TIME");
  command->add_flag("--force", chosen->force,
                    "Suspend even if a breaker is open; see 'sluice breaker'");
  command->add_flag("--json", chosen->json, "Print one line of JSON for each change");
  add_driver(*command, known, chosen->driver);
  add_directory(*command, chosen->files);
  add_daemon(*command, chosen->config);
  return {command, [chosen, known] {
            std::ranges::sort(chosen->queues);
            chosen->queues.erase(std::unique(chosen->queues.begin(), chosen->queues.end()),
                                 chosen->queues.end());
            return hold(*chosen, known);
          }};
}

}  // namespace sluice::cli
