#pragma once
/// \file
/// What a process is to the scheduler. Roles are per process: any online queue makes it online.

#include <cstdint>
#include <string_view>

#pragma GCC visibility push(default)
namespace sluice {

enum class role : std::uint8_t {
  unmatched,  ///< Nothing said what it is: observed, never touched.
  online,     ///< Latency-critical: never suspended, never traced.
  offline,    ///< Best effort: traced lazily, suspended while online work is in flight.
};

constexpr std::string_view to_string(role value) noexcept {
  switch (value) {
    case role::online: return "online";
    case role::offline: return "offline";
    case role::unmatched: break;
  }
  return "unmatched";
}

/// Kinds of hardware queue, by their numbers in `kfd_queue_snapshot_entry.queue_type`
/// (uapi KFD_IOC_QUEUE_TYPE_*).
enum class queue_type : std::uint32_t {
  compute_pm4 = 0,
  sdma = 1,
  compute_aql = 2,
  sdma_xgmi = 3,
};

/// Only compute queues are suspended, unless scheduler_config::suspend_sdma asks for more: a
/// suspended SDMA queue stalls its owner's copies.
constexpr bool is_compute(queue_type type) noexcept {
  return type == queue_type::compute_pm4 || type == queue_type::compute_aql;
}

}  // namespace sluice
#pragma GCC visibility pop
