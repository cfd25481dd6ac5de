#pragma once
/// \file
/// Which GPUs sluice leaves alone, and for how long.

#include "actual_state.hpp"
#include "journalist.hpp"
#include "table.hpp"

#include <functional>
#include <string_view>
#include <utility>

#include "sluice/backend.hpp"
#include "sluice/breaker.hpp"
#include "sluice/config.hpp"
#include "sluice/time.hpp"

namespace sluice::core {

/// One circuit breaker per GPU. It opens with the hardware's failures that the configuration counts
/// (breaker_after), or at once when a GPU is lost; it takes the GPU's reset domain along. Open:
/// nothing on the GPU is suspended, what is suspended is resumed. It closes when an operator says
/// so, or after breaker_rearm.
///
/// Threading: reactor thread. Cost: O(GPUs), and nothing while no breaker is open.
class breaker {
 public:
  breaker(const scheduler_config& config, table& world, actual_state& actual,
          journalist& journal) noexcept
      : config_(config), table_(world), actual_(actual), journal_(journal) {}

  /// An answer of the backend: a command that the hardware failed counts.
  void completed(const batch_result& result, time_point now);
  /// So does one that names no queues.
  void failed(gpu_id which, time_point now);
  void on_change(std::function<void(const breaker_change&)> hear) { hear_ = std::move(hear); }

  /// The acting side gave the GPU up: a driver call is stuck.
  void lost(gpu_id which, time_point now);
  /// A source heard of a reset; it may repeat what it heard before the breaker was closed.
  void reset(gpu_id which, time_point at, time_point now);
  /// It was open before this scheduler began. Not told to who hears of changes: that is who said
  /// so. No longer than breaker_rearm, whatever was said.
  void keep(gpu_id which, time_point until, time_point now);
  /// \return whether a breaker was open.
  bool rearm(gpu_id which);
  /// Closes those whose time has come.
  void work(time_point now);
  time_point next() const noexcept { return next_; }

 private:
  void open(gpu& which, time_point now, breaker_cause why);
  time_point end(time_point now) const noexcept;
  /// \param first to which GPU it happened; nullptr: before this scheduler began.
  void lose(gpu& which, time_point until, breaker_cause why, const gpu* first);
  void close(gpu& which, std::string_view why);

  const scheduler_config& config_;
  table& table_;
  actual_state& actual_;
  journalist& journal_;
  std::function<void(const breaker_change&)> hear_ = [](const breaker_change&) {};
  time_point next_ = never;
};

}  // namespace sluice::core
