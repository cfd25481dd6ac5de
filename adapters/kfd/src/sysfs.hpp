#pragma once
/// \file
/// What the driver's sysfs tree prints, in our words.

#include "sluice/role.hpp"

namespace sluice::kfd {

/// sysfs prints the driver's internal type: 0 for every compute queue, PM4 or AQL, then SDMA kinds
/// whose numbers differ between kernels (kfd_priv.h, enum kfd_queue_type).
constexpr queue_type type_from_sysfs(int printed) noexcept {
  if (printed == 0) return queue_type::compute_aql;
  return printed == 1 ? queue_type::sdma : queue_type::sdma_xgmi;
}

}  // namespace sluice::kfd
