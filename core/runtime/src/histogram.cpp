#include "sluice/histogram.hpp"

#include <algorithm>
#include <cmath>

namespace sluice {

std::size_t histogram::bucket_of(std::uint64_t value) noexcept {
  // Below 2 * steps every value has a bucket of its own; above, the top step_bits + 1 bits count.
  if (value < 2 * steps) return static_cast<std::size_t>(value);
  if (value >= std::uint64_t{1} << top_bits) return buckets - 1;
  const auto shift = static_cast<std::size_t>(std::bit_width(value) - 1 - step_bits);
  return shift * steps + static_cast<std::size_t>(value >> shift);
}

std::uint64_t histogram::middle_of(std::size_t bucket) noexcept {
  if (bucket < 2 * steps) return bucket;
  const auto shift = bucket / steps - 1;
  const std::uint64_t low = std::uint64_t{bucket - shift * steps} << shift;
  return low + (std::uint64_t{1} << shift) / 2;
}

void histogram::record(duration value) noexcept {
  const auto ns = static_cast<std::uint64_t>(std::max<duration::rep>(value.count(), 0));
  counts_[bucket_of(ns)].add();
  if (ns < min_) min_ = ns;
  if (ns > max_) max_ = ns;
  sum_.add(ns);
  count_.add();
}

void histogram::merge(const histogram& other) noexcept {
  for (std::size_t i = 0; i < buckets; ++i) counts_[i].add(other.counts_[i]);
  min_ = std::min(min_.value(), other.min_.value());
  max_ = std::max(max_.value(), other.max_.value());
  sum_.add(other.sum_);
  count_.add(other.count_);
}

duration histogram::min() const noexcept {
  return duration(count_ == 0 ? 0 : static_cast<duration::rep>(min_.value()));
}

duration histogram::max() const noexcept {
  return duration(static_cast<duration::rep>(max_.value()));
}

duration histogram::mean() const noexcept {
  return duration(count_ == 0 ? 0 : static_cast<duration::rep>(sum_ / count_));
}

duration histogram::sum() const noexcept {
  return duration(static_cast<duration::rep>(sum_.value()));
}

std::uint64_t histogram::counts_up_to(std::span<const duration> bounds,
                                      std::span<std::uint64_t> into) const noexcept {
  std::uint64_t passed = 0;
  std::size_t bucket = 0;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    const auto ns = static_cast<std::uint64_t>(std::max<duration::rep>(bounds[i].count(), 0));
    for (const std::size_t last = bucket_of(ns); bucket <= last; ++bucket)
      passed += counts_[bucket];
    into[i] = passed;
  }
  for (; bucket < buckets; ++bucket) passed += counts_[bucket];
  return passed;
}

duration histogram::percentile(double percent) const noexcept {
  // The counts' own total, not count_: in a copy taken while another thread records, only the
  // counts agree with themselves.
  std::uint64_t total = 0;
  for (const auto& bucket : counts_) total += bucket;
  if (total == 0) return duration::zero();
  const auto wanted = std::clamp(std::ceil(percent / 100.0 * static_cast<double>(total)), 1.0,
                                 static_cast<double>(total));
  if (wanted >= static_cast<double>(total)) return max();
  std::uint64_t passed = 0;
  std::size_t bucket = 0;
  for (; bucket + 1 < buckets; ++bucket) {
    passed += counts_[bucket];
    if (static_cast<double>(passed) >= wanted) break;
  }
  if (bucket + 1 == buckets) return max();
  const auto value = duration(static_cast<duration::rep>(middle_of(bucket)));
  return std::clamp(value, std::min(min(), max()), max());
}

}  // namespace sluice
