#pragma once
/// \file
/// How durations are distributed, lately: fixed memory, 9 % steps, old ones fade.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "sluice/time.hpp"

namespace sluice {

/// Eight buckets per power of two, from 8 us to 73 min; what lies beyond counts in the last or
/// first. Cost: add() is constant, everything else one pass over 232 numbers; no allocation.
class decaying_histogram {
 public:
  static constexpr std::size_t buckets = 232;

  /// \param memory when so many have come, all weights are halved.
  explicit decaying_histogram(double memory = 512) noexcept : memory_(memory) {}

  void add(duration value) noexcept {
    weights_[bucket_of(value)] += 1;
    if (++total_ < memory_) return;
    for (double& each : weights_) each /= 2;
    total_ /= 2;
  }
  double total() const noexcept { return total_; }
  double weight(std::size_t bucket) const noexcept { return weights_[bucket]; }
  static duration upper(std::size_t bucket) noexcept {
    const auto step = static_cast<std::int64_t>(bucket + 1);
    return duration((8 + step % 8) << (low_bits + step / 8 - 3));
  }
  static duration lower(std::size_t bucket) noexcept {
    return bucket == 0 ? duration::zero() : upper(bucket - 1);
  }
  /// The end of the bucket that holds the share `part` (0 to 1) of the values; zero when empty.
  duration quantile(double part) const noexcept {
    double below = 0;
    for (std::size_t i = 0; i < buckets; ++i) {
      below += weights_[i];
      if (below > 0 && below >= part * total_) return upper(i);
    }
    return {};
  }

 private:
  static constexpr int low_bits = 13;
  static std::size_t bucket_of(duration value) noexcept {
    const auto ns = static_cast<std::uint64_t>(std::max<std::int64_t>(value.count(), 0));
    const int octave = static_cast<int>(std::bit_width(ns)) - 1 - low_bits;
    if (octave < 0) return 0;
    const auto eighth = (ns >> (octave + low_bits - 3)) & 7U;
    return std::min(static_cast<std::size_t>(octave) * 8 + eighth, buckets - 1);
  }

  double memory_;
  double total_ = 0;
  std::array<double, buckets> weights_{};
};

}  // namespace sluice
