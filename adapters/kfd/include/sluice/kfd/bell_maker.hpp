#pragma once
/// \file
/// Makes the io_urings by which lanes hear of their targets' stops, for a process that may not make
/// any itself: a system call filter does not see what goes through an io_uring. What this one makes
/// can wait for children and nothing else, and whoever has it cannot change that.

#include <functional>
#include <memory>
#include <mutex>

#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"

namespace sluice::kfd {

/// One ring, made and not enabled yet.
struct made_bell;

/// A child process with no other task.
///
/// Threading: make() from any thread; else one.
/// Lifetime:  the child ends with this object, which waits for that (200 ms at most), and with its
///            parent.
/// Errors:    a maker that fails once is not asked again.
class bell_maker {
 public:
  /// Only while there is one thread.
  /// \param confine what the child takes from itself before it does anything; false: it ends.
  [[nodiscard]] static result<std::unique_ptr<bell_maker>> start(
      const std::function<bool()>& confine);
  ~bell_maker();
  bell_maker(const bell_maker&) = delete;
  bell_maker& operator=(const bell_maker&) = delete;

  /// For pidfd_getfd(2), and nothing else: a filter may allow that for this number alone.
  int pidfd() const noexcept { return pidfd_.get(); }
  /// Gives it that number or a higher one, and leaves it open until the process ends. While there
  /// is one thread.
  [[nodiscard]] result<void> move_pidfd(int least);

  /// \return false where there is none to be had. Waits 200 ms at most.
  bool make(made_bell& into) noexcept;

 private:
  bell_maker(unique_fd line, unique_fd pidfd, int pid) noexcept
      : line_(std::move(line)), pidfd_(std::move(pidfd)), pid_(pid) {}

  std::mutex mutex_;
  unique_fd line_;
  unique_fd pidfd_;
  const int pid_;
  bool failed_ = false;
  bool moved_ = false;
};

}  // namespace sluice::kfd
