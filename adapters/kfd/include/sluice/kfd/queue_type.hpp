#pragma once
/// \file
/// The driver's kinds of queue, and what they are to the scheduler.

#include <cstdint>

#include "sluice/role.hpp"

namespace sluice::kfd {

/// By their numbers in `kfd_queue_snapshot_entry.queue_type` (uapi KFD_IOC_QUEUE_TYPE_*).
enum class queue_type : std::uint32_t {
  compute_pm4 = 0,
  sdma = 1,
  compute_aql = 2,
  sdma_xgmi = 3,
};

constexpr queue_kind kind_of(queue_type type) noexcept {
  return type == queue_type::compute_pm4 || type == queue_type::compute_aql ? queue_kind::compute
                                                                            : queue_kind::copy;
}

}  // namespace sluice::kfd
