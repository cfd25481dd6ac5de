#include "sluice/policies/fixed_timeslice.hpp"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/testing/policy_harness.hpp"

namespace sluice::fixed_timeslice_test {
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

/// Two GPUs with a group each, and two clients.
class weighted_node : public testing::policy_harness {
 public:
  explicit weighted_node(const std::string& release = "slice_end") : policy_harness(make(release)) {
    table().add_group(train, role::offline, {gpu_a});
    table().add_group(other, role::offline, {gpu_b});
    table().add_client(chat, "chat.eu-1");
    table().add_client(scoring, "scoring");
    table().add_client(plain, "plain");
  }
  /// How long the group stays held from now on, in steps of a millisecond.
  std::chrono::milliseconds held_for(group_id id) {
    std::chrono::milliseconds time{};
    for (; held(id) && time < 10s; time += 1ms) advance(1ms);
    return time;
  }
  static constexpr client_id chat{1}, scoring{2}, plain{3};

 private:
  static std::unique_ptr<policy> make(const std::string& release) {
    parameters values;
    values.set("slice", duration(20ms));
    values.set("release", release);
    values.set("slice_of.20", duration(30ms));
    values.set("weight_of.chat.*", 2.0);
    values.set("weight_of.*", 0.9);
    values.set("weight_of.ch*1", 7.0);
    values.set("weight_of.scoring", 0.0);
    values.set("weight_of.plain", 1.0);
    std::string problem;
    return fixed_timeslice_kind().make(values, problem);
  }
};

TEST(FixedTimeslice, GivesEachGpuItsOwnSlice) {
  weighted_node node;
  node.begin(gpu_a, 1, weighted_node::plain);
  EXPECT_EQ(node.held_for(train), 20ms);
  node.begin(gpu_b, 1, weighted_node::plain);
  EXPECT_EQ(node.held_for(other), 30ms);
}

TEST(FixedTimeslice, MultipliesTheSliceByTheWeightOfTheLongestPattern) {
  weighted_node node;
  node.begin(gpu_a, 1, weighted_node::chat);
  EXPECT_EQ(node.held_for(train), 40ms);
  node.begin(gpu_b, 1, weighted_node::chat);
  EXPECT_EQ(node.held_for(other), 60ms);
}

TEST(FixedTimeslice, HoldsForNothingAfterAnArrivalOfNoWeight) {
  weighted_node node;
  node.begin(gpu_a, 1, weighted_node::scoring);
  EXPECT_FALSE(node.held(train));
}

TEST(FixedTimeslice, HoldsWithClientDoneWhileWorkOfNoWeightIsInFlight) {
  weighted_node node("client_done");
  node.begin(gpu_a, 1, weighted_node::scoring);
  EXPECT_TRUE(node.held(train));
  node.end(gpu_a, 1, weighted_node::scoring);
  EXPECT_FALSE(node.held(train));
}

TEST(FixedTimeslice, NeverShortensWhatAnotherArrivalHasEarned) {
  weighted_node node;
  node.begin(gpu_a, 1, weighted_node::chat);
  node.begin(gpu_a, 1, weighted_node::scoring);
  EXPECT_EQ(node.held_for(train), 40ms);
}

// Symptom: a mistyped client name changed nothing, and nobody heard of it.
TEST(FixedTimeslice, SaysOnceWhichKeysHaveFittedNothing) {
  testing::policy_harness harness(
      make_fixed_timeslice({.slice_of = {{gpu_a, 30ms}, {gpu_id{77}, 30ms}},
                            .weight_of = {{"chat.*", 2}, {"*", 1}, {"chit.*", 2}, {"late", 2}}}));
  harness.table().add_gpu(gpu_a);
  harness.table().add_group(train, role::offline, {gpu_a});
  constexpr client_id chat{1}, late{2};
  harness.table().add_client(chat, "chat.eu-1");
  harness.table().add_client(late, "late");
  const auto notes = [&] {
    std::vector<std::string> all;
    for (const auto& one : harness.calls()) {
      if (one.what == testing::recording_sink::verb::note) all.push_back(one.text);
    }
    return all;
  };
  for (int i = 0; i < 99; ++i) harness.blink(gpu_a, i == 50 ? late : chat);
  EXPECT_TRUE(notes().empty());
  for (int i = 0; i < 200; ++i) harness.blink(gpu_a, chat);
  ASSERT_EQ(notes().size(), 2U);
  EXPECT_EQ(notes()[0].substr(0, 34), "weight_of.chit.* has had no effect");
  EXPECT_EQ(notes()[1].substr(0, 26), "slice_of.77 has had no eff");
}

TEST(FixedTimeslice, RefusesASliceOfWhatIsNoGpu) {
  for (const std::string key : {"first", "0", "12x", "-1"}) {
    parameters values;
    values.set("slice", duration(20ms));
    values.set("release", std::string("client_done"));
    values.set("slice_of." + key, duration(30ms));
    std::string problem;
    EXPECT_EQ(fixed_timeslice_kind().make(values, problem), nullptr);
    EXPECT_NE(problem.find("slice_of." + key + " is not a GPU"), std::string::npos) << problem;
  }
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
}  // namespace sluice::fixed_timeslice_test
