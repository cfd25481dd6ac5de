#include "core_bench.hpp"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::tests::gang_test {
namespace {

using ::testing::ElementsAre;

constexpr std::uint64_t job = 5;

/// Two processes of one job, each on a GPU of its own.
class Gang : public ::testing::Test {
 protected:
  Gang() {
    bench.create(100, role::offline, gpu_a, {0}, job);
    bench.create(200, role::offline, gpu_b, {0}, job);
  }

  bool suspended(pid_t pid) { return bench.driver.suspended(pid, q(0)); }

  core_bench bench;
  online_client client = bench.client({gpu_a});
};

TEST_F(Gang, IsNotHeldInPart) {
  bench.driver.script_attach(200, errc::not_managed);
  bench.attach_all();
  ASSERT_TRUE(bench.driver.attached(100));
  ASSERT_FALSE(bench.driver.attached(200));
  client.begin();
  bench.settle();
  EXPECT_FALSE(suspended(100));
  EXPECT_FALSE(bench.group_of(gpu_a)->manageable);
}

TEST_F(Gang, IsHeldAsSoonAsItsLastProcessIsAttached) {
  bench.driver.script_attach(200, errc::lost);
  bench.attach_all();
  client.begin();
  bench.settle();
  EXPECT_FALSE(suspended(100));
  bench.run_for(10s);  // The attach is tried again; the policy has not changed its mind.
  ASSERT_TRUE(bench.driver.attached(200));
  EXPECT_TRUE(bench.group_of(gpu_a)->manageable);
  EXPECT_TRUE(suspended(100));
  EXPECT_TRUE(suspended(200));
}

TEST_F(Gang, RunsAsAWholeWhileOneOfItCannotBeSuspended) {
  bench.attach_all();
  bench.driver.script_outcome(200, q(0), outcome::invalid);
  client.begin();
  bench.settle();
  EXPECT_FALSE(suspended(100));
  EXPECT_FALSE(suspended(200));
  EXPECT_EQ(bench.group_of(gpu_a)->actual, run_state::running);
  // After the backoff of one second it is asked again, and this time all of it stops.
  bench.run_for(1010ms);
  EXPECT_TRUE(suspended(100));
  EXPECT_TRUE(suspended(200));
}

TEST_F(Gang, ForgetsARefusalWithTheQueueThatRefused) {
  bench.attach_all();
  bench.driver.script_outcome(200, q(0), outcome::invalid);
  client.begin();
  bench.settle();
  ASSERT_FALSE(suspended(100));
  bench.driver.remove_queue(200, q(0));
  bench.see_kind(observation_kind::queue_gone, 200, q(0));
  bench.settle();
  EXPECT_TRUE(suspended(100));
}

TEST_F(Gang, IsLeftAloneWhileOneOfItsGpusIsLost) {
  bench.attach_all();
  client.begin();
  bench.settle();
  ASSERT_TRUE(suspended(100));
  bench.driver.lose_gpu(gpu_b);
  bench.settle();
  EXPECT_FALSE(suspended(100));
  bench.core->rearm(gpu_b);
  bench.settle();
  EXPECT_TRUE(suspended(100));
  EXPECT_TRUE(suspended(200));
}

TEST_F(Gang, ThatGainsAProcessWithoutASessionRunsUntilItHasOne) {
  bench.attach_all();
  client.begin();
  bench.settle();
  ASSERT_TRUE(suspended(100));
  bench.create(300, role::offline, gpu_b, {0}, job);
  bench.settle();
  EXPECT_FALSE(suspended(100));
  bench.run_for(10s);
  ASSERT_TRUE(bench.driver.attached(300));
}

/// A process that came to another gang while it was suspended began to count its time off anew, and
/// was off for twice max_suspend, or as often as it changed.
TEST(GangChange, OfAProcessThatIsOffLetsItRunFirst) {
  attached_bench bench;
  auto client = bench.client();
  client.begin();
  bench.run_for(900ms);
  ASSERT_TRUE(bench.driver.suspended(100, q(0)));
  bench.see(100, role::offline, job);
  bench.settle();
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
  bench.run_for(90ms);
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));  // min_run
  bench.run_for(20ms);
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
}

TEST(GroupView, CountsQueuesByGpuAndTakesTheHighestPriority) {
  core_bench bench;
  for (const auto& [pid, priority] : {std::pair<pid_t, std::uint8_t>{100, 3}, {200, 7}}) {
    observation seen;
    seen.kind = observation_kind::process_seen;
    seen.what = role::offline;
    seen.pid = pid;
    seen.start_time = start_time;
    seen.group_key = job;
    seen.priority = priority;
    bench.core->observe(0, seen);
  }
  for (const auto number : {0U, 1U}) bench.create_queue(100, q(number), gpu_a);
  bench.create_queue(200, q(0), gpu_b);
  bench.attach_all();
  const group_view* const group = bench.group_of(gpu_a);
  ASSERT_NE(group, nullptr);
  EXPECT_EQ(group->priority, 7);
  EXPECT_THAT(std::vector(group->gpus.begin(), group->gpus.end()), ElementsAre(gpu_a, gpu_b));
  EXPECT_THAT(std::vector(group->queues_on.begin(), group->queues_on.end()), ElementsAre(2U, 1U));
}

TEST(GpuView, KnowsItsSlotsAndWhatDriverCallsCost) {
  core_bench bench;
  observation seen;
  seen.kind = observation_kind::gpu_seen;
  seen.gpu = gpu_a;
  seen.count = 24;
  bench.core->observe(0, seen);
  bench.create(100, role::offline, gpu_a, {0});
  auto client = bench.client();
  bench.attach_all();
  const gpu_view* const gpu = bench.core->seen().find(gpu_a);
  EXPECT_EQ(gpu->slots, 24U);
  EXPECT_EQ(gpu->suspend_cost, 0ns);
  bench.driver.set_delay(5ms);
  client.begin();
  bench.run_for(30ms);
  bench.driver.set_delay(10ms);
  client.end();
  bench.run_for(100ms);
  EXPECT_EQ(gpu->suspend_cost, 5ms);
  EXPECT_EQ(gpu->resume_cost, 10ms);
}

/// The embedding program's own process is one rank of an online gang.
class OnlineGang : public ::testing::Test {
 protected:
  static constexpr pid_t self = 4242;
  OnlineGang() {
    bench.create(self, role::online, gpu_a, {0}, job);
    bench.create(200, role::online, gpu_b, {0}, job);
    bench.create(300, role::offline, gpu_b, {0});
    bench.attach_all();
  }
  std::uint32_t in_flight(gpu_id gpu) { return bench.core->seen().find(gpu)->online_in_flight; }

  core_bench bench;
  online_client client = bench.client({gpu_a});
};

TEST_F(OnlineGang, WorkOfOneMemberCountsOnEveryGpuOfTheGang) {
  client.begin();
  bench.settle();
  EXPECT_EQ(in_flight(gpu_a), 1U);
  EXPECT_EQ(in_flight(gpu_b), 1U);
  const auto on = bench.core->seen().gpus_of(client.id());
  EXPECT_THAT(std::vector(on.begin(), on.end()), ElementsAre(gpu_a, gpu_b));
  EXPECT_TRUE(bench.driver.suspended(300, q(0)));
  client.end();
  bench.run_for(50ms);
  EXPECT_EQ(in_flight(gpu_b), 0U);
  EXPECT_FALSE(bench.driver.suspended(300, q(0)));
}

TEST_F(OnlineGang, WorkOfAnotherProgramThatIsAMemberCountsOnEveryGpuToo) {
  auto member = bench.client({gpu_b}, 200);
  member.begin();
  bench.settle();
  EXPECT_EQ(in_flight(gpu_a), 1U);
  EXPECT_EQ(in_flight(gpu_b), 1U);
  // Its pid soon belongs to a process of no gang.
  bench.see_kind(observation_kind::process_gone, 200);
  bench.create(200, role::online, gpu_b, {0});
  bench.settle();
  EXPECT_EQ(in_flight(gpu_a), 0U);
  EXPECT_EQ(in_flight(gpu_b), 1U);
}

TEST_F(OnlineGang, WorkOfAProgramThatIsNoMemberCountsWhereItSaysOnly) {
  auto other = bench.client({gpu_b}, 300);
  other.begin();
  bench.settle();
  EXPECT_EQ(in_flight(gpu_a), 0U);
  EXPECT_EQ(in_flight(gpu_b), 1U);
}

TEST_F(OnlineGang, ThatShrinksUnderWorkStopsCountingWhereItLeft) {
  client.begin();
  bench.settle();
  ASSERT_EQ(in_flight(gpu_b), 1U);
  bench.see_kind(observation_kind::process_gone, 200);
  bench.run_for(50ms);
  EXPECT_EQ(in_flight(gpu_a), 1U);
  EXPECT_EQ(in_flight(gpu_b), 0U);
  EXPECT_FALSE(bench.driver.suspended(300, q(0)));
}

TEST_F(OnlineGang, ThatGrowsUnderWorkCountsWhereItCame) {
  client.begin();
  bench.settle();
  constexpr gpu_id gpu_c{0xcc};
  bench.create(400, role::online, gpu_c, {0}, job);
  bench.settle();
  EXPECT_EQ(in_flight(gpu_c), 1U);
  client.end();
  bench.settle();
  EXPECT_EQ(in_flight(gpu_c), 0U);
}

TEST(OnlineProcess, OfNoGangCountsWhereItSaysOnly) {
  core_bench bench;
  bench.create(4242, role::online, gpu_b, {0});
  auto client = bench.client({gpu_a});
  client.begin();
  bench.settle();
  EXPECT_EQ(bench.core->seen().find(gpu_b)->online_in_flight, 0U);
}

/// Why a hold ended last.
struct last_end final : journal_sink {
  void put(const journal_entry& entry) noexcept override {
    if (entry.kind == journal_kind::let_go) why = entry.why;
  }
  void pass_on() noexcept override {}
  journal_rule why{};
};

/// The part on this node of a job on two nodes.
class GangOnNodes : public ::testing::Test {
 protected:
  GangOnNodes() {
    bench.core->on_gang([this](const gang_state& what) { told.push_back(what); });
    join(100, gpu_a);
    bench.attach_all();
  }

  void join(pid_t pid, gpu_id gpu, role what = role::offline) {
    observation one;
    one.kind = observation_kind::process_seen;
    one.what = what;
    one.pid = pid;
    one.start_time = start_time;
    one.group_key = job;
    one.count = 2;
    bench.core->observe(0, one);
    bench.create_queue(pid, q(0), gpu);
  }
  /// The other node answers for a time from now on.
  void hear(duration time, bool hold = false) {
    observation one;
    one.kind = observation_kind::gang_heard;
    one.group_key = job;
    one.at = bench.time.now() + time;
    one.count = hold ? 1 : 0;
    bench.core->observe(1, one);
    bench.settle();
  }
  bool suspended() { return bench.driver.suspended(100, q(0)); }
  gang_wish wish() const { return told.empty() ? gang_wish::gone : told.back().wish; }

  std::vector<gang_state> told;
  last_end ended;
  core_bench bench{quick_config(), make_fixed_timeslice({.slice = 20ms}), {}, nullptr, &ended};
  online_client client = bench.client({gpu_a});
};

TEST_F(GangOnNodes, IsNotHeldBeforeTheOthersAnswer) {
  EXPECT_EQ(told.back(), (gang_state{.key = job, .nodes = 2, .wish = gang_wish::run}));
  client.begin();
  bench.settle();
  EXPECT_FALSE(suspended());
  EXPECT_FALSE(bench.group_of(gpu_a)->manageable);
  hear(3s);
  EXPECT_TRUE(bench.group_of(gpu_a)->manageable);
  EXPECT_TRUE(suspended());
  EXPECT_EQ(wish(), gang_wish::hold);
  client.end();
  bench.run_for(20ms);
  EXPECT_FALSE(suspended());
  EXPECT_EQ(wish(), gang_wish::run);
}

TEST_F(GangOnNodes, RunsWhenTheOthersDoNotAnswerAnyMore) {
  hear(300ms);
  client.begin();
  bench.settle();
  ASSERT_TRUE(suspended());
  bench.run_for(299ms);
  EXPECT_TRUE(suspended());
  bench.run_for(2ms);
  EXPECT_FALSE(suspended());
  hear(300ms);
  EXPECT_TRUE(suspended());
  hear(-1s);  // One of them cannot hold it.
  EXPECT_FALSE(suspended());
}

TEST_F(GangOnNodes, IsHeldForTheOthersAsLongAsTheyAnswer) {
  hear(300ms, true);
  EXPECT_TRUE(suspended());
  EXPECT_EQ(wish(), gang_wish::run);  // Else two nodes would hold each other for ever.
  hear(300ms, true);
  bench.run_for(200ms);
  EXPECT_TRUE(suspended());
  bench.run_for(101ms);
  EXPECT_FALSE(suspended());
  EXPECT_EQ(ended.why, journal_rule::peers);
  hear(300ms, true);
  EXPECT_TRUE(suspended());
  hear(300ms, false);
  EXPECT_FALSE(suspended());
}

TEST_F(GangOnNodes, ObeysTheLimitsHereWhoeverWantsItHeld) {
  for (int i = 0; i < 10; ++i) {
    hear(1s, true);
    bench.run_for(100ms);
  }
  bench.run_for(50ms);
  EXPECT_FALSE(suspended());  // max_suspend is 1 s.
  EXPECT_EQ(wish(), gang_wish::refused);
  for (int i = 0; i < 2; ++i) {
    hear(1s, true);
    bench.run_for(100ms);
  }
  EXPECT_TRUE(suspended());  // min_run is 100 ms.
}

TEST_F(GangOnNodes, IsRefusedWhileItCannotBeHeldHere) {
  bench.driver.script_attach(200, errc::lost);
  join(200, gpu_a);
  bench.settle();
  EXPECT_EQ(wish(), gang_wish::refused);
  bench.run_for(15s);
  EXPECT_EQ(wish(), gang_wish::run);
  bench.driver.lose_gpu(gpu_a);
  bench.settle();
  EXPECT_EQ(wish(), gang_wish::refused);
}

TEST_F(GangOnNodes, IsGoneWithItsLastProcess) {
  bench.driver.end_session(100);
  bench.see_kind(observation_kind::process_gone, 100);
  bench.settle();
  EXPECT_EQ(told.back(), (gang_state{.key = job}));
  hear(1s, true);  // What comes late is of no gang.
}

/// Its sources were told last that it is gone, so its peers did not count on it any more.
TEST_F(GangOnNodes, ThatEndsAndBeginsAnewInOneTurnIsThere) {
  bench.see(100, role::offline);
  join(100, gpu_a);
  bench.settle();
  EXPECT_EQ(told.back(), (gang_state{.key = job, .nodes = 2, .wish = gang_wish::run}));
}

TEST_F(GangOnNodes, ThatEndsBeforeItWasToldOfIsNotToldOf) {
  told.clear();
  observation one;
  one.kind = observation_kind::process_seen;
  one.what = role::offline;
  one.pid = 300;
  one.start_time = start_time;
  one.group_key = job + 1;
  one.count = 2;
  bench.core->observe(0, one);
  bench.see_kind(observation_kind::process_gone, 300);
  bench.settle();
  EXPECT_TRUE(told.empty());
}

/// Its ranks on other nodes would wait for the one that runs.
TEST_F(GangOnNodes, IsRefusedWhileTheDriverRefuses) {
  bench.driver.script_outcome(100, q(0), outcome::invalid);
  hear(10s, true);
  EXPECT_FALSE(suspended());
  EXPECT_EQ(wish(), gang_wish::refused);
  EXPECT_EQ(ended.why, journal_rule::refused);
  bench.run_for(1010ms);  // The backoff is 1 s.
  EXPECT_TRUE(suspended());
  EXPECT_EQ(wish(), gang_wish::run);
}

/// So does a pause of the node.
TEST_F(GangOnNodes, IsNotHeldForTheOthersWithoutAPolicy) {
  hear(10s, true);
  ASSERT_TRUE(suspended());
  bench.core->set_policy(nullptr);
  bench.settle();
  EXPECT_FALSE(suspended());
  EXPECT_EQ(wish(), gang_wish::refused);
  EXPECT_EQ(ended.why, journal_rule::no_policy);
  hear(10s, true);
  EXPECT_FALSE(suspended());
  bench.core->set_policy(make_fixed_timeslice());
  bench.settle();
  EXPECT_EQ(wish(), gang_wish::run);
  EXPECT_TRUE(suspended());
}

TEST_F(GangOnNodes, CountsTheMostNodesThatAMemberKnows) {
  observation one;
  one.kind = observation_kind::process_seen;
  one.what = role::offline;
  one.pid = 200;
  one.start_time = start_time;
  one.group_key = job;
  one.count = 4;
  bench.core->observe(0, one);
  bench.settle();
  EXPECT_EQ(told.back().nodes, 4U);
  one.pid = 300;
  one.count = 3;
  bench.core->observe(0, one);
  bench.settle();
  EXPECT_EQ(told.back().nodes, 4U);
}

TEST_F(GangOnNodes, IsNotHeldWhileItStops) {
  hear(1s, true);
  ASSERT_TRUE(suspended());
  bench.core->begin_stop();
  bench.settle();
  EXPECT_FALSE(suspended());
  EXPECT_EQ(wish(), gang_wish::refused);
}

}  // namespace
}  // namespace sluice::tests::gang_test
