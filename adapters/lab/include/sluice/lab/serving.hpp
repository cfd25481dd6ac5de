#pragma once
/// \file
/// How online work is cut into steps and kernels: continuous batching, as a language-model server
/// does it, or one request after the other.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>

#include "sluice/time.hpp"

namespace sluice::lab {

struct serving_shape {
  duration decode_kernel = std::chrono::microseconds(100);   ///< A step is split into such kernels.
  duration prefill_kernel = std::chrono::microseconds(500);  ///< And a prefill into these.
  double decode_occupancy = 0.5;                             ///< Share of the GPU's wave slots.
  double prefill_occupancy = 1.0;
  duration host_gap = std::chrono::microseconds(200);  ///< Sampling, detokenising, batching.
  std::uint32_t most_active = 64;                      ///< Requests in one batch.
  /// How long after the window it goes on; what is unfinished then counts with its latency so far.
  duration drain_limit = std::chrono::seconds(6);
};

/// A piece of work as equal kernels.
struct cut_work {
  std::uint64_t kernels = 0;
  duration each{};  ///< At least 1 ns.
  duration total() const { return each * static_cast<duration::rep>(kernels); }
};

/// As few kernels as are no longer than `longest`; none for no work.
inline cut_work cut(std::chrono::duration<double, std::nano> work, duration longest) {
  if (work.count() <= 0) return {};
  const double kernels = std::ceil(work / std::chrono::duration<double, std::nano>(longest));
  const auto each = std::chrono::round<duration>(work / kernels);
  return {static_cast<std::uint64_t>(kernels), std::max(each, duration(1))};
}

}  // namespace sluice::lab
