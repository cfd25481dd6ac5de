#pragma once
/// \file
/// The opened device node.

#include <cstdint>
#include <memory>
#include <string>

#include "sluice/os/message_sink.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"

namespace sluice::kfd {

/// One open of the device node, gated on the debugger API (KFD 1.13 up to, not including, 2.0).
///
/// Threading: const, any thread; but the driver ties a debug session to the calling thread (see
///            debug_session.hpp), and an inherited descriptor is refused (EBADF) in a forked child.
/// Lifetime:  closing it ends no session; only the process's death, or DISABLE, does.
class device {
 public:
  /// Opens and gates. Blocks for as long as the driver does (microseconds).
  /// \return errc::not_supported for a driver without the debugger API, else the system's error;
  ///         `say` gets the sentence.
  [[nodiscard]] static result<std::unique_ptr<device>> open(const std::string& path,
                                                            const message_sink& say);

  /// ioctl(2), repeated while it ends with EINTR. \return its value, which is a count for some.
  [[nodiscard]] result<int> call(std::uint32_t command, void* argument) const noexcept;

  /// Whether the driver has the batch commands (uapi_batch.hpp). Asks it, because an errno does not
  /// decide: unknown commands get ENOTTY, and EINVAL from drivers before late 2025
  /// (adapters/kfd/kernel/README.md).
  bool has_batch_commands() const noexcept;

  std::uint32_t minor_version() const noexcept { return minor_; }
  const std::string& path() const noexcept { return path_; }

 private:
  device(std::string path, unique_fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  unique_fd fd_;
  std::uint32_t minor_ = 0;
};

}  // namespace sluice::kfd
