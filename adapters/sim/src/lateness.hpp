#pragma once
/// \file
/// How late the simulation was.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "sluice/time.hpp"

namespace sluice::sim {

/// Lateness of wake-ups: constant memory, buckets of at most 1/16 of their value.
class lateness_histogram {
 public:
  void record(duration late);
  /// For stats.json: count, p50, p99 and max, in nanoseconds.
  std::string json() const;

 private:
  std::int64_t percentile(double fraction) const;

  static constexpr int sub_bits = 4;
  std::array<std::uint64_t, std::size_t{64} << sub_bits> counts_{};
  std::uint64_t count_ = 0;
  std::int64_t max_ = 0;
};

}  // namespace sluice::sim
