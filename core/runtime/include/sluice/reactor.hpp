#pragma once
/// \file
/// The event loop behind a scheduler: descriptors, timers and calls from other threads, on one
/// logical thread. To run on a loop that the program already has, see asio.hpp.

#include <cstdint>
#include <functional>
#include <memory>

#include "sluice/result.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

enum class watch_id : std::uint64_t { none = 0 };
enum class timer_id : std::uint64_t { none = 0 };

/// What the loop waits with; chosen when the runtime is built.
enum class reactor_backend : std::uint8_t { io_uring, epoll };

/// Whether this kernel grants this process a ring as large as the io_uring reactor needs. Programs
/// that ship an epoll sibling ask before they construct anything.
/// \return the kernel's reason when it does not (ENOSYS, EPERM, ENOMEM...).
/// Any thread; a few system calls.
[[nodiscard]] result<void> probe_io_uring() noexcept;

/// One loop.
///
/// Threading: "reactor thread" is whichever thread currently runs a handler or an exclusive()
///            call; there is never more than one. Any-thread calls are marked.
/// Lifetime:  descriptors stay the caller's, and stay open until unwatch() returned. Destroying the
///            reactor waits for the handler that is running on another thread, if any; no handler
///            runs afterwards. Not from inside a handler, but exclusive() is fine.
/// Errors:    as values. Handlers must not throw.
/// Cost:      once a watch or a timer has fired, arming it again allocates nothing.
class reactor {
 public:
  /// A reactor with a loop of its own.
  /// \return the kernel's error when it refuses what the loop is built on, e.g. EPERM for io_uring.
  [[nodiscard]] static result<std::unique_ptr<reactor>> create();

  virtual ~reactor() = default;

  virtual reactor_backend backend() const noexcept = 0;
  /// Whether somebody else's loop drives this reactor: then run() and poll_once() do nothing.
  virtual bool hosted() const noexcept = 0;

  enum class trigger : std::uint8_t {
    level,  ///< Again and again, until it is not readable any more.
    edge,   ///< Once for each time that it was written to, or more at once: nobody has to read it.
  };
  /// Calls `ready` whenever `fd` is readable. Reactor thread. One watch per descriptor.
  [[nodiscard]] virtual result<watch_id> watch(int fd, std::function<void()> ready,
                                               trigger by = trigger::level) = 0;
  /// Ends a watch; `ready` is not called afterwards. Reactor thread; fine inside `ready` itself,
  /// and for an id that is gone.
  virtual void unwatch(watch_id id) noexcept = 0;

  /// A timer, not armed yet. Reactor thread.
  /// \param punctual it is set earlier by what wake-ups take at least, as it learns from them; the
  ///                 rest, on average a few microseconds, is waited for awake.
  [[nodiscard]] virtual result<timer_id> add_timer(std::function<void()> expired,
                                                   bool punctual = false) = 0;
  /// Calls `expired` once, at or after `when`; replaces what was asked before; `never` disarms.
  /// Reactor thread.
  virtual void arm(timer_id id, time_point when) = 0;
  /// Reactor thread; fine inside `expired` itself, and for an id that is gone.
  virtual void remove(timer_id id) noexcept = 0;

  /// Runs `work` on the reactor thread, later, never inline. Any thread. Allocates: not for the hot
  /// path, where an eventfd and watch() serve.
  virtual void post(std::function<void()> work) = 0;
  /// Runs `work` here and now as if it were a handler: while no other handler runs. Any thread; it
  /// waits for a running handler, and runs at once inside one.
  virtual void exclusive(const std::function<void()>& work) = 0;
  /// Whether the calling thread is the reactor thread at this moment. Any thread.
  virtual bool running_here() const noexcept = 0;

  /// Runs handlers until stop(). One thread at a time.
  virtual void run() = 0;
  /// Runs handlers that are ready, a bounded number, and returns whether there were any. Never
  /// blocks.
  virtual bool poll_once() = 0;
  /// Makes run() return, or the next run() if none is running. Any thread. A hosted reactor ignores
  /// it: the loop is not ours to stop.
  virtual void stop() noexcept = 0;
};

}  // namespace sluice
#pragma GCC visibility pop
