#include "sluice/histogram.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace sluice::histogram_test {
namespace {

using namespace std::chrono_literals;

TEST(Histogram, IsEmptyAtFirst) {
  const histogram empty;
  EXPECT_EQ(empty.count(), 0U);
  EXPECT_EQ(empty.min(), 0ns);
  EXPECT_EQ(empty.max(), 0ns);
  EXPECT_EQ(empty.mean(), 0ns);
  EXPECT_EQ(empty.percentile(99), 0ns);
}

TEST(Histogram, RepeatsOneValueToWithinOnePercentAtEveryMagnitude) {
  for (int step = 0; step < 2030; ++step) {
    const double exact = std::pow(1.0137, step);  // To 1e12 ns.
    histogram one;
    const auto value = duration(std::llround(exact));
    one.record(value);
    one.record(value + value);  // So that clamping to min and max cannot hide the error.
    const auto found = static_cast<double>(one.percentile(50).count());
    EXPECT_LE(std::abs(found - static_cast<double>(value.count())),
              0.01 * static_cast<double>(value.count()))
        << value.count() << " ns";
  }
}

TEST(Histogram, FindsEveryPercentileOfManyValuesToWithinOnePercent) {
  std::mt19937_64 random(20);
  std::lognormal_distribution<double> spread(13, 3);
  histogram seen;
  std::vector<double> values;
  for (int i = 0; i < 20'000; ++i) {
    const auto value = duration(std::llround(std::min(spread(random), 1e12)));
    values.push_back(static_cast<double>(value.count()));
    seen.record(value);
  }
  std::sort(values.begin(), values.end());
  for (const double percent : {0.1, 1.0, 10.0, 50.0, 90.0, 99.0, 99.9, 100.0}) {
    const auto rank =
        static_cast<std::size_t>(std::ceil(percent / 100 * static_cast<double>(values.size())));
    const double exact = values[std::max<std::size_t>(rank, 1) - 1];
    const auto found = static_cast<double>(seen.percentile(percent).count());
    EXPECT_LE(std::abs(found - exact), 0.01 * exact + 1) << "p" << percent;
  }
}

TEST(Histogram, KeepsMinMaxAndMeanExactly) {
  histogram seen;
  for (const auto value : {3ns, 1'000'003ns, 7'777'777'777ns}) seen.record(value);
  EXPECT_EQ(seen.min(), 3ns);
  EXPECT_EQ(seen.max(), 7'777'777'777ns);
  EXPECT_EQ(seen.mean(), duration((3LL + 1'000'003 + 7'777'777'777) / 3));
  EXPECT_EQ(seen.percentile(100), 7'777'777'777ns);
}

TEST(Histogram, CountsWhatIsAboveItsRangeAndBelowZero) {
  histogram seen;
  seen.record(-5ns);
  seen.record(10h);
  EXPECT_EQ(seen.count(), 2U);
  EXPECT_EQ(seen.min(), 0ns);
  EXPECT_EQ(seen.max(), 10h);
  EXPECT_EQ(seen.percentile(100), 10h);
}

TEST(Histogram, MergesAsIfRecordedByOne) {
  histogram left;
  histogram right;
  histogram both;
  for (int i = 1; i <= 1000; ++i) {
    const auto value = duration(i * 1371LL);
    (i % 3 == 0 ? left : right).record(value);
    both.record(value);
  }
  left.merge(right);
  EXPECT_EQ(left.count(), both.count());
  EXPECT_EQ(left.min(), both.min());
  EXPECT_EQ(left.max(), both.max());
  EXPECT_EQ(left.mean(), both.mean());
  for (int percent = 0; percent <= 100; percent += 5) {
    EXPECT_EQ(left.percentile(percent), both.percentile(percent));
  }
}

TEST(Histogram, MergingAnEmptyOneChangesNothing) {
  histogram seen;
  seen.record(5us);
  seen.merge(histogram{});
  EXPECT_EQ(seen.count(), 1U);
  EXPECT_EQ(seen.min(), 5us);
  EXPECT_EQ(seen.max(), 5us);
}

// What buckets are made of: each count is that of the values up to the bound, but for those within
// 2 % of it, and the whole is there in the end.
TEST(Histogram, CountsValuesUpToEachBound) {
  std::mt19937_64 random(7);
  std::vector<duration> values;
  histogram some;
  for (int i = 0; i < 20'000; ++i) {
    values.emplace_back(std::int64_t{1} << (random() % 34) |
                        static_cast<std::int64_t>(random() % 1000));
    some.record(values.back());
  }
  const std::vector<duration> bounds{0ns, 100ns, 5us, 1ms, 100ms, 1s, 24h};
  std::vector<std::uint64_t> counts(bounds.size());
  EXPECT_EQ(some.counts_up_to(bounds, counts), values.size());
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    const auto up_to = [&](duration most) {
      return static_cast<std::uint64_t>(
          std::ranges::count_if(values, [&](duration each) { return each <= most; }));
    };
    EXPECT_GE(counts[i], up_to(bounds[i])) << bounds[i].count();
    EXPECT_LE(counts[i], up_to(bounds[i] + bounds[i] / 50)) << bounds[i].count();
  }
  EXPECT_EQ(counts.back(), values.size());
  duration sum{};
  for (const duration each : values) sum += each;
  EXPECT_EQ(some.sum(), sum);
}

}  // namespace
}  // namespace sluice::histogram_test
