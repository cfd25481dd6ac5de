#pragma once
/// \file
/// Closes the difference between what queues shall do and what they do, with the fewest driver
/// calls.

#include "actual_state.hpp"
#include "deadline_heap.hpp"
#include "journalist.hpp"
#include "table.hpp"

#include <cstddef>
#include <cstdint>

#include "sluice/backend.hpp"
#include "sluice/config.hpp"
#include "sluice/statistics.hpp"
#include "sluice/time.hpp"

namespace sluice::core {

/// Looks at dirty processes only, at the end of a turn, so a suspend and a resume within one turn
/// cancel. Each process has one lane: while its batch is in flight, changes pile up, and its
/// outcome sends what is left of them as the next batch.
///
/// Threading: reactor thread. Cost: O(queues of dirty processes), no allocation.
class reconciler {
 public:
  reconciler(const scheduler_config& config, table& world, actual_state& actual, backend& driver,
             statistics& stats, journalist& journal, const time_source& time) noexcept
      : config_(config),
        table_(world),
        actual_(actual),
        backend_(driver),
        stats_(stats),
        journal_(journal),
        time_(time) {}

  /// Submits what can be submitted: suspends for GPUs with waiting online work before everything
  /// else, so that the driver, which serialises per GPU, serves them first.
  /// \return whether there was something.
  bool reconcile(time_point now);
  void completed(const batch_result& result, time_point now);
  time_point next() const noexcept { return deadlines_.next(); }

 private:
  enum class urgency : std::uint8_t { none, later_suspend, resume, waiting_suspend };
  struct choice {
    urgency how = urgency::none;
    gpu* on = nullptr;
    command_kind kind{};
  };
  /// What a queue needs right now; sets `retry` to when a queue that must wait may be tried again.
  urgency need(const queue& which, time_point now, time_point& retry) noexcept;
  choice choose(process& which, time_point now);
  void send(process& which, const choice& what, time_point now);
  void measure_submit(gpu& on, command_kind kind) noexcept;
  duration backoff(std::uint8_t failures) const noexcept;
  void note_off(gpu& on, time_point at) noexcept;
  void tell_handed(const process& which, error_code error, time_point now) noexcept;
  /// \param which nullptr: the answer comes too late.
  void tell_done(const process* which, const batch_result& result, time_point now) noexcept;

  const scheduler_config& config_;
  table& table_;
  actual_state& actual_;
  backend& backend_;
  statistics& stats_;
  journalist& journal_;
  const time_source& time_;
  deadline_heap deadlines_;  // By process slot.
  std::uint64_t last_batch_ = 0;
  batch batch_{};
  bool unflushed_ = false;
};

}  // namespace sluice::core
