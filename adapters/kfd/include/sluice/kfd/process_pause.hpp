#pragma once
/// \file
/// Pausing a whole process, by the commands that the driver has for CRIU, and the undoing of it.
/// For targets whose queues a debug session cannot suspend, and only where the configuration asks
/// for it: unlike a session, a pause does not end with whoever made it.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "sluice/os/message_sink.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"

namespace sluice::kfd {

/// A process that unpauses what this one paused, once this one is gone, and then ends. In a session
/// of its own and deaf to every signal but SIGKILL and SIGSTOP, so that what ends this process does
/// not end it as well.
///
/// While this process lives it does nothing. It is told before a pause and after its end, in that
/// order, so that it may unpause what was not paused: the driver answers EINVAL to that, and does
/// nothing.
///
/// Threading: start() while this process has one thread; hold() and release() any thread.
/// Lifetime:  destruction is this process's end as far as it can tell.
/// Errors:    start(): the system's.
/// Cost:      a message for each pause and one for its end, a few microseconds.
class pause_guard {
 public:
  /// \param confine what the guard takes from itself first; false: it ends. Empty: nothing.
  [[nodiscard]] static result<std::unique_ptr<pause_guard>> start(
      const std::function<bool()>& confine = {});

  /// Of the process that is about to be paused by this thread. `device` is the target's own
  /// descriptor of the device node.
  /// \return false when the guard does not take it: then nothing may be paused.
  [[nodiscard]] bool hold(pid_t pid, std::uint64_t start_time, int device) const noexcept;
  /// It runs, or is gone.
  void release(pid_t pid, std::uint64_t start_time) const noexcept;

  /// Readable once the guard is gone. Then unpause everything and end.
  int gone_fd() const noexcept { return line_.get(); }

 private:
  explicit pause_guard(unique_fd line) noexcept : line_(std::move(line)) {}

  unique_fd line_;
};

enum class found_state : std::uint8_t { paused, running };

/// Unpauses a process whose scheduler and whose guard are both gone: the operator's last resort.
///
/// Threading: any thread; it traces the process for a moment, on a thread of its own, and blocks
///            until that has ended.
/// \return what it was; it runs now. errc::unknown_target when there is no such process,
///         errc::not_managed when it may not be traced or is no user of the device, else the
///         system's error; `say` gets the sentence.
[[nodiscard]] result<found_state> unpause_process(const std::string& device, pid_t pid,
                                                  const message_sink& say);

}  // namespace sluice::kfd
