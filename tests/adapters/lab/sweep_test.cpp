#include "sweep.hpp"

#include "report.hpp"
#include "scenarios.hpp"

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::lab::sweep_test {
namespace {

using namespace test;
using ::testing::HasSubstr;

double ms(duration value) { return std::chrono::duration<double, std::milli>(value).count(); }

/// Of ratios that are so many times the one from which on it pays.
break_even line_of(const std::vector<duration>& kernels,
                   std::vector<std::optional<double>> ratios) {
  for (auto& each : ratios) {
    if (each) *each *= pays_below;
  }
  return begins_to_pay(kernels, ratios);
}

TEST(LabBreakEven, LiesWhereTheRatioCrossesInLogarithms) {
  // Four times, and a quarter: half way from 1 to 100, which is 10.
  const break_even even = line_of({1ms, 100ms}, {4.0, 0.25});
  EXPECT_EQ(even.where, pays::from);
  EXPECT_NEAR(ms(even.kernel), 10, 1e-6);
  // A third of the way: log 2 of log 2 and log 4.
  EXPECT_NEAR(ms(line_of({1ms, 8ms}, {2.0, 0.25}).kernel), 2, 1e-6);
}

TEST(LabBreakEven, IsNoLengthWherePreemptingAlwaysOrNeverPays) {
  EXPECT_EQ(line_of({1ms, 2ms}, {0.9, 0.5}).where, pays::always);
  EXPECT_EQ(line_of({1ms, 2ms}, {1.5, 1.1}).where, pays::never);
  // What chance may do is no gain.
  EXPECT_EQ(begins_to_pay({1ms, 2ms}, {1.0, 0.995}).where, pays::never);
}

TEST(LabBreakEven, BeginsWhereItPaysForAllLongerKernels) {
  const break_even last = line_of({1ms, 10ms, 100ms}, {0.9, 2.0, 0.5});
  EXPECT_EQ(last.where, pays::from);
  EXPECT_NEAR(ms(last.kernel), std::sqrt(10.0 * 100), 1e-6);
  EXPECT_EQ(line_of({1ms, 10ms, 100ms}, {2.0, 0.5, 1.1}).where, pays::never);
}

TEST(LabBreakEven, LeavesOutLengthsWithoutARatio) {
  const break_even around = line_of({1ms, 10ms, 100ms}, {4.0, std::nullopt, 0.25});
  EXPECT_NEAR(ms(around.kernel), 10, 1e-6);
  EXPECT_EQ(line_of({1ms}, {std::nullopt}).where, pays::unknown);
}

TEST(LabBreakEven, SaysOnWhichSideALengthIs) {
  const break_even line = line_of({1ms, 100ms}, {4.0, 0.25});
  EXPECT_FALSE(line.pays_beside(line.kernel));
  EXPECT_TRUE(line.pays_beside(line.kernel + 1ns));
  EXPECT_TRUE((break_even{pays::always, {}}.pays_beside(1ns)));
  EXPECT_FALSE((break_even{pays::never, {}}.pays_beside(1h)));
}

/// Never suspends anything.
contender idle() {
  class policy_of_none final : public policy {
   public:
    std::string_view name() const noexcept override { return "idle"; }
    void decide(const snapshot&, decision_sink&) override {}
  };
  return {"idle", arrangement::scheduled, [] { return std::make_unique<policy_of_none>(); }, 1};
}

/// Four requests of 10 ms a second, one at a time, that come anywhere in a kernel: without a
/// scheduler the unluckiest waits for all of it, and else for the reaction and a suspend.
study_spec waiting_study() {
  std::vector<duration> at;
  for (int i = 0; i < 100; ++i) at.push_back(i * 250ms + i * 337us);
  scenario what = known(std::move(at));
  what.work.window = 25s;
  study_spec spec;
  spec.profiles = {{"mi300x", machine()}};
  spec.sources = {{"apart", [work = what.work](std::uint64_t) { return work; }}};
  spec.loads = {0.01};
  spec.offline = {{"long", what.offline}};
  spec.policies = {idle()};
  spec.costs = what.costs;
  what.work = {};
  spec.common = what;
  return spec;
}

TEST(LabSweep, ScalesWhatSuspendsCostAndSetsTheLengthOfKernels) {
  study_spec asked = waiting_study();
  asked.profiles.push_back({"two", machine(2)});
  const auto spec = spread(asked, {.cost_factors = {0.5, 2}, .kernels = {1ms, 3ms, 9ms}});
  ASSERT_TRUE(spec.has_value());
  ASSERT_EQ(spec->profiles.size(), 4u);
  ASSERT_EQ(spec->offline.size(), 3u);
  for (const sim::gpu_profile& gpu : spec->profiles[3].what.gpus) {
    EXPECT_EQ(gpu.suspend_cost, 10ms);
    EXPECT_EQ(gpu.resume_cost, 20ms);
    EXPECT_EQ(gpu.batch_unmap_cost, 1ms);
    EXPECT_EQ(gpu.batch_remap_cost, 1ms);
    EXPECT_EQ(gpu.cycle_cost, 1ms);
  }
  EXPECT_EQ(spec->profiles[2].what.gpus.size(), 2u);
  EXPECT_EQ(spec->profiles[2].what.gpus[1].suspend_cost, 2500us);
  ASSERT_EQ(spec->offline[1].what.shape.lengths.size(), 1u);
  EXPECT_EQ(spec->offline[1].what.shape.lengths[0].low, 3ms);
  EXPECT_EQ(spec->offline[1].what.shape.lengths[0].high, 3ms);
  EXPECT_EQ(spec->offline[1].what.shape.depth, asked.offline[0].what.shape.depth);
}

TEST(LabSweep, RefusesCostsBeyondTheDriversTimeout) {
  study_spec asked = waiting_study();
  asked.profiles[0].what.gpus[0].resume_cost = 2s;
  const auto spec = spread(asked, {.cost_factors = {1, 5}, .kernels = {1ms}});
  ASSERT_TRUE(spec.has_error());
  EXPECT_THAT(spec.error().message, HasSubstr("--sweep-cost 5: resume_cost of profile mi300x"));
  EXPECT_THAT(spec.error().message, HasSubstr("10.0 s; the limit is 9 s"));
}

TEST(LabSweep, DrawsTheLineWhereAKernelIsAsLongAsASuspend) {
  const study_spec asked = waiting_study();
  const sweep_axes axes{.cost_factors = {0.2, 1, 10}, .kernels = {1ms, 4ms, 16ms, 64ms}};
  const auto spec = spread(asked, axes);
  ASSERT_TRUE(spec.has_value());
  const auto all = run_study(*spec);
  ASSERT_TRUE(all.has_value()) << all.error().message;
  const auto grids = grids_of(asked, axes, *all);
  ASSERT_EQ(grids.size(), 1u);
  const sweep_grid& grid = grids[0];
  ASSERT_EQ(grid.rows.size(), 5u);
  const sweep_row &without = grid.rows[0], &at_once = grid.rows[3], &never_suspends = grid.rows[4];
  EXPECT_EQ(without.contender, "no scheduler");
  EXPECT_EQ(at_once.contender, "suspend at once");
  EXPECT_EQ(never_suspends.contender, "idle");
  for (std::size_t f = 0; f < 3; ++f) {
    const double suspend = 5 * axes.cost_factors[f], reaction = 0.1, work = 10;
    for (std::size_t k = 0; k < 4; ++k) {
      const std::size_t i = grid.at(f, k);
      EXPECT_EQ(all->settings[grid.settings[i]].profile, f);
      EXPECT_EQ(all->settings[grid.settings[i]].offline, k);
      EXPECT_NEAR(at_once.points[i].p99_ms, reaction + suspend + work, 0.01);
      EXPECT_NEAR(without.points[i].p99_ms, ms(axes.kernels[k]) + work, 0.1 * ms(axes.kernels[k]));
      EXPECT_EQ(without.points[i].p99_ratio, 1.0);
      EXPECT_NEAR(at_once.points[i].suspends, 4, 0.1);
      EXPECT_EQ(never_suspends.points[i].suspends, 0);
      // A request waits for half a kernel on the average.
      EXPECT_NEAR(at_once.points[i].online_saved,
                  4 * (ms(axes.kernels[k]) / 2 - reaction - suspend) / 1e3,
                  1e-3 + 2e-4 * ms(axes.kernels[k]));
      // And offline work stands still for a suspend and a resume, which is twice as long.
      EXPECT_NEAR(at_once.points[i].offline_lost, 4 * (reaction + 3 * suspend) / 1e3, 0.02);
    }
  }
  ASSERT_EQ(grid.line.size(), 3u);
  const double expected[] = {1.1, 5.1, 50.1};
  for (std::size_t f = 0; f < 3; ++f) {
    EXPECT_EQ(grid.line[f].where, pays::from) << f;
    // The grid is coarse, and a ratio no straight line.
    EXPECT_NEAR(std::log(ms(grid.line[f].kernel) / expected[f]), 0, 0.25) << f;
  }
  EXPECT_NEAR(at_once.suspends_beyond.value_or(0), 4, 0.1);
  EXPECT_EQ(never_suspends.suspends_beyond, 0.0);
  EXPECT_THAT(text_sweep(grids), HasSubstr("idle: 0.00\n"));
}

TEST(LabSweep, HasNoRatioOfRequestsThatWereNotFinished) {
  study_spec asked = waiting_study();
  asked.sources[0].make = [](std::uint64_t) {
    arrivals work;
    work.window = 1s;
    work.requests = {{999ms, 1000, 0}};
    return work;
  };
  asked.common.serving.drain_limit = 1ms;
  const sweep_axes axes{.cost_factors = {1}, .kernels = {10ms}};
  const auto all = run_study(*spread(asked, axes));
  ASSERT_TRUE(all.has_value());
  const auto grids = grids_of(asked, axes, *all);
  EXPECT_FALSE(grids[0].rows[3].points[0].p99_ratio.has_value());
  EXPECT_EQ(grids[0].line[0].where, pays::unknown);
  EXPECT_FALSE(grids[0].rows[3].suspends_beyond.has_value());
  EXPECT_THAT(text_sweep(grids), HasSubstr("x1: unknown\n"));
}

TEST(LabSweep, LeavesSeedsWithoutRequestsOutOfLatencies) {
  study_spec asked = waiting_study();
  const auto some = asked.sources[0].make;
  const sweep_axes axes{.cost_factors = {1}, .kernels = {10ms}};
  const auto one = run_study(*spread(asked, axes));
  asked.sources[0].make = [&](std::uint64_t seed) {
    return seed == 1 ? some(1) : arrivals{1s, {}};
  };
  asked.seeds = 2;
  const auto two = run_study(*spread(asked, axes));
  ASSERT_TRUE(one.has_value() && two.has_value());
  const sweep_point expected = grids_of(asked, axes, *one)[0].rows[3].points[0];
  const sweep_point got = grids_of(asked, axes, *two)[0].rows[3].points[0];
  EXPECT_EQ(got.p99_ms, expected.p99_ms);
  EXPECT_EQ(got.p99_ratio, expected.p99_ratio);
  EXPECT_GT(got.offline_share, expected.offline_share);
  asked.first_seed = 2;
  asked.seeds = 1;
  const auto none = run_study(*spread(asked, axes));
  ASSERT_TRUE(none.has_value());
  const auto grids = grids_of(asked, axes, *none);
  EXPECT_FALSE(grids[0].rows[3].points[0].p99_ratio.has_value());
  EXPECT_THAT(text_sweep(grids), ::testing::Not(HasSubstr(" 0ms ")));
  EXPECT_THAT(json_report(*spread(asked, axes), *none, "", grids),
              HasSubstr("\"p99_ms\":[[null]]"));
}

TEST(LabSweep, GivesWhatEveryPointOnItsOwnWould) {
  study_spec asked = waiting_study();
  asked.profiles.push_back({"batch", machine()});
  asked.profiles[1].what.batch_commands = true;
  asked.sources = {{"interactive", [](std::uint64_t seed) { return generate(seed, 3s); }}};
  asked.loads = {0.3, 0.6};
  if (!fast_build) asked.loads.pop_back();
  asked.costs.reset();
  asked.seeds = 2;
  asked.policies = {timeslice(20ms)};
  asked.keep_requests = true;
  study_spec shared = *spread(asked, {.cost_factors = {0.5, 2}, .kernels = {5ms, 50ms}});
  study_spec own = shared;
  for (auto& each : own.profiles) each.same_but_for_suspends.reset();
  shared.threads = 3;
  const auto one = run_study(shared), other = run_study(own);
  ASSERT_TRUE(one.has_value() && other.has_value());
  EXPECT_LT(one->runs, other->runs);
  const auto rows = [](const study_spec& spec, const study& all) {
    std::string text = json_report(spec, all, "");
    csv_requests(spec, all, [&](std::string_view piece) { text += piece; });
    return text;
  };
  EXPECT_TRUE(rows(shared, *one) == rows(own, *other));
}

}  // namespace
}  // namespace sluice::lab::sweep_test
