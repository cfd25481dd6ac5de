#pragma once
/// \file
/// Parsers of the driver's files in /proc/driver/nvidia.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/nvidia/roots.hpp"
#include "sluice/result.hpp"

#pragma GCC visibility push(default)
namespace sluice::nvidia {

/// The loaded driver, as the first line of /proc/driver/nvidia/version describes it.
struct driver_release {
  std::string version{};      ///< "580.159.04"
  unsigned branch = 0;        ///< 580
  bool open_modules = false;  ///< The open kernel modules.
};
[[nodiscard]] std::optional<driver_release> parse_version(std::string_view text);
/// \return errc::not_supported if the file has no version, else the system's error.
[[nodiscard]] result<driver_release> read_release(const roots& where);

/// The only branch that sluice was tested with. See README.md for the releases.
inline constexpr unsigned tested_branch = 580;
/// Returns whether sluice was tested with this kind of driver.
[[nodiscard]] inline bool is_tested(const driver_release& which) noexcept {
  return which.branch == tested_branch && which.open_modules;
}

/// A GPU, as its directory in /proc/driver/nvidia/gpus and the file `information` there describe
/// it.
struct gpu_information {
  gpu_id id{};
  std::string pci{};  ///< "0000:1b:00.0"
  std::string model{};
  std::string uuid{};  ///< "GPU-..."; has question marks while no process uses the GPU.
  unsigned minor = 0;  ///< Of its node, /dev/nvidiaN.
};
/// Returns the number that the driver gives to the GPU at this PCI address
/// (uapi::NV2080_CTRL_GPU_GET_ID_PARAMS). Empty: the text is no PCI address.
[[nodiscard]] std::optional<gpu_id> gpu_at(std::string_view pci);
/// \param pci the name of the GPU's directory. Empty: it is no PCI address.
[[nodiscard]] std::optional<gpu_information> parse_gpu(std::string_view pci, std::string_view text);
/// Reads all GPUs, by minor number. \return the system's error if the directory cannot be read.
[[nodiscard]] result<std::vector<gpu_information>> read_gpus(const roots& where);

}  // namespace sluice::nvidia
#pragma GCC visibility pop
