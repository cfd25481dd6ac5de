#pragma once
/// \file
/// Durations counted in constant memory, to within 1 % of their value.

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// A number that one thread advances and any thread may read. Costs what a plain one costs.
class counter {
 public:
  counter() noexcept = default;
  counter(std::uint64_t value) noexcept : value_(value) {}
  counter(const counter& other) noexcept : value_(other.value()) {}
  counter& operator=(const counter& other) noexcept {
    value_.store(other.value(), std::memory_order_relaxed);
    return *this;
  }
  std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }
  operator std::uint64_t() const noexcept { return value(); }
  void add(std::uint64_t amount = 1) noexcept {
    value_.store(value() + amount, std::memory_order_relaxed);
  }
  void subtract(std::uint64_t amount) noexcept {
    value_.store(value() - amount, std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint64_t> value_{0};
};

/// In the manner of HdrHistogram: 64 equal steps per power of two, from 1 ns to 2^40 ns (18 min;
/// more counts as the top step, while max() stays exact).
///
/// Threading: one thread records; any thread may copy or read meanwhile, and then sees each count
///            whole, but not all counts of one moment.
/// Cost:      record() is a few instructions; about 18 KiB.
class histogram {
 public:
  void record(duration value) noexcept;
  void merge(const histogram& other) noexcept;

  std::uint64_t count() const noexcept { return count_; }
  duration min() const noexcept;  ///< Exact; zero when empty.
  duration max() const noexcept;  ///< Exact; zero when empty.
  duration mean() const noexcept;
  /// The value that `percent` of the values do not exceed, to within 1 %; zero when empty.
  /// \param percent 0 to 100.
  duration percentile(double percent) const noexcept;
  duration sum() const noexcept;  ///< Exact.
  /// How many values are at most each bound, to within 2 % of the bound: what cumulative buckets
  /// are made of. Bounds that ascend give counts that ascend, also while another thread records.
  /// \param into as many as there are bounds.
  /// \return how many there are in all, by the same counts.
  std::uint64_t counts_up_to(std::span<const duration> bounds,
                             std::span<std::uint64_t> into) const noexcept;

 private:
  static constexpr int step_bits = 6;
  static constexpr int top_bits = 40;
  static constexpr std::size_t steps = std::size_t{1} << step_bits;
  static constexpr std::size_t buckets = steps * (top_bits - step_bits + 1);
  static std::size_t bucket_of(std::uint64_t value) noexcept;
  static std::uint64_t middle_of(std::size_t bucket) noexcept;

  std::array<counter, buckets> counts_{};
  counter count_;
  counter sum_;
  counter min_{UINT64_MAX};
  counter max_;
};

}  // namespace sluice
#pragma GCC visibility pop
