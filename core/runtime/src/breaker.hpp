#pragma once
/// \file
/// Which GPUs sluice leaves alone, and for how long.

#include "table.hpp"

#include <string_view>

#include "sluice/backend.hpp"
#include "sluice/config.hpp"
#include "sluice/statistics.hpp"
#include "sluice/time.hpp"

namespace sluice::core {

/// One circuit breaker per GPU. It opens with the hardware's failures that the configuration counts
/// (breaker_after), or at once when a GPU is lost; it takes the GPU's hive along, since the driver
/// resets a hive as a whole. Open: nothing on the GPU is suspended, what is suspended is resumed.
/// It closes when an operator says so, or after breaker_rearm.
///
/// Threading: reactor thread. Cost: O(GPUs), and nothing while no breaker is open.
class breaker {
 public:
  breaker(const scheduler_config& config, table& world, statistics& stats) noexcept
      : config_(config), table_(world), stats_(stats) {}

  /// An answer of the backend: a command that the hardware failed counts.
  void completed(const batch_result& result, time_point now);
  /// A driver call is stuck, or the GPU was reset.
  void lost(gpu_id which, time_point now);
  /// A source heard of a reset; it may repeat what it heard before the breaker was closed.
  void reset(gpu_id which, time_point at, time_point now);
  /// \return whether a breaker was open.
  bool rearm(gpu_id which);
  /// Closes those whose time has come.
  void work(time_point now);
  time_point next() const noexcept { return next_; }

 private:
  void open(gpu& which, time_point now, std::string_view why);
  void close(gpu& which, std::string_view why);

  const scheduler_config& config_;
  table& table_;
  statistics& stats_;
  time_point next_ = never;
};

}  // namespace sluice::core
