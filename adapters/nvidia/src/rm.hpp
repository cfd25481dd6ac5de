#pragma once
/// \file
/// Calls to the resource manager over a file description that belongs to a target.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "sluice/ids.hpp"
#include "sluice/nvidia/uapi.hpp"
#include "sluice/result.hpp"

namespace sluice::nvidia {

/// What a call came to.
struct rm_status {
  int system = 0;            ///< errno of the ioctl.
  std::uint32_t driver = 0;  ///< The driver's status (uapi::NV_OK, ...), if `system` is 0.

  explicit operator bool() const noexcept { return system == 0 && driver == uapi::NV_OK; }
  [[nodiscard]] bool is(std::uint32_t status) const noexcept {
    return system == 0 && driver == status;
  }
  /// Returns the errno that describes it best.
  [[nodiscard]] int as_errno() const noexcept;
  /// Returns words for a sentence: "status 0x57 (object not found)".
  [[nodiscard]] std::string text() const;
};

/// A channel of some client, as FIFO_DISABLE_CHANNELS names it.
struct channel_name {
  uapi::NvHandle client = 0;
  uapi::NvHandle channel = 0;
};

/// An RM client, reached over the file description that made it.
///
/// Threading: any thread; the driver serialises the calls for one GPU.
/// Lifetime:  does not own `fd`.
class rm_client {
 public:
  rm_client(int fd, uapi::NvHandle handle) noexcept : fd_(fd), handle_(handle) {}

  [[nodiscard]] uapi::NvHandle handle() const noexcept { return handle_; }
  [[nodiscard]] int fd() const noexcept { return fd_; }

  /// Returns the class of an object. Empty: there is no such object, or the call failed (`why`).
  [[nodiscard]] std::optional<std::uint32_t> class_of(uapi::NvHandle object,
                                                      rm_status* why = nullptr) const;
  [[nodiscard]] std::optional<uapi::NvHandle> parent_of(uapi::NvHandle object,
                                                        rm_status* why = nullptr) const;
  /// Returns the first child of a class (uapi::nvoc_class_id).
  [[nodiscard]] std::optional<uapi::NvHandle> child(uapi::NvHandle parent,
                                                    std::uint32_t internal_class) const;
  [[nodiscard]] std::optional<gpu_id> gpu_of(uapi::NvHandle subdevice) const;

  /// Disables or enables channels, 64 at most, of this client or of others on the same GPU.
  [[nodiscard]] rm_status disable(uapi::NvHandle subdevice, bool so,
                                  std::span<const channel_name> channels) const;
  [[nodiscard]] rm_status timeslice(uapi::NvHandle group, std::uint64_t& microseconds) const;
  [[nodiscard]] rm_status set_timeslice(uapi::NvHandle group, std::uint64_t microseconds) const;

 private:
  [[nodiscard]] rm_status control(uapi::NvHandle object, std::uint32_t command, void* parameters,
                                  std::uint32_t size) const;
  [[nodiscard]] rm_status info(uapi::NvHandle object, std::uint32_t index,
                               std::uint64_t& into) const;

  int fd_;
  uapi::NvHandle handle_;
};

}  // namespace sluice::nvidia
