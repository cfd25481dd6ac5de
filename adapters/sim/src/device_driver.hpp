#pragma once
/// \file
/// What the file system (fuse_fs.hpp) asks of a simulated driver, whichever it is: driver.hpp
/// (AMD's KFD) or rm_driver.hpp (NVIDIA's resource manager).

#include "lateness.hpp"

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::sim {

using file_id = std::uint64_t;     ///< One open of a device node; 0 is none.
using request_id = std::uint64_t;  ///< One ioctl in progress; 0 is none.

struct ioctl_reply {
  int result = 0;              ///< >= 0: the ioctl's value; < 0: -errno (-512 = ERESTARTSYS).
  std::vector<std::byte> out;  ///< Copied back even when result < 0; empty for write-only commands.
};
using ioctl_done = std::function<void(ioctl_reply)>;

/// Threading: every member on the engine's thread.
/// Lifetime:  calls in progress at its destruction get no reply.
/// Errors:    as the driver's: negative errno values, never exceptions.
class device_driver {
 public:
  device_driver() = default;
  device_driver(const device_driver&) = delete;
  device_driver& operator=(const device_driver&) = delete;
  virtual ~device_driver() = default;

  /// open(2) of a device node by thread `tid`. \param node which of the driver's nodes, from 0 on.
  /// \return 0 or -errno.
  virtual int open(pid_t tid, std::uint32_t node, file_id& out) = 0;
  /// Last close of that open file.
  virtual void release(file_id file) = 0;

  /// Starts an ioctl. `done` is called exactly once, on the engine's thread, possibly before this
  /// returns (then the id is 0).
  virtual request_id ioctl(pid_t tid, file_id file, std::uint32_t command,
                           std::span<const std::byte> in, ioctl_done done) = 0;
  /// A signal is pending for the caller: interruptible waits end with ERESTARTSYS (of KFD, the
  /// runtime's handshake, a semaphore's, with EINTR), others go on.
  virtual void interrupt(request_id request) = 0;

  /// Looks at every known address space and cleans up after those that are gone. The owner calls it
  /// when a pidfd fires and at least every 10 ms (no event announces an exec).
  virtual void reap() = 0;
  /// Called (on the engine's thread) when a process begins (true) or ceases (false) to be known. An
  /// exec'd process disappears before it appears anew.
  std::function<void(pid_t, bool)> on_process;

  /// Does what one line of `sim/control` says. \return 0, or -EINVAL and a sentence in `problem`.
  virtual int control(std::string_view line, std::string& problem) = 0;

  /// Accounting for demo and tests, as JSON text (see the folder's README for the fields).
  virtual std::string stats_json() const = 0;
  /// Of wake-ups for planned events, as the owner saw them: into stats_json().
  lateness_histogram lateness;
};

}  // namespace sluice::sim
