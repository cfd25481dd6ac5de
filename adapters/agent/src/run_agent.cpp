// The agent from its start to its end. It owns the node's lock, opens the device, and acts.

#include "admission.hpp"
#include "agent_loop.hpp"
#include "agent_settings.hpp"
#include "found_record.hpp"
#include "guardian.hpp"
#include "hold_record.hpp"
#include "host_line.hpp"

#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "sluice/os/node_lock.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::agent {

namespace {

using namespace std::chrono_literals;

/// For a guardian that still lets go of what an earlier agent held; a host waits 5 s for its agent.
constexpr duration start_patience = 4s;
constexpr duration rescue_patience = 5s;
/// How long an agent that starts tries to let go of what an earlier one left.
constexpr duration leftover_patience = 500ms;

/// The node's lock, or one of those for holds by hand.
bool is_default_lock(const std::string& path) {
  if (path == default_owner_lock) return true;
  for (unsigned which = 1; which <= most_hand_locks; ++which)
    if (path == hand_lock(default_owner_lock, which)) return true;
  return false;
}

/// What the agent refuses to do for a host that has fewer rights than itself: who may start it may
/// then do what its rights allow. \return an empty string when there is nothing to refuse.
std::string refused_privileges(const agent_settings& chosen, const acting_driver* driver) {
  if (::getuid() != ::geteuid() || ::getgid() != ::getegid())
    return "sluice-agent is set-uid or set-gid, which is not allowed; remove these bits (chmod "
           "ug-s), let only its group execute it, and give it the file capability CAP_SYS_PTRACE "
           "(setcap)";
  // File capabilities. What they allow beyond tracing may reach the file system, so the host does
  // not choose what is opened and written there, nor goes round the lock that makes it one owner.
  if (::getauxval(AT_SECURE) == 0) return {};
  std::string why = driver != nullptr ? driver->distrust() : "";
  if (why.empty() && !is_default_lock(chosen.owner_lock))
    why = "an agent with file capabilities only takes the default owner lock " +
          std::string{default_owner_lock} + ", or one for holds by hand beside it";
  if (!why.empty()) why += "; use that, or an agent without file capabilities";
  return why;
}

/// What an agent left there that ended together with its guardian.
/// \return how much of it is still held.
std::size_t release_leftovers(hold_record& record, const acting_drivers& drivers, duration patience,
                              const message_sink& say) {
  const auto left = record.held();
  if (left.empty()) return 0;
  const acting_choice by = record.left_by();
  const auto driver = make(drivers, by.driver);
  std::string why = driver == nullptr ? "this program has no driver '" + by.driver +
                                            "'; it has: " + names_of(drivers)
                                      : apply(by, *driver);
  // Whoever wrote the settings may have fewer rights than this process.
  if (why.empty() && (::getauxval(AT_SECURE) != 0 || record.is_others())) why = driver->distrust();
  if (!why.empty()) {
    say("cannot resume what an earlier agent held: " + why);
    return left.size();
  }
  return release_all(record, *driver, patience, say);
}

/// `sluice rescue`.
class rescuer {
 public:
  rescuer(const agent_settings& chosen, const acting_drivers& drivers)
      : chosen_(chosen),
        drivers_(drivers),
        owner_(chosen.owner_lock.empty() ? default_owner_lock : chosen.owner_lock) {}

  /// \return the exit status.
  int run() {
    if (const std::string why = refused_privileges(chosen_, nullptr); !why.empty()) {
      say("cannot rescue: " + why);
      return 1;
    }
    const std::string directory = std::filesystem::path{owner_}.parent_path();
    std::error_code error;
    if (!std::filesystem::is_directory(directory.empty() ? "." : directory, error)) {
      say("cannot rescue: cannot look in " + directory + ": " +
          (error ? error.message() : "it is not a directory") +
          (error == std::errc::permission_denied
               ? "; run as root, or as the user of the agent"
               : "; name the directory of the daemon (--directory or --config)"));
      return 1;
    }
    bool failed = false;
    const auto records = find_records(owner_);
    for (const auto& each : records) failed |= !rescue(each);
    has_record_ = !records.empty();
    if (held_ != 0)
      std::printf("resumed: %zu of %zu\n%s", resumed_, held_, words_.c_str());
    else if (records.empty() && !chosen_.everything)
      std::printf("nothing is known to be held: %s has no record; if a record was lost, run %s\n",
                  directory.c_str(), of("rescue --everything").c_str());
    else if (!failed && !owned_ && !chosen_.everything)
      std::puts(unread_ ? "nothing is held by the agents whose records this user may read"
                        : "nothing is held");
    std::fflush(stdout);
    if (chosen_.everything) return release_everything() && !failed ? 0 : 1;
    return failed || resumed_ != held_ ? 1 : 0;
  }

 private:
  /// As the command that was given: `sluice rescue` runs this program under its own name.
  static void say(std::string_view words) {
    std::fprintf(stderr, "%s: %.*s\n", program_invocation_short_name,
                 static_cast<int>(words.size()), words.data());
  }

  /// A command of sluice for this directory, as messages name it.
  std::string of(const std::string& words) const {
    const std::string directory = std::filesystem::path{owner_}.parent_path();
    const bool own = directory == std::filesystem::path{default_owner_lock}.parent_path();
    return "'sluice " + words + (own ? "" : " --directory " + directory) + "'";
  }

  /// \return false where the record cannot be looked at.
  bool rescue(const found_record& seen) {
    const bool by_hand = seen.owner_lock != owner_;
    if (seen.error) {
      // Of another user, whose it is to look.
      if (by_hand && seen.error == boost::system::errc::permission_denied) {
        unread_ = true;
        return true;
      }
      say("cannot rescue: cannot read " + seen.path + ": " +
          (seen.error == errc::not_supported
               ? "another version of sluice wrote it; run 'rescue' of that version"
               : seen.error.message() + "; run as root, or as the user of the agent"));
      return false;
    }
    if (seen.holds.empty()) return true;
    if (seen.stopped_guardian != 0) {
      const std::string guardian = std::to_string(seen.stopped_guardian);
      say("cannot rescue: the agent of " + seen.path + " has ended, and its guardian, process " +
          guardian + ", is stopped; run 'kill -CONT " + guardian + "', or 'kill -KILL " + guardian +
          "' and then " + of("rescue") + " again");
      return false;
    }
    if (const auto owner = node_lock::look(seen.owner_lock); owner && *owner && !(*owner)->ended) {
      owned_ = true;
      const std::string advice =
          by_hand ? "run " + of("resume PID") : "run " + of("pause") + ", or end that program";
      std::printf("%s is owned by %s; that agent resumes what it suspended; to resume it now, %s\n",
                  seen.owner_lock.c_str(), (*owner)->words.c_str(), advice.c_str());
      return by_hand;  // what a 'sluice suspend' holds is to be held
    }
    const auto record = hold_record::open(seen.path, rescue_patience, say);
    if (!record) return false;
    const auto held = (*record)->held();
    held_ += held.size();
    (void)release_leftovers(**record, drivers_, rescue_patience, say);
    const auto still = (*record)->held();
    for (const auto& [number, what] : held) {
      if (std::ranges::find(still, number, [](const auto& one) { return one.first; }) !=
          still.end())
        continue;
      ++resumed_;
      const std::string pid = std::to_string(what.pid);
      words_ += start_time_of(what.pid) == what.start_time
                    ? "  process " + pid + " (" + command_of(what.pid) + ")\n"
                    : "  process " + pid + ", which has ended\n";
    }
    return true;
  }

  /// No agent may begin meanwhile.
  bool release_everything() {
    const auto driver = make(drivers_, chosen_.choice.driver);
    std::string why = driver == nullptr ? "this program has no driver '" + chosen_.choice.driver +
                                              "'; it has: " + names_of(drivers_)
                                        : apply(chosen_.choice, *driver);
    if (why.empty() && ::getauxval(AT_SECURE) != 0) why = driver->distrust();
    std::vector<std::unique_ptr<node_lock>> taken;
    for (unsigned which = 0; which <= most_hand_locks && why.empty(); ++which) {
      const std::string lock = which == 0 ? owner_ : hand_lock(owner_, which);
      const auto owner = node_lock::look(lock);
      if (owner && *owner) {
        why =
            lock + " is owned by " + (*owner)->words +
            (which == 0 ? "; " + of("pause") +
                              " makes it resume everything; to go on without it, stop that program"
                        : "; run " + of("resume PID") + " for the process that it holds");
        break;
      }
      auto mine = node_lock::acquire(lock, [&why](std::string_view words) { why = words; });
      if (mine) taken.push_back(std::move(*mine));
    }
    if (!why.empty()) {
      say("cannot resume everything: " + why);
      return false;
    }
    std::vector<std::string> told;
    const auto done =
        driver->release_everything([&told](std::string_view words) { told.emplace_back(words); });
    // On success, only what is not restored without a record.
    if (!done || !has_record_) std::ranges::for_each(told, say);
    if (!done) {
      say(!told.empty() ? "not everything was resumed"
                        : "cannot resume everything: " + done.error().message());
      return false;
    }
    std::printf("everything that uses the driver %s runs\n", chosen_.choice.driver.c_str());
    return true;
  }

  const agent_settings& chosen_;
  const acting_drivers& drivers_;
  const std::string owner_;
  bool has_record_ = false;
  std::size_t held_ = 0;
  std::size_t resumed_ = 0;
  std::string words_;  ///< A line for each process that was resumed.
  bool owned_ = false;
  bool unread_ = false;
};

/// The driver's settings are in force, and the host is left. One object for what lives as long as
/// the agent.
class starting {
 public:
  starting(const agent_settings& chosen, const acting_drivers& drivers)
      : chosen_(chosen), drivers_(drivers) {}

  int run() {
    const auto done = begin();
    if (done) return act();
    if (reason_.empty()) reason_ = "cannot start the agent: " + done.error().message();
    say(note_kind::refused, reason_, done.error());
    return 1;
  }

 private:
  static void tell(std::string_view words) { say(note_kind::message, words); }
  message_sink keep() {
    return [this](std::string_view words) { reason_ = words; };
  }

  result<void> begin() {
    driver_ = make(drivers_, chosen_.choice.driver);
    reason_ = driver_ == nullptr ? "this program has no driver '" + chosen_.choice.driver +
                                       "'; it has: " + names_of(drivers_)
                                 : apply(chosen_.choice, *driver_);
    if (!reason_.empty()) return errc::bad_config;
    reason_ = refused_privileges(chosen_, driver_.get());
    if (!reason_.empty()) return error_code{EPERM, boost::system::system_category()};

    // Here, where names of users may still be looked up.
    auto rules = admission::make(chosen_.roles, reason_);
    if (!rules) return rules.error();
    admitted_ = std::move(*rules);

    // Helpers shall have nothing of ours, neither threads nor the lock.
    if (const auto ready = driver_->prepare(reason_); !ready) return ready;
    if (const auto listening = block_signals(); !listening) return listening;
    page_ = are_as_agreed() ? map_page() : nullptr;
    if (page_ == nullptr) {
      reason_ =
          "agent and host come from different builds; install both from the same package, or set "
          "SLUICE_AGENT to the matching agent";
      return errc::not_supported;
    }
    if (!chosen_.owner_lock.empty()) {
      using kind = node_lock::kind;
      auto taken = node_lock::acquire(
          chosen_.owner_lock, keep(),
          {.on_behalf_of = host_pid(), .what = chosen_.of_a_node ? kind::node : kind::scheduler});
      if (!taken) return taken.error();
      lock_ = std::move(*taken);
    }
    if (const auto guarded = begin_record(); !guarded) return guarded;
    if (const auto opened = open_device(); !opened) return opened;
    return loop_->prepare();
  }

  result<void> block_signals() {
    // Not ignored, as it may be inherited from the host: it would never be sent.
    const bool children = driver_->watches_children();
    struct sigaction of_children {};
    of_children.sa_handler = SIG_DFL;
    of_children.sa_flags = children ? 0 : SA_NOCLDSTOP;
    ::sigaction(SIGCHLD, &of_children, nullptr);
    // Before the first thread, so that all have it.
    sigset_t all;
    sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);
    sigset_t read_here;
    sigemptyset(&read_here);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&read_here, signal);
    if (children) sigaddset(&read_here, SIGCHLD);
    own_.signals = unique_fd{::signalfd(-1, &read_here, SFD_CLOEXEC | SFD_NONBLOCK)};
    own_.events = unique_fd{::epoll_create1(EPOLL_CLOEXEC)};
    own_.timer = unique_fd{::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)};
    self_ = unique_fd{static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0))};
    if (!own_.signals || !own_.events || !own_.timer || !self_) return last_system_error();
    return {};
  }

  /// Whatever driver left something there, it is let go of before this one acts.
  result<void> begin_record() {
    const std::string path = holds_beside(chosen_.owner_lock);
    const auto seen = path.empty() ? hold_record::content{} : hold_record::look(path);
    if (!driver_->outlives_agent() && (!seen || seen->holds.empty())) return {};
    auto record = hold_record::open(path, start_patience, keep());
    if (!record) return record.error();
    const std::size_t left = (*record)->held().size();
    const std::size_t still = release_leftovers(**record, drivers_, leftover_patience, tell);
    if (left != 0)
      tell("an earlier agent and its guardian ended without resuming " + std::to_string(left) +
           (left == 1 ? " process" : " processes") +
           "; now resumed: " + std::to_string(left - still));
    if (still != 0)
      tell(driver_->outlives_agent() ? "the guardian goes on trying; processes that are still held "
                                       "are not managed meanwhile"
                                     : "run 'sluice rescue' as root to try the others again");
    if (!driver_->outlives_agent()) return {};
    if (const auto begun = (*record)->begin(chosen_.choice); !begun) return begun;
    for (const auto& [number, what] : (*record)->held()) leftovers_.push_back(number);
    auto guardian = start_guardian(**record, *driver_, chosen_.lease);
    if (!guardian) {
      reason_ = "cannot start the agent's guardian: " + guardian.error().message();
      return guardian.error();
    }
    own_.guardian = std::move(*guardian);
    note guarded;
    guarded.kind = note_kind::guardian;
    send(guarded, own_.guardian.get());
    record_ = std::move(*record);
    return {};
  }

  result<void> open_device() {
    reason_.clear();
    acting_host host;
    host.take_reports = [this] { return loop_->take_reports(); };
    if (admitted_ || !leftovers_.empty())
      host.admits = [this](pid_t pid, std::uint64_t since) {
        return !is_left(pid) && (!admitted_ || admitted_->admits(pid, since));
      };
    if (admitted_)
      host.may_follow = [this](pid_t pid, std::uint64_t since) {
        return admitted_->lets_follow(pid, since);
      };
    host.is_offline = [this](pid_t pid, std::uint64_t since) {
      return admitted_ ? admitted_->is_offline(pid, since) : roles_.is_offline(pid, since);
    };
    host.is_online = [this](pid_t pid, std::uint64_t since) {
      return roles_.is_online(pid, since) || (admitted_ && admitted_->is_online(pid, since));
    };
    host.holds = record_.get();
    // What is said while it opens is why it does not.
    host.say = [this](std::string_view words) {
      if (loop_)
        tell(words);
      else
        reason_ = words;
    };
    auto opened = driver_->open(host);
    if (!opened) return opened.error();
    if (chosen_.cpu_latency) {
      auto latency = cpu_latency::open(*chosen_.cpu_latency);
      if (latency)
        own_.latency = std::move(*latency);
      else
        tell(
            "cannot limit how long processors take to wake up, because the agent cannot open "
            "/dev/cpu_dma_latency for writing: " +
            latency.error().message());
    }
    // All that needs more than to act is done: what was to be opened is open, and every thread is
    // still to come.
    confinement rights = driver_->needs(confined::agent);
    rights.who = confined::agent;
    if (const auto alone = confine(rights); !alone) {
      reason_ = "cannot drop the agent's capabilities or install its system call filter: " +
                alone.error().message();
      return alone;
    }
    loop_ = std::make_unique<agent_loop>(*page_, std::move(*opened), chosen_.lease, std::move(own_),
                                         roles_, record_.get());
    return {};
  }

  /// Whether an earlier agent's hold of the process is still to be let go of.
  bool is_left(pid_t pid) const {
    return !leftovers_.empty() && std::ranges::any_of(record_->held(), [&](const auto& each) {
      return each.second.pid == pid &&
             std::ranges::find(leftovers_, each.first) != leftovers_.end();
    });
  }

  int act() {
    page_->heartbeat.store(clock::now().time_since_epoch().count(), std::memory_order_release);
    note ready;
    ready.kind = note_kind::ready;
    send(ready, self_.get());
    const std::string_view why = loop_->run();
    const bool closed = loop_->close();
    say(note_kind::farewell, why);
    loop_->say_if_the_host_failed(why);
    // A stuck thread cannot be joined. The end of the process makes the kernel, or the guardian, do
    // what is left.
    if (!closed) ::_exit(1);
    return 0;
  }

  const agent_settings& chosen_;
  const acting_drivers& drivers_;
  std::unique_ptr<acting_driver> driver_;
  std::string reason_;
  std::unique_ptr<admission> admitted_;
  agent_loop::descriptors own_;
  unique_fd self_;
  shared_page* page_ = nullptr;
  std::unique_ptr<node_lock> lock_;
  std::unique_ptr<hold_record> record_;
  std::vector<hold_book::number> leftovers_;  ///< Were there when this agent began.
  host_roles roles_;
  std::unique_ptr<agent_loop> loop_;
};

}  // namespace

int run_agent(int argc, char** argv, const acting_drivers& drivers) {
  const agent_settings chosen = parse(argc, argv, drivers);
  if (chosen.rescue) return rescuer{chosen, drivers}.run();
  ::umask(022);
  leave_the_host();
  return starting{chosen, drivers}.run();
}

}  // namespace sluice::agent
