#pragma once
/// \file
/// Whether what was sampled over time rises: a least-squares line through it.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::soak {

struct trend {
  std::size_t samples = 0;
  double hours = 0;      ///< From the first sample to the last.
  double first = 0;      ///< The line's value at the first sample,
  double last = 0;       ///< and at the last.
  double per_hour = 0;   ///< Slope.
  double deviation = 0;  ///< Standard error of the slope, as if samples were independent.

  /// Whether the slope is above the bound by more than chance explains.
  bool rises(double bound_per_hour) const { return per_hour - 3 * deviation > bound_per_hour; }
};

/// Samples in the order in which they were taken.
class series {
 public:
  void add(time_point at, double value) { points_.push_back({at, value}); }

  /// Of the samples from that time on; all zero for fewer than three.
  trend since(time_point start) const {
    const auto from = std::find_if(points_.begin(), points_.end(),
                                   [&](const auto& each) { return each.at >= start; });
    trend seen;
    seen.samples = static_cast<std::size_t>(points_.end() - from);
    if (seen.samples < 3) return seen;
    const auto count = static_cast<double>(seen.samples);
    const auto x = [&](const point& one) {
      return std::chrono::duration<double, std::ratio<3600>>(one.at - from->at).count();
    };
    double mean_x = 0;
    double mean_y = 0;
    for (auto each = from; each != points_.end(); ++each) {
      mean_x += x(*each) / count;
      mean_y += each->value / count;
    }
    double xx = 0;
    double xy = 0;
    for (auto each = from; each != points_.end(); ++each) {
      xx += (x(*each) - mean_x) * (x(*each) - mean_x);
      xy += (x(*each) - mean_x) * (each->value - mean_y);
    }
    seen.hours = x(points_.back());
    seen.per_hour = xx > 0 ? xy / xx : 0;
    seen.first = mean_y - seen.per_hour * mean_x;
    seen.last = seen.first + seen.per_hour * seen.hours;
    double residue = 0;
    for (auto each = from; each != points_.end(); ++each) {
      const double off = each->value - (seen.first + seen.per_hour * x(*each));
      residue += off * off;
    }
    seen.deviation = xx > 0 ? std::sqrt(residue / (count - 2) / xx) : 0;
    return seen;
  }

 private:
  struct point {
    time_point at;
    double value;
  };
  std::vector<point> points_;
};

}  // namespace sluice::soak
