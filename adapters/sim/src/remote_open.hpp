#pragma once
/// \file
/// Makes a thread of another process open a file as it returns from a system call.

#include "os.hpp"

#include <sys/types.h>

#include <stop_token>
#include <string>

namespace sluice::sim {

/// A thread that waits in ioctl(2) for an answer of ours is seized, and asked to stop; it does so
/// on its way back to its own code, once it has the answer. There it is made to call mmap, openat
/// and munmap with its signals blocked, gets its registers and signals back, and is let go. Its
/// stack and the rest of its memory are not touched, for what lies below a stack pointer is not
/// always its own (coroutines); other threads notice nothing.
///
/// A stop signal that comes meanwhile takes effect when it is let go. Should this process die
/// within that millisecond, the kernel lets the thread go in the middle of it, and it crashes or
/// loses a page.
///
/// Threading: attach() and run() from one thread, which lives until run() is over.
class remote_open {
 public:
  explicit remote_open(pid_t tid) noexcept : tid_{tid} {}
  /// \return 0: now answer the call (with success), and call run(). Else an errno value; the thread
  ///         is not touched.
  int attach() noexcept;
  /// Waits for the call's return, and does it: the descriptor (O_RDWR) is stored as an int in the
  /// call's argument.
  /// \return 0, or an errno value: the call fails with it, or the thread is gone (ESRCH), or its
  ///         call came back in another way than by the expected answer (ECANCELED).
  int run(const std::string& path, os::file_place where, const std::stop_token& stop) noexcept;

 private:
  const pid_t tid_;
};

}  // namespace sluice::sim
