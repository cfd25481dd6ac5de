#pragma once
/// \file
/// Exact percentiles of a few thousand samples. For unbounded numbers of them use
/// sluice::histogram, whose memory is constant.

#include <algorithm>
#include <cmath>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::lab {

struct percentiles {
  duration p50{};
  duration p90{};
  duration p99{};
  duration max{};
};

/// By nearest rank: the smallest sample that at least p % of all samples do not exceed. Zeros when
/// there is none.
inline percentiles percentiles_of(std::vector<duration> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  auto rank = [&](double percent) {
    const double position = std::ceil(percent / 100.0 * static_cast<double>(samples.size()));
    return samples[static_cast<std::size_t>(std::max(position, 1.0)) - 1];
  };
  return {rank(50), rank(90), rank(99), samples.back()};
}

}  // namespace sluice::lab
