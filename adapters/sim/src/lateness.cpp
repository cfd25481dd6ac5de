#include "lateness.hpp"

#include "stats_text.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace sluice::sim {

void lateness_histogram::record(duration late) {
  const auto value = std::max<std::int64_t>(late.count(), 0);
  const auto wide = static_cast<std::uint64_t>(value);
  const int shift = std::max(static_cast<int>(std::bit_width(wide)) - 1 - sub_bits, 0);
  const auto index = (static_cast<std::size_t>(shift) << sub_bits) + (wide >> shift);
  ++counts_[index];
  ++count_;
  max_ = std::max(max_, value);
}

std::int64_t lateness_histogram::percentile(double fraction) const {
  if (count_ == 0) return 0;
  const auto rank = std::max<std::uint64_t>(
      static_cast<std::uint64_t>(std::ceil(fraction * static_cast<double>(count_))), 1);
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (seen < rank) continue;
    // Upper edge of the bucket; the inverse of record().
    const std::size_t sub = std::size_t{1} << sub_bits;
    const int shift = i < 2 * sub ? 0 : static_cast<int>((i >> sub_bits) - 1);
    const auto edge = ((i - (static_cast<std::size_t>(shift) << sub_bits)) + 1) << shift;
    return std::min(static_cast<std::int64_t>(edge - 1), max_);
  }
  return max_;
}

std::string lateness_histogram::json() const {
  return json_object{}
      .add("count", count_)
      .add("p50", percentile(0.5))
      .add("p99", percentile(0.99))
      .add("max", max_)
      .text();
}

}  // namespace sluice::sim
