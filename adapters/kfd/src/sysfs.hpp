#pragma once
/// \file
/// What the driver's sysfs tree says of queues, in our words.

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/kfd/queue_type.hpp"
#include "sluice/kfd/sysfs_text.hpp"
#include "sluice/os/proc.hpp"

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

/// Value of a line "key number" of a topology `properties` text.
inline std::optional<std::uint64_t> property(std::string_view properties,
                                             std::string_view key) noexcept {
  while (!properties.empty()) {
    const auto line = properties.substr(0, properties.find('\n'));
    properties.remove_prefix(std::min(line.size() + 1, properties.size()));
    if (line.starts_with(key) && line.size() > key.size() && line[key.size()] == ' ')
      return parse_number<std::uint64_t>(line.substr(key.size() + 1));
  }
  return {};
}

}  // namespace sluice::kfd
