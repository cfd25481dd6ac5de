#include "study.hpp"

#include "report.hpp"
#include "scenarios.hpp"

#include <cstdint>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::lab {
namespace {

using namespace test;
using testing::HasSubstr;

study_spec small_study(std::uint32_t threads) {
  static constexpr duration window = 3s;
  study_spec spec;
  spec.profiles = {{"mi300x", machine()}, {"two", machine(2)}};
  spec.sources = {{"bursts", [](std::uint64_t seed) { return generate(seed, window); }},
                  {"poisson", [](std::uint64_t seed) { return poisson(seed, window, 10); }}};
  spec.loads = {0.3, 0.7};
  spec.offline = {{"long", {.shape = shape_of(load_kind::long_kernels)}},
                  {"train", {.shape = shape_of(load_kind::training)}}};
  spec.policies = {timeslice(20ms)};
  spec.common.serving.drain_limit = 1min;
  spec.limits.limit[0] = 100ms;
  spec.seeds = 3;
  spec.threads = threads;
  spec.keep_requests = spec.keep_decisions = true;
  if (!fast_build) {
    spec.profiles.resize(1);
    spec.sources.resize(1);
    spec.loads.resize(1);
    spec.seeds = 2;
  }
  return spec;
}

std::string everything(const study_spec& spec, const study& all) {
  std::string text = text_report(spec, all) + json_report(spec, all, "cmd \"x\"");
  csv_requests(spec, all, [&](std::string_view piece) { text += piece; });
  csv_decisions(spec, all, [&](std::string_view piece) { text += piece; });
  return text;
}

TEST(LabStudy, GivesTheSameBytesWhateverTheNumberOfThreads) {
  const study_spec one = small_study(1);
  const auto first = run_study(one);
  ASSERT_TRUE(first.has_value()) << first.error().message;
  const std::string text = everything(one, *first);
  for (const std::uint32_t threads : {1u, 2u, 7u}) {
    const study_spec spec = small_study(threads);
    const auto again = run_study(spec);
    ASSERT_TRUE(again.has_value());
    EXPECT_TRUE(text == everything(spec, *again)) << threads << " threads";
  }
}

TEST(LabStudy, HasEveryoneWhoStandsBesideAPolicyInEachSetting) {
  const study_spec spec = small_study(2);
  const auto all = run_study(spec);
  ASSERT_TRUE(all.has_value());
  ASSERT_EQ(all->settings.size(), fast_build ? 16u : 2u);
  for (const setting& where : all->settings) {
    std::vector<std::string> names;
    for (const cell& each : where.cells) names.push_back(each.contender);
    ASSERT_EQ(names.size(), 6u);
    EXPECT_EQ(names[0], "online alone");
    EXPECT_EQ(names[1], "no scheduler");
    EXPECT_EQ(names[2], "SIGSTOP");
    EXPECT_THAT(names[3], HasSubstr("static split"));
    EXPECT_EQ(names[4], "suspend at once");
    EXPECT_EQ(names[5], "timeslice");
    EXPECT_FALSE(where.bound.empty());
    for (const figures& each : where.cells[5].by_seed) {
      EXPECT_GT(each.offline_share, 0);
      EXPECT_LE(each.offline_share, 1.01);
      EXPECT_GE(each.slowdown_mean, 0.99);
      ASSERT_TRUE(each.bound.has_value());
      EXPECT_LE(each.offline_share, *each.bound + 1e-9);
    }
    EXPECT_EQ(where.cells[0].by_seed[0].slowdown_mean, 1);
  }
}

TEST(LabStudy, RefusesToJudgeAPolicyThatWasRemoved) {
  class thrower final : public policy {
   public:
    std::string_view name() const noexcept override { return "thrower"; }
    void decide(const snapshot& seen, decision_sink&) override {
      if (seen.turn > 20) throw std::runtime_error("turn 21");
    }
  };
  study_spec spec = small_study(2);
  spec.policies[0].make = [] { return std::make_unique<thrower>(); };
  const auto all = run_study(spec);
  ASSERT_TRUE(all.has_error());
  EXPECT_THAT(all.error().message, HasSubstr("timeslice: the policy was removed"));
}

TEST(LabStudy, DrawsOtherKernelsForEachProcessOfEachSeed) {
  std::set<std::uint64_t> seeds;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    for (std::uint64_t process = 0; process < 64; ++process) {
      seeds.insert(kernel_seed(seed, process));
    }
  }
  EXPECT_EQ(seeds.size(), 6400u);
}

TEST(LabStudy, CountsTheRowsOfItsFiles) {
  study_spec spec = small_study(2);
  spec.profiles.resize(1);
  spec.sources.resize(1);
  spec.loads.resize(1);
  spec.offline.resize(1);
  const auto all = run_study(spec);
  ASSERT_TRUE(all.has_value());
  std::size_t rows = 0, requests = 0;
  csv_requests(spec, *all, [&](std::string_view) { ++rows; });
  for (const cell& each : all->settings[0].cells) {
    for (const run_result& run : each.runs) requests += run.requests.size();
  }
  EXPECT_EQ(rows, requests + 1);
  EXPECT_GT(requests, 6 * spec.seeds * 50);
}

TEST(LabEstimate, IsStudentsInterval) {
  EXPECT_EQ(estimate_of({5}).half_width, 0);
  const estimate three = estimate_of({1, 2, 3});
  EXPECT_DOUBLE_EQ(three.mean, 2);
  EXPECT_NEAR(three.half_width, 4.303 / std::sqrt(3.0), 1e-3);
  std::vector<double> many;
  for (int i = 0; i < 101; ++i) many.push_back(i % 2);
  // 100 degrees of freedom: 1.984.
  const double deviation = std::sqrt(50.0 * 51 / 101 / 100);
  EXPECT_NEAR(estimate_of(many).half_width, 1.984 * deviation / std::sqrt(101.0), 1e-3);
}

}  // namespace
}  // namespace sluice::lab
