// Who is traced, and when; and what sources say of the world.

#include "core_bench.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::tests::attach_test {
namespace {

TEST(Attach, WaitsUntilAComputeQueueHasBeenOwnedForAttachAfter) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  bench.run_for(1'999ms);
  EXPECT_TRUE(bench.driver.attaches().empty());
  bench.run_for(1ms);
  ASSERT_EQ(bench.driver.attaches().size(), 1U);
  EXPECT_EQ(bench.driver.attaches()[0].pid, 100);
  EXPECT_EQ(bench.driver.attaches()[0].start_time, start_time);
  EXPECT_TRUE(bench.group_of(gpu_a)->manageable);
}

TEST(Attach, NeverHappensToAProcessThatLivesShorter) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  bench.run_for(1s);
  bench.see_kind(observation_kind::process_gone, 100);
  bench.run_for(20s);
  EXPECT_TRUE(bench.driver.attaches().empty());
}

TEST(Attach, NeverHappensWithoutAComputeQueue) {
  core_bench bench;
  bench.see(100, role::offline);
  bench.create_queue(100, q(0), gpu_a, queue_kind::copy);
  bench.run_for(60s);
  EXPECT_TRUE(bench.driver.attaches().empty());
}

TEST(Attach, CountsTheTimeFromANewFirstQueueAfterAllWereGone) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  bench.run_for(1'500ms);
  bench.see_kind(observation_kind::queue_gone, 100, q(0));
  bench.run_for(100ms);
  bench.see_queue(100, q(0), gpu_a);
  bench.run_for(1'900ms);
  EXPECT_TRUE(bench.driver.attaches().empty());
  bench.run_for(200ms);
  EXPECT_EQ(bench.driver.attaches().size(), 1U);
}

TEST(Attach, NeverHappensToOnlineUnmatchedOrOwnProcesses) {
  core_bench bench;
  bench.create(100, role::online, gpu_a, {0});
  bench.create(200, role::unmatched, gpu_a, {0});
  bench.create(4242, role::offline, gpu_a, {0});  // The scheduler's own pid.
  bench.run_for(60s);
  EXPECT_TRUE(bench.driver.attaches().empty());
}

TEST(Attach, WaitsForOnlineWorkToEnd) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  auto client = bench.client({gpu_a});
  client.begin();
  bench.run_for(5s);
  EXPECT_TRUE(bench.driver.attaches().empty());
  client.end();
  bench.settle();
  EXPECT_EQ(bench.driver.attaches().size(), 1U);
}

TEST(Attach, IgnoresOnlineWorkOnOtherGpus) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  auto client = bench.client({gpu_b});
  client.begin();
  bench.run_for(3s);
  EXPECT_EQ(bench.driver.attaches().size(), 1U);
}

TEST(Attach, HappensAtTheLatestAtAttachAtLatestAndThenSuspends) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  auto client = bench.client({gpu_a});
  client.begin();
  bench.run_for(9'999ms);
  EXPECT_TRUE(bench.driver.attaches().empty());
  bench.run_for(1ms);
  EXPECT_EQ(bench.driver.attaches().size(), 1U);
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
}

TEST(Attach, IsDoneOneAtATimePerGpu) {
  core_bench bench;
  bench.driver.hold_attaches(true);
  bench.create(100, role::offline, gpu_a, {0});
  bench.create(200, role::offline, gpu_a, {0});
  bench.create(300, role::offline, gpu_b, {0});
  bench.run_for(20s);
  EXPECT_EQ(bench.driver.attaches().size(), 2U);  // One on each GPU.
  bench.driver.finish_attaches();
  bench.settle();
  ASSERT_EQ(bench.driver.attaches().size(), 3U);
  EXPECT_EQ(bench.driver.attaches()[2].pid, 200);
  bench.driver.finish_attaches();
  bench.settle();
  EXPECT_TRUE(bench.driver.attached(200));
}

TEST(Attach, IsTriedAgainAfterAFailureWithAGrowingBackoff) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  for (int i = 0; i < 3; ++i) bench.driver.script_attach(100, errc::lost);
  bench.run_for(2'001ms);
  EXPECT_EQ(bench.driver.attaches().size(), 1U);
  bench.run_for(1s);
  EXPECT_EQ(bench.driver.attaches().size(), 2U);
  bench.run_for(1'900ms);
  EXPECT_EQ(bench.driver.attaches().size(), 2U);
  bench.run_for(200ms);
  EXPECT_EQ(bench.driver.attaches().size(), 3U);
  bench.run_for(5s);
  EXPECT_TRUE(bench.driver.attached(100));
  EXPECT_EQ(bench.stats().attach_failures, 3U);
  EXPECT_EQ(bench.stats().attaches, 1U);
}

TEST(Attach, IsRarelyTriedWithWhatCannotBeManagedNow) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  for (int i = 0; i < 5; ++i) bench.driver.script_attach(100, errc::not_managed);
  bench.run_for(241s);  // After 2 s, and every minute.
  EXPECT_EQ(bench.driver.attaches().size(), 4U);
  EXPECT_FALSE(bench.group_of(gpu_a)->manageable);
  bench.run_for(2s);
  EXPECT_EQ(bench.driver.attaches().size(), 5U);
  EXPECT_FALSE(bench.driver.attached(100));
  bench.run_for(60s);  // The debugger that had it is gone.
  EXPECT_TRUE(bench.driver.attached(100));
}

// Symptom: the log said that a session was ended, and never that the process is scheduled again.
TEST(Attach, IsSaidAgainAfterASessionThatEnded) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  ::testing::internal::CaptureStderr();
  bench.attach_all();
  bench.driver.end_session(100);
  bench.run_for(1s);
  EXPECT_EQ(::testing::internal::GetCapturedStderr().find("schedules it again"), std::string::npos)
      << "not by the first attach, nor before the next";
  ::testing::internal::CaptureStderr();
  bench.run_for(10s);
  ASSERT_TRUE(bench.driver.attached(100));
  bench.run_for(10s);
  const auto said = ::testing::internal::GetCapturedStderr();
  const auto at =
      said.find("process 100: attached; sluice schedules it again part=attach pid=100\n");
  ASSERT_NE(at, std::string::npos) << said;
  EXPECT_EQ(said.find("schedules it again", at + 40), std::string::npos) << "once";
}

TEST(Attach, IsGivenBackWhenTheProcessBecomesOnline) {
  attached_bench bench;
  auto client = bench.client();
  client.begin();
  bench.settle();
  ASSERT_TRUE(bench.driver.suspended(100, q(0)));
  bench.see(100, role::online);
  bench.settle();
  EXPECT_FALSE(bench.driver.attached(100));
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
  EXPECT_EQ(bench.stats().detaches, 1U);
  EXPECT_EQ(bench.stats().suspended_now, 0U);
  bench.run_for(60s);
  EXPECT_EQ(bench.driver.attaches().size(), 1U);
}

TEST(Attach, IsGivenBackWhenAProcessWithoutQueuesBecomesOnline) {
  attached_bench bench;
  bench.driver.remove_queue(100, q(0));
  bench.see_kind(observation_kind::queue_gone, 100, q(0));
  bench.settle();
  EXPECT_TRUE(bench.driver.attached(100));
  bench.see(100, role::online);
  bench.settle();
  EXPECT_FALSE(bench.driver.attached(100));
}

TEST(Attach, IsGivenBackWhenTheRoleChangedWhileAttaching) {
  core_bench bench;
  bench.driver.hold_attaches(true);
  bench.create(100, role::offline, gpu_a, {0});
  bench.attach_all();
  bench.see(100, role::unmatched);
  bench.settle();
  bench.driver.finish_attaches();
  bench.settle();
  EXPECT_FALSE(bench.driver.attached(100));
  EXPECT_EQ(bench.driver.detaches().size(), 1U);
}

TEST(Attach, EndsWithTheProcess) {
  attached_bench bench;
  auto client = bench.client();
  client.begin();
  bench.settle();
  bench.see_kind(observation_kind::process_gone, 100);
  bench.settle();
  EXPECT_FALSE(bench.driver.attached(100));
  EXPECT_EQ(bench.group_of(gpu_a), nullptr);
  EXPECT_EQ(bench.stats().suspended_now, 0U);
}

TEST(Attach, FollowsASessionThatEndedByItself) {
  attached_bench bench;
  auto client = bench.client();
  client.begin();
  bench.settle();
  bench.driver.end_session(100);
  bench.settle();
  EXPECT_EQ(bench.stats().suspended_now, 0U);
  EXPECT_FALSE(bench.group_of(gpu_a)->manageable);
  client.end();
  bench.run_for(3s);
  EXPECT_TRUE(bench.driver.attached(100));
}

// What sources say ------------------------------------------------------------------------------

TEST(Observation, OfOneOnlineVoteSettlesTheRole) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  bench.see(100, role::online, 0, 1);  // Another source.
  bench.run_for(60s);
  EXPECT_TRUE(bench.driver.attaches().empty());
  bench.see(100, role::unmatched, 0, 1);
  bench.run_for(3s);
  EXPECT_EQ(bench.driver.attaches().size(), 1U);
}

TEST(Observation, OfAReusedPidIsAnotherProcess) {
  core_bench bench;
  bench.create(100, role::online, gpu_a, {0});
  observation successor;
  successor.kind = observation_kind::process_seen;
  successor.what = role::offline;
  successor.pid = 100;
  successor.start_time = start_time + 1;
  bench.core->observe(0, successor);
  bench.see_kind(observation_kind::process_gone, 100);  // The first one.
  successor.kind = observation_kind::queue_seen;
  successor.queue = q(0);
  successor.gpu = gpu_a;
  successor.type = queue_kind::compute;
  bench.core->observe(0, successor);
  bench.run_for(3s);
  ASSERT_EQ(bench.driver.attaches().size(), 1U);
  EXPECT_EQ(bench.driver.attaches()[0].start_time, start_time + 1);
}

TEST(Observation, OfAQueueThatTheBackendHoldsDoesNotDisturbIt) {
  attached_bench bench;
  auto client = bench.client();
  client.begin();
  bench.settle();
  // From outside an AQL queue may look like a PM4 queue, or like anything while it is going.
  bench.see_queue(100, q(0), gpu_a, queue_kind::compute);
  bench.see_queue(100, q(0), gpu_b, queue_kind::copy);
  bench.settle();
  EXPECT_EQ(bench.stats().suspended_now, 1U);
  client.end();
  bench.run_for(30ms);
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
  EXPECT_EQ(bench.stats().suspended_now, 0U);
}

TEST(Observation, MovesAProcessToAnotherGroup) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  bench.create(200, role::offline, gpu_b, {0});
  auto client = bench.client({gpu_a});
  bench.attach_all();
  bench.see(100, role::offline, 9);
  bench.see(200, role::offline, 9);
  bench.settle();
  EXPECT_EQ(bench.group_of(gpu_a)->id, bench.group_of(gpu_b)->id);
  client.begin();
  bench.settle();
  EXPECT_TRUE(bench.driver.suspended(200, q(0)));
  bench.see(200, role::offline, 0);
  bench.settle();
  EXPECT_FALSE(bench.driver.suspended(200, q(0)));
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
}

TEST(Resync, SweepsWhatWasNotNamedAgain) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0, 1});
  bench.create(200, role::offline, gpu_a, {0});
  bench.settle();
  ASSERT_NE(bench.group_of(gpu_a, 1), nullptr);
  bench.see_kind(observation_kind::resync_begin);
  bench.see(100, role::offline);
  bench.see_queue(100, q(1), gpu_a);
  bench.see_kind(observation_kind::resync_end);
  bench.settle();
  EXPECT_NE(bench.group_of(gpu_a, 0), nullptr);
  EXPECT_EQ(bench.group_of(gpu_a, 1), nullptr);
  bench.run_for(3s);
  ASSERT_EQ(bench.driver.attaches().size(), 1U);
  EXPECT_EQ(bench.driver.attaches()[0].pid, 100);
}

TEST(Resync, LeavesWhatOtherSourcesSay) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  bench.see(200, role::offline, 0, 1);
  bench.see_queue(200, q(0), gpu_a, queue_kind::compute, 1);
  bench.see_kind(observation_kind::resync_begin, 0, {}, 0);
  bench.see_kind(observation_kind::resync_end, 0, {}, 0);
  bench.settle();
  ASSERT_NE(bench.group_of(gpu_a), nullptr);
  EXPECT_EQ(bench.group_of(gpu_a, 1), nullptr);
  bench.run_for(3s);
  ASSERT_EQ(bench.driver.attaches().size(), 1U);
  EXPECT_EQ(bench.driver.attaches()[0].pid, 200);
}

TEST(Resync, KeepsTheQueuesThatTheBackendHolds) {
  attached_bench bench;
  auto client = bench.client();
  client.begin();
  bench.settle();
  bench.see_kind(observation_kind::resync_begin);
  bench.see(100, role::offline);  // Its queue was not readable just now.
  bench.see_kind(observation_kind::resync_end);
  bench.settle();
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
  client.end();
  bench.run_for(30ms);
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
}

TEST(Resync, OfAHeldProcessThatIsGoneLetsGoOfIt) {
  attached_bench bench;
  auto client = bench.client();
  client.begin();
  bench.settle();
  bench.see_kind(observation_kind::resync_begin);
  bench.see_kind(observation_kind::resync_end);
  bench.settle();
  EXPECT_FALSE(bench.driver.attached(100));
  EXPECT_EQ(bench.stats().suspended_now, 0U);
}

/// It had queues on two GPUs, one was lost, and it let go of its queue there.
TEST(Attach, ComesOnceTheQueueOnALostGpuIsGone) {
  core_bench bench;
  bench.see(100, role::offline);
  bench.create_queue(100, q(0), gpu_a);
  bench.create_queue(100, q(1), gpu_b);
  bench.settle();
  bench.driver.lose_gpu(gpu_a);
  bench.run_for(5s);
  ASSERT_FALSE(bench.driver.attached(100));
  bench.driver.remove_queue(100, q(0));
  bench.see_kind(observation_kind::queue_gone, 100, q(0));
  bench.run_for(5s);
  EXPECT_TRUE(bench.driver.attached(100));
}

/// A queue that a source sees was forgotten with the session, and so was its process never attached
/// again: its number had been another queue's, and the source had said so before the driver did.
TEST(Attach, ComesBackToAQueueWhoseNumberWasUsedAgain) {
  for (const gpu_id where : {gpu_a, gpu_b}) {
    attached_bench bench;
    bench.see_kind(observation_kind::queue_gone, 100, q(0));
    bench.see_queue(100, q(0), where);
    bench.driver.add_queue(100, q(0), where);
    bench.settle();
    bench.driver.lose();
    bench.settle();
    bench.driver.restore();
    bench.run_for(5s);
    EXPECT_TRUE(bench.driver.attached(100));
  }
}

}  // namespace
}  // namespace sluice::tests::attach_test
