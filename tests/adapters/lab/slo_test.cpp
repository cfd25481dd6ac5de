// What slo is worth: its targets, its share of the bound, and what it leaves alone. And that no
// policy makes online work slower than no scheduling does.

#include "sluice/policies/slo.hpp"

#include "bound.hpp"
#include "scenarios.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/lab/percentiles.hpp"
#include "sluice/policies/all.hpp"
#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/policies/shadow.hpp"
#include "sluice/policy_registry.hpp"

namespace sluice::lab::slo_test {
namespace {

using namespace test;

std::unique_ptr<policy> make_slo_for(duration request, duration ttft = {}, duration itl = {}) {
  slo_options options;
  options.p99 = {request, ttft, itl};
  return make_slo(options);
}

contender slo(duration request, duration ttft = {}, duration itl = {}) {
  return {"slo", arrangement::scheduled, [=] { return make_slo_for(request, ttft, itl); }, 1};
}
const contender unscheduled{"no scheduler", arrangement::unscheduled, {}, 1};

duration times(duration value, double factor) {
  return std::chrono::duration_cast<duration>(value * factor);
}

duration p99_of(const run_result& got) {
  std::vector<duration> all;
  for (const served& each : got.requests) all.push_back(each.what.latency);
  return percentiles_of(std::move(all)).p99;
}

duration ttft_p99_of(const run_result& got) {
  std::vector<duration> all;
  for (const served& each : got.requests) all.push_back(each.what.ttft);
  return percentiles_of(std::move(all)).p99;
}

double suspends_per_second(const run_result& got) {
  return static_cast<double>(got.suspends) / std::chrono::duration<double>(got.stretch).count();
}

/// What `sluice lab --arrivals bursty|poisson --load L` runs, for long enough to learn from.
/// max_suspend is no part of the question.
scenario service(double load, bool in_bursts, duration window = fast_build ? 20min : 1min) {
  scenario made;
  made.machine = machine();
  made.work = in_bursts ? bursty(1, window, {0.5, 20, 2s, 500ms}) : poisson(1, window, 2.5);
  made.costs = scale_to_load(made.work, load);
  made.serving.drain_limit = 1h;
  made.offline.shape = shape_of(load_kind::long_kernels);
  made.offline_seed = 1;
  made.limits.max_suspend = 30s;
  return made;
}

class LabSlo : public ::testing::TestWithParam<std::pair<double, bool>> {};

TEST_P(LabSlo, KeepsItsTargetAndNearlyAllThatTheBoundAllows) {
  if (!fast_build) GTEST_SKIP() << "a minute is too short to learn from";
  const auto [load, batch_commands] = GetParam();
  scenario what = service(load, true);
  what.machine.batch_commands = batch_commands;
  const duration least = p99_of(simulate(what, at_once()));
  double looser = 0;
  for (const double room : {1.3, 2.0}) {
    const duration target = times(least, room);
    const run_result got = simulate(what, slo(target));
    EXPECT_LE(p99_of(got), times(target, 1.02)) << room;
    const clairvoyant bound(what, got.stretch);
    EXPECT_GE(got.offline_work, times(bound.work(p99_of(got), got.stretch), 0.97)) << room;
    const double share = std::chrono::duration<double>(got.offline_work) /
                         std::chrono::duration<double>(got.stretch);
    EXPECT_GT(share, looser) << "a looser target gives offline work more";
    looser = share;
  }
}

INSTANTIATE_TEST_SUITE_P(Loads, LabSlo,
                         ::testing::Values(std::pair{0.3, false}, std::pair{0.6, false},
                                           std::pair{0.3, true}, std::pair{0.6, true}));

/// Requests are marked when they arrive: marked between two decode steps, a first token is behind
/// an offline kernel by then.
TEST(LabSlo, KeepsTargetsOfFirstTokensAndOfTokens) {
  if (!fast_build) GTEST_SKIP() << "a minute is too short to learn from";
  const scenario what = service(0.3, false);
  const run_result least = simulate(what, at_once());
  const duration ttft = times(ttft_p99_of(least), 1.7);
  const duration itl = times(percentiles_of(least.gaps).p99, 1.4);
  const run_result first = simulate(what, slo({}, ttft));
  EXPECT_LE(ttft_p99_of(first), times(ttft, 1.02));
  const run_result tokens = simulate(what, slo({}, {}, itl));
  EXPECT_LE(percentiles_of(tokens.gaps).p99, times(itl, 1.02));
  EXPECT_GT(ttft_p99_of(tokens), ttft) << "one says nothing of the other";
  const run_result both = simulate(what, slo({}, ttft, itl));
  EXPECT_LE(ttft_p99_of(both), times(ttft, 1.02));
  EXPECT_LE(percentiles_of(both.gaps).p99, times(itl, 1.02));
  for (const run_result* const each : {&first, &tokens, &both}) {
    EXPECT_GT(each->offline_work, least.offline_work);
  }
}

/// Where only requests are marked: work piles up beside offline work and is never alone, so that no
/// trial is made; it is held for all the same.
TEST(LabSlo, HoldsForWorkThatPilesUpThoughNothingShowsThatItHelps) {
  if (!fast_build) GTEST_SKIP() << "a minute is too short to learn from";
  scenario what = service(0.6, true);
  what.service = service_kind::fifo;
  ASSERT_GT(p99_of(simulate(what, unscheduled)), 90s);
  EXPECT_LE(p99_of(simulate(what, slo(20s))), 25s);
}

/// With a quantum, a request beside offline work takes little longer than one that is held for, so
/// that lengths tell late that a hold helps. Until then it holds, as its target is missed.
TEST(LabSlo, HoldsForAMissedTargetWhileItIsUnclearWhetherThatHelps) {
  if (!fast_build) GTEST_SKIP() << "a minute is too short to learn from";
  for (const auto& [load, rate, most] : {std::tuple{0.3, 33.0, 1.05}, std::tuple{0.6, 66.0, 1.2}}) {
    duration held_for{}, at_most{};
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      scenario what = service(load, false);
      for (sim::gpu_profile& each : what.machine.gpus) {  // As h100.
        each.time_sliced = true;
        each.suspend_cost = 640us;
        each.resume_cost = 350us;
      }
      what.work = poisson(seed, 40s, rate);
      what.costs = scale_to_load(what.work, load);
      what.service = service_kind::fifo;
      what.offline.shape.lengths = {{1, 100us, 1500us}};
      const auto p99_with = [&](const policy_kind& kind, parameters given) {
        given.set("offline_quantum", duration(50us));
        const contender who{"", arrangement::scheduled,
                            [&] {
                              std::string problem;
                              return sluice::make_policy(kind, given, problem).value();
                            },
                            1};
        return p99_of(simulate(what, who));
      };
      parameters targets;
      targets.set("request.p99", times(p99_of(simulate(what, at_once())), 0.9));
      targets.set("suspend_cost", duration(700us));
      targets.set("resume_cost", duration(400us));
      at_most += p99_with(fixed_timeslice_kind(), {});
      held_for += p99_with(slo_kind(), targets);
    }
    EXPECT_LE(held_for, times(at_most, most)) << load;
  }
}

/// Beyond break-even a hold costs more than it saves, whatever the target.
TEST(LabSlo, DoesNotPreemptBesideKernelsForWhichNobodyWaits) {
  if (!fast_build) GTEST_SKIP() << "a minute is too short to learn from";
  scenario what = service(0.3, false);
  what.offline.shape.lengths = {{1, 1ms, 1ms}};
  for (sim::gpu_profile& each : what.machine.gpus) {
    each.suspend_cost *= 10;
    each.resume_cost *= 10;
  }
  const run_result none = simulate(what, unscheduled);
  const run_result held = simulate(what, at_once());
  for (const double part : {0.1, 1.1}) {  // Out of reach, and reached without.
    const duration target = times(p99_of(none), part);
    const run_result got = simulate(what, slo(target));
    EXPECT_LE(suspends_per_second(got), 0.02 * suspends_per_second(held)) << part;
    EXPECT_LE(p99_of(got), times(p99_of(none), 1.01)) << part;
    EXPECT_GE(got.offline_work, times(none.offline_work, 0.99)) << part;
  }
}

/// Kernels of 10 us to 5 ms, with the costs as they are.
TEST(LabSlo, IsNotWorseThanNoSchedulerBesideShortKernels) {
  if (!fast_build) GTEST_SKIP() << "a minute is too short to learn from";
  for (const double load : {0.3, 0.85}) {
    scenario what = service(load, true);
    what.offline.shape = shape_of(load_kind::training);
    const run_result none = simulate(what, unscheduled);
    for (const duration target : {duration(3s), duration(15s)}) {
      const run_result got = simulate(what, slo(target));
      EXPECT_LE(p99_of(got), times(p99_of(none), 1.01)) << load;
      EXPECT_LE(got.suspends, 18 * what.offline.shape.queues) << "more than some trials";
    }
  }
}

/// Beside kernels of 20 to 200 ms. hqd_reservation says that it does not preempt, and shadow that
/// it does nothing; attaching alone may cost a little.
TEST(LabPolicies, NoneMakesOnlineWorkSlowerThanNoScheduler) {
  for (const bool in_bursts : {false, true}) {
    for (const double load : {0.3, 0.6, 0.85}) {
      scenario what = service(load, in_bursts, fast_build ? 4min : 20s);
      what.limits.max_suspend = 1s;  // The default.
      const duration most = times(p99_of(simulate(what, unscheduled)), 1.001);
      for (const policy_kind& kind : all_policies()) {
        if (kind.wrap != nullptr || kind.name == "hqd_reservation") continue;
        parameters given;
        if (kind.name == "slo") given.set("request.p99", duration(400ms));
        const contender who{std::string(kind.name), arrangement::scheduled,
                            [&] {
                              std::string problem;
                              return sluice::make_policy(kind, given, problem).value();
                            },
                            1};
        EXPECT_LE(p99_of(simulate(what, who)), most)
            << kind.name << ", load " << load << (in_bursts ? ", bursts" : "");
        if (!fast_build) break;
      }
    }
  }
}

TEST(LabSlo, DecidesTheSameEachTime) {
  const scenario what = service(0.6, true);
  const run_result one = simulate(what, slo(5s)), two = simulate(what, slo(5s));
  ASSERT_EQ(one.requests.size(), two.requests.size());
  for (std::size_t i = 0; i < one.requests.size(); ++i) {
    ASSERT_EQ(one.requests[i].what.latency, two.requests[i].what.latency);
  }
  EXPECT_EQ(one.suspends, two.suspends);
  EXPECT_EQ(one.offline_work, two.offline_work);
}

/// Load that comes and goes, on several GPUs with a gang over all of them.
TEST(LabSlo, KeepsItsTargetOnSeveralGpusWithAGangAsTheLoadComesAndGoes) {
  if (!fast_build) GTEST_SKIP() << "a minute is too short to learn from";
  scenario what = service(0.6, false);
  what.machine = machine(2);
  what.work = diurnal(1, 20min, 0.5, 8, 5min);
  what.costs = scale_to_load(what.work, 0.6);
  what.offline.shape = shape_of(load_kind::training);
  what.offline.gang = true;
  what.offline.all_reduce = 500us;
  what.offline.shape.lengths = {{1, 20ms, 20ms}};
  const run_result got = simulate(what, at_once());
  const duration target = times(p99_of(got), 1.5);
  const run_result kept = simulate(what, slo(target));
  EXPECT_LE(p99_of(kept), times(target, 1.02));
  EXPECT_GT(kept.offline_work, got.offline_work);
}

TEST(LabShadow, SuspendsNothing) {
  const scenario what = service(0.3, true);
  const contender who{"shadow", arrangement::scheduled,
                      [] { return make_shadow(make_slo_for(1s)); }, 1};
  EXPECT_EQ(simulate(what, who).suspends, 0u);
}

}  // namespace
}  // namespace sluice::lab::slo_test
