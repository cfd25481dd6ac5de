#pragma once
/// \file
/// Time that moves when the test says so.

#include <atomic>
#include <chrono>

#include "sluice/time.hpp"

namespace sluice::testing {

/// Threading: any thread.
class manual_clock final : public time_source {
 public:
  /// Starts well after the epoch, for "never happened" is the epoch.
  manual_clock() noexcept = default;
  time_point now() const noexcept override {
    return time_point(duration(now_.load(std::memory_order_relaxed)));
  }
  void advance(duration by) noexcept { now_.fetch_add(by.count(), std::memory_order_relaxed); }
  /// Forward only; an earlier time changes nothing.
  void advance_to(time_point when) noexcept {
    if (when > now()) advance(when - now());
  }

 private:
  std::atomic<duration::rep> now_{duration(std::chrono::hours(1)).count()};
};

}  // namespace sluice::testing
