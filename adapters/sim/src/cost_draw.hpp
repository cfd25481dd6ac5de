#pragma once
/// \file
/// What one call costs, where only the median and the 99th percentile of many are known.

#include <cmath>
#include <cstdint>

#include "sluice/time.hpp"

namespace sluice::sim {

/// Half of the calls cost the median. The others lie on the line that goes through both quantiles
/// where costs are logarithmic, and ends just above the second. So nothing costs less than the
/// median, and the quantiles are kept. The same draws in every run.
///
/// Threading: one thread.
class cost_draw {
 public:
  /// \param p99 not above the median (0: not known): every call costs the median, and no draw is
  ///        taken.
  duration next(duration median, duration p99) noexcept {
    if (p99 <= median || median <= duration::zero()) return median;
    // Knuth's MMIX generator; its upper bits are the good ones.
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    const double u = static_cast<double>(state_ >> 11U) * 0x1p-53;
    if (u < 0.5) return median;
    const auto from = static_cast<double>(median.count());
    const double ratio = static_cast<double>(p99.count()) / from;
    return duration{std::llround(from * std::pow(ratio, (u - 0.5) / 0.49))};
  }

 private:
  std::uint64_t state_ = 1;
};

}  // namespace sluice::sim
