// Marks of spans, from the client's threads to the policy's events.

#include "core_bench.hpp"
#include "open_spans.hpp"
#include "test_seed.hpp"
#include "thread_time.hpp"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/client_words.h"
#include "sluice/plugin.h"

namespace sluice::tests::spans_test {
namespace {

/// Remembers the events of spans that its policy sees.
class Spans : public ::testing::Test {
 protected:
  core_bench bench_{quick_config(), make_policy([this](const snapshot& seen, decision_sink& out) {
                      for (const event& one : seen.events) {
                        if (one.kind < event_kind::span_begin) continue;
                        seen_.push_back(one);
                        const auto on = seen.table.gpus_of(one.client);
                        gpus_.assign(on.begin(), on.end());
                      }
                      if (listen_) out.listen(span_kind::itl, *listen_);
                    })};
  std::vector<event> seen_;
  std::vector<gpu_id> gpus_;
  std::optional<bool> listen_;

  bool is_awake() {
    pollfd bell{bench_.core->wake_fd(), POLLIN, 0};
    return poll(&bell, 1, 0) == 1;
  }
};

TEST_F(Spans, ComeToThePolicyWithRequestAndLength) {
  auto client = bench_.client({gpu_a});
  bench_.step();
  const time_point begun = bench_.time.now();
  client.begin_span(span_kind::request, 7);
  bench_.step();
  ASSERT_EQ(seen_.size(), 1U);
  EXPECT_EQ(seen_[0].kind, event_kind::span_begin);
  EXPECT_EQ(seen_[0].client, client.id());
  EXPECT_EQ(seen_[0].span, span_kind::request);
  EXPECT_EQ(seen_[0].request, 7U);
  EXPECT_EQ(seen_[0].at, begun);
  EXPECT_EQ(gpus_, std::vector{gpu_a});

  bench_.time.advance(30ms);
  client.end_span(span_kind::request, 7);
  bench_.time.advance(5ms);  // When it is looked at does not matter.
  bench_.step();
  ASSERT_EQ(seen_.size(), 2U);
  EXPECT_EQ(seen_[1].kind, event_kind::span_end);
  EXPECT_EQ(seen_[1].request, 7U);
  EXPECT_EQ(seen_[1].at, begun + 30ms);
  EXPECT_EQ(seen_[1].length, 30ms);
  const histogram lengths =
      bench_.stats().span_length[static_cast<std::size_t>(span_kind::request)];
  EXPECT_EQ(lengths.count(), 1U);
  EXPECT_EQ(lengths.max(), 30ms);
}

TEST_F(Spans, MayHaveBegunEarlier) {
  auto client = bench_.client();
  client.begin_span(span_kind::ttft, 1, bench_.time.now() - 4ms);
  client.begin_span(span_kind::ttft, 2, bench_.time.now() + 4ms);  // A mistake: it is now.
  bench_.time.advance(1ms);
  client.end_span(span_kind::ttft, 1);
  client.end_span(span_kind::ttft, 2);
  bench_.step();
  ASSERT_EQ(seen_.size(), 4U);
  EXPECT_EQ(seen_[2].length, 5ms);
  EXPECT_EQ(seen_[3].length, 1ms);
}

TEST_F(Spans, BegunTwiceEndOnceInBetween) {
  auto client = bench_.client();
  for (int token = 0; token < 3; ++token) {
    client.begin_span(span_kind::itl, 5);
    bench_.time.advance(10ms);
  }
  client.end_span(span_kind::itl, 5);
  client.end_span(span_kind::itl, 5);  // Stray.
  bench_.step();
  std::vector<event_kind> kinds;
  for (const event& one : seen_) {
    kinds.push_back(one.kind);
    if (one.kind == event_kind::span_end) {
      EXPECT_EQ(one.length, 10ms);
    }
  }
  using enum event_kind;
  EXPECT_EQ(kinds, (std::vector{span_begin, span_end, span_begin, span_end, span_begin, span_end}));
  EXPECT_EQ(bench_.stats().stray_ends, 1U);
}

TEST_F(Spans, EndWithTheirToken) {
  auto client = bench_.client();
  {
    auto outer = client.span(span_kind::request, 1);
    EXPECT_TRUE(outer);
    const auto moved = std::move(outer);
    EXPECT_FALSE(outer);  // NOLINT: what a moved-from token is, is part of the contract
    bench_.step();
    EXPECT_EQ(seen_.size(), 1U);
  }
  bench_.step();
  EXPECT_EQ(seen_.size(), 2U);
  online_client nobody;
  nobody.begin_span(span_kind::request, 1);
  nobody.span(span_kind::request, 1).end();
}

TEST_F(Spans, BeyondTheRingAreCountedAndNeverBlock) {
  auto client = bench_.client();
  bench_.step();
  for (std::uint64_t i = 0; i < SLUICE_WORDS_MARKS + 10; ++i) {
    client.begin_span(span_kind::itl, i);
  }
  bench_.step();
  EXPECT_EQ(seen_.size(), SLUICE_WORDS_MARKS);
  EXPECT_EQ(bench_.stats().lost_marks, 10U);
  client.begin_span(span_kind::itl, 5'000);
  bench_.step();
  EXPECT_EQ(seen_.size(), SLUICE_WORDS_MARKS + 1);
}

/// Whoever floods the scheduler has his turns last longer by so much, and no more, with however
/// many clients.
TEST_F(Spans, OfOtherProcessesAreLookedAtInEqualShares) {
  struct : remote_client {
    void in_flight(bool) override {}
    void thrown_out(std::string_view) override {}
  } nobody;
  constexpr std::uint64_t few = 100;
  std::vector<std::shared_ptr<sluice_client_words>> pages;
  std::vector<client_id> ids;
  for (int i = 0; i < 8; ++i) {
    pages.push_back(std::make_shared<sluice_client_words>());
    const auto added = bench_.core->clients().add({"other", {}, {}}, pages.back(), nobody);
    ASSERT_TRUE(added);
    ids.push_back(*added);
  }
  bench_.step();
  const auto at = bench_.time.now().time_since_epoch().count();
  for (const auto& each : pages) {
    const auto marks = each == pages.back() ? few : std::uint64_t{SLUICE_WORDS_MARKS};
    for (std::uint64_t i = 0; i < marks; ++i) {
      ASSERT_NE(sluice_words_push(each.get(), 0, 1, i, at), SLUICE_PUSHED_NOT);
    }
  }
  const auto seen_of = [&](client_id which) {
    return std::count_if(seen_.begin(), seen_.end(),
                         [&](const event& one) { return one.client == which; });
  };
  bench_.step();
  EXPECT_LE(seen_.size(), SLUICE_WORDS_MARKS);
  for (const client_id each : ids) EXPECT_GE(seen_of(each), std::min<long>(few, 1024 / 8));
  EXPECT_EQ(seen_of(ids.back()), few);
  for (int turn = 0; turn < 7; ++turn) bench_.step();
  EXPECT_EQ(seen_.size(), std::uint64_t{7} * SLUICE_WORDS_MARKS + few);
  // One that leaves is heard to its end, whatever the others do.
  const std::size_t before = seen_.size();
  for (const auto& each : pages) {
    for (std::uint64_t i = 5000; i < 5600; ++i) sluice_words_push(each.get(), 0, 1, i, at);
  }
  bench_.core->clients().remove(ids[0]);
  bench_.step();
  const auto begun = std::count_if(
      seen_.begin() + static_cast<long>(before), seen_.end(),
      [&](const event& one) { return one.client == ids[0] && one.kind == event_kind::span_begin; });
  EXPECT_EQ(begun, 600);
}

TEST_F(Spans, OfTokensLeaveASleepingSchedulerAloneUnlessThePolicyListens) {
  auto client = bench_.client();
  const auto sleep = [&] {
    bench_.core->awake();
    bench_.step();
    while (!bench_.core->fall_asleep()) bench_.step();
    bench_.core->clear_wake_fd();
  };
  sleep();
  client.begin_span(span_kind::itl, 1);
  EXPECT_FALSE(is_awake());
  client.begin_span(span_kind::ttft, 1);
  EXPECT_TRUE(is_awake());
  sleep();
  client.begin_span(span_kind::request, 1);
  EXPECT_TRUE(is_awake());

  listen_ = true;
  sleep();
  client.begin_span(span_kind::itl, 1);
  EXPECT_TRUE(is_awake());
  listen_ = false;
  sleep();
  client.begin_span(span_kind::itl, 1);
  EXPECT_FALSE(is_awake());
  // Unless they fill the ring.
  for (std::uint64_t i = 0; i < SLUICE_WORDS_MARKS / 2; ++i) {
    client.end_span(span_kind::itl, i);
  }
  EXPECT_TRUE(is_awake());
}

TEST_F(Spans, OfAClientThatLeavesAreStillHeard) {
  {
    auto client = bench_.client({gpu_b});
    const auto span = client.span(span_kind::request, 1);
    bench_.time.advance(2ms);
  }
  bench_.step();
  // The token ended it after the client had gone, or the other way round: the begin is seen.
  ASSERT_GE(seen_.size(), 1U);
  EXPECT_EQ(gpus_, std::vector{gpu_b});
}

/// A policy that waits for their end would wait for ever, for a client that is gone.
TEST_F(Spans, AreAbandonedWhenTheirClientLeaves) {
  auto other = bench_.client();
  other.begin_span(span_kind::request, 1);
  {
    auto client = bench_.client({gpu_b});
    client.begin_span(span_kind::request, 1);
    client.begin_span(span_kind::itl, 2);
    client.end_span(span_kind::itl, 2);
    bench_.step();
    bench_.time.advance(3ms);
    seen_.clear();
  }
  bench_.step();
  ASSERT_EQ(seen_.size(), 1U);
  EXPECT_EQ(seen_[0].kind, event_kind::span_abandoned);
  EXPECT_NE(seen_[0].client, other.id());
  EXPECT_EQ(seen_[0].span, span_kind::request);
  EXPECT_EQ(seen_[0].request, 1U);
  EXPECT_EQ(seen_[0].at, bench_.time.now());
  EXPECT_EQ(seen_[0].length, 3ms);
  EXPECT_EQ(gpus_, std::vector{gpu_b});
  EXPECT_EQ(bench_.stats().abandoned_spans, 1U);
  EXPECT_EQ(bench_.stats().expired_spans, 0U);
  const histogram lengths =
      bench_.stats().span_length[static_cast<std::size_t>(span_kind::request)];
  EXPECT_EQ(lengths.count(), 0U);  // Nobody knows how long it would have taken.
}

TEST_F(Spans, ThatNobodyEndsStopCountingAfterMaxBusy) {
  auto client = bench_.client();
  client.begin_span(span_kind::request, 1);
  bench_.run_for(30s);
  client.begin_span(span_kind::request, 2);
  bench_.run_for(29'999ms);
  EXPECT_EQ(seen_.size(), 2U);
  bench_.run_for(1ms);
  ASSERT_EQ(seen_.size(), 3U);
  EXPECT_EQ(seen_[2].kind, event_kind::span_abandoned);
  EXPECT_EQ(seen_[2].request, 1U);
  EXPECT_EQ(seen_[2].length, 60s);
  bench_.run_for(30s);
  ASSERT_EQ(seen_.size(), 4U);
  EXPECT_EQ(seen_[3].request, 2U);
  EXPECT_EQ(bench_.stats().expired_spans, 2U);
  EXPECT_EQ(bench_.stats().abandoned_spans, 0U);
}

/// Else the lengths that are reported would leave out the longest.
TEST_F(Spans, ThatEndAfterMaxBusyAreCountedAndTheirPolicyIsNotToldTwice) {
  auto client = bench_.client();
  client.begin_span(span_kind::request, 1);
  bench_.run_for(70s);
  ASSERT_EQ(seen_.size(), 2U);
  client.end_span(span_kind::request, 1);
  bench_.step();
  EXPECT_EQ(seen_.size(), 2U);
  EXPECT_EQ(bench_.stats().stray_ends, 0U);
  const histogram lengths =
      bench_.stats().span_length[static_cast<std::size_t>(span_kind::request)];
  EXPECT_EQ(lengths.max(), 70s);
  client.begin_span(span_kind::request, 1);
  client.end_span(span_kind::request, 1);
  bench_.step();
  EXPECT_EQ(seen_.size(), 4U);
}

TEST(ClientWords, CountsNoEndThatHasNoBegin) {
  const auto words = std::make_unique<sluice_client_words>();
  std::atomic<bool> started{false};
  std::atomic<bool> done{false};
  std::thread other([&] {
    started = true;
    while (!done) sluice_words_end(words.get());
  });
  while (!started) std::this_thread::yield();
  int excess = 0;
  for (std::uint64_t begun = 1; begun <= 1'000'000; ++begun) {
    sluice_words_begin(words.get());
    sluice_words_end(words.get());
    if (__atomic_load_n(&words->ended, __ATOMIC_RELAXED) > begun) ++excess;
  }
  done = true;
  other.join();
  EXPECT_EQ(excess, 0);
  EXPECT_EQ(words->ended, words->begun);
}

TEST(ClientWords, LosesAndMixesUpNothingBetweenThreads) {
  constexpr std::uint64_t threads = 4;
  constexpr std::uint64_t each = 200'000;
  const auto words = std::make_unique<sluice_client_words>();
  std::atomic<std::uint64_t> refused{0};
  std::vector<std::thread> producers;
  for (std::uint64_t t = 0; t < threads; ++t) {
    producers.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < each; ++i) {
        const auto request = t * each + i;
        const auto at = static_cast<std::int64_t>(~request >> 1);
        if (sluice_words_push(words.get(), SLUICE_SPAN_ITL, i & 1, request, at) ==
            SLUICE_PUSHED_NOT) {
          refused.fetch_add(1);
        }
      }
    });
  }
  std::vector<std::uint64_t> last(threads, 0);
  std::uint64_t taken = 0;
  std::uint64_t read = 0;
  sluice_mark mark;
  while (taken + refused < threads * each) {
    if (sluice_words_take(words.get(), &read, &mark) == 0) continue;
    ++taken;
    ASSERT_EQ(mark.at, static_cast<std::int64_t>(~mark.request >> 1));
    ASSERT_EQ(mark.begins, mark.request % each & 1);
    auto& before = last[mark.request / each];
    ASSERT_LE(before, mark.request % each);  // One thread's come in its order.
    before = mark.request % each;
  }
  for (auto& one : producers) one.join();
  while (sluice_words_take(words.get(), &read, &mark) != 0) ++taken;
  EXPECT_EQ(taken + refused, threads * each);
  EXPECT_EQ(words->lost, refused);
  EXPECT_EQ(words->used, 0U);
  EXPECT_EQ(words->taken, taken);
}

std::optional<time_point> begun(const std::optional<core::open_spans::span>& which) {
  return which ? std::optional(which->begun) : std::nullopt;
}

TEST(OpenSpans, AreWhatAMapSays) {
  const test::random_seed seed;
  std::mt19937_64 random(seed.value());
  core::open_spans spans;
  std::map<std::pair<span_kind, std::uint64_t>, time_point> model;
  for (int i = 0; i < 200'000; ++i) {
    const auto kind = static_cast<span_kind>(random() % span_kinds);
    const std::uint64_t request = random() % 300 << (random() % 2 * 40);
    const std::pair key{kind, request};
    const auto known = model.find(key);
    const auto expected =
        known == model.end() ? std::nullopt : std::optional<time_point>(known->second);
    if (random() % 2 == 0) {
      const time_point at{duration(i)};
      ASSERT_EQ(begun(spans.begin(kind, request, at)), expected);
      model[key] = at;
    } else {
      ASSERT_EQ(begun(spans.end(kind, request)), expected);
      model.erase(key);
    }
    ASSERT_EQ(spans.size(), model.size());
  }
}

/// The inverse of an odd number, modulo 2^64.
constexpr std::uint64_t inverse(std::uint64_t of) {
  std::uint64_t found = of;
  for (int i = 0; i < 5; ++i) found *= 2 - of * found;
  return found;
}

/// Numbers that share one place by a multiplier that everybody can read in the source, as here.
TEST(OpenSpans, AreFoundAsFastWhateverNumbersAClientChooses) {
  constexpr std::uint64_t count = 8192;
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> any;
  std::vector<std::uint64_t> chosen;
  for (std::uint64_t i = 0; i < count; ++i) {
    any.push_back(random());
    chosen.push_back(i * inverse(0x9e3779b97f4a7c15) * inverse(span_kinds));
  }
  const auto time_of = [](const std::vector<std::uint64_t>& requests) {
    duration best = duration::max();
    for (int i = 0; i < 3; ++i) {
      core::open_spans spans;
      const duration before = test::thread_time();
      for (const auto each : requests) spans.begin(span_kind{}, each, time_point{});
      for (const auto each : requests) EXPECT_TRUE(spans.end(span_kind{}, each));
      best = std::min(best, test::thread_time() - before);
    }
    return best;
  };
  const duration usual = time_of(any);
  EXPECT_LT(time_of(chosen), 10 * usual) << "random ones took " << usual.count() << " ns";
}

TEST(OpenSpans, SayEachThatIsAbandonedOnce) {
  core::open_spans spans;
  const auto at = [](int second) { return time_point{second * duration(1s)}; };
  std::vector<std::uint64_t> said;
  const auto abandon = [&](time_point by) {
    said.clear();
    spans.abandon(by, 1ns, [&](const auto& which) { said.push_back(which.request); });
    std::sort(said.begin(), said.end());
    return said;
  };
  using numbers = std::vector<std::uint64_t>;
  EXPECT_EQ(spans.oldest(), never);
  for (int i = 1; i <= 5; ++i) spans.begin(span_kind::ttft, static_cast<std::uint64_t>(i), at(i));
  EXPECT_EQ(abandon(at(0)), numbers());
  EXPECT_EQ(abandon(at(3)), (numbers{1, 2, 3}));
  EXPECT_EQ(spans.oldest(), at(4));
  EXPECT_EQ(abandon(at(3)), numbers());
  EXPECT_TRUE(spans.end(span_kind::ttft, 1)->abandoned);
  EXPECT_TRUE(spans.begin(span_kind::ttft, 2, at(6))->abandoned);  // It is as new.
  EXPECT_FALSE(spans.end(span_kind::ttft, 4)->abandoned);
  EXPECT_EQ(abandon(at(9)), (numbers{2, 5}));
  EXPECT_EQ(spans.oldest(), never);
  EXPECT_EQ(spans.size(), 3U);
}

/// Else every turn would go through all of them, where a client never ends what it begins.
TEST(OpenSpans, AreNotLookedThroughForEachThatIsAbandoned) {
  core::open_spans spans;
  const auto at = [](int second) { return time_point{second * duration(1s)}; };
  int said = 0;
  const auto abandon = [&](time_point by) { spans.abandon(by, 10s, [&](const auto&) { ++said; }); };
  for (int i = 0; i < 5; ++i) spans.begin(span_kind::ttft, static_cast<std::uint64_t>(i), at(i));
  abandon(at(0));
  EXPECT_EQ(said, 1);
  spans.begin(span_kind::ttft, 9, at(0));
  EXPECT_EQ(spans.oldest(), at(10));
  abandon(at(9));
  EXPECT_EQ(said, 1);
  abandon(at(10));
  EXPECT_EQ(said, 6);
}

TEST(OpenSpans, ForgetAbandonedOnesBeforeThereAreTooMany) {
  core::open_spans spans;
  constexpr std::uint64_t all = 100'000;
  for (std::uint64_t i = 0; i < all; ++i) {
    const time_point at{duration(static_cast<std::int64_t>(i))};
    spans.abandon(at - 50ns, 50ns, [](const auto&) {});
    spans.begin(span_kind::request, i, at);
    ASSERT_LE(spans.size(), 2 * core::open_spans::many);
  }
  EXPECT_TRUE(spans.end(span_kind::request, all - 1));
  EXPECT_FALSE(spans.end(span_kind::request, 0));
}

/// Else a policy would take requests that have waited for long, and are done, for waiting ones.
TEST(OpenSpans, ForgetNoneOfAFewHundredThatWaitForLong) {
  core::open_spans spans;
  constexpr int all = 900;
  const auto begin_of = [](int number) { return time_point{number * duration(1s)}; };
  for (int i = 0; i < all; ++i) {
    spans.abandon(begin_of(i) - 1min, 1ns, [](const auto&) {});
    spans.begin(span_kind::request, static_cast<std::uint64_t>(i), begin_of(i));
  }
  for (int i = 0; i < all; ++i) {
    ASSERT_EQ(begun(spans.end(span_kind::request, static_cast<std::uint64_t>(i))), begin_of(i));
  }
}

}  // namespace
}  // namespace sluice::tests::spans_test
