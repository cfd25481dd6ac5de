// Requests of online programs that mark none: what is seen of their work begins and ends them.

#include "core_bench.hpp"

#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/policies/slo.hpp"

namespace sluice::tests::seen_requests_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr pid_t serving = 300;
constexpr pid_t training = 100;

scheduler_config seeing() {
  scheduler_config config = quick_config();
  config.see_unmarked = true;
  return config;
}

class SeenRequests : public ::testing::Test {
 protected:
  SeenRequests() {
    bench.create(serving, role::online, gpu_a, {0});
    bench.create(training, role::offline, gpu_a, {0});
    bench.settle();
  }
  void see(online_work work, std::uint32_t came = 0, pid_t pid = serving, gpu_id gpu = gpu_a) {
    bench.see_pointers(pid, gpu, work, came);
    bench.step();
  }
  /// A request that takes so long.
  void request(duration length) {
    see(online_work::waiting, 1);
    bench.run_for(length);
    see(online_work::finished);
  }
  std::uint32_t in_flight(gpu_id gpu = gpu_a) {
    return bench.core->seen().find(gpu)->online_in_flight;
  }
  bool comes_to(std::uint32_t wanted, duration within) {
    const time_point until = bench.time.now() + within;
    while (in_flight() != wanted && bench.time.now() < until) bench.run_for(10us);
    return in_flight() == wanted;
  }

  std::vector<event> events_;
  core_bench bench{seeing(), make_policy([this](const snapshot& seen, decision_sink&) {
                     for (const event& each : seen.events)
                       if (each.kind != event_kind::online_moved) events_.push_back(each);
                   })};
};

TEST_F(SeenRequests, BeginAndEndWithWhatIsSeen) {
  const time_point begun = bench.time.now();
  see(online_work::waiting, 1);
  EXPECT_EQ(in_flight(), 1U);
  bench.run_for(5ms);
  see(online_work::running);
  bench.run_for(5ms);
  EXPECT_EQ(in_flight(), 1U);
  const time_point ended = bench.time.now();
  see(online_work::finished);
  EXPECT_TRUE(comes_to(0, 5ms));
  ASSERT_THAT(events_, SizeIs(4));
  EXPECT_EQ(events_[0].kind, event_kind::online_begin);
  EXPECT_EQ(events_[0].at, begun);
  EXPECT_EQ(events_[1].kind, event_kind::span_begin);
  const auto span = std::find_if(events_.begin(), events_.end(), [](const event& each) {
    return each.kind == event_kind::span_end;
  });
  ASSERT_NE(span, events_.end());
  EXPECT_EQ(span->length, ended - begun) << "the pause after it is no part of it";
  EXPECT_EQ(bench.stats().begins, 1U);
}

// What came and ended between two looks is a request all the same.
TEST_F(SeenRequests, ThatEndBetweenTwoLooksCount) {
  see(online_work::finished);
  EXPECT_EQ(in_flight(), 0U);
  see(online_work::finished, 3);
  EXPECT_EQ(in_flight(), 1U);
  EXPECT_TRUE(comes_to(0, 5ms));
}

TEST_F(SeenRequests, LastOverShortPauses) {
  for (int i = 0; i < 20; ++i) {
    request(1ms);
    bench.run_for(100us);
  }
  EXPECT_EQ(bench.stats().begins, 1U);
}

// Gaps of a program differ: the pause after which it counts as ended follows them.
TEST_F(SeenRequests, EndSoonAfterLongGapsOnly) {
  for (int i = 0; i < 40; ++i) {
    request(1ms);
    ASSERT_TRUE(comes_to(0, 5ms));
    bench.run_for(50ms);
  }
  request(1ms);
  EXPECT_TRUE(comes_to(0, 100us)) << "all gaps are long: to wait is in vain";
}

TEST_F(SeenRequests, LastOverTheGapsThatAProgramHas) {
  for (int burst = 0; burst < 20; ++burst) {
    for (int i = 0; i < 10; ++i) {
      request(200us);
      bench.run_for(1500us);
    }
    bench.run_for(100ms);
  }
  const auto before = bench.stats().begins.value();
  for (int i = 0; i < 10; ++i) {
    request(200us);
    bench.run_for(1500us);
  }
  EXPECT_EQ(bench.stats().begins - before, 1U);
}

// Without a word that says when it ended, it counts as ended a while after the last submission.
TEST_F(SeenRequests, WithoutAnEndEndAfterAWhile) {
  see(online_work::waiting, 1);
  bench.run_for(1ms);
  see(online_work::consumed);
  bench.run_for(10ms);
  EXPECT_EQ(in_flight(), 1U);
  EXPECT_TRUE(comes_to(0, 50ms));
}

// Symptom: it had no length, as if it had ended before its end showed.
TEST_F(SeenRequests, LastUntilTheirEndShows) {
  const time_point begun = bench.time.now();
  see(online_work::consumed, 1);
  bench.run_for(8ms);
  const time_point ended = bench.time.now();
  see(online_work::finished);
  EXPECT_EQ(in_flight(), 1U) << "more may follow";
  EXPECT_TRUE(comes_to(0, 5ms)) << "its end is seen: nothing to assume";
  const auto span = std::find_if(events_.begin(), events_.end(), [](const event& each) {
    return each.kind == event_kind::span_end;
  });
  ASSERT_NE(span, events_.end());
  EXPECT_EQ(span->length, ended - begun);
}

// Ends that were not seen at first delay no request once they are.
TEST_F(SeenRequests, EndSoonOnceEndsAreSeen) {
  see(online_work::consumed, 1);
  ASSERT_TRUE(comes_to(0, 50ms));
  see(online_work::finished);
  EXPECT_EQ(in_flight(), 0U) << "an end is no request";
  request(1ms);
  EXPECT_TRUE(comes_to(0, 5ms));
}

// Symptom: one submission on another GPU, of which no end is seen, delayed the end of each request.
TEST_F(SeenRequests, EndSoonThoughAnotherGpuShowsNoEnds) {
  bench.create_queue(serving, q(1), gpu_b);
  bench.settle();
  see(online_work::consumed, 1, serving, gpu_b);
  bench.run_for(50ms);
  ASSERT_EQ(in_flight(gpu_b), 0U);
  request(1ms);
  ASSERT_EQ(in_flight(), 1U);
  EXPECT_TRUE(comes_to(0, 5ms));
  see(online_work::consumed, 1, serving, gpu_b);
  see(online_work::waiting, 1);
  see(online_work::finished);
  bench.run_for(10ms);
  EXPECT_EQ(in_flight(), 1U) << "this one has work there";
  EXPECT_TRUE(comes_to(0, 50ms));
}

TEST_F(SeenRequests, OfAProcessWithAClientAreLeftToThat) {
  auto client = bench.core->register_client({.name = "server", .gpus = {gpu_a}, .pid = serving});
  ASSERT_TRUE(client);
  bench.step();
  EXPECT_TRUE(bench.driver.marks_requests_of(serving));
  see(online_work::waiting, 1);
  EXPECT_EQ(in_flight(), 0U);
  client->begin();
  bench.step();
  EXPECT_EQ(in_flight(), 1U);
  *client = {};
  bench.step();
  bench.step();
  EXPECT_FALSE(bench.driver.marks_requests_of(serving));
  see(online_work::waiting, 1);
  EXPECT_EQ(in_flight(), 1U);
}

TEST_F(SeenRequests, EndWithTheirProcess) {
  see(online_work::running, 1);
  ASSERT_EQ(in_flight(), 1U);
  bench.see_kind(observation_kind::process_gone, serving);
  bench.settle();
  EXPECT_EQ(in_flight(), 0U);
}

TEST_F(SeenRequests, OfOfflineProcessesAreNone) {
  see(online_work::running, 1, training);
  EXPECT_EQ(in_flight(), 0U);
}

// Work on one GPU of an online gang keeps all of its GPUs.
TEST_F(SeenRequests, OfAGangCountOnAllOfItsGpus) {
  bench.create(301, role::online, gpu_a, {0}, 9);
  bench.create(302, role::online, gpu_b, {0}, 9);
  bench.settle();
  see(online_work::running, 1, 301);
  EXPECT_EQ(in_flight(gpu_a), 1U);
  EXPECT_EQ(in_flight(gpu_b), 1U);
}

// Symptom: a request that began on one GPU did not count on another one until it had ended.
TEST_F(SeenRequests, CountOnEachGpuOnWhichTheyHaveWork) {
  bench.create_queue(serving, q(1), gpu_b);
  bench.settle();
  see(online_work::running, 1);
  EXPECT_EQ(in_flight(gpu_b), 0U);
  see(online_work::running, 1, serving, gpu_b);
  EXPECT_EQ(in_flight(gpu_a), 1U);
  EXPECT_EQ(in_flight(gpu_b), 1U);
  see(online_work::finished);
  bench.run_for(5ms);
  EXPECT_EQ(in_flight(gpu_b), 1U);
  see(online_work::finished, 0, serving, gpu_b);
  EXPECT_TRUE(comes_to(0, 5ms));
  EXPECT_EQ(in_flight(gpu_b), 0U);
}

TEST_F(SeenRequests, LeaveGpusAloneThatTheyNoLongerUse) {
  bench.create_queue(serving, q(1), gpu_b);
  bench.settle();
  see(online_work::running, 1, serving, gpu_b);
  request(1ms);
  see(online_work::finished, 0, serving, gpu_b);
  ASSERT_TRUE(comes_to(0, 5ms));
  request(1ms);
  EXPECT_EQ(in_flight(gpu_b), 1U) << "it used both a moment ago";
  ASSERT_TRUE(comes_to(0, 5ms));
  bench.run_for(11s);
  see(online_work::running, 1);
  EXPECT_EQ(in_flight(), 1U);
  EXPECT_EQ(in_flight(gpu_b), 0U);
  // As after a resync, or where its words are lost: no work comes with it.
  see(online_work::finished, 0, serving, gpu_b);
  see(online_work::consumed, 0, serving, gpu_b);
  see(online_work::finished, 0, serving, gpu_b);
  EXPECT_EQ(in_flight(), 1U);
  EXPECT_EQ(in_flight(gpu_b), 0U);
  see(online_work::finished);
  EXPECT_TRUE(comes_to(0, 5ms));
}

// Symptom: each report of a GPU without work began the request once more.
TEST_F(SeenRequests, BeginOnceWhateverIsToldOfAnotherGpu) {
  bench.create_queue(serving, q(1), gpu_b);
  bench.settle();
  see(online_work::running, 1);
  see(online_work::consumed, 0, serving, gpu_b);
  see(online_work::finished, 0, serving, gpu_b);
  EXPECT_EQ(in_flight(), 1U);
  see(online_work::finished);
  EXPECT_TRUE(comes_to(0, 5ms));
}

// Nothing is looked at where that is of no use.
TEST_F(SeenRequests, AreLookedForWhileSomethingIsOffline) {
  EXPECT_EQ(bench.core->pointer_interval(), 2ms);
  see(online_work::waiting, 1);
  EXPECT_EQ(bench.core->pointer_interval(), 50us);
  see(online_work::finished);
  bench.run_for(2s);
  EXPECT_EQ(bench.core->pointer_interval(), 2ms);
  see(online_work::waiting, 1);
  ASSERT_EQ(in_flight(), 1U);
  bench.see_kind(observation_kind::process_gone, training);
  bench.settle();
  EXPECT_EQ(bench.core->pointer_interval(), duration::zero());
  EXPECT_EQ(in_flight(), 0U);
}

TEST_F(SeenRequests, AreNoneOnceTheSchedulerStops) {
  see(online_work::waiting, 1);
  bench.core->begin_stop();
  bench.settle();
  EXPECT_EQ(bench.core->pointer_interval(), duration::zero());
}

TEST(SeenRequestsOff, AreNotAskedFor) {
  core_bench bench{quick_config(), make_policy([](const snapshot&, decision_sink&) {})};
  bench.create(serving, role::online, gpu_a, {0});
  bench.create(training, role::offline, gpu_a, {0});
  bench.settle();
  EXPECT_EQ(bench.core->pointer_interval(), duration::zero());
  bench.see_pointers(serving, gpu_a, online_work::waiting, 1);
  bench.settle();
  EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 0U);
}

// A policy that lives by clients holds for a program that is none.
TEST(SeenRequestsWithFixedTimeslice, AreHeldFor) {
  core_bench bench{seeing(), make_fixed_timeslice({.slice = 20ms})};
  bench.create(serving, role::online, gpu_a, {0});
  bench.create(training, role::offline, gpu_a, {0});
  bench.attach_all();
  bench.see_pointers(serving, gpu_a, online_work::waiting, 1);
  bench.settle();
  EXPECT_TRUE(bench.driver.suspended(training, q(0)));
  EXPECT_EQ(bench.stats().arrival_to_off.count(), 1U);
  bench.run_for(1ms);
  bench.see_pointers(serving, gpu_a, online_work::finished);
  bench.run_for(100ms);
  EXPECT_FALSE(bench.driver.suspended(training, q(0)));
}

// slo knows how long they take.
TEST(SeenRequestsWithSlo, HaveLatencies) {
  slo_options options;
  options.p99[static_cast<std::size_t>(span_kind::request)] = 1ms;
  core_bench bench{seeing(), make_slo(options)};
  bench.create(serving, role::online, gpu_a, {0});
  bench.create(training, role::offline, gpu_a, {0});
  bench.attach_all();
  bool held = false;
  for (int i = 0; i < 40; ++i) {
    bench.see_pointers(serving, gpu_a, online_work::running, 1);
    bench.settle();
    bench.run_for(3ms);
    held = held || bench.driver.suspended(training, q(0));
    bench.see_pointers(serving, gpu_a, online_work::finished);
    bench.run_for(50ms);
  }
  EXPECT_TRUE(held);
  const statistics stats = bench.stats();
  EXPECT_EQ(stats.span_length[static_cast<std::size_t>(span_kind::request)].count(), 40U);
}

// Symptom: offline work was held up to max_suspend again and again.
TEST_F(SeenRequests, EndWhenTheirQueuesAreDestroyed) {
  see(online_work::running, 1);
  EXPECT_EQ(in_flight(), 1U);
  bench.see_kind(observation_kind::queue_gone, serving, q(0));
  EXPECT_TRUE(comes_to(0, 1s));
}

// As in mode observe with a driver whose agent looks.
TEST(SeenRequestsAreNone, WhereNoWorkShowsWhichIsLoggedOnce) {
  for (const bool shows : {false, true}) {
    ::testing::internal::CaptureStderr();
    core_bench bench{seeing(), make_policy([](const snapshot&, decision_sink&) {})};
    if (shows) bench.show_work(gpu_a);
    bench.create(training, role::offline, gpu_a, {0});
    bench.settle();
    bench.run_for(10s);
    const std::string log = ::testing::internal::GetCapturedStderr();
    const std::string words = "see_unmarked has no effect";
    const auto first = log.find(words);
    EXPECT_EQ(first == std::string::npos, shows) << log;
    EXPECT_EQ(log.rfind(words), first) << log;
  }
}

}  // namespace
}  // namespace sluice::tests::seen_requests_test
