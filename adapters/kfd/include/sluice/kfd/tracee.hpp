#pragma once
/// \file
/// The ptrace half of a debug session: a seized process and the duties of its tracer. Needs no GPU.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "sluice/os/message_sink.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice::kfd {

/// The thread-group leader of one process, traced by PTRACE_SEIZE (or only watched). It stops only
/// at an exec, and when it begins to exit, until service(). So a process cannot lose its memory
/// during a driver call of this thread. Not even SIGKILL ends a stop at an exit. A child of this
/// process does not stop at its exit, because waitpid() for it would return then.
///
/// Threading: every member on the thread that called seize(); the kernel ties ptrace, and with it
///            the driver's permission, to that thread. No other thread of this process may call
///            waitpid(-1): it would take the stops, and the target would stay frozen.
/// Lifetime:  there is no detach: the kernel detaches when the thread ends, which is the only way
///            that leaves the target undisturbed (PTRACE_DETACH needs a stop, and PTRACE_INTERRUPT
///            makes the target's epoll_wait return EINTR).
class tracee {
 public:
  /// Seizes `pid` if it is still the process that started at `start_time`. Waits up to 500 ms for a
  /// previous tracer that is just ending.
  /// \return errc::unknown_target when that process is gone or exits, errc::not_managed when it may
  ///         not be traced (`say` gets the reason).
  [[nodiscard]] static result<std::unique_ptr<tracee>> seize(pid_t pid, std::uint64_t start_time,
                                                             const message_sink& say);

  /// The same process without tracing it, where somebody else's tracing has been enough: service()
  /// then tells of an exit, and of an exec as `lost`.
  /// \return errc::unknown_target when that process is gone, errc::not_managed when we may not look
  ///         at its memory.
  [[nodiscard]] static result<std::unique_ptr<tracee>> watch(pid_t pid, std::uint64_t start_time);

  enum class change : std::uint8_t {
    none,
    exec,    ///< It runs another program: its address space, queues and session are gone.
    exited,  ///< It is gone and reaped, so that its real parent hears of it at once.
    lost,    ///< It lives and is no longer traced by this thread: an exec by a thread that was not
             ///< the leader ends the tracing. seize() again, and treat it as an exec; or (untraced)
             ///< it runs another program, or is exiting: watch() again.
  };

  /// Serves every stop that is pending: passes signals on, leaves a stopped target stopped, lets
  /// everything else continue. Never blocks; call it soon after each sign of a stop, for until
  /// then a stopped target stands still.
  change service() noexcept;

  pid_t pid() const noexcept { return pid_; }
  /// Readable once the whole process has exited. An exec leaves it as it is.
  int pidfd() const noexcept { return pidfd_.get(); }
  bool traced() const noexcept { return !memory_; }
  bool alive() const noexcept;
  /// Between the end of a target's memory, from which on the driver says ESRCH, and of the process.
  static constexpr duration exit_patience = std::chrono::milliseconds{10};
  /// Whether it has exited, or does within `limit`. Serves no stops meanwhile.
  bool exits_within(duration limit) const noexcept;

 private:
  tracee(pid_t pid, unique_fd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}

  pid_t pid_;
  unique_fd pidfd_;
  unique_fd memory_;  ///< Untraced: reads as empty once its address space is gone.
};

}  // namespace sluice::kfd
