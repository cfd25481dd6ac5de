#include "trend.hpp"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

namespace sluice::soak::trend_test {
namespace {

using namespace std::chrono_literals;

const time_point start{100h};

/// A sample a second for ten minutes.
template <class Value>
series sampled(Value value) {
  series made;
  for (int second = 0; second <= 600; ++second) made.add(start + second * 1s, value(second));
  return made;
}

TEST(SoakTrend, FindsTheSlopeOfALine) {
  const trend seen = sampled([](int second) { return 1000 + second * 2.0; }).since(start);
  EXPECT_EQ(seen.samples, 601u);
  EXPECT_NEAR(seen.hours, 1.0 / 6, 1e-9);
  EXPECT_NEAR(seen.per_hour, 7200, 1e-6);
  EXPECT_NEAR(seen.first, 1000, 1e-6);
  EXPECT_NEAR(seen.last, 2200, 1e-6);
  EXPECT_NEAR(seen.deviation, 0, 1e-6);
  EXPECT_TRUE(seen.rises(7000));
  EXPECT_FALSE(seen.rises(7300));
}

TEST(SoakTrend, LooksFromTheEndOfTheWarmUpOn) {
  const auto all = sampled([](int second) { return second < 60 ? second * 100.0 : 6000; });
  EXPECT_GT(all.since(start).per_hour, 1000);
  EXPECT_NEAR(all.since(start + 60s).per_hour, 0, 1e-6);
}

TEST(SoakTrend, TellsALeakFromNoise) {
  std::mt19937_64 random{1};  // Always the same noise.
  std::normal_distribution<double> noise{0, 50};
  const auto leak = [&](double per_hour) {
    return sampled([&](int second) { return 4000 + per_hour / 3600 * second + noise(random); })
        .since(start);
  };
  EXPECT_FALSE(leak(0).rises(0));
  EXPECT_FALSE(leak(-1000).rises(0));
  EXPECT_TRUE(leak(1000).rises(500));
}

TEST(SoakTrend, SaysNothingOfTwoSamples) {
  series few;
  few.add(start, 1);
  few.add(start + 1s, 100);
  EXPECT_FALSE(few.since(start).rises(0));
  EXPECT_FALSE(series{}.since(start).rises(0));
}

}  // namespace
}  // namespace sluice::soak::trend_test
