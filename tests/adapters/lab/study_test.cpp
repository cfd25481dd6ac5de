#include "study.hpp"

#include "html_report.hpp"
#include "report.hpp"
#include "scenarios.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::lab::study_test {
namespace {

using namespace test;
using ::testing::HasSubstr;

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

/// Does in each turn what it is made from, and then nothing but be there.
contender of_turns(const std::string& name,
                   const std::function<void(const snapshot&, decision_sink&)>& turn) {
  class policy_of_turns final : public policy {
   public:
    explicit policy_of_turns(std::function<void(const snapshot&, decision_sink&)> turn)
        : turn_(std::move(turn)) {}
    std::string_view name() const noexcept override { return "turns"; }
    void decide(const snapshot& seen, decision_sink& out) override { turn_(seen, out); }

   private:
    const std::function<void(const snapshot&, decision_sink&)> turn_;
  };
  return {name, arrangement::scheduled, [turn] { return std::make_unique<policy_of_turns>(turn); },
          1};
}

study_spec one_setting() {
  study_spec spec = small_study(2);
  spec.profiles.resize(1);
  spec.sources.resize(1);
  spec.loads.resize(1);
  spec.offline.resize(1);
  spec.seeds = 2;
  return spec;
}

// Symptom: one policy that threw took the figures of all the others with it.
TEST(LabStudy, JudgesTheOthersBesideAPolicyThatWasRemoved) {
  study_spec spec = one_setting();
  spec.policies = {of_turns("thrower",
                            [](const snapshot& seen, decision_sink&) {
                              if (seen.turn > 20) throw std::runtime_error("turn 21 \"x\"");
                            }),
                   timeslice(20ms)};
  const auto all = run_study(spec);
  ASSERT_TRUE(all.has_value()) << all.error().message;
  EXPECT_THAT(removed_of(*all),
              ::testing::ElementsAre("thrower: the policy was removed during a run: turn "
                                     "21 \"x\""));
  const auto& cells = all->settings[0].cells;
  EXPECT_TRUE(cells[5].removed());
  EXPECT_FALSE(cells[6].removed());
  EXPECT_GT(cells[6].by_seed[0].offline_share, 0);
  const std::string text = text_report(spec, *all);
  EXPECT_THAT(text, ::testing::ContainsRegex("\n  thrower +-  +-  +-[ -]+\n"));
  EXPECT_THAT(text, HasSubstr("\n  thrower: removed: turn 21 \"x\"\n"));
  EXPECT_THAT(json_report(spec, *all, ""),
              HasSubstr("{\"name\":\"thrower\",\"removed\":\"turn 21 \\\"x\\\"\"}"));
  std::string rows;
  csv_requests(spec, *all, [&](std::string_view piece) { rows += piece; });
  csv_decisions(spec, *all, [&](std::string_view piece) { rows += piece; });
  EXPECT_THAT(rows, ::testing::Not(HasSubstr("thrower")));
  EXPECT_THAT(rows, HasSubstr(",timeslice,"));
  EXPECT_THAT(html_report(spec, *all, ""), HasSubstr("thrower (removed)"));
}

// Symptom: the run crawled on at a microsecond a turn, for hours.
TEST(LabStudy, RemovesAPolicyThatAsksForTurnAfterTurn) {
  for (const duration ahead : {duration(-1s), duration(0), duration(1us)}) {
    study_spec spec = one_setting();
    spec.policies = {of_turns("spinner", [ahead](const snapshot& seen, decision_sink& out) {
      out.wake_at(seen.now + ahead);
    })};
    const auto all = run_study(spec);
    ASSERT_TRUE(all.has_value()) << all.error().message;
    ASSERT_EQ(removed_of(*all).size(), 1u);
    EXPECT_THAT(removed_of(*all)[0], HasSubstr("it requested 1000 turns within 10ms"));
  }
  study_spec spec = one_setting();
  spec.policies = {of_turns("busy", [](const snapshot& seen, decision_sink& out) {
    out.wake_at(seen.now + 50us);  // As often as the fastest policies wake up.
  })};
  const auto all = run_study(spec);
  ASSERT_TRUE(all.has_value());
  EXPECT_THAT(removed_of(*all), ::testing::IsEmpty());
}

TEST(LabStudy, SaysWhatASchedulerIgnores) {
  study_spec spec = one_setting();
  spec.seeds = 1;
  spec.policies = {of_turns("stranger",
                            [](const snapshot& seen, decision_sink& out) {
                              if (seen.turn != 10) return;
                              out.hold(group_id{4711}, never);
                              out.run(group_id{4711});
                              out.reserve(gpu_id{1}, 2);
                              for (const group_id id : seen.changed) out.run(id);
                            }),
                   timeslice(20ms)};
  const auto all = run_study(spec);
  ASSERT_TRUE(all.has_value());
  const std::string said =
      "2 declarations for unknown groups, 1 reservation on unknown GPUs, 1 number out of range";
  EXPECT_THAT(text_report(spec, *all), HasSubstr("\n  stranger: ignored: " + said + "\n"));
  EXPECT_THAT(json_report(spec, *all, ""), HasSubstr("\"ignored\":\"" + said + "\""));
  EXPECT_EQ(all->settings[0].cells[6].faults.ignored_text(), "");
}

TEST(LabStudy, SaysTheLoadThatComesOutOfGivenCosts) {
  study_spec spec = one_setting();
  spec.seeds = 1;
  spec.policies.clear();
  const arrivals work = spec.sources[0].make(1);
  spec.costs = scale_to_load(work, 0.5);
  EXPECT_NEAR(load_of(work, *spec.costs), 0.5, 1e-9);
  const auto all = run_study(spec);
  ASSERT_TRUE(all.has_value());
  EXPECT_NEAR(all->settings[0].share, 0.5, 1e-9);
  EXPECT_THAT(text_report(spec, *all), HasSubstr(" | load 0.5 | "));
  EXPECT_THAT(text_report(spec, *all), HasSubstr("static split 75/25"));
}

TEST(LabStudy, SaysWhereAPercentileIsTheLongest) {
  study_spec spec = one_setting();
  spec.policies.clear();
  spec.sources[0].make = [](std::uint64_t seed) { return poisson(seed, 3s, 100); };
  const auto many = run_study(spec);
  spec.sources[0].make = [](std::uint64_t seed) { return poisson(seed, 3s, 10); };
  const auto few = run_study(spec);
  ASSERT_TRUE(many.has_value() && few.has_value());
  const std::string said = "with fewer than 100 requests, p99 is the maximum";
  EXPECT_THAT(text_report(spec, *few), HasSubstr(said));
  EXPECT_THAT(text_report(spec, *many), ::testing::Not(HasSubstr(said)));
}

/// Of a seed without requests there is no latency, and offline work had the whole window.
TEST(LabStudy, CountsSeedsWithoutRequestsInNoLatency) {
  study_spec spec = one_setting();
  spec.policies = {timeslice(20ms)};
  spec.keep_requests = spec.keep_decisions = true;  // As for a page.
  spec.sources[0].make = [](std::uint64_t seed) {
    return seed == 2 ? arrivals{3s, {}} : poisson(seed, 3s, 10);
  };
  spec.seeds = 3;
  const auto some = run_study(spec);
  spec.first_seed = 2;
  spec.seeds = 1;
  const auto none = run_study(spec);
  ASSERT_TRUE(some.has_value() && none.has_value());
  for (const metric& each : metrics()) {
    const bool latency = each.key == "p50_ms" || each.key == "p99_ms" ||
                         each.key == "ttft_p99_ms" || each.key == "itl_p99_ms" ||
                         each.key == "slowdown_mean" || each.key == "request_misses";
    const bool always = each.key == "offline_percent" || each.key == "forced_resumes_per_s";
    if (!latency && !always) continue;
    const cell& judged = some->settings[0].cells.back();
    EXPECT_EQ(values_of(each, judged).size(), latency ? 2u : 3u) << each.key;
    EXPECT_EQ(values_of(each, none->settings[0].cells.back()).size(), latency ? 0u : 1u)
        << each.key;
  }
  EXPECT_NEAR(none->settings[0].cells.back().by_seed[0].offline_share, 1, 0.01);
  spec.first_seed = 1;
  spec.seeds = 3;
  EXPECT_THAT(text_report(spec, *some),
              HasSubstr("1 of the 3 seeds has no request and is excluded from latencies"));
  EXPECT_THAT(html_report(spec, *some, ""), HasSubstr("1 of the 3 seeds has no request"));
  spec.first_seed = 2;
  spec.seeds = 1;
  const std::string json = json_report(spec, *none, "");
  EXPECT_THAT(json, HasSubstr("no request arrived, so no latencies are reported"));
  EXPECT_THAT(json, ::testing::Not(::testing::AnyOf(HasSubstr(":inf"), HasSubstr(":nan"),
                                                    HasSubstr("[inf"), HasSubstr("[nan"))));
  EXPECT_THAT(html_report(spec, *none, ""), HasSubstr("no request arrived"));
}

/// Offline work's share is of the row's own stretch, and who takes longer to be done has more time
/// without online work: the curve is of all their stretches.
TEST(LabStudy, DrawsTheBoundAboveWhatEachRowsOwnStretchAllows) {
  study_spec spec = one_setting();
  spec.loads = {0.9};
  spec.policies = {timeslice(20ms), timeslice(500ms)};
  const auto all = run_study(spec);
  ASSERT_TRUE(all.has_value());
  const auto& curve = all->settings[0].bound;
  ASSERT_FALSE(curve.empty());
  int compared = 0;
  for (const cell& each : all->settings[0].cells) {
    const figures& row = each.by_seed[0];
    if (!row.bound || each.how == arrangement::stopped) continue;
    const auto after =
        std::upper_bound(curve.begin(), curve.end(), row.latency.p99,
                         [](duration p99, const bound_point& point) { return p99 < point.p99; });
    ASSERT_NE(after, curve.begin()) << each.contender;
    EXPECT_GE(std::prev(after)->offline_share, *row.bound) << each.contender;
    EXPECT_LE(row.offline_share, *row.bound) << each.contender;
    ++compared;
  }
  EXPECT_EQ(compared, 4);
  EXPECT_TRUE(std::is_sorted(curve.begin(), curve.end(), [](const auto& a, const auto& b) {
    return a.p99 < b.p99 || a.offline_share < b.offline_share;
  }));
}

TEST(LabReport, IsJsonWhateverNamesHold) {
  study_spec spec = one_setting();
  spec.seeds = 1;
  spec.policies = {timeslice(20ms)};
  spec.policies[0].name = "caf\xe9 \xc3\xa9 \x01 \"\\";
  const auto all = run_study(spec);
  ASSERT_TRUE(all.has_value());
  EXPECT_THAT(json_report(spec, *all, "\xff"),
              HasSubstr("{\"name\":\"caf\xEF\xBF\xBD \xc3\xa9 \\u0001 \\\"\\\\\""));
  EXPECT_THAT(json_report(spec, *all, "\xff"), HasSubstr("{\"command\":\"\xEF\xBF\xBD\""));
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
}  // namespace sluice::lab::study_test
