#pragma once
/// \file
/// The median of the last few durations.

#include <algorithm>
#include <array>
#include <cstddef>

#include "sluice/time.hpp"

namespace sluice::core {

/// Why a median: one call that was delayed by something else must not change what a policy plans
/// with. Cost: no allocation, a partial sort of `window` values.
class recent_median {
 public:
  void add(duration value) noexcept {
    values_[added_++ % window] = value;
    auto sorted = values_;
    const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(std::min(added_, window));
    const auto middle = sorted.begin() + (end - sorted.begin()) / 2;
    std::nth_element(sorted.begin(), middle, end);
    value_ = *middle;
  }
  /// Zero before the first.
  duration value() const noexcept { return value_; }

 private:
  static constexpr std::size_t window = 15;
  std::array<duration, window> values_{};
  std::size_t added_ = 0;
  duration value_{};
};

}  // namespace sluice::core
