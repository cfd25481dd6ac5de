#pragma once
/// \file
/// The simulated device's clock and executor: events planned for a moment of monotonic time, run in
/// planned order by one thread, in virtual or in real time alike.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::sim {

/// A planned event. Default: none. Ids are never reused.
struct timer_id {
  time_point when{};
  std::uint64_t sequence = 0;
  friend auto operator<=>(const timer_id&, const timer_id&) =
      default;  // NOLINT: clang-tidy 14 takes its 0 for a pointer.
};

/// Discrete-event executor. It performs no I/O and reads no clock: who owns it says how late it is.
/// In real time the owner calls run_until(clock::now()) whenever next() is due and before it hands
/// in anything from outside; a test in virtual time calls run_until(any later moment).
///
/// Threading: every member from one thread; handlers run on it, inside run_until().
/// Lifetime:  handlers still planned at destruction are destroyed without being run.
/// Errors:    none; a handler must not throw.
/// Cost:      O(log n) per event, one allocation each.
class engine {
 public:
  explicit engine(time_point start) : now_{start} {}
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  /// Inside a handler: the moment it was planned for, however late it runs. Otherwise: the last
  /// argument of run_until(). Never goes back.
  time_point now() const noexcept { return now_; }

  /// Plans `handler` for `when` (a past moment counts as now). Handlers of one moment run in the
  /// order in which they were planned.
  timer_id at(time_point when, std::function<void()> handler);
  /// Forgets a planned event; one that has run, or none, is ignored.
  void cancel(timer_id timer);

  /// Runs `action` once at the end of the step: when no event is due any more in the current (or
  /// next) run_until(). Meant for batching what a step has to tell the outside.
  void defer(std::function<void()> action);

  /// Runs `action` once in the next step, after what is due in that. Meant for what a step learnt
  /// from outside: that happened after the step's own moment was chosen, and before the next one's.
  void after_step(std::function<void()> action);

  /// When run_until() has something to do next; now() while an action waits.
  std::optional<time_point> next() const;

  /// One step: runs everything planned up to `t`, then what the last step left for after it, then
  /// the deferred actions (each with what these plan for up to `t`); then now() is `t`. A `t` in
  /// the past counts as now.
  void run_until(time_point t);

 private:
  time_point now_;
  std::uint64_t last_sequence_ = 0;
  std::map<timer_id, std::function<void()>> planned_;
  std::vector<std::function<void()>> deferred_;
  std::vector<std::function<void()>> next_step_;
};

}  // namespace sluice::sim
