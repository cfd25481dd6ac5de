#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/lab/arrivals.hpp"

namespace sluice::lab::generators_test {
namespace {

using namespace std::chrono_literals;

std::size_t count_in(const arrivals& all, duration from, duration to) {
  return static_cast<std::size_t>(
      std::count_if(all.requests.begin(), all.requests.end(),
                    [&](const request& each) { return each.at >= from && each.at < to; }));
}

/// Variance over mean of the numbers of arrivals in windows: 1 for a Poisson process.
double dispersion(const arrivals& all, duration window) {
  std::vector<double> counts(static_cast<std::size_t>(all.window / window));
  for (const request& each : all.requests) {
    const auto i = static_cast<std::size_t>(each.at / window);
    if (i < counts.size()) ++counts[i];
  }
  double mean = 0, squares = 0;
  for (const double each : counts) mean += each / static_cast<double>(counts.size());
  for (const double each : counts) squares += (each - mean) * (each - mean);
  return squares / static_cast<double>(counts.size()) / mean;
}

void expect_ordered(const arrivals& all) {
  EXPECT_TRUE(std::is_sorted(all.requests.begin(), all.requests.end(),
                             [](const request& a, const request& b) { return a.at < b.at; }));
  ASSERT_FALSE(all.requests.empty());
  EXPECT_LT(all.requests.back().at, all.window);
}

TEST(LabArrivals, PoissonHasItsRateAndNoMemory) {
  const arrivals all = poisson(1, 1h, 5);
  expect_ordered(all);
  EXPECT_NEAR(static_cast<double>(all.requests.size()), 18000, 4 * std::sqrt(18000));
  EXPECT_NEAR(dispersion(all, 2s), 1, 0.15);
}

TEST(LabArrivals, BurstsAreBurstyAtTheRateOfTheirStates) {
  const burst_shape shape{1, 40, 3s, 1s};
  const arrivals all = bursty(1, 1h, shape);
  expect_ordered(all);
  // (3 * 1 + 1 * 40) / 4 per second; some 900 periods.
  EXPECT_NEAR(static_cast<double>(all.requests.size()) / 3600, 10.75, 1.2);
  EXPECT_GT(dispersion(all, 1s), 5);
}

TEST(LabArrivals, DiurnalGoesFromLowToHighAndBack) {
  const arrivals all = diurnal(1, 1h, 1, 21, 1h);
  expect_ordered(all);
  EXPECT_NEAR(static_cast<double>(all.requests.size()) / 3600, 11, 0.3);
  EXPECT_LT(count_in(all, 0s, 5min), 600u);
  EXPECT_GT(count_in(all, 27min, 32min), 5500u);
  EXPECT_LT(count_in(all, 55min, 1h), 600u);
}

TEST(LabArrivals, DependOnTheSeedAlone) {
  const auto same = [](const arrivals& a, const arrivals& b) {
    return a.requests.size() == b.requests.size() &&
           std::equal(a.requests.begin(), a.requests.end(), b.requests.begin(),
                      [](const request& one, const request& other) {
                        return one.at == other.at && one.context_tokens == other.context_tokens &&
                               one.generated_tokens == other.generated_tokens;
                      });
  };
  EXPECT_TRUE(same(bursty(7, 1min, {}), bursty(7, 1min, {})));
  EXPECT_FALSE(same(bursty(7, 1min, {}), bursty(8, 1min, {})));
  EXPECT_TRUE(same(diurnal(7, 1min, 1, 9, 20s), diurnal(7, 1min, 1, 9, 20s)));
}

TEST(LabArrivals, OfCopiesAreThoseOfEachFromItsOwnMoment) {
  // Each copy has one request in each second, at its own moment of it.
  arrivals one{20s, {}};
  for (std::uint32_t i = 0; i < 20; ++i) one.requests.push_back({i * 1s, i, 1});
  const arrivals all = overlay(one, 50, 10s, 3);
  EXPECT_EQ(all.window, 10s);
  EXPECT_EQ(all.requests.size(), 500u);
  for (duration at = 0s; at < 10s; at += 1s) EXPECT_EQ(count_in(all, at, at + 1s), 50u);
  EXPECT_TRUE(std::is_sorted(all.requests.begin(), all.requests.end(),
                             [](const request& a, const request& b) { return a.at < b.at; }));
  // No two begin alike.
  EXPECT_LT(count_in(all, 0s, 100ms), 25u);
  EXPECT_NE(overlay(one, 1, 10s, 3).requests[0].at, overlay(one, 1, 10s, 4).requests[0].at);
}

TEST(LabArrivals, AreDealtInTurn) {
  const arrivals all = poisson(1, 10s, 10);
  const auto dealt = deal(all, 3);
  ASSERT_EQ(dealt.size(), 3u);
  EXPECT_EQ(dealt[1].window, all.window);
  EXPECT_EQ(dealt[1].requests.at(2).at, all.requests.at(7).at);
  EXPECT_EQ(dealt[0].requests.size() + dealt[1].requests.size() + dealt[2].requests.size(),
            all.requests.size());
}

}  // namespace
}  // namespace sluice::lab::generators_test
