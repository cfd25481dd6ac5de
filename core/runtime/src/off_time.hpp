#pragma once
/// \file
/// How long something was off within the last window: what offline_floor is measured against.

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "sluice/time.hpp"

namespace sluice::core {

/// A sliding window in 32 steps. The step that is leaving counts in full, so the answer is never
/// below the truth, and above it by at most one step.
class off_time {
 public:
  void turn_off(time_point now, duration window) noexcept {
    advance(now, window);
    off_ = true;
  }
  void turn_on(time_point now, duration window) noexcept {
    advance(now, window);
    off_ = false;
  }
  duration within(time_point now, duration window) noexcept {
    advance(now, window);
    return total_;
  }
  static duration step(duration window) noexcept { return window / steps; }

 private:
  static constexpr int steps = 32;
  void advance(time_point now, duration window) noexcept {
    const auto length = step(window);
    if (now - last_ > window + length) {
      // Everything known has left; only the window's own part of a long stretch counts.
      spent_.fill(duration::zero());
      total_ = duration::zero();
      last_ = now - window;
    }
    while (last_ < now) {
      const auto number = last_.time_since_epoch() / length;
      const auto end = std::min(now, time_point((number + 1) * length));
      if (number != current_) {
        current_ = number;
        total_ -= std::exchange(place(number), duration::zero());
      }
      if (off_) {
        place(number) += end - last_;
        total_ += end - last_;
      }
      last_ = end;
    }
    // Steps begun by `now` itself push out the one they replace.
    if (const auto number = now.time_since_epoch() / length; number != current_) {
      current_ = number;
      total_ -= std::exchange(place(number), duration::zero());
    }
  }
  duration& place(duration::rep number) noexcept {
    return spent_[static_cast<std::size_t>(number % (steps + 1))];
  }

  std::array<duration, steps + 1> spent_{};
  duration total_{};
  time_point last_{};
  duration::rep current_ = 0;
  bool off_ = false;
};

}  // namespace sluice::core
