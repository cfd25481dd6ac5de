#pragma once
/// \file
/// How long something lasted within the last minute.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "sluice/time.hpp"

namespace sluice {

/// In steps of five seconds: the window is the step that goes on and the eleven before it.
class last_minute {
 public:
  static constexpr duration step = std::chrono::seconds(5);
  static constexpr std::int64_t steps = 12;

  /// Intervals that overlap add up. What is older than the window is left out.
  void add(time_point from, time_point to) noexcept {
    if (to <= from) return;
    forget(to);
    from = std::max(from, begin_of(newest_ + 1 - steps));
    while (from < to) {
      const std::int64_t number = number_of(from);
      const time_point end = std::min(to, begin_of(number + 1));
      sum_of(number) += end - from;
      from = end;
    }
  }
  duration total(time_point now) noexcept {
    forget(now);
    duration all{};
    for (const duration each : sums_) all += each;
    return all;
  }
  /// How long the window is at that moment.
  static duration window(time_point now) noexcept {
    return step * (steps - 1) + (now - begin_of(number_of(now)));
  }

 private:
  static std::int64_t number_of(time_point at) noexcept { return at.time_since_epoch() / step; }
  static time_point begin_of(std::int64_t number) noexcept { return time_point{step * number}; }
  duration& sum_of(std::int64_t number) noexcept {
    return sums_[static_cast<std::size_t>(number % steps)];
  }
  void forget(time_point now) noexcept {
    const std::int64_t number = number_of(now);
    if (number <= newest_) return;
    const std::int64_t passed = std::min(number - newest_, steps);
    for (std::int64_t i = 0; i < passed; ++i) sum_of(number - i) = {};
    newest_ = number;
  }

  std::array<duration, static_cast<std::size_t>(steps)> sums_{};
  std::int64_t newest_ = 0;
};

}  // namespace sluice
