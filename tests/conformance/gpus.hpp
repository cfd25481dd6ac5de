#pragma once
/// \file
/// The GPUs of the driver's topology, and what a queue on them needs.

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sluice/kfd/roots.hpp"

namespace sluice::test {

struct gpu {
  std::uint32_t id = 0;
  std::map<std::string, std::uint64_t> properties;

  /// 0 if the driver has no such property.
  std::uint64_t property(const std::string& name) const {
    const auto found = properties.find(name);
    return found == properties.end() ? 0 : found->second;
  }
  /// Of a compute queue's save area with all that the driver demands, in bytes, not rounded. The
  /// driver: kfd_queue_ctx_save_restore_size().
  std::uint64_t save_area_bytes() const {
    const auto at_least_one = [this](const char* name) {
      return std::max<std::uint64_t>(property(name), 1);
    };
    const auto xccs = at_least_one("num_xcc");
    const auto cus = property("simd_count") / at_least_one("simd_per_cu") / xccs;
    const auto engines = property("array_count") / at_least_one("simd_arrays_per_engine");
    const auto waves =
        property("gfx_target_version") >= 100100 ? cus * 32 : std::min(cus * 40, engines * 512);
    return (property("cwsr_size") + (waves * 32 + 63) / 64 * 64) * xccs;
  }
};

inline std::vector<gpu> find_gpus() {
  std::vector<gpu> out;
  const std::string nodes = kfd::roots::from_environment().sysfs + "/topology/nodes/";
  for (unsigned index = 0;; ++index) {
    const auto folder = nodes + std::to_string(index);
    std::ifstream id_file{folder + "/gpu_id"};
    if (!id_file) return out;
    gpu found;
    if (!(id_file >> found.id) || found.id == 0) continue;
    std::ifstream file{folder + "/properties"};
    std::string key;
    for (std::uint64_t value = 0; file >> key >> value;) found.properties[key] = value;
    out.push_back(std::move(found));
  }
}

}  // namespace sluice::test
