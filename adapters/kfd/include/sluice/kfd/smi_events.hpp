#pragma once
/// \file
/// One GPU's events (resets, evictions, processes that begin and end), as the driver's SMI
/// interface gives them to whoever may open the device.

#include <cstdint>
#include <memory>
#include <span>

#include "sluice/ids.hpp"
#include "sluice/kfd/device.hpp"
#include "sluice/kfd/smi_text.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"

namespace sluice::kfd {

/// Kinds whose lines carry a name that a process chose. Subscribe to them on a descriptor of their
/// own: a name with a line end in it can look like any other event.
inline constexpr std::uint64_t smi_named =
    smi_bit(smi_kind::vm_fault) | smi_bit(smi_kind::process_start) | smi_bit(smi_kind::process_end);
inline constexpr std::uint64_t smi_resets =
    smi_bit(smi_kind::gpu_pre_reset) | smi_bit(smi_kind::gpu_post_reset);
inline constexpr std::uint64_t smi_evictions =
    smi_bit(smi_kind::queue_eviction) | smi_bit(smi_kind::queue_restore);
/// Also events of other users' processes: only with CAP_SYS_ADMIN at the time of open(), else
/// without effect. Resets and faults go to everybody.
inline constexpr std::uint64_t smi_all_processes = std::uint64_t{1} << 63U;

/// Threading: one thread at a time.
/// Lifetime:  independent of the device it was opened with.
/// Errors:    the system's. EOPNOTSUPP, EINVAL, EPERM: the driver gives none for this GPU, or to
/// us;
///            the rest of the world must do without.
/// Cost:      read() is a system call or two, and allocates only when more events come at once than
///            ever did. The driver's buffer holds 1 to 8 KiB; what does not fit it drops silently.
class smi_stream {
 public:
  [[nodiscard]] static result<std::unique_ptr<smi_stream>> open(const device& node, gpu_id gpu,
                                                                std::uint64_t mask);
  /// The same over a descriptor that gives such lines.
  smi_stream(gpu_id gpu, unique_fd lines) noexcept;

  [[nodiscard]] gpu_id gpu() const noexcept { return gpu_; }
  /// Readable when read() has something.
  [[nodiscard]] int fd() const noexcept { return lines_.get(); }
  /// Takes what has come. \return it, valid until the next call; an error when no more will come.
  [[nodiscard]] result<std::span<const smi_event>> read();
  /// Lines that could not be read, over all the stream's life.
  [[nodiscard]] const unread& problems() const noexcept { return parser_.problems(); }

 private:
  const gpu_id gpu_;
  const unique_fd lines_;
  smi_parser parser_{};
};

}  // namespace sluice::kfd
