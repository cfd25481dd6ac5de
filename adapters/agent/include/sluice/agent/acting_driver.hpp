#pragma once
/// \file
/// A driver as the agent sees it, and the agent itself: a program's main() has a list of drivers
/// and calls run_agent(). The other side of a driver is sluice/driver.hpp.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/acting.hpp"
#include "sluice/agent/confinement.hpp"
#include "sluice/hold_book.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/result.hpp"

#pragma GCC visibility push(default)
namespace sluice::agent {

/// What an acting side gets from the agent that it runs in.
struct acting_host {
  /// For a side with threads of its own: one that has something to say may call it, one thread less
  /// to wake. It takes all that next() has, or returns false rather than wait for its turn; then
  /// ready_fd() has to become readable, as it does without it.
  std::function<bool()> take_reports{};
  /// Asked before a process is touched, and each time it runs another program: whether it may be
  /// managed. Any thread, also concurrently; blocks on file reads. Empty: any may.
  std::function<bool(pid_t pid, std::uint64_t start_time)> admits{};
  /// Whether a process is known to be offline, for a driver whose targets share something with
  /// other processes: by the agent's own rules where it has them, else because the host has asked
  /// to attach to it, which it only does with offline processes, and neither detached from it nor
  /// was refused. Ask before each suspend: the answer changes when the host detaches. Any thread,
  /// also concurrently; may block on file reads. Empty: of no process is it known.
  std::function<bool(pid_t pid, std::uint64_t start_time)> is_offline{};
  /// Whether a process is known to be online: the host stated it, or the agent's own rules do. Ask
  /// where a driver takes a process for offline of which is_offline() is false. As for
  /// is_offline(), ask before each suspend. Empty: of no process is it known.
  std::function<bool(pid_t pid, std::uint64_t start_time)> is_online{};
  /// Whether the work of a process may be looked at, for acting_side::follow(): the agent's own
  /// rules must take it for online. Any thread; blocks on file reads. Empty: any may.
  std::function<bool(pid_t pid, std::uint64_t start_time)> may_follow{};
  /// Where what outlives the agent is written down. Null where acting_driver::outlives_agent() is
  /// false.
  hold_book* holds = nullptr;
  message_sink say = messages_to_stderr();  ///< Any thread.
};

/// Threading: one thread, which is the only one of its process until open(), but for release().
class acting_driver {
 public:
  acting_driver() = default;
  virtual ~acting_driver() = default;
  acting_driver(const acting_driver&) = delete;
  acting_driver& operator=(const acting_driver&) = delete;

  /// As driver::name().
  virtual std::string_view name() const noexcept = 0;
  /// For --help: a line for each setting.
  virtual std::string_view help() const noexcept { return {}; }
  /// A setting of acting_choice, before everything else.
  /// \return false where there is none such, or not of that value; `why` may say more.
  [[nodiscard]] virtual bool set(std::string_view key, std::string_view value, std::string& why) {
    (void)key;
    (void)value;
    (void)why;
    return false;
  }
  /// Why an agent with more rights than its host does not take these settings, which that chose: a
  /// sentence. Empty: it does.
  [[nodiscard]] virtual std::string distrust() const { return {}; }

  /// Starts helper processes, if it has any: they get nothing of what is opened later.
  /// \param reason a sentence where it fails.
  [[nodiscard]] virtual result<void> prepare(std::string& reason) {
    (void)reason;
    return {};
  }
  /// Whether its acting side wants children_changed(): SIGCHLD is blocked then, and told it.
  virtual bool watches_children() const noexcept { return false; }
  /// Opens the device and begins. All that needs more rights than needs() has is done here.
  [[nodiscard]] virtual result<std::unique_ptr<acting_side>> open(const acting_host& host) = 0;
  /// What the agent keeps of its rights after open(), or the guardian of its own.
  [[nodiscard]] virtual confinement needs(confined who) const = 0;

  /// Whether what it holds stays held when the agent ends. Then there is a guardian, and what is
  /// entered in acting_host::holds is let go of by release() when the agent is gone.
  virtual bool outlives_agent() const noexcept { return false; }
  /// Lets go of what an agent held that is gone for certain, whatever had become of it: it may have
  /// ended before it held anything, or after it let go, or held it more than once. Of one process
  /// there may be several, at the same time. Called in the guardian, in the next agent or in
  /// `sluice-agent --rescue`, with the settings of the agent that held it; on a thread of its own,
  /// for several holds at once. Pid and start time are for the driver to compare: the process may
  /// have ended, and the pid be another's.
  /// \return errc::unknown_target where it has ended, which counts as done. After any other error
  /// it
  ///         is tried again, for as long as this guardian or a later one lives; `say` gets a
  ///         sentence.
  [[nodiscard]] virtual result<void> release(const hold& what, const message_sink& say) {
    (void)what;
    (void)say;
    return {};
  }
  /// Lets go of everything that any agent may hold in any process that uses the driver, without a
  /// record of it: for `sluice rescue --everything`. No agent has the node meanwhile. Default:
  /// where nothing outlives the agent nothing is to be done, else errc::not_supported.
  /// \return an error where something may still be held; `say` gets a sentence for each, and one on
  ///         what is not restored without a record, which is shown if there was none.
  [[nodiscard]] virtual result<void> release_everything(const message_sink& say) {
    (void)say;
    if (outlives_agent()) return errc::not_supported;
    return {};
  }
};

/// Each makes a driver whose settings are the defaults.
using acting_drivers = std::vector<std::function<std::unique_ptr<acting_driver>()>>;

/// The agent, or what its command line asks for else. \return the exit status.
[[nodiscard]] int run_agent(int argc, char** argv, const acting_drivers& drivers);

}  // namespace sluice::agent
#pragma GCC visibility pop
