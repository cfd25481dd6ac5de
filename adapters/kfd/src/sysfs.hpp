#pragma once
/// \file
/// What the driver's sysfs tree says of queues, in our words.

#include "proc.hpp"

#include <array>
#include <optional>
#include <string>

#include "sluice/kfd/sysfs_text.hpp"
#include "sluice/role.hpp"

namespace sluice::kfd {

/// What `queues/<id>` holds. \return nothing when it is gone, or cannot be read or understood.
inline std::optional<sysfs_queue> read_queue(const std::string& directory) {
  std::array<char, 64> size;
  std::array<char, 64> type;
  std::array<char, 64> gpu;
  const auto size_text = read_small_file((directory + "/size").c_str(), size);
  const auto type_text = read_small_file((directory + "/type").c_str(), type);
  const auto gpu_text = read_small_file((directory + "/gpuid").c_str(), gpu);
  if (!size_text || !type_text || !gpu_text) return {};
  return parse_sysfs_queue(*size_text, *type_text, *gpu_text);
}

/// sysfs prints the driver's internal type: 0 for every compute queue, PM4 or AQL, then SDMA kinds
/// whose numbers differ between kernels (kfd_priv.h, enum kfd_queue_type).
constexpr queue_type type_from_sysfs(int printed) noexcept {
  if (printed == 0) return queue_type::compute_aql;
  return printed == 1 ? queue_type::sdma : queue_type::sdma_xgmi;
}

}  // namespace sluice::kfd
