// How wanted and actual states become driver calls.

#include "core_bench.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/scheduler_core.hpp"

namespace sluice::tests::reconcile_test {
namespace {

using ::testing::HasSubstr;

std::vector<std::uint32_t> queues_of(const batch& one) {
  std::vector<std::uint32_t> ids;
  for (std::size_t i = 0; i < one.count; ++i) {
    ids.push_back(static_cast<std::uint32_t>(one.queues[i]));
  }
  return ids;
}

TEST(Reconcile, WakesTheBackendForAnArrivalThatNeedsRoomAndForNoOther) {
  attached_bench bench({0});
  auto client = bench.client();
  bench.settle();
  ASSERT_EQ(bench.driver.expectations(), 0U);
  client.begin();
  bench.step();
  EXPECT_EQ(bench.driver.expectations(), 1U);
  bench.settle();
  client.begin();  // Nothing runs any more.
  bench.settle();
  EXPECT_EQ(bench.driver.expectations(), 1U);
}

TEST(Reconcile, NoLongerWakesTheBackendForArrivalsOfWhichThePolicyMakesNothing) {
  bool hold = false;
  core_bench bench(quick_config(), make_policy([&](const snapshot& seen, decision_sink& out) {
                     for (const gpu_view& on : seen.table.gpus()) {
                       for (const group_id id : on.offline)
                         hold ? out.hold(id, never) : out.run(id);
                     }
                   }));
  bench.create(100, role::offline, gpu_a, {0});
  bench.attach_all();
  auto client = bench.client();
  bench.settle();
  const auto arrive = [&] {
    const auto before = bench.driver.expectations();
    client.begin();
    bench.settle();
    return bench.driver.expectations() - before;
  };
  EXPECT_EQ(arrive(), 1U);
  EXPECT_EQ(arrive(), 0U);
  hold = true;
  EXPECT_EQ(arrive(), 0U);  // This one suspends.
  hold = false;
  client.end();
  bench.settle();
  ASSERT_EQ(bench.driver.suspended_count(), 0U);
  EXPECT_EQ(arrive(), 1U);
}

TEST(Reconcile, SuspendsWhenOnlineWorkArrivesAndResumesWhenItIsDone) {
  attached_bench bench({0, 1});
  auto client = bench.client();
  ASSERT_TRUE(bench.driver.attached(100));
  ASSERT_TRUE(bench.driver.batches().empty());

  client.begin();
  bench.settle();
  EXPECT_EQ(bench.driver.suspended_count(), 2U);
  EXPECT_EQ(bench.group_of(gpu_a)->actual, run_state::suspended);
  bench.run_for(50ms);
  client.end();
  bench.settle();
  EXPECT_EQ(bench.driver.suspended_count(), 0U);
  EXPECT_EQ(bench.group_of(gpu_a)->actual, run_state::running);
  EXPECT_EQ(bench.driver.misuses(), 0U);
}

TEST(Reconcile, SendsNothingForASuspendAndAResumeInOneTurn) {
  core_bench bench(quick_config(), make_policy([](const snapshot& seen, decision_sink& out) {
                     for (const event& one : seen.events) {
                       for (const group_id id : seen.table.find(one.gpu)->offline) {
                         one.kind == event_kind::online_begin ? out.hold(id, never) : out.run(id);
                       }
                     }
                   }));
  bench.create(100, role::offline, gpu_a, {0});
  auto client = bench.client();
  bench.attach_all();
  client.begin();
  client.end();
  bench.settle();
  EXPECT_TRUE(bench.driver.batches().empty());
  EXPECT_EQ(bench.stats().begins, 1U);
}

TEST(Reconcile, MakesOneCallPerProcessAndGpu) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0, 1, 2});
  bench.create(100, role::offline, gpu_b, {3, 4});
  bench.create(200, role::offline, gpu_a, {0, 1});
  auto client = bench.client();
  bench.attach_all();
  client.begin();
  bench.settle();
  std::vector<std::pair<gpu_id, std::vector<std::uint32_t>>> calls;
  for (const batch& one : bench.driver.batches()) calls.emplace_back(one.gpu, queues_of(one));
  using call = std::pair<gpu_id, std::vector<std::uint32_t>>;
  EXPECT_THAT(calls, ::testing::UnorderedElementsAre(call{gpu_a, {0, 1, 2}}, call{gpu_b, {3, 4}},
                                                     call{gpu_a, {0, 1}}));
  EXPECT_EQ(bench.driver.misuses(), 0U);
}

TEST(Reconcile, LeavesTheOtherGpuAlone) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  bench.create(200, role::offline, gpu_b, {0});
  auto client = bench.client({gpu_a});
  bench.attach_all();
  client.begin();
  bench.settle();
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
  EXPECT_FALSE(bench.driver.suspended(200, q(0)));
}

TEST(Reconcile, LetsChangesPileUpWhileALaneIsBusyAndSendsWhatIsLeft) {
  attached_bench bench;
  auto client = bench.client();
  bench.driver.hold_answers(true);
  client.begin();
  bench.settle();
  ASSERT_EQ(bench.driver.batches().size(), 1U);

  // Done, back, and done again, before the driver has answered.
  bench.run_for(30ms);
  client.end();
  bench.settle();
  client.begin();
  bench.run_for(30ms);
  client.end();
  bench.settle();
  EXPECT_EQ(bench.driver.batches().size(), 1U);

  ASSERT_TRUE(bench.driver.complete());
  bench.settle();
  ASSERT_EQ(bench.driver.batches().size(), 2U);
  EXPECT_EQ(bench.driver.batches()[1].kind, command_kind::resume);
  ASSERT_TRUE(bench.driver.complete());
  bench.settle();
  EXPECT_EQ(bench.driver.batches().size(), 2U);
  EXPECT_EQ(bench.driver.misuses(), 0U);
}

TEST(Reconcile, SendsNothingWhenTheChangesOfABusyLaneCancel) {
  attached_bench bench;
  auto client = bench.client();
  bench.driver.hold_answers(true);
  client.begin();
  bench.run_for(30ms);
  client.end();
  bench.settle();
  client.begin();
  bench.settle();
  bench.driver.complete();
  bench.settle();
  EXPECT_EQ(bench.driver.batches().size(), 1U);
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
}

TEST(Reconcile, SuspendsAtOnceWhatOnlineWorkFindsBeingResumed) {
  attached_bench bench;
  auto client = bench.client();
  client.begin();
  bench.run_for(30ms);
  bench.driver.hold_answers(true);
  client.end();
  bench.settle();
  client.begin();
  bench.settle();
  ASSERT_EQ(bench.driver.batches().back().kind, command_kind::resume);
  bench.driver.complete();
  bench.settle();
  // Latency first: min_run is for forced runs only.
  EXPECT_EQ(bench.driver.batches().back().kind, command_kind::suspend);
  bench.driver.complete();
  bench.settle();
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
}

TEST(Reconcile, ServesTheGpuWithWaitingOnlineWorkFirst) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  bench.create(200, role::offline, gpu_b, {0});
  auto on_a = bench.client({gpu_a});
  auto on_b = bench.client({gpu_b});
  bench.attach_all();
  on_a.begin();
  bench.run_for(30ms);
  bench.driver.forget_batches();
  // In one turn: the resume of 100, whose process was seen first, and the suspend of 200.
  on_a.end();
  on_b.begin();
  bench.step();
  ASSERT_EQ(bench.driver.batches().size(), 2U);
  EXPECT_EQ(bench.driver.batches()[0].kind, command_kind::suspend);
  EXPECT_EQ(bench.driver.batches()[0].gpu, gpu_b);
  EXPECT_EQ(bench.driver.batches()[1].kind, command_kind::resume);
}

TEST(Reconcile, ServesWithinOneProcessTheGpuWithWaitingOnlineWorkFirst) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  bench.create(100, role::offline, gpu_b, {1});
  auto on_b = bench.client({gpu_b});
  bench.attach_all();
  on_b.begin();
  bench.settle();
  ASSERT_EQ(bench.driver.batches().size(), 2U);
  EXPECT_EQ(bench.driver.batches()[0].gpu, gpu_b);
}

TEST(Reconcile, NeverTouchesSdmaQueues) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  bench.create_queue(100, q(1), gpu_a, queue_kind::copy);
  bench.create_queue(100, q(2), gpu_a, queue_kind::copy);
  auto client = bench.client();
  bench.attach_all();
  client.begin();
  bench.settle();
  ASSERT_EQ(bench.driver.batches().size(), 1U);
  EXPECT_EQ(queues_of(bench.driver.batches()[0]), std::vector<std::uint32_t>{0});
}

TEST(Reconcile, SuspendsSdmaQueuesWhereThatIsAskedFor) {
  scheduler_config config = quick_config();
  config.suspend_copy_queues = true;
  core_bench bench{config};
  bench.create(100, role::offline, gpu_a, {0});
  bench.create_queue(100, q(1), gpu_a, queue_kind::copy);
  bench.create(200, role::unmatched, gpu_a, {});
  bench.create_queue(200, q(0), gpu_a, queue_kind::copy);
  auto client = bench.client();
  bench.attach_all();
  client.begin();
  bench.settle();
  ASSERT_EQ(bench.driver.batches().size(), 1U);
  EXPECT_EQ(queues_of(bench.driver.batches()[0]), (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(bench.group_of(gpu_a)->queues, 2U);
  EXPECT_EQ(bench.group_of(gpu_a)->actual, run_state::suspended);
  client.end();
  bench.run_for(1s);
  EXPECT_TRUE(bench.core->all_running());
  EXPECT_EQ(bench.driver.suspended_count(), 0U);
}

TEST(Reconcile, SuspendsAQueueThatAppearsWhileItsGroupIsHeld) {
  attached_bench bench;
  auto client = bench.client();
  client.begin();
  bench.settle();
  bench.driver.add_queue(100, q(1), gpu_a);
  bench.settle();
  EXPECT_TRUE(bench.driver.suspended(100, q(1)));
  EXPECT_EQ(bench.group_of(gpu_a)->queues, 2U);
}

TEST(Reconcile, SuspendsAGangTogetherAcrossGpus) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0}, 5);
  bench.create(200, role::offline, gpu_b, {0}, 5);
  auto client = bench.client({gpu_a});
  bench.attach_all();
  client.begin();
  bench.settle();
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
  EXPECT_TRUE(bench.driver.suspended(200, q(0)));
}

/// Whatever the policy says: this one holds all it hears of.
TEST(Reconcile, NeverTouchesAGroupThatIsNotOffline) {
  for (const role other : {role::unmatched, role::online}) {
    core_bench bench(quick_config(), make_policy([](const snapshot& seen, decision_sink& out) {
                       for (const group_id id : seen.changed) out.hold(id, never);
                     }));
    bench.create(100, role::offline, gpu_a, {0}, 5);
    bench.create(200, other, gpu_a, {0}, 5);
    bench.create(300, other, gpu_a, {0});
    bench.attach_all();
    EXPECT_TRUE(bench.driver.attached(100));
    EXPECT_TRUE(bench.driver.batches().empty());
  }
}

// Outcomes --------------------------------------------------------------------------------------

TEST(Outcomes, OfOneBatchAreTakenQueueByQueue) {
  attached_bench bench({0, 1, 2});
  auto client = bench.client();
  bench.driver.script_outcome(100, q(1), outcome::invalid);
  bench.driver.script_outcome(100, q(2), outcome::failed);
  client.begin();
  bench.step();
  bench.step();
  // Queue 0 is off, 1 was left alone, and 2 is in doubt and so being resumed.
  ASSERT_EQ(bench.driver.batches().size(), 2U);
  EXPECT_EQ(bench.driver.batches()[1].kind, command_kind::resume);
  EXPECT_EQ(queues_of(bench.driver.batches()[1]), std::vector<std::uint32_t>{2});
  bench.settle();
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
  EXPECT_FALSE(bench.driver.suspended(100, q(1)));
  EXPECT_FALSE(bench.driver.suspended(100, q(2)));
  EXPECT_EQ(bench.group_of(gpu_a)->actual, run_state::mixed);
  const auto stats = bench.stats();
  EXPECT_EQ(stats.suspends, 1U);
  EXPECT_EQ(stats.resumes, 1U);
  EXPECT_EQ(stats.invalid_outcomes, 1U);
  EXPECT_EQ(stats.failed_outcomes, 1U);
  EXPECT_EQ(stats.driver_calls, 2U);
}

// What was said once: "(driver errno 0)", "(0 more such lines left out)".
TEST(Outcomes, AFailureIsLoggedWithWhatTheDriverSaidAndWithNothingElse) {
  attached_bench bench({0, 1});
  auto client = bench.client();
  bench.driver.script_outcome(100, q(1), outcome::failed);
  ::testing::internal::CaptureStderr();
  client.begin();
  bench.settle();
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr("process 100: the suspend of 1 of 2 queues on GPU 10 failed; they are being "
                "resumed part=driver pid=100 gpu=10 queues=2 failed=1 errno=0\n"));
  bench.run_for(2s);
  bench.driver.script_outcome(100, q(1), outcome::failed);
  bench.driver.script_errno(EIO);
  ::testing::internal::CaptureStderr();
  bench.run_for(2s);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr(" failed: Input/output error; they are being resumed part=driver"));
}

TEST(Outcomes, InvalidIsTriedAgainWhenTheDriverAnnouncesTheQueue) {
  attached_bench bench;
  auto client = bench.client();
  bench.driver.script_outcome(100, q(0), outcome::invalid);
  client.begin();
  bench.settle();
  EXPECT_EQ(bench.driver.batches().size(), 1U);
  bench.driver.repeat_queue(100, q(0));
  bench.settle();
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
}

TEST(Outcomes, InvalidIsTriedAgainAfterTheBackoffAndNeverInAHotLoop) {
  auto config = quick_config();
  config.max_suspend = 141s;
  config.max_busy = 1h;
  attached_bench bench({0}, config);
  auto client = bench.client();
  bench.driver.script_outcome(100, q(0), outcome::invalid, 1000);
  client.begin();
  bench.settle();
  bench.run_for(999ms);
  EXPECT_EQ(bench.driver.batches().size(), 1U);
  bench.run_for(1ms);
  EXPECT_EQ(bench.driver.batches().size(), 2U);
  bench.run_for(100s);
  // 1 + 2 + 4 + 8 + 16 + 32 s, then every 64 s.
  EXPECT_LE(bench.driver.batches().size(), 8U);
  EXPECT_GE(bench.driver.batches().size(), 7U);
}

TEST(Outcomes, AFailedSuspendIsResumedAtOnceAndNotRepeatedBeforeTheBackoff) {
  attached_bench bench;
  auto client = bench.client();
  bench.driver.script_outcome(100, q(0), outcome::failed);
  client.begin();
  bench.settle();
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
  EXPECT_EQ(bench.driver.batches().size(), 2U);
  bench.run_for(990ms);
  EXPECT_EQ(bench.driver.batches().size(), 2U);
  bench.run_for(20ms);
  EXPECT_EQ(bench.driver.batches().size(), 3U);
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
}

TEST(Outcomes, AFailedResumeIsRepeatedUntilItWorks) {
  attached_bench bench;
  auto client = bench.client();
  client.begin();
  bench.run_for(30ms);
  bench.driver.script_outcome(100, q(0), outcome::failed, 2);
  client.end();
  bench.settle();
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
  EXPECT_EQ(bench.group_of(gpu_a)->actual, run_state::mixed);
  bench.run_for(1s);
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
  bench.run_for(2s);
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
  EXPECT_EQ(bench.group_of(gpu_a)->actual, run_state::running);
  EXPECT_EQ(bench.stats().suspended_now, 0U);
}

TEST(Outcomes, AreAboutTheQueueThatHasTheNumberNow) {
  attached_bench bench;
  auto client = bench.client();
  bench.driver.hold_answers(true);
  client.begin();
  bench.settle();
  // The queue goes, another gets its number, and the driver suspends that one.
  bench.driver.remove_queue(100, q(0));
  bench.driver.add_queue(100, q(0), gpu_a);
  bench.settle();
  client.end();
  bench.run_for(30ms);
  bench.driver.complete();
  bench.settle();
  ASSERT_TRUE(bench.driver.suspended(100, q(0)));
  ASSERT_EQ(bench.driver.batches().back().kind, command_kind::resume);
  bench.driver.complete();
  bench.settle();
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
}

TEST(Outcomes, OfAQueueThatWentMeanwhileAreIgnored) {
  attached_bench bench({0, 1});
  auto client = bench.client();
  bench.driver.hold_answers(true);
  client.begin();
  bench.settle();
  bench.see_kind(observation_kind::queue_gone, 100, q(1));
  bench.driver.remove_queue(100, q(1));
  bench.settle();
  bench.driver.complete();
  bench.settle();
  EXPECT_EQ(bench.group_of(gpu_a)->actual, run_state::suspended);
  EXPECT_EQ(bench.stats().suspended_now, 1U);
}

TEST(Outcomes, OfATargetThatIsGoneLeaveNothingSuspended) {
  attached_bench bench;
  auto client = bench.client();
  bench.driver.script_outcome(100, q(0), outcome::target_gone, 100);
  client.begin();
  bench.step();
  bench.see_kind(observation_kind::process_gone, 100);
  bench.settle();
  EXPECT_EQ(bench.stats().suspended_now, 0U);
  EXPECT_EQ(bench.group_of(gpu_a), nullptr);
}

TEST(Outcomes, ABusyLaneIsTriedAgainSoon) {
  attached_bench bench;
  auto client = bench.client();
  bench.driver.refuse_submit(errc::busy);
  client.begin();
  bench.settle();
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
  bench.run_for(2ms);
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
}

TEST(Outcomes, AFullBackendIsTriedAgainSoonAndKeepsItsSessions) {
  attached_bench bench;
  auto client = bench.client();
  bench.driver.refuse_submit(errc::full);
  client.begin();
  bench.run_for(2ms);
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
  bench.driver.refuse_submit(errc::full);
  client.end();
  bench.run_for(30ms);
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
  EXPECT_TRUE(bench.driver.detaches().empty());
}

TEST(Outcomes, AnInvalidResumeIsNotTakenForRunning) {
  attached_bench bench;
  auto client = bench.client();
  client.begin();
  bench.run_for(30ms);
  bench.driver.script_outcome(100, q(0), outcome::invalid);
  client.end();
  bench.settle();
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
  EXPECT_FALSE(bench.core->all_running());
  EXPECT_EQ(bench.stats().suspended_now, 1U);
  bench.run_for(3s);  // Tried again, with a pause.
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
  EXPECT_TRUE(bench.core->all_running());
}

TEST(Outcomes, AnInvalidResumeOfAQueueThatGoesAwayIsForgotten) {
  attached_bench bench;
  auto client = bench.client();
  client.begin();
  bench.run_for(30ms);
  bench.driver.script_outcome(100, q(0), outcome::invalid, 100);
  client.end();
  bench.settle();
  bench.driver.remove_queue(100, q(0));
  bench.settle();
  EXPECT_TRUE(bench.core->all_running());
}

TEST(Outcomes, AResumeThatIsRefusedEndsTheSession) {
  attached_bench bench;
  auto client = bench.client();
  client.begin();
  bench.run_for(30ms);
  bench.driver.refuse_submit(errc::lost);
  client.end();
  bench.settle();
  EXPECT_EQ(bench.driver.detaches().size(), 1U);
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
  EXPECT_EQ(bench.stats().suspended_now, 0U);
}

// What can be lost ------------------------------------------------------------------------------

TEST(Loss, SeenByADetachFirstLeavesNothingInFlight) {
  attached_bench bench;
  auto client = bench.client();
  bench.driver.hold_answers(true);
  client.begin();
  bench.settle();
  ASSERT_EQ(bench.driver.in_flight(), 1U);
  bench.driver.refuse_detach(errc::lost);
  bench.see_kind(observation_kind::process_gone, 100);
  bench.settle();
  bench.driver.lose();
  bench.driver.restore();
  bench.settle();
  EXPECT_TRUE(bench.core->all_running());
}

TEST(Loss, OfTheBackendMakesEverythingCountAsRunning) {
  attached_bench bench;
  auto client = bench.client();
  client.begin();
  bench.settle();
  bench.driver.forget_batches();
  bench.driver.lose();
  bench.run_for(20s);
  EXPECT_EQ(bench.group_of(gpu_a)->actual, run_state::running);
  EXPECT_FALSE(bench.group_of(gpu_a)->manageable);
  EXPECT_TRUE(bench.driver.batches().empty());
  EXPECT_EQ(bench.driver.attaches().size(), 1U);
  EXPECT_EQ(bench.stats().suspended_now, 0U);
}

TEST(Loss, OfTheBackendIsFollowedByAttachingAgainOnceItIsBack) {
  attached_bench bench;
  auto client = bench.client();
  bench.driver.lose();
  bench.run_for(1s);
  bench.driver.restore();
  bench.settle();
  EXPECT_TRUE(bench.driver.attached(100));
  EXPECT_EQ(bench.stats().backend_restarts, 1U);
  client.begin();
  bench.settle();
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
}

// Symptom: after the agent's death under load nothing made room for attach_at_latest -
// attach_after.
TEST(Loss, OfTheBackendUnderLoadIsFollowedByAttachingAgainAtOnce) {
  attached_bench bench;
  auto client = bench.client();
  client.begin();
  bench.settle();
  bench.create(200, role::offline, gpu_a, {0});
  bench.run_for(500ms);
  bench.driver.lose();
  bench.settle();
  ::testing::internal::CaptureStderr();
  bench.driver.restore();
  bench.settle();
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
  client.end();
  bench.run_for(1s);
  EXPECT_FALSE(bench.driver.attached(200)) << "a new one goes on waiting";
  bench.run_for(1s);
  EXPECT_TRUE(bench.driver.attached(200));
  const auto said = ::testing::internal::GetCapturedStderr();
  const auto at =
      said.find("backend scripted: restored; 1 processes attached again part=driver attached=1\n");
  ASSERT_NE(at, std::string::npos) << said;
  EXPECT_EQ(said.find("back;", at + 30), std::string::npos) << "once";
}

// Symptom: a process that ended while the agent died hung in its runtime's last call for ever.
TEST(Loss, OfTheBackendIsMadeUpForOfAProcessThatHasNoQueuesAnyMore) {
  attached_bench bench;
  bench.driver.remove_queue(100, q(0));
  bench.see_kind(observation_kind::queue_gone, 100, q(0));
  bench.settle();
  bench.driver.lose();
  bench.settle();
  bench.driver.restore();
  bench.settle();
  EXPECT_TRUE(bench.driver.attached(100));
}

TEST(Loss, OfTheBackendIsMadeUpForUnderLoadThoughAnAttachFails) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  bench.create(200, role::offline, gpu_a, {0});
  bench.attach_all();
  auto client = bench.client({gpu_a});
  client.begin();
  bench.settle();
  bench.driver.lose();
  bench.settle();
  bench.driver.script_attach(100, errc::lost);
  ::testing::internal::CaptureStderr();
  bench.driver.restore();
  bench.settle();
  EXPECT_FALSE(bench.driver.attached(100));
  EXPECT_TRUE(bench.driver.attached(200));
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      ::testing::HasSubstr("restored; 1 of 2 processes attached again part=driver attached=1\n"));
  bench.run_for(quick_config().failure_backoff);
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
}

TEST(Loss, OfTheBackendWithABatchInFlightLeavesTheLaneUsable) {
  attached_bench bench;
  auto client = bench.client();
  bench.driver.hold_answers(true);
  client.begin();
  bench.settle();
  bench.driver.lose();
  bench.settle();
  bench.driver.hold_answers(false);
  bench.driver.restore();
  bench.run_for(11s);
  EXPECT_TRUE(bench.driver.attached(100));
  EXPECT_TRUE(bench.core->stats().driver_calls > 0U);
  EXPECT_EQ(bench.driver.misuses(), 0U);
}

TEST(Loss, OfAGpuEndsSuspendingThereAndNowhereElse) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  bench.create(200, role::offline, gpu_b, {0});
  auto client = bench.client();
  bench.attach_all();
  client.begin();
  bench.settle();
  ASSERT_EQ(bench.driver.suspended_count(), 2U);
  bench.driver.lose_gpu(gpu_a);
  bench.settle();
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
  EXPECT_TRUE(bench.driver.suspended(200, q(0)));
  client.end();
  bench.run_for(30ms);
  bench.driver.forget_batches();
  client.begin();
  bench.settle();
  ASSERT_EQ(bench.driver.batches().size(), 1U);
  EXPECT_EQ(bench.driver.batches()[0].gpu, gpu_b);
  EXPECT_EQ(bench.stats().gpus_lost, 1U);
}

TEST(Loss, OfAGpuIsHeardFromASourceAsFromTheBackend) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  bench.create(200, role::offline, gpu_b, {0});
  auto client = bench.client();
  bench.attach_all();
  client.begin();
  bench.settle();
  ASSERT_EQ(bench.driver.suspended_count(), 2U);
  observation lost;
  lost.kind = observation_kind::gpu_lost;
  lost.gpu = gpu_a;
  bench.core->observe(0, lost);
  bench.core->observe(0, lost);
  bench.settle();
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
  EXPECT_TRUE(bench.driver.suspended(200, q(0)));
  EXPECT_EQ(bench.stats().gpus_lost, 1U);
  // A later truth of the source that does not repeat it does not take it back.
  bench.see_kind(observation_kind::resync_begin);
  bench.see_kind(observation_kind::resync_end);
  client.end();
  bench.run_for(30ms);
  client.begin();
  bench.settle();
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
}

// Stopping --------------------------------------------------------------------------------------

TEST(Stop, ResumesEverythingAndHoldsNothingAfterwards) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0, 1});
  bench.create(200, role::offline, gpu_b, {0});
  auto client = bench.client();
  bench.attach_all();
  client.begin();
  bench.settle();
  ASSERT_EQ(bench.driver.suspended_count(), 3U);
  bench.driver.set_delay(5ms);
  bench.core->begin_stop();
  bench.step();
  EXPECT_FALSE(bench.core->all_running());
  bench.run_for(10ms);
  EXPECT_TRUE(bench.core->all_running());
  EXPECT_EQ(bench.driver.suspended_count(), 0U);
  client.begin();
  bench.run_for(10ms);
  EXPECT_EQ(bench.driver.suspended_count(), 0U);
  bench.core->finish_stop();
  EXPECT_TRUE(bench.driver.stopped());
  EXPECT_EQ(bench.core->register_client({"late", {}, 1ms}).error(), errc::stopped);
}

TEST(Statistics, MeasureArrivalToOffAndTheDriversTime) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  bench.create(200, role::offline, gpu_a, {0});
  auto client = bench.client();
  bench.attach_all();
  bench.driver.set_delay(5ms);
  client.begin();
  bench.time.advance(1ms);
  bench.run_for(50ms);
  const auto stats = bench.stats();
  EXPECT_EQ(stats.decision.count(), 1U);
  EXPECT_EQ(stats.decision.max(), 1ms);
  EXPECT_EQ(stats.arrival_to_off.count(), 1U);
  EXPECT_EQ(stats.arrival_to_off.max(), 6ms);
  EXPECT_EQ(stats.suspend_call.count(), 2U);
  EXPECT_EQ(stats.suspend_call.max(), 5ms);
  EXPECT_EQ(stats.suspended_now, 2U);
}

TEST(Statistics, DoNotCallAPolicyThatLetsOfflineRunSlow) {
  core_bench bench(quick_config(), make_policy([](const snapshot&, decision_sink&) {}));
  bench.create(100, role::offline, gpu_a, {0});
  auto client = bench.client();
  bench.attach_all();
  client.begin();
  bench.run_for(1s);
  EXPECT_EQ(bench.stats().arrival_to_off.count(), 0U);
  EXPECT_EQ(bench.stats().decision.count(), 0U);
}

}  // namespace
}  // namespace sluice::tests::reconcile_test
