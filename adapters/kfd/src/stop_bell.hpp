#pragma once
/// \file
/// How a tracer's thread hears of its tracees while it waits for other things.

#include <liburing.h>

#include <memory>

#include "sluice/kfd/bell_maker.hpp"
#include "sluice/os/unique_fd.hpp"

namespace sluice::kfd {

struct made_bell {
  io_uring_params how{};
  unique_fd fd;
};

/// A ring that takes no request but waitid, and that nobody can make take others; it is to be
/// enabled by the thread that will use it. System calls only.
/// \return its descriptor, -1 where the kernel refuses.
int make_restricted_ring(io_uring_params& how) noexcept;
/// \return 0.
int enable_ring(int ring) noexcept;

/// Writes an eventfd when a tracee of this thread has a status to take: the kernel's waitid as a
/// request of an io_uring (Linux 6.7), which wakes nobody but the thread concerned. SIGCHLD comes
/// to a process, from where it has to find its way.
///
/// Nothing of it interrupts a system call: its request is looked at in arm(), not in passing.
///
/// Threading: every member, and the end, on the tracer's thread.
/// Cost:      where nothing was heard since the last arm(), that reads memory; else it is two
///            system calls.
class stop_bell {
 public:
  /// Whether there are bells here: the kernel has the request, and does not refuse io_uring.
  static bool offered() noexcept;

  /// \param rings an eventfd that outlives it.
  /// \param maker where this process makes no rings itself; null: it does.
  /// \return nothing where the kernel refuses.
  static std::unique_ptr<stop_bell> hang(int rings, bell_maker* maker = nullptr) noexcept;
  ~stop_bell();
  stop_bell(const stop_bell&) = delete;
  stop_bell& operator=(const stop_bell&) = delete;

  /// Rings once from now on: when a tracee has a status, at once if one has it already or if there
  /// is no tracee left. The status remains to be taken.
  /// \return false when the kernel has no memory for that.
  bool arm() noexcept;
  /// Whether it has rung since. Reads memory.
  bool has_rung() const noexcept;

 private:
  explicit stop_bell(const io_uring& ring) noexcept : ring_(ring) {}
  static std::unique_ptr<stop_bell> make() noexcept;
  static std::unique_ptr<stop_bell> own(const io_uring& ring) noexcept;

  io_uring ring_;
  bool armed_ = false;
};

}  // namespace sluice::kfd
