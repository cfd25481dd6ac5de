#include "sluice/policies/pointer_polling.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>

#include <gtest/gtest.h>

#include "sluice/testing/policy_harness.hpp"

namespace sluice::pointer_polling_test {
namespace {

using namespace std::chrono_literals;

constexpr gpu_id gpu_a{10};
constexpr gpu_id gpu_b{20};
constexpr group_id train{1};
constexpr group_id other{2};
constexpr group_id both{3};

/// One offline group on one of two GPUs.
class node : public testing::policy_harness {
 public:
  explicit node(pointer_polling_options options = {})
      : policy_harness(make_pointer_polling(options)) {
    table().add_gpu(gpu_a);
    table().add_gpu(gpu_b);
    table().add_group(train, role::offline, {gpu_a});
    change(train);
  }
  /// Whether it is held all the time until then.
  bool held_for(duration span) {
    const auto before = calls().size();
    const bool now = held(train);
    advance(span);
    for (auto i = before; i < calls().size(); ++i) {
      if (calls()[i].what == testing::recording_sink::verb::run && calls()[i].group == train)
        return false;
    }
    return now && held(train);
  }
};

TEST(PointerPolling, HoldsFromTheFirstPacketToTheEnd) {
  node here;
  here.move(gpu_a, online_work::finished);
  EXPECT_FALSE(here.held(train)) << "nothing came: that there is a queue is no work";
  here.move(gpu_a, online_work::waiting, 1);
  EXPECT_TRUE(here.held(train));
  here.advance(3ms);
  here.move(gpu_a, online_work::finished);
  EXPECT_TRUE(here.held_for(9ms)) << "it lingers";
  here.advance(1ms);
  EXPECT_FALSE(here.held(train));
}

TEST(PointerPolling, NotesOnceThatNoWorkIsShownAndDoesNotAskForLooks) {
  using verb = testing::recording_sink::verb;
  node here;
  here.table().edit(gpu_a)->can_see_work = false;
  here.table().edit(train)->manageable = false;
  here.change(train);
  here.advance(1ms);
  const auto before = here.calls().size();
  const auto count = [&](verb what) {
    return std::count_if(here.calls().begin() + static_cast<std::ptrdiff_t>(before),
                         here.calls().end(), [&](const auto& each) { return each.what == what; });
  };
  here.change(train);
  here.advance(1ms);
  EXPECT_EQ(count(verb::note), 0) << "whether work is shown is not known yet";
  here.table().edit(train)->manageable = true;
  for (int i = 0; i < 3; ++i) {
    here.change(train);
    here.advance(1ms);
  }
  EXPECT_EQ(count(verb::note), 1);
  EXPECT_EQ(count(verb::poll_pointers), 0);
  here.begin(gpu_a);
  EXPECT_TRUE(here.held(train)) << "announced work counts";
  here.end(gpu_a);
  // A driver that shows it after all.
  here.table().edit(gpu_a)->can_see_work = true;
  here.change(train);
  here.advance(1ms);
  EXPECT_GE(count(verb::poll_pointers), 1);
}

// A kernel's packet is consumed at once: equal pointers are not the end.
TEST(PointerPolling, DoesNotResumeInsideAKernelOf500Milliseconds) {
  for (const online_work consumed : {online_work::running, online_work::consumed}) {
    node here;
    here.move(gpu_a, online_work::waiting, 1);
    here.advance(6ms);  // A suspend's time: no kernel's length.
    here.move(gpu_a, consumed);
    EXPECT_TRUE(here.held_for(500ms));
    here.move(gpu_a, online_work::finished);
    here.advance(10ms);
    EXPECT_FALSE(here.held(train));
  }
}

TEST(PointerPolling, DoesNotResumeInsideALongKernelWhoseEndCanBeSeenWhateverItLearnt) {
  node here;
  for (int i = 0; i < 50; ++i) {
    here.move(gpu_a, online_work::consumed, 1);
    here.advance(1ms);
  }
  here.move(gpu_a, online_work::waiting, 1);
  here.move(gpu_a, online_work::running);
  EXPECT_TRUE(here.held_for(10s));
}

// ...also after the work before it had shown short kernels only, and once was longer.
TEST(PointerPolling, RemembersTheLongestKernelWhereNoEndIsSeen) {
  node here;
  const auto kernel = [&](duration length) {
    here.move(gpu_a, online_work::waiting, 1);
    here.move(gpu_a, online_work::consumed);
    here.advance(length);
  };
  for (int i = 0; i < 50; ++i) kernel(4ms);
  here.move(gpu_a, online_work::consumed, 1);
  EXPECT_TRUE(here.held_for(8ms - 1us)) << "twice the longest";
  here.advance(1us);
  EXPECT_FALSE(here.held(train));
  here.advance(2s);
  kernel(500ms);  // Runs into the resume, once...
  here.move(gpu_a, online_work::consumed, 1);
  EXPECT_TRUE(here.held_for(999ms));  // ...and not again,
  here.advance(60s);
  for (int i = 0; i < 50; ++i) kernel(4ms);
  here.advance(60s);
  for (int i = 0; i < 50; ++i) kernel(4ms);
  here.move(gpu_a, online_work::consumed, 1);
  here.advance(8ms);
  EXPECT_FALSE(here.held(train)) << "until it is forgotten";
}

TEST(PointerPolling, TakesTheAverageOfAStretchOfWaitingPackets) {
  node here;
  here.move(gpu_a, online_work::waiting, 11);
  here.advance(100ms);
  here.move(gpu_a, online_work::consumed);
  EXPECT_TRUE(here.held_for(20ms - 1us)) << "10 of them ran in 100 ms";
  here.advance(1us);
  EXPECT_FALSE(here.held(train));
}

TEST(PointerPolling, SettlesWithinItsBounds) {
  node here({.settle_min = 5ms, .settle_max = 50ms});
  here.move(gpu_a, online_work::waiting, 1);
  here.move(gpu_a, online_work::consumed);
  EXPECT_TRUE(here.held_for(50ms - 1us)) << "nothing is known yet";
  here.advance(1us);
  EXPECT_FALSE(here.held(train));
  for (int i = 0; i < 3; ++i) {
    here.move(gpu_a, online_work::consumed, 1);
    here.advance(1ms);
  }
  here.move(gpu_a, online_work::consumed, 1);
  EXPECT_TRUE(here.held_for(5ms - 1us));
  here.advance(1us);
  EXPECT_FALSE(here.held(train));
}

TEST(PointerPolling, CountsWorkThatCameAndEndedBetweenTwoLooks) {
  node here;
  here.move(gpu_a, online_work::finished, 1);
  EXPECT_TRUE(here.held(train));
  here.advance(10ms);
  EXPECT_FALSE(here.held(train));
}

TEST(PointerPolling, GivesUpOnAPacketThatWaitsForSomethingElse) {
  node here({.give_up = 2s});
  here.move(gpu_a, online_work::waiting, 1);
  EXPECT_TRUE(here.held_for(1999ms));
  here.advance(1ms);
  EXPECT_FALSE(here.held(train));
  here.move(gpu_a, online_work::waiting, 1);
  EXPECT_TRUE(here.held(train));
}

TEST(PointerPolling, CountsWhatClientsBeginAsWell) {
  node here;
  here.begin(gpu_a);
  here.move(gpu_a, online_work::waiting, 1);
  here.move(gpu_a, online_work::finished);
  EXPECT_TRUE(here.held_for(1h)) << "the client is not done";
  here.end(gpu_a);
  here.advance(10ms);
  EXPECT_FALSE(here.held(train));
  here.begin(gpu_a);
  here.move(gpu_a, online_work::waiting, 1);
  here.end(gpu_a);
  EXPECT_TRUE(here.held_for(1s)) << "the queue is not done";
}

TEST(PointerPolling, HoldsAGroupWhileAnyOfItsGpusHasWorkAndNoOther) {
  node here;
  here.table().add_group(other, role::offline, {gpu_b});
  here.table().add_group(both, role::offline, {gpu_a, gpu_b});
  here.move(gpu_b, online_work::waiting, 1);
  EXPECT_FALSE(here.held(train));
  EXPECT_TRUE(here.held(other));
  EXPECT_TRUE(here.held(both));
  here.move(gpu_a, online_work::waiting, 1);
  here.move(gpu_b, online_work::finished);
  here.advance(10ms);
  EXPECT_TRUE(here.held(train));
  EXPECT_FALSE(here.held(other));
  EXPECT_TRUE(here.held(both));
}

TEST(PointerPolling, HoldsWhatComesWhileWorkRuns) {
  node here;
  here.move(gpu_a, online_work::waiting, 1);
  here.table().add_group(other, role::offline, {gpu_a});
  here.change(other);
  EXPECT_TRUE(here.held(other));
}

TEST(PointerPolling, LooksFastWhileWorkIsLikelySlowlyElseAndNotAtAllForNothing) {
  node here({.fast = 100us, .slow = 5ms, .recent = 1s});
  EXPECT_EQ(here.polling(), 5ms);
  here.move(gpu_a, online_work::waiting, 1);
  EXPECT_EQ(here.polling(), 100us);
  here.advance(10s);
  EXPECT_EQ(here.polling(), 100us);
  here.move(gpu_a, online_work::finished);
  here.advance(1s);
  EXPECT_EQ(here.polling(), 100us) << "more is likely";
  here.advance(20ms);
  EXPECT_EQ(here.polling(), 5ms);
  // Work where there is nothing to suspend makes no difference.
  here.move(gpu_b, online_work::waiting, 1);
  EXPECT_EQ(here.polling(), 5ms);
  here.table().remove_group(train);
  here.move(gpu_b, online_work::finished);
  EXPECT_EQ(here.polling(), 0s);
  here.table().add_group(train, role::offline, {gpu_a});
  here.change(train);
  EXPECT_EQ(here.polling(), 5ms);
}

TEST(PointerPolling, IsQuietWhenIdle) {
  node here;
  here.move(gpu_a, online_work::waiting, 1);
  here.move(gpu_a, online_work::finished);
  here.advance(5s);
  const auto turns = here.turns();
  here.advance(1h);
  EXPECT_EQ(here.turns(), turns);
}

TEST(PointerPolling, RefusesParametersThatContradictEachOther) {
  const policy_kind kind = pointer_polling_kind();
  parameters values;
  for (const parameter& each : kind.schema) values.set(each.key, each.fallback);
  std::string problem;
  EXPECT_NE(kind.make(values, problem), nullptr) << problem;
  values.set("slow", duration(10us));
  EXPECT_EQ(kind.make(values, problem), nullptr);
  EXPECT_NE(problem.find("slow"), std::string::npos) << problem;
  values.set("slow", duration(1s));
  values.set("settle_max", duration(1ms));
  EXPECT_EQ(kind.make(values, problem), nullptr);
  EXPECT_NE(problem.find("settle_max"), std::string::npos) << problem;
}

}  // namespace
}  // namespace sluice::pointer_polling_test
