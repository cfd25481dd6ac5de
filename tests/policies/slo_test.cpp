#include "sluice/policies/slo.hpp"

#include "thread_time.hpp"

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/testing/policy_harness.hpp"

namespace sluice::slo_test {
namespace {

using namespace std::chrono_literals;
using enum span_kind;
using verb = testing::recording_sink::verb;

constexpr gpu_id gpu_a{10};
constexpr gpu_id gpu_b{20};
constexpr group_id train{1};
constexpr group_id other{2};

slo_options with(duration request_target) {
  slo_options options;
  options.p99[static_cast<std::size_t>(request)] = request_target;
  return options;
}

/// One offline group on one of two GPUs; a suspend takes 5 ms, a resume 10 ms.
class node : public testing::policy_harness {
 public:
  explicit node(slo_options options = with(100ms)) : policy_harness(make_slo(options)) {
    table().add_gpu(gpu_a);
    table().add_gpu(gpu_b);
    table().add_group(train, role::offline, {gpu_a});
    change(train);
  }
  /// `count` spans of that length, or four times that beside offline work, with such gaps.
  void serve(int count, duration length, duration gap, span_kind kind = request) {
    for (int i = 0; i < count; ++i) {
      begin_span(kind, ++number_);
      if (carries_out_) {
        table().edit(train)->actual = held(train) ? run_state::suspended : run_state::running;
        table().edit(train)->state_since = now();
      }
      advance(length);
      if (!held(train)) advance(3 * length);
      end_span(kind, number_);
      advance(gap);
    }
  }
  /// From now on the group is suspended when serve() begins a span that is held for.
  void carry_out() { carries_out_ = true; }
  /// A request that is alone, with its tokens; each takes that long, held for or beside offline
  /// work.
  void answer(std::uint64_t tokens, duration held_for, duration beside) {
    ++number_;
    begin(gpu_a);
    begin_span(request, number_);
    begin_span(ttft, number_);
    for (std::uint64_t token = 0; token < tokens; ++token) {
      advance(held(train) ? held_for : beside);
      end_span(token == 0 ? ttft : itl, number_);
      if (token + 1 < tokens) begin_span(itl, number_);
    }
    end_span(request, number_);
    end(gpu_a);
    advance(1s);
  }
  std::vector<testing::recording_sink::call> all_of(verb what) const {
    std::vector<testing::recording_sink::call> all;
    std::copy_if(calls().begin(), calls().end(), std::back_inserter(all),
                 [&](const auto& one) { return one.what == what; });
    return all;
  }
  std::vector<testing::recording_sink::call> notes() const { return all_of(verb::note); }
  std::size_t holds() const { return all_of(verb::hold).size(); }

 private:
  std::uint64_t number_ = 1'000'000;
  bool carries_out_ = false;
};

TEST(Slo, HoldsAtOnceWhileItKnowsNothing) {
  node harness;
  EXPECT_FALSE(harness.held(train));
  harness.begin_span(request, 1);
  EXPECT_TRUE(harness.held(train));
  harness.advance(20ms);
  harness.end_span(request, 1);
  harness.advance(1s);
  EXPECT_FALSE(harness.held(train));
}

TEST(Slo, LetsOfflineRunForWhatTheTargetLeaves) {
  node harness;
  harness.serve(20, 10ms, 1s);
  harness.begin_span(request, 1);
  EXPECT_FALSE(harness.held(train));
  harness.advance(80ms);
  EXPECT_FALSE(harness.held(train));
  harness.advance(10ms);  // 90 ms of patience, less what is not known of the 10 ms.
  EXPECT_TRUE(harness.held(train));
  harness.end_span(request, 1);
  harness.advance(1s);
  EXPECT_FALSE(harness.held(train));
}

TEST(Slo, ReleasesWhenTheOtherSpansHaveTimeForALongRun) {
  node harness(with(2s));
  harness.serve(20, 10ms, 3s);
  harness.begin_span(request, 1);
  harness.advance(1995ms);
  ASSERT_TRUE(harness.held(train));
  harness.begin_span(request, 2);
  harness.advance(1ms);
  harness.end_span(request, 1);  // The other one has nearly 2 s left, 64 round trips are 960 ms.
  EXPECT_FALSE(harness.held(train));
  harness.advance(1900ms);
  EXPECT_FALSE(harness.held(train));
  harness.advance(95ms);
  EXPECT_TRUE(harness.held(train));
}

/// A burst uses up the patience as it comes.
TEST(Slo, HoldsEarlierTheMoreSpansAreOpen) {
  node harness(with(200ms));
  harness.serve(20, 10ms, 1s);
  std::uint64_t number = 0;
  for (int i = 0; i < 16; ++i) harness.begin_span(request, ++number);
  harness.advance(30ms);  // 16 of them may need 160 ms.
  EXPECT_FALSE(harness.held(train));
  harness.advance(25ms);
  EXPECT_TRUE(harness.held(train));
}

/// Spans take 10 ms more beside offline work, or a second.
TEST(Slo, StopsHoldingWhereThatSavesLessThanARoundTrip) {
  for (const duration more : std::vector<duration>{10ms, 1s}) {
    node harness(with(50ms));
    int held = 0;
    for (std::uint64_t i = 1; i <= 400; ++i) {
      harness.begin_span(request, i);
      harness.advance(100ms);  // Too long for the target in any case.
      const bool was_held = harness.held(train);
      if (i > 300) held += was_held;
      if (!was_held) harness.advance(more);
      harness.end_span(request, i);
      harness.advance(1s);
    }
    if (more > 15ms) {
      EXPECT_GE(held, 98);
    } else {
      EXPECT_LE(held, 2);  // Trials.
    }
  }
}

/// Requests differ by a second, and a hold saves them nothing, or 20 % of each token's time.
TEST(Slo, KnowsFromTokensWhatAHoldSavesAndTriesRarelyWhereThatIsNothing) {
  for (const duration beside : {duration(10ms), duration(12ms)}) {
    node harness;  // Out of reach in any case.
    std::mt19937_64 random(1);
    const auto serve = [&](int requests) {
      const std::size_t before = harness.holds();
      for (int i = 0; i < requests; ++i) harness.answer(5 + random() % 96, 10ms, beside);
      return harness.holds() - before;
    };
    const std::size_t first = serve(50);
    if (beside > 10ms) {
      EXPECT_GE(serve(100), 95U);
    } else {
      EXPECT_LE(first, 10U);
      EXPECT_LE(serve(3'950), 20U) << "half a percent";
    }
  }
}

/// And finds out when it does save something: offline kernels may become longer.
TEST(Slo, HoldsAgainWhenThatBeginsToSaveSomething) {
  node harness;
  for (int i = 0; i < 300; ++i) harness.answer(20, 10ms, 10ms);
  for (int i = 0; i < 30; ++i) harness.answer(20, 10ms, 100ms);
  const std::size_t before = harness.holds();
  for (int i = 0; i < 50; ++i) harness.answer(20, 10ms, 100ms);
  EXPECT_GE(harness.holds() - before, 48U);
}

TEST(Slo, NeedsMarksOfWhatItHasTargetsFor) {
  slo_options options = with(1s);
  options.p99[static_cast<std::size_t>(itl)] = 100ms;
  const auto made = make_slo(options);
  const auto needs = made->needs_marks();
  EXPECT_EQ(std::vector(needs.begin(), needs.end()), (std::vector{request, itl}));
}

TEST(Slo, LosesPatienceByMissesWhichItSeesBeforeTheyEnd) {
  node harness;
  harness.serve(20, 10ms, 1s);
  harness.begin_span(request, 1);
  harness.advance(101ms);  // Late now.
  harness.begin_span(request, 2);
  harness.end_span(request, 1);
  harness.advance(1s);
  harness.end_span(request, 2);
  harness.advance(1s);
  harness.begin_span(request, 3);
  harness.advance(30ms);
  EXPECT_TRUE(harness.held(train));
}

TEST(Slo, ReleasesWhileSpansAreOpenOnlyForARunThatPays) {
  // 18 ms of patience are less than two round trips.
  node harness(with(30ms));
  harness.serve(20, 10ms, 1s);
  harness.begin_span(request, 1);
  harness.advance(25ms);
  ASSERT_TRUE(harness.held(train));
  harness.begin_span(request, 2);
  harness.end_span(request, 1);
  EXPECT_TRUE(harness.held(train));
}

TEST(Slo, HoldsThroughGapsShorterThanARoundTripAndNoOthers) {
  node harness(with(11ms));  // It leaves nothing.
  harness.serve(50, 11ms, 6ms);
  EXPECT_TRUE(harness.held(train));
  harness.advance(1s);
  EXPECT_FALSE(harness.held(train));
  node other_harness(with(11ms));
  other_harness.serve(50, 11ms, 1s);
  other_harness.begin_span(request, 1);
  other_harness.advance(11ms);
  other_harness.end_span(request, 1);
  other_harness.advance(50us);  // The least that the gaps are known to.
  EXPECT_FALSE(other_harness.held(train));
}

TEST(Slo, PlansWithTheCostsThatWereMeasured) {
  node harness(with(11ms));
  harness.table().edit(gpu_a)->suspend_cost = 500us;
  harness.table().edit(gpu_a)->resume_cost = 500us;
  harness.serve(50, 11ms, 6ms);
  harness.begin_span(request, 1);
  harness.advance(11ms);
  harness.end_span(request, 1);
  harness.advance(50us);
  EXPECT_FALSE(harness.held(train));  // 6 ms are six round trips now.
}

TEST(Slo, SuspendsEarlyWhenItIsMissingItsTargetAndArrivalsAreRegular) {
  node harness(with(9ms));
  harness.serve(60, 10ms, 200ms);
  EXPECT_TRUE(harness.held(train));
  harness.advance(100ms);
  EXPECT_FALSE(harness.held(train));  // Nothing came: the prediction is over.
}

TEST(Slo, GivesUpATargetThatIsOutOfReachAndSaysSo) {
  node harness;
  for (int i = 0; i < 700; ++i) harness.serve(1, 150ms, 1s);
  EXPECT_TRUE(harness.notes().empty()) << "nothing was suspended: nobody knows";
  harness.carry_out();
  for (int i = 0; i < 700 && harness.notes().empty(); ++i) harness.serve(1, 150ms, 1s);
  const auto notes = harness.notes();
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].text.find("request.p99 = {} ms is out of reach"), std::string::npos);
  ASSERT_EQ(notes[0].numbers.size(), 3U);
  EXPECT_EQ(notes[0].numbers[0], 100);
  EXPECT_NEAR(notes[0].numbers[1], 160, 15);
  EXPECT_NEAR(notes[0].numbers[2], notes[0].numbers[1] * 1.1, 0.1);
  harness.serve(100, 150ms, 1s);
  EXPECT_EQ(harness.notes().size(), 1U);  // Not twice.
}

TEST(Slo, HoldsAtOnceForWorkInFlightWhenItsTargetIsMissedForLong) {
  node harness(with(2s));
  harness.serve(20, 10ms, 1s);
  harness.begin(gpu_a);
  EXPECT_FALSE(harness.held(train));
  harness.end(gpu_a);
  for (std::uint64_t i = 0; i < 9; ++i) harness.begin_span(request, i);
  harness.advance(3s);
  for (std::uint64_t i = 0; i < 9; ++i) harness.end_span(request, i);
  harness.advance(1s);
  harness.begin(gpu_a);
  EXPECT_TRUE(harness.held(train));
  harness.end(gpu_a);
  harness.advance(1s);
  harness.serve(1'500, 10ms, 1s);  // Made up for.
  harness.begin(gpu_a);
  EXPECT_FALSE(harness.held(train));
}

/// Where spans are far from their target nothing is put to the test.
TEST(Slo, TriesNothingWhereSpansAreFarFromTheirTarget) {
  node harness(with(10s));
  for (int i = 0; i < 20; ++i) harness.answer(20, 10ms, 10ms);
  const std::size_t before = harness.holds();
  for (int i = 0; i < 2'000; ++i) harness.answer(20, 10ms, 10ms);
  EXPECT_EQ(harness.holds(), before);
}

TEST(Slo, DoesNotGiveUpForOneBadMoment) {
  node harness;
  harness.serve(100, 10ms, 1s);
  harness.serve(80, 150ms, 1ms);
  harness.serve(1'000, 10ms, 1s);
  EXPECT_TRUE(harness.notes().empty());
}

TEST(Slo, SaysOnceThatMarksAreMissingAndHoldsNothingForUnmarkedWork) {
  node harness;
  for (int i = 0; i < 300; ++i) {
    harness.begin(gpu_a);
    EXPECT_FALSE(harness.held(train));
    harness.advance(5ms);
    harness.end(gpu_a);
  }
  ASSERT_EQ(harness.notes().size(), 1U);
  EXPECT_NE(harness.notes()[0].text.find("no client marks spans"), std::string::npos);
  EXPECT_EQ(harness.notes()[0].numbers, std::vector<double>{100});
}

TEST(Slo, HasNoTargetForOtherKindsOfSpans) {
  node harness;
  harness.begin_span(ttft, 1);
  harness.begin_span(itl, 1);
  EXPECT_FALSE(harness.held(train));
}

TEST(Slo, LeavesTheGpusOfOtherClientsAlone) {
  node harness;
  harness.table().add_client(client_id{1}, "server", {gpu_a});
  harness.table().add_group(other, role::offline, {gpu_b});
  harness.begin_span(request, 1);
  EXPECT_TRUE(harness.held(train));
  EXPECT_FALSE(harness.held(other));
}

TEST(Slo, HoldsAGangForEachOfItsGpus) {
  node harness;
  harness.table().add_client(client_id{1}, "server", {gpu_b});
  harness.table().add_group(train, role::offline, {gpu_a, gpu_b});
  harness.begin_span(request, 1);
  EXPECT_TRUE(harness.held(train));
}

/// A gang's share counts what it is held for on any of its GPUs.
TEST(Slo, KeepsTheShareOfAGangThatItsGpusHoldInTurn) {
  auto options = with(100ms);
  options.offline = 0.5;
  node harness(options);
  harness.table().add_client(client_id{1}, "one", {gpu_a});
  harness.table().add_client(client_id{2}, "two", {gpu_b});
  harness.table().add_group(train, role::offline, {gpu_a, gpu_b});
  harness.change(train);
  int ran = 0;
  for (int i = 0; i < 60'000; ++i) {
    if (i % 50 == 0) harness.begin_span(request, static_cast<std::uint64_t>(i));
    harness.advance(1ms);
    ran += !harness.held(train);
  }
  EXPECT_GE(ran, 0.45 * 60'000);
}

TEST(Slo, HoldsAGroupThatAppearsMeanwhileAndAgainAfterALimitMadeItRun) {
  node harness;
  harness.begin_span(request, 1);
  harness.table().add_group(other, role::offline, {gpu_a});
  harness.change(other);
  EXPECT_TRUE(harness.held(other));
  harness.change(other);
  EXPECT_TRUE(harness.held(other));
}

TEST(Slo, KeepsTheShareOfOfflineWorkWhateverItCosts) {
  auto options = with(100ms);
  options.offline = 0.4;
  node harness(options);
  duration ran{};
  int switches = 0;
  bool before = false;
  constexpr duration all = 60s;
  for (duration passed = 0ms; passed < all; passed += 1ms) {
    if (passed % 50ms == 0ms) harness.begin_span(request, static_cast<std::uint64_t>(passed / 1ms));
    harness.advance(1ms);
    if (!harness.held(train)) ran += 1ms;
    switches += std::exchange(before, harness.held(train)) != harness.held(train);
  }
  EXPECT_NEAR(static_cast<double>(ran.count()) / static_cast<double>(duration(all).count()), 0.4,
              0.08);
  EXPECT_LT(switches, 2 * 60'000 / 120 / 2);  // In stretches of eight round trips.
}

TEST(Slo, HoldsNothingForASpanThatNobodyWillEnd) {
  node harness;
  harness.begin_span(request, 1);
  harness.advance(2s);
  ASSERT_TRUE(harness.held(train));
  harness.abandon_span(request, 1);
  harness.advance(1s);
  EXPECT_FALSE(harness.held(train));
  const std::size_t before = harness.holds();
  harness.advance(20min);
  EXPECT_EQ(harness.holds(), before);
}

/// That nobody knows how long they would have taken makes them neither short nor long.
TEST(Slo, LearnsNoLengthFromASpanThatNobodyWillEnd) {
  const auto patience = [](bool abandons) {
    node harness;
    harness.serve(20, 10ms, 1s);
    for (std::uint64_t i = 100; abandons && i < 200; ++i) {
      harness.begin_span(request, i);
      harness.abandon_span(request, i);
      harness.advance(1s);
    }
    harness.begin_span(request, 1);
    duration waited{};
    for (; !harness.held(train) && waited < 1s; waited += 1ms) harness.advance(1ms);
    return waited;
  };
  EXPECT_EQ(patience(true), patience(false));
}

TEST(Slo, ListensForTokensOnlyWhenTheyMatter) {
  slo_options options;
  options.p99[static_cast<std::size_t>(itl)] = 100ms;
  node harness(options);
  const auto listens = [&] {
    bool on = false;
    for (const auto& one : harness.calls()) {
      if (one.what == verb::listen && one.span == itl) on = one.at_once;
    }
    return on;
  };
  EXPECT_TRUE(listens());  // For the first.
  harness.serve(20, 10ms, 1s, itl);
  harness.begin_span(itl, 1);
  EXPECT_FALSE(listens());  // It has patience, and a timer for when that is over.
  harness.advance(95ms);
  ASSERT_TRUE(harness.held(train));
  EXPECT_TRUE(listens());  // For its end.
}

TEST(Slo, IsQuietWhenNothingHappens) {
  node harness;
  harness.serve(50, 10ms, 20ms);
  harness.advance(10s);
  const auto turns = harness.turns();
  harness.advance(24h);
  EXPECT_LE(harness.turns() - turns, 1U);
}

TEST(Slo, GivesTheSameAnswersToTheSameHistory) {
  const auto play = [] {
    node harness(with(40ms));
    for (int i = 0; i < 300; ++i) harness.serve(1, 1ms * (7 * i % 60), 1ms * (11 * i % 90));
    return harness.calls();
  };
  EXPECT_EQ(play(), play());
}

TEST(Slo, IsRefusedWithoutATarget) {
  std::string problem;
  parameters none;
  none.set("offline", 0.0);
  none.set("suspend_cost", duration(5ms));
  none.set("resume_cost", duration(10ms));
  EXPECT_EQ(slo_kind().make(none, problem), nullptr);
  EXPECT_EQ(problem, "slo requires a target; set at least one of request.p99, ttft.p99, itl.p99");
}

/// What a client had open that withdraws: all of it ends in one turn.
duration time_to_open_and_abandon(std::uint64_t spans) {
  const auto subject = make_slo(with(100ms));
  testing::fake_world table;
  table.add_gpu(gpu_a);
  testing::recording_sink sink;
  std::vector<event> begins;
  for (std::uint64_t i = 0; i < spans; ++i) {  // The last one told is the first that began.
    event one{event_kind::span_begin, gpu_a, client_id{1}, 1, time_point(1h) - duration(i)};
    one.span = request;
    begins.push_back(one);
  }
  std::vector<event> ends(begins.rbegin(), begins.rend());
  for (event& one : ends) one.kind = event_kind::span_abandoned;
  const duration before = test::thread_time();
  subject->decide({time_point(1h), 1, begins, {}, table}, sink);
  subject->decide({time_point(1h) + 1ms, 2, ends, {}, table}, sink);
  return test::thread_time() - before;
}

TEST(Slo, TakesTimeInProportionToTheSpansThatAreToldInOneTurn) {
  constexpr std::uint64_t few = 1024;
  constexpr std::uint64_t times = 64;
  const auto least_of = [](int tries, std::uint64_t spans) {
    duration least = duration::max();
    for (int i = 0; i < tries; ++i) least = std::min(least, time_to_open_and_abandon(spans));
    return least;
  };
  const double ratio = static_cast<double>(least_of(3, times * few).count()) /
                       static_cast<double>(least_of(10, few).count());
  RecordProperty("ratio", std::to_string(ratio));
  // The logarithm and caches; were the open spans moved for each of them, some 4000.
  EXPECT_LT(ratio, 10 * times);
}

}  // namespace
}  // namespace sluice::slo_test
