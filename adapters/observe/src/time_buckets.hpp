#pragma once
/// \file
/// The bounds of all histograms of durations that are shown, and a count by them.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "sluice/time.hpp"

namespace sluice::observe {

/// A turn of the scheduler takes microseconds, a driver call milliseconds, a suspension and a
/// request up to seconds: one row of bounds for all, so that they can be compared.
inline constexpr std::array<duration, 19> bounds = [] {
  using namespace std::chrono_literals;
  return std::array<duration, 19>{10us, 25us, 50us,  100us, 250us, 500us, 1ms,    2500us, 5ms, 10ms,
                                  25ms, 50ms, 100ms, 250ms, 500ms, 1s,    2500ms, 5s,     10s};
}();
/// In seconds, as OpenMetrics wants numbers written.
inline constexpr std::array<std::string_view, 19> bound_words{
    "1e-05", "2.5e-05", "5e-05", "0.0001", "0.00025", "0.0005", "0.001", "0.0025", "0.005", "0.01",
    "0.025", "0.05",    "0.1",   "0.25",   "0.5",     "1.0",    "2.5",   "5.0",    "10.0"};

class time_buckets {
 public:
  void record(duration value) noexcept {
    const duration shown = std::max(value, duration::zero());
    const auto first = std::ranges::lower_bound(bounds, shown) - bounds.begin();
    for (auto i = static_cast<std::size_t>(first); i < bounds.size(); ++i) ++counts_[i];
    ++all_;
    sum_ += shown;
  }
  const std::array<std::uint64_t, bounds.size()>& counts() const noexcept { return counts_; }
  std::uint64_t all() const noexcept { return all_; }
  duration sum() const noexcept { return sum_; }

 private:
  std::array<std::uint64_t, bounds.size()> counts_{};  ///< Cumulative.
  std::uint64_t all_ = 0;
  duration sum_{};
};

}  // namespace sluice::observe
