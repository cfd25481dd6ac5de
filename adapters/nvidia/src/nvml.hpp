#pragma once
/// \file
/// NVML (libnvidia-ml), NVIDIA's management library: which processes compute on which GPU, and with
/// how much memory. It needs no rights. A machine without it is no error.

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sluice/ids.hpp"

namespace sluice::nvidia {

struct nvml_process {
  pid_t pid = 0;
  gpu_id gpu{};
  std::optional<std::uint64_t> memory{};  ///< Bytes, if the driver reports them.
};

/// Threading: one thread at a time. Cost: loading takes about 20 ms; then some device calls for
/// each GPU.
class nvml {
 public:
  /// Loads the library. \return null if it is absent or refuses to start.
  static std::unique_ptr<nvml> load();
  ~nvml();
  nvml(const nvml&) = delete;
  nvml& operator=(const nvml&) = delete;

  struct gpu {
    gpu_id id{};
    std::string name{};
    std::string uuid{};
    std::uint64_t memory = 0;  ///< Bytes.
  };
  [[nodiscard]] std::vector<gpu> gpus() const;
  /// Appends a row for each process and GPU. \return false if a GPU's processes cannot be read.
  [[nodiscard]] bool list_processes(std::vector<nvml_process>& into) const;

 private:
  struct functions;
  nvml();
  std::unique_ptr<functions> call_;
};

}  // namespace sluice::nvidia
