#pragma once
/// \file
/// What the scheduler tells of the circuit breakers of GPUs, and why one opens.

#include <cstdint>

#include "sluice/ids.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

enum class breaker_cause : std::uint8_t {
  preemption_failed,  ///< As often as scheduler_config::breaker_after says.
  reset,              ///< The driver said that it resets the GPU.
  stuck_call,         ///< A driver call lasts too long.
};

/// A breaker that opened (nothing on the GPU is suspended from then on), or closed.
struct breaker_change {
  gpu_id gpu{};
  bool open = false;
  breaker_cause why{};       ///< Open only, as all below.
  gpu_id first{};            ///< To which it happened: `gpu`, or another that is reset with it.
  time_point until = never;  ///< When it closes by itself.
};

}  // namespace sluice
#pragma GCC visibility pop
