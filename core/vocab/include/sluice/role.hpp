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

/// What a hardware queue carries. Only compute queues are suspended, unless
/// scheduler_config::suspend_copy_queues asks for more: a suspended copy queue stalls its owner's
/// copies.
enum class queue_kind : std::uint8_t {
  compute,
  copy,  ///< Copies between memories, by engines of their own.
};

}  // namespace sluice
#pragma GCC visibility pop
