#pragma once
/// \file
/// Which processes use which GPUs, without rights over them.

#include "device_users.hpp"
#include "nvml.hpp"

#include <sys/types.h>

#include <memory>
#include <vector>

#include "sluice/nvidia/driver_text.hpp"
#include "sluice/nvidia/roots.hpp"
#include "sluice/result.hpp"

namespace sluice::nvidia {

/// Reads NVML; for a simulated device, or where NVML is absent, the descriptors of processes in
/// /proc: then it sees only processes whose descriptors this process may read, and counts a GPU
/// whose node is open as used.
///
/// Threading: one thread at a time.
class gpu_users {
 public:
  explicit gpu_users(const roots& where);

  [[nodiscard]] bool has_nvml() const noexcept { return nvml_ != nullptr; }
  /// Whether list() has processes of all users: from NVML, or because this process may read the
  /// descriptors of all. Cost: without NVML, a system call for each process.
  [[nodiscard]] bool sees_all() const;
  /// Lists them by GPU, then by pid. \return the system's error if there is no device.
  [[nodiscard]] result<std::vector<nvml_process>> list();
  /// Returns the GPUs in the driver's proc tree, by minor number. Empty if it cannot be read.
  [[nodiscard]] const std::vector<gpu_information>& gpus();
  [[nodiscard]] const nvml* management() const noexcept { return nvml_.get(); }

 private:
  result<std::vector<nvml_process>> list_descriptors();

  const roots where_;
  std::unique_ptr<nvml> nvml_;
  std::unique_ptr<user_list> users_;  ///< Without NVML.
  std::vector<gpu_information> gpus_;
};

}  // namespace sluice::nvidia
