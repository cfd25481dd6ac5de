// sluice run: the daemon. Discovers, decides, and acts through the agent, until SIGTERM.

#include "daemon_choice.hpp"
#include "daemon_log.hpp"
#include "output.hpp"
#include "service_manager.hpp"
#include "subcommand.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sluice/lab/choice.hpp"
#include "sluice/node.hpp"
#include "sluice/reactor.hpp"
#include "sluice/statistics_text.hpp"

namespace sluice::cli {

namespace {

using namespace std::chrono_literals;

struct run_options {
  std::string config;
  std::string mode;
  std::string trace;
};

/// How often the service manager is told what has changed.
constexpr duration usual_look_every = 1s;

sigset_t awaited_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int each : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&set, each);
  return set;
}

/// Where the kernel refuses this program its event loop, it becomes its sibling that needs less.
/// \return false, after a complaint.
bool has_event_loop(const run_options& chosen) {
  const auto loop = reactor::create();
  if (loop) return true;
  const std::string why = loop.error().message();
  std::error_code error;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string sibling = (own.parent_path() / "sluice-epoll").string();
  if (error || own.filename() == "sluice-epoll" || ::access(sibling.c_str(), X_OK) != 0) {
    complain("cannot create the event loop: " + why);
    return false;
  }
  complain(fmt::format("the kernel refuses io_uring ({}); continuing as sluice-epoll", why));
  std::vector<std::string> words{sibling, "run"};
  if (!chosen.config.empty()) words.push_back("--config=" + chosen.config);
  if (!chosen.mode.empty()) words.push_back("--mode=" + chosen.mode);
  if (!chosen.trace.empty()) words.push_back("--trace-out=" + chosen.trace);
  std::vector<char*> arguments;
  for (auto& each : words) arguments.push_back(each.data());
  arguments.push_back(nullptr);
  ::execv(sibling.c_str(), arguments.data());
  complain(fmt::format("cannot execute {}: {}", sibling, error_text(errno)));
  return false;
}

class daemon {
 public:
  daemon(run_options chosen, driver_list drivers)
      : chosen_(std::move(chosen)), drivers_(std::move(drivers)) {}

  int run() {
    auto config = load();
    if (!config || !has_event_loop(chosen_)) return exit_failed;
    running_ = std::move(*config);
    const auto missing = running_.missing_here();
    for (const std::string& each : missing) complain(printable(blame(each)));
    if (!running_.node.driver) complain(running_.no_driver);
    if (!missing.empty() || !running_.node.driver) return exit_failed;
    // Before any thread, so that all have them blocked and this one takes them.
    const sigset_t awaited = awaited_signals();
    ::pthread_sigmask(SIG_BLOCK, &awaited, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
    std::string failure;
    const int code = serve(awaited, failure);
    if (!failure.empty()) complain(failure);  // after what led to it
    return code;
  }

 private:
  /// \param failure why it could not be started.
  int serve(const sigset_t& awaited, std::string& failure) {
    const daemon_log log{running_};
    failure = start();
    if (!failure.empty()) return exit_failed;
    while (!ended_) {
      const timespec wait = until_next();
      const int signal = ::sigtimedwait(&awaited, nullptr, &wait);
      switch (signal) {
        case SIGTERM:
        case SIGINT:
          log_info(signal == SIGTERM ? "stopping: SIGTERM" : "stopping: SIGINT");
          ended_ = true;
          break;
        case SIGHUP: reload(); break;
        case SIGUSR1: say_statistics(); break;
        default: break;
      }
      look();
    }
    service_manager::stopping();
    const bool follows = node_->state() == node_state::following;
    if (follows) say_statistics();
    node_->stop();
    if (!follows) say_statistics();
    return exit_done;
  }

  /// Whose the setting is: an option of the command line stands for that of the configuration.
  std::string blame(const std::string& problem) const {
    constexpr std::string_view key = "[daemon] trace = ";
    if (!chosen_.trace.empty() && problem.starts_with(key))
      return "--trace-out " + problem.substr(key.size());
    return chosen_.config + ": " + problem;
  }

  std::optional<daemon_config> load() const {
    auto config = load_daemon(chosen_.config, known_, drivers_);
    if (config && !chosen_.mode.empty())
      config->node.mode = chosen_.mode == "enforce" ? node_mode::enforce : node_mode::observe;
    if (config && !chosen_.trace.empty()) config->node.observing.trace = chosen_.trace;
    return config;
  }

  /// \return why not; empty: it is started.
  std::string start() {
    node_options with = running_.node;
    if (const duration every = service_manager::alive_every(); every > duration::zero()) {
      // Half of it here and half in this thread, which looks as often: never later than wanted.
      look_every_ = std::min(look_every_, every / 2);
      with.alive_every = every / 2;
      with.alive = [this] { alive_ = true; };
    }
    with.find_policy = [this](const std::string& text, std::string& message) {
      return find_policy(text, message);
    };
    with.warn = log_warning;
    with.tell = log_info;
    std::string message;
    auto made = node::create(std::move(with), message);
    if (!made) return message;
    node_ = std::move(*made);
    log_info(words_of(running_));
    if (const auto started = node_->start(); !started)
      return "cannot start: " + started.error().message() +
             "; the messages above name the cause, and 'sluice doctor' lists how to fix it";
    next_statistics_ = after_interval();
    status_ = status();
    service_manager::ready(status_);
    return {};
  }

  /// Of the policies that a configuration may name; a plugin is for the configuration, which an
  /// administrator wrote.
  result<named_policy> find_policy(const std::string& text, std::string& message) const {
    const auto given = lab::parse_choice(text);
    if (given.has_error()) {
      message = given.error().message;
      return errc::bad_config;
    }
    // A file that may be gone when the policy is made again, and that somebody else chose.
    if (given->values.all().contains("profile")) {
      message =
          "parameter profile: accepted only in a configuration file; set the cost parameters "
          "instead";
      return errc::bad_config;
    }
    const auto make = [this, name = given->name, values = given->values](std::string& why) {
      return known_.make(name, values, why);
    };
    if (const auto tried = make(message); !tried) return tried.error();
    return named_policy{
        .make = [make]() -> std::unique_ptr<policy> {
          std::string ignored;
          auto made = make(ignored);
          return made ? std::move(*made) : nullptr;
        },
        .text = command_text(given->name, *known_.find(given->name), given->values)};
  }

  void reload() {
    service_manager::reloading();
    std::vector<std::string> problems;
    auto next = load_daemon_config(chosen_.config, known_, drivers_, problems);
    for (const std::string& each : problems) log_warning("reload: " + printable(each));
    if (!next) {
      log_warning("reload failed: the settings are unchanged");
    } else {
      if (!chosen_.mode.empty()) next->node.mode = running_.node.mode;
      if (!chosen_.trace.empty()) next->node.observing.trace = chosen_.trace;
      take(std::move(*next));
    }
    service_manager::ready(status_);
  }

  void take(daemon_config next) {
    if (next.policy_table == running_.policy_table)
      next.node.settings.make_policy = nullptr;  // it keeps what it has learnt
    std::string message;
    set_log_levels(next);  // before the change, of which the scheduler's thread tells
    if (!node_->change(next.node.settings, message)) {
      set_log_levels(running_);
      log_warning("reload failed: " + message + "; the settings are unchanged");
      return;
    }
    if (const std::string fixed = running_.fixed_differences(next); !fixed.empty())
      log_warning("reload: these settings stay the same until the daemon is restarted: " + fixed);
    running_.policy = next.policy;
    running_.policy_table = next.policy_table;
    running_.node.settings = next.node.settings;
    running_.log_level = next.log_level;
    running_.log_levels = next.log_levels;
    if (std::exchange(running_.statistics_interval, next.statistics_interval) !=
        next.statistics_interval)
      next_statistics_ = after_interval();
    log_info("reloaded: " + words_of(running_));
  }

  void look() {
    if (alive_.exchange(false)) service_manager::alive();
    if (clock::now() >= next_statistics_) {
      say_statistics();
      next_statistics_ = after_interval();
    }
    if (std::string now = status(); now != status_) {
      status_ = std::move(now);
      service_manager::status(status_);
    }
  }

  std::string status() const {
    std::string text;
    switch (node_->state()) {
      case node_state::owning:
        text = node_->mode() == node_mode::enforce ? "owns the node" : "observes the node";
        break;
      case node_state::following: {
        const std::string owner = node_->owner();
        text = owner.empty() ? "is trying to become the owner: no program owns the node"
                             : "follows the owner, " + owner;
        break;
      }
      case node_state::idle:
      case node_state::stopped: text = "stopped"; break;
    }
    return node_->paused() ? text + ", paused" : text;
  }

  void say_statistics() const {
    log_info(node_->state() == node_state::following
                 ? "statistics: none, because this daemon " + status()
                 : statistics_line(*node_->stats(), node_->mode()));
  }

  time_point after_interval() const {
    return running_.statistics_interval == duration::zero()
               ? never
               : clock::now() + running_.statistics_interval;
  }

  timespec until_next() const {
    const duration left =
        std::clamp(next_statistics_ - clock::now(), duration::zero(), look_every_);
    const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
    return {seconds.count(), (left - seconds).count()};
  }

  const run_options chosen_;
  const driver_list drivers_;
  const policy_registry known_ = daemon_policies();
  daemon_config running_;
  std::unique_ptr<node> node_;
  duration look_every_ = usual_look_every;
  std::atomic<bool> alive_{false};  ///< The node's loop has turned: for this thread to pass on.
  time_point next_statistics_ = never;
  std::string status_;
  bool ended_ = false;
};

}  // namespace

subcommand add_run(CLI::App& program, const driver_list& known) {
  const auto chosen = std::make_shared<run_options>();
  auto* const command =
      program.add_subcommand("run", "Schedule this node in the foreground until SIGTERM");
  command->footer(
      "Without --config, all settings have their defaults: the daemon observes, and\n"
      "suspends nothing. SIGHUP reloads the configuration. SIGUSR1 logs the counters.\n"
      "SIGTERM and SIGINT resume everything and end the daemon. If another program owns\n"
      "the node, the daemon waits, and takes over when that program ends. The daemon\n"
      "starts sluice-agent, which needs privileges. The daemon itself needs none.\n"
      "Exit code 0: ended by a signal; 1: cannot start; 2: invalid command line.");
  command->add_option("-c,--config", chosen->config, "Configuration file (TOML)")
      ->type_name("FILE");
  command->add_option("--mode", chosen->mode, "Mode; overrides the mode in the configuration")
      ->check(CLI::IsMember({"observe", "enforce"}));
  command->add_option("--trace-out", chosen->trace, "Write a timeline for ui.perfetto.dev")
      ->type_name("FILE");
  return {command, [chosen, known] { return daemon{*chosen, known}.run(); }};
}

}  // namespace sluice::cli
