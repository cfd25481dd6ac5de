/// The circuit breaker: what a preemption that failed in hardware, a reset or a stuck call lead to.

#include "core_bench.hpp"

namespace sluice::tests::breaker_test {
namespace {

scheduler_config with_breaker(std::size_t after = 1, duration rearm = 2min) {
  auto config = quick_config();
  config.breaker_after = after;
  config.breaker_rearm = rearm;
  return config;
}

class Breaker : public ::testing::Test {
 protected:
  explicit Breaker(const scheduler_config& config = with_breaker())
      : bench_(config), online_(bench_.client({gpu_a, gpu_b})) {
    bench_.create(1, role::offline, gpu_a, {1, 2});
    bench_.create(2, role::offline, gpu_b, {1});
    bench_.attach_all();
  }
  /// The first of process 1's queues fails in hardware when it is suspended.
  void fail_a_suspend() {
    bench_.driver.script_outcome(1, q(1), outcome::failed);
    const auto busy = online_.busy();
    bench_.run_for(10ms);
  }
  /// How many queues a burst of online work suspends.
  std::uint64_t suspends_of_a_burst() {
    const auto before = bench_.stats().suspends.value();
    {
      const auto busy = online_.busy();
      bench_.run_for(10ms);
    }
    bench_.run_for(100ms);
    return bench_.stats().suspends.value() - before;
  }
  const gpu_view& view(gpu_id gpu) const { return *bench_.core->seen().find(gpu); }

  core_bench bench_;
  online_client online_;
};

TEST_F(Breaker, TheFirstFailedPreemptionOpensIt) {
  EXPECT_EQ(suspends_of_a_burst(), 3U);
  fail_a_suspend();
  bench_.run_for(100ms);
  EXPECT_TRUE(view(gpu_a).lost);
  EXPECT_FALSE(view(gpu_b).lost);
  EXPECT_EQ(bench_.stats().open_breakers.value(), 1U);
  EXPECT_EQ(bench_.stats().gpus_lost.value(), 1U);
  EXPECT_EQ(bench_.stats().suspended_now.value(), 0U) << "everything is resumed";
  EXPECT_EQ(suspends_of_a_burst(), 1U) << "the other GPU goes on";
}

TEST_F(Breaker, WhatTheDriverBelievesSuspendedIsResumed) {
  fail_a_suspend();
  const auto& batches = bench_.driver.batches();
  const auto resumed = std::any_of(batches.begin(), batches.end(), [](const batch& one) {
    return one.gpu == gpu_a && one.kind == command_kind::resume &&
           std::find(one.queues.begin(), one.queues.begin() + one.count, q(1)) !=
               one.queues.begin() + one.count;
  });
  EXPECT_TRUE(resumed);
}

TEST_F(Breaker, AnOperatorRearmsIt) {
  fail_a_suspend();
  bench_.run_for(1min);
  EXPECT_TRUE(view(gpu_a).lost);
  bench_.core->rearm(gpu_a);
  bench_.run_for(5s);
  EXPECT_FALSE(view(gpu_a).lost);
  EXPECT_EQ(bench_.stats().open_breakers.value(), 0U);
  EXPECT_EQ(suspends_of_a_burst(), 3U);
  fail_a_suspend();
  EXPECT_TRUE(view(gpu_a).lost) << "it counts from the beginning";
}

TEST_F(Breaker, RearmingWhatIsInUseDoesNothing) {
  bench_.core->rearm(gpu_a);
  bench_.core->rearm(gpu_id{4711});
  bench_.run_for(10ms);
  EXPECT_EQ(bench_.stats().open_breakers.value(), 0U);
  EXPECT_EQ(suspends_of_a_burst(), 3U);
}

TEST_F(Breaker, ItClosesAfterItsTime) {
  fail_a_suspend();
  bench_.run_for(2min - 10s);
  EXPECT_TRUE(view(gpu_a).lost);
  bench_.run_for(20s);
  EXPECT_FALSE(view(gpu_a).lost);
  EXPECT_EQ(suspends_of_a_burst(), 3U);
}

TEST_F(Breaker, AStuckCallOpensItAtOnce) {
  bench_.driver.lose_gpu(gpu_b);
  bench_.settle();
  EXPECT_TRUE(view(gpu_b).lost);
  bench_.driver.lose_gpu(gpu_b);
  bench_.settle();
  EXPECT_EQ(bench_.stats().gpus_lost.value(), 1U);
}

TEST_F(Breaker, AResetOpensItUnlessItIsOldNews) {
  const auto hear_of_reset = [this](time_point at) {
    observation seen;
    seen.kind = observation_kind::gpu_lost;
    seen.gpu = gpu_a;
    seen.at = at;
    bench_.core->observe(0, seen);
    bench_.settle();
    return view(gpu_a).lost;
  };
  const time_point reset = bench_.time.now();
  EXPECT_TRUE(hear_of_reset(reset));
  bench_.run_for(1s);
  bench_.core->rearm(gpu_a);
  bench_.run_for(1s);
  EXPECT_FALSE(hear_of_reset(reset)) << "a resync repeats it";
  EXPECT_TRUE(hear_of_reset(bench_.time.now()));
}

TEST_F(Breaker, ARefusedCallSaysNothingOfTheHardware) {
  bench_.driver.refuse_submit(errc::full);
  EXPECT_EQ(suspends_of_a_burst(), 3U);
  EXPECT_FALSE(view(gpu_a).lost);
}

TEST_F(Breaker, WhatOpensAndClosesIsTold) {
  std::vector<breaker_change> told;
  bench_.core->on_breaker([&](const breaker_change& what) { told.push_back(what); });
  fail_a_suspend();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].gpu, gpu_a);
  EXPECT_TRUE(told[0].open);
  EXPECT_EQ(told[0].why, breaker_cause::preemption_failed);
  EXPECT_EQ(told[0].first, gpu_a);
  EXPECT_GT(told[0].until, bench_.time.now() + 1min);
  EXPECT_LE(told[0].until, bench_.time.now() + 2min);
  bench_.run_for(3min);
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[1].gpu, gpu_a);
  EXPECT_FALSE(told[1].open);
  bench_.driver.lose_gpu(gpu_b);
  bench_.settle();
  ASSERT_EQ(told.size(), 3U);
  EXPECT_EQ(told[2].why, breaker_cause::stuck_call);
  bench_.core->rearm(gpu_b);
  bench_.settle();
  ASSERT_EQ(told.size(), 4U);
  EXPECT_FALSE(told[3].open);
}

class KeptBreaker : public Breaker {
 protected:
  void say(observation_kind kind, time_point at = {}) {
    observation said;
    said.kind = kind;
    said.gpu = gpu_a;
    said.at = at;
    bench_.core->observe(1, said);
    bench_.settle();
  }
};

TEST_F(KeptBreaker, StaysOpenUntilItsTime) {
  bool told = false;
  bench_.core->on_breaker([&](const breaker_change& what) { told |= what.open; });
  say(observation_kind::breaker_kept, bench_.time.now() + 30s);
  EXPECT_TRUE(view(gpu_a).lost);
  EXPECT_FALSE(view(gpu_b).lost);
  EXPECT_EQ(suspends_of_a_burst(), 1U) << "only on the other GPU";
  EXPECT_EQ(bench_.stats().gpus_lost.value(), 0U) << "it opened before";
  EXPECT_FALSE(told) << "who said so knows";
  bench_.run_for(25s);
  EXPECT_TRUE(view(gpu_a).lost);
  bench_.run_for(5s);
  EXPECT_FALSE(view(gpu_a).lost);
  EXPECT_EQ(bench_.stats().open_breakers.value(), 0U);
}

TEST_F(KeptBreaker, IsRearmedByAnOperator) {
  say(observation_kind::breaker_kept, never);
  ASSERT_TRUE(view(gpu_a).lost);
  say(observation_kind::breaker_rearmed);
  EXPECT_FALSE(view(gpu_a).lost);
  EXPECT_EQ(suspends_of_a_burst(), 3U);
}

// The clock on the wall may have been set back in between.
TEST_F(KeptBreaker, LastsNoLongerThanBreakerRearm) {
  say(observation_kind::breaker_kept, bench_.time.now() + 24h);
  bench_.run_for(3min);
  EXPECT_FALSE(view(gpu_a).lost);
}

TEST_F(KeptBreaker, WhoseTimeIsOverDoesNotOpen) {
  say(observation_kind::breaker_kept, bench_.time.now());
  EXPECT_FALSE(view(gpu_a).lost);
}

class BreakerOfThree : public Breaker {
 protected:
  BreakerOfThree() : Breaker(with_breaker(3, duration::zero())) {}
};

TEST_F(BreakerOfThree, CountsAndStaysOpenForEver) {
  fail_a_suspend();
  bench_.run_for(1min);
  fail_a_suspend();
  bench_.run_for(1min);
  EXPECT_FALSE(view(gpu_a).lost);
  fail_a_suspend();
  EXPECT_TRUE(view(gpu_a).lost);
  bench_.run_for(10min);
  EXPECT_TRUE(view(gpu_a).lost);
}

TEST(BreakerOfAHive, TakesTheLinkedGpusAlong) {
  core_bench bench(with_breaker());
  constexpr gpu_id gpu_c{0xc};
  for (const auto& [id, hive] : {std::pair{gpu_a, 7U}, {gpu_b, 7U}, {gpu_c, 8U}}) {
    observation seen;
    seen.kind = observation_kind::gpu_seen;
    seen.gpu = id;
    seen.group_key = hive;
    bench.core->observe(0, seen);
  }
  bench.settle();
  std::vector<breaker_change> told;
  bench.core->on_breaker([&](const breaker_change& what) { told.push_back(what); });
  bench.driver.lose_gpu(gpu_a);
  bench.settle();
  EXPECT_TRUE(bench.core->seen().find(gpu_a)->lost);
  EXPECT_TRUE(bench.core->seen().find(gpu_b)->lost);
  EXPECT_FALSE(bench.core->seen().find(gpu_c)->lost);
  EXPECT_EQ(bench.stats().open_breakers.value(), 2U);
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[0].first, gpu_a);
  EXPECT_EQ(told[1].gpu, gpu_b);
  EXPECT_EQ(told[1].first, gpu_a);
}

TEST(BreakerAndSdma, CopiesCountAgainAfterARearm) {
  auto config = with_breaker();
  config.suspend_copy_queues = true;
  core_bench bench(config);
  auto online = bench.client({gpu_a});
  bench.create(1, role::offline, gpu_a, {1});
  bench.create_queue(1, q(2), gpu_a, queue_kind::copy);
  bench.attach_all();
  bench.driver.lose_gpu(gpu_a);
  bench.settle();
  bench.core->rearm(gpu_a);
  bench.run_for(1s);
  const auto suspends = bench.stats().suspends.value();
  const auto arrivals = bench.stats().arrival_to_off.count();
  const auto busy = online.busy();
  bench.run_for(10ms);
  EXPECT_EQ(bench.stats().suspends.value() - suspends, 2U);
  EXPECT_EQ(bench.stats().arrival_to_off.count() - arrivals, 1U) << "its last queue is off";
}

}  // namespace
}  // namespace sluice::tests::breaker_test
