#include "sluice/policies/fixed_timeslice.hpp"

#include <chrono>

#include <gtest/gtest.h>

#include "sluice/testing/policy_harness.hpp"

namespace sluice {
namespace {

using namespace std::chrono_literals;

constexpr gpu_id gpu_a{10};
constexpr gpu_id gpu_b{20};
constexpr group_id train{1};
constexpr group_id other{2};
constexpr group_id serving{3};

/// One offline group on one of two GPUs, and slices of 20 ms.
class node : public testing::policy_harness {
 public:
  explicit node(release_on release = release_on::client_done)
      : policy_harness(make_fixed_timeslice({.slice = 20ms, .release = release})) {
    table().add_gpu(gpu_a);
    table().add_gpu(gpu_b);
    table().add_group(train, role::offline, {gpu_a});
  }
};

TEST(FixedTimeslice, HoldsNothingUntilOnlineWorkArrives) {
  node harness;
  harness.change(train);
  EXPECT_FALSE(harness.held(train));
}

TEST(FixedTimeslice, HoldsEveryOfflineGroupOfTheGpuWhenOnlineWorkArrives) {
  node harness;
  harness.table().add_group(other, role::offline, {gpu_a});
  harness.begin(gpu_a);
  EXPECT_TRUE(harness.held(train));
  EXPECT_TRUE(harness.held(other));
}

TEST(FixedTimeslice, LeavesOtherGpusAlone) {
  node harness;
  harness.table().add_group(other, role::offline, {gpu_b});
  harness.begin(gpu_a);
  EXPECT_FALSE(harness.held(other));
}

TEST(FixedTimeslice, NeverHoldsOnlineOrUnmatchedGroups) {
  node harness;
  harness.table().add_group(serving, role::online, {gpu_a});
  harness.table().add_group(other, role::unmatched, {gpu_a});
  harness.begin(gpu_a);
  harness.change(serving);
  harness.change(other);
  EXPECT_FALSE(harness.held(serving));
  EXPECT_FALSE(harness.held(other));
}

TEST(FixedTimeslice, KeepsHoldingForASliceAfterAnArrivalThatEndedAtOnce) {
  node harness;
  harness.begin(gpu_a);
  harness.advance(1ms);
  harness.end(gpu_a);
  harness.advance(18ms);
  EXPECT_TRUE(harness.held(train));
  harness.advance(1ms);
  EXPECT_FALSE(harness.held(train));
}

TEST(FixedTimeslice, HoldsForASliceEvenForWorkThatWasOverBeforeItLooked) {
  node harness;
  harness.blink(gpu_a);
  harness.advance(19ms);
  EXPECT_TRUE(harness.held(train));
  harness.advance(1ms);
  EXPECT_FALSE(harness.held(train));
}

TEST(FixedTimeslice, CountsTheSliceFromTheLastArrival) {
  node harness;
  harness.blink(gpu_a);
  harness.advance(15ms);
  harness.blink(gpu_a);
  harness.advance(19ms);
  EXPECT_TRUE(harness.held(train));
  harness.advance(1ms);
  EXPECT_FALSE(harness.held(train));
}

TEST(FixedTimeslice, HoldsWithClientDoneForAsLongAsWorkIsInFlight) {
  node harness;
  harness.begin(gpu_a);
  harness.advance(5s);
  EXPECT_TRUE(harness.held(train));
  harness.end(gpu_a);
  EXPECT_FALSE(harness.held(train));
}

TEST(FixedTimeslice, WaitsWithClientDoneForTheLastOfSeveral) {
  node harness;
  harness.begin(gpu_a, 3);
  harness.advance(100ms);
  harness.end(gpu_a, 2);
  EXPECT_TRUE(harness.held(train));
  harness.end(gpu_a);
  EXPECT_FALSE(harness.held(train));
}

TEST(FixedTimeslice, ReleasesWithSliceEndWhateverTheClientSays) {
  node harness(release_on::slice_end);
  harness.begin(gpu_a);
  harness.advance(19ms);
  EXPECT_TRUE(harness.held(train));
  harness.advance(1ms);
  EXPECT_FALSE(harness.held(train));
}

TEST(FixedTimeslice, IgnoresWithSliceEndThatTheClientIsDone) {
  node harness(release_on::slice_end);
  harness.begin(gpu_a);
  harness.advance(1ms);
  harness.end(gpu_a);
  harness.advance(10ms);
  EXPECT_TRUE(harness.held(train));
}

TEST(FixedTimeslice, HoldsAGroupThatAppearsWhileTheGpuIsHeld) {
  node harness;
  harness.begin(gpu_a);
  harness.table().add_group(other, role::offline, {gpu_a});
  harness.change(other);
  EXPECT_TRUE(harness.held(other));
}

TEST(FixedTimeslice, HoldsAgainAfterTheLimitsMadeAGroupRun) {
  node harness;
  harness.begin(gpu_a);
  harness.advance(1s);
  harness.change(train);  // What the scheduler does after max_suspend.
  EXPECT_TRUE(harness.held(train));
}

TEST(FixedTimeslice, ReleasesAGroupThatLeftTheBusyGpu) {
  node harness;
  harness.begin(gpu_a);
  harness.table().add_group(train, role::offline, {gpu_b});
  harness.change(train);
  EXPECT_FALSE(harness.held(train));
}

TEST(FixedTimeslice, HoldsAGangUntilEveryOneOfItsGpusIsFree) {
  node harness;
  harness.table().add_group(train, role::offline, {gpu_a, gpu_b});
  harness.begin(gpu_a);
  harness.begin(gpu_b);
  harness.advance(50ms);
  harness.end(gpu_a);
  EXPECT_TRUE(harness.held(train));
  harness.end(gpu_b);
  EXPECT_FALSE(harness.held(train));
}

TEST(FixedTimeslice, HoldsAGangWithSliceEndUntilTheLastSliceIsOver) {
  node harness(release_on::slice_end);
  harness.table().add_group(train, role::offline, {gpu_a, gpu_b});
  harness.begin(gpu_a);
  harness.advance(10ms);
  harness.begin(gpu_b);
  harness.advance(15ms);
  EXPECT_TRUE(harness.held(train));
  harness.advance(5ms);
  EXPECT_FALSE(harness.held(train));
}

TEST(FixedTimeslice, MinimalSlicesStillHold) {
  testing::policy_harness harness(
      make_fixed_timeslice({.slice = 0ns, .release = release_on::client_done}));
  harness.table().add_group(train, role::offline, {gpu_a});
  harness.begin(gpu_a);
  EXPECT_TRUE(harness.held(train));
  harness.advance(1ms);
  harness.end(gpu_a);
  EXPECT_FALSE(harness.held(train));
}

TEST(FixedTimeslice, GivesTheSameAnswersToTheSameHistory) {
  const auto play = [] {
    node harness;
    harness.begin(gpu_a);
    harness.advance(3ms);
    harness.begin(gpu_b);
    harness.end(gpu_a);
    harness.advance(40ms);
    harness.end(gpu_b);
    return harness.calls();
  };
  EXPECT_EQ(play(), play());
}

TEST(FixedTimeslice, ChangesItsNameWithItsBehaviour) {
  EXPECT_NE(make_fixed_timeslice({.release = release_on::slice_end})->name(),
            make_fixed_timeslice({.release = release_on::client_done})->name());
}

}  // namespace
}  // namespace sluice
