// What sources see of online queues' pointers: which GPUs have work by it, and what policies and
// the attacher are told.

#include "core_bench.hpp"

#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/policies/pointer_polling.hpp"

namespace sluice::tests::pointers_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint64_t job = 5;
constexpr pid_t serving = 300;
constexpr pid_t training = 100;
constexpr capabilities shows_work{"shows work",
                                  {capability::holds_end_with_maker, capability::read_backlog}};

/// An online process on GPU a; a policy that wants pointers looked at and remembers what it hears.
class Pointers : public ::testing::Test {
 protected:
  Pointers() {
    bench.create(serving, role::online, gpu_a, {0});
    bench.create(training, role::offline, gpu_a, {0});
    bench.settle();
  }

  void point(pid_t pid, gpu_id gpu, online_work work, std::uint32_t packets = 0) {
    bench.see_pointers(pid, gpu, work, packets);
  }
  online_work work(gpu_id gpu = gpu_a) { return bench.core->seen().find(gpu)->work; }

  struct told {
    gpu_id gpu;
    std::uint32_t packets;
    bool operator==(const told&) const = default;
  };
  std::vector<told> moved() { return std::exchange(moved_, {}); }

  std::vector<told> moved_;
  duration interval_ = 1ms;
  core_bench bench{quick_config(), make_policy([this](const snapshot& seen, decision_sink& out) {
                     out.poll_pointers(interval_);
                     for (const event& each : seen.events) {
                       if (each.kind == event_kind::online_moved)
                         moved_.push_back({each.gpu, each.count});
                     }
                   })};
};

TEST_F(Pointers, AreLookedAtAsOftenAsThePolicyWants) {
  EXPECT_EQ(bench.core->pointer_interval(), 1ms);
  EXPECT_TRUE(bench.core->look().polls_pointers);
  interval_ = 5ms;
  point(serving, gpu_a, online_work::finished);
  bench.step();
  EXPECT_EQ(bench.core->pointer_interval(), 5ms);
}

TEST_F(Pointers, TellOfPacketsAndOfTheirEnd) {
  point(serving, gpu_a, online_work::waiting, 3);
  bench.step();
  EXPECT_EQ(work(), online_work::waiting);
  EXPECT_EQ(bench.core->seen().find(gpu_a)->last_move, bench.time.now());
  EXPECT_THAT(moved(), ElementsAre(told{gpu_a, 3}));
  const time_point came = bench.time.now();
  bench.time.advance(1ms);
  point(serving, gpu_a, online_work::finished);
  bench.step();
  EXPECT_EQ(work(), online_work::finished);
  EXPECT_EQ(bench.core->seen().find(gpu_a)->last_move, came);
  EXPECT_THAT(moved(), ElementsAre(told{gpu_a, 0}));
  bench.step();
  EXPECT_THAT(moved(), IsEmpty());
}

TEST_F(Pointers, OfSeveralProcessesSayWhatTheBusiestSays) {
  bench.create(301, role::online, gpu_a, {0});
  point(serving, gpu_a, online_work::finished, 1);
  point(301, gpu_a, online_work::consumed, 2);
  bench.step();
  EXPECT_EQ(work(), online_work::consumed);
  EXPECT_THAT(moved(), ElementsAre(told{gpu_a, 3}));
  point(serving, gpu_a, online_work::waiting, 1);
  bench.step();
  EXPECT_EQ(work(), online_work::waiting);
  point(serving, gpu_a, online_work::finished);
  point(301, gpu_a, online_work::unknown);
  bench.step();
  EXPECT_EQ(work(), online_work::unknown) << "one of them may well have work";
}

TEST_F(Pointers, ShowSinceWhenWorkWaitsAndRuns) {
  const auto gpu = [&] { return bench.core->look().gpus.front(); };
  bench.create(301, role::online, gpu_a, {0});
  EXPECT_EQ(gpu().online_waiting_since, never);
  const time_point came = bench.time.now();
  point(serving, gpu_a, online_work::waiting, 1);
  bench.step();
  bench.time.advance(1ms);
  const time_point ran = bench.time.now();
  point(serving, gpu_a, online_work::waiting, 2);
  point(301, gpu_a, online_work::running, 1);
  bench.step();
  EXPECT_EQ(gpu().online_waiting_since, came) << "the same state once more";
  EXPECT_EQ(gpu().online_running_since, ran);
  bench.time.advance(1ms);
  const time_point begun = bench.time.now();
  point(serving, gpu_a, online_work::running);
  point(301, gpu_a, online_work::finished);
  bench.step();
  EXPECT_EQ(gpu().online_waiting_since, never);
  EXPECT_EQ(gpu().online_running_since, begun) << "it waited before";
  interval_ = {};
  point(301, gpu_a, online_work::finished, 1);
  bench.settle();
  EXPECT_EQ(gpu().online_running_since, never) << "sources look no longer";
}

TEST_F(Pointers, OfProcessesThatAreNotOnlineDoNotCount) {
  point(training, gpu_a, online_work::waiting, 9);
  bench.step();
  EXPECT_EQ(work(), online_work::unknown);
  EXPECT_THAT(moved(), IsEmpty());
  point(serving, gpu_a, online_work::waiting, 1);
  bench.step();
  bench.see(serving, role::unmatched);
  bench.step();
  EXPECT_EQ(work(), online_work::unknown);
}

TEST_F(Pointers, OfAProcessOrQueueThatIsGoneDoNotCount) {
  bench.create(301, role::online, gpu_b, {0});
  point(serving, gpu_a, online_work::waiting, 1);
  point(301, gpu_b, online_work::waiting, 1);
  bench.step();
  bench.see_kind(observation_kind::process_gone, serving);
  bench.driver.remove_queue(301, q(0));
  bench.see_kind(observation_kind::queue_gone, 301, q(0));
  bench.step();
  EXPECT_EQ(work(gpu_a), online_work::unknown);
  EXPECT_EQ(work(gpu_b), online_work::unknown);
}

// Two threads of one source, two inboxes.
TEST_F(Pointers, MayComeBeforeTheirProcess) {
  point(302, gpu_a, online_work::waiting, 4);
  bench.step();
  EXPECT_EQ(work(), online_work::unknown);
  bench.create(302, role::online, gpu_a, {0});
  bench.step();
  EXPECT_EQ(work(), online_work::waiting);
  EXPECT_THAT(moved(), ElementsAre(told{gpu_a, 4}));
}

TEST_F(Pointers, OfAGangCountOnAllItsGpus) {
  bench.create(301, role::online, gpu_a, {0}, job);
  bench.create(302, role::online, gpu_b, {0}, job);
  bench.settle();
  moved();
  point(301, gpu_a, online_work::waiting, 2);
  bench.step();
  EXPECT_EQ(work(gpu_a), online_work::waiting);
  EXPECT_EQ(work(gpu_b), online_work::waiting);
  EXPECT_THAT(moved(), ElementsAre(told{gpu_a, 2}, told{gpu_b, 2}));
  // Out of the gang: its work is its own.
  bench.see(302, role::online);
  bench.step();
  EXPECT_EQ(work(gpu_a), online_work::waiting);
  EXPECT_EQ(work(gpu_b), online_work::unknown);
}

TEST_F(Pointers, AreForgottenWhenNobodyWantsThemAnyMore) {
  point(serving, gpu_a, online_work::waiting, 1);
  bench.step();
  ASSERT_EQ(work(), online_work::waiting);
  interval_ = {};
  point(serving, gpu_a, online_work::waiting, 1);
  bench.step();
  EXPECT_EQ(bench.core->pointer_interval(), duration::zero());
  EXPECT_FALSE(bench.core->look().polls_pointers);
  EXPECT_EQ(work(), online_work::unknown);
  point(serving, gpu_a, online_work::waiting, 1);  // One that was under way.
  bench.step();
  EXPECT_EQ(work(), online_work::unknown);
}

TEST_F(Pointers, AreNotLookedAtForAPolicyThatWasRemoved) {
  core_bench thrower{quick_config(), make_policy([](const snapshot&, decision_sink& out) {
                       out.poll_pointers(1ms);
                       throw std::runtime_error("no");
                     })};
  thrower.create(training, role::offline, gpu_a, {0});
  thrower.step();
  EXPECT_EQ(thrower.stats().policy_ejections.value(), 1U);
  EXPECT_EQ(thrower.core->pointer_interval(), duration::zero());
}

// An attach costs online work a runlist cycle or two.
TEST_F(Pointers, DelayAnAttachWhileTheySayThatWorkRuns) {
  point(serving, gpu_a, online_work::consumed, 1);
  bench.run_for(3s);  // attach_after is 2 s.
  EXPECT_FALSE(bench.driver.attached(training));
  point(serving, gpu_a, online_work::finished);
  bench.run_for(10ms);
  EXPECT_TRUE(bench.driver.attached(training));
}

// Its client announces what counts from then on; what is seen of it after all changes nothing.
TEST_F(Pointers, OfAProcessThatMarksItsRequestsAreForgotten) {
  std::vector<std::pair<pid_t, bool>> marks;
  bench.core->on_marks([&](pid_t pid, bool so) { marks.emplace_back(pid, so); });
  point(serving, gpu_a, online_work::waiting, 3);
  bench.step();
  ASSERT_EQ(work(), online_work::waiting);
  (void)moved();
  auto client = bench.core->register_client({.name = "server", .gpus = {gpu_a}, .pid = serving});
  ASSERT_TRUE(client);
  bench.step();
  EXPECT_EQ(work(), online_work::unknown);
  EXPECT_EQ(bench.core->look().gpus[0].online_waiting, 0U);
  EXPECT_FALSE(bench.core->look().gpus[0].busy);
  EXPECT_THAT(moved(), ElementsAre(told{gpu_a, 0})) << "the policy hears that";
  EXPECT_THAT(marks, ElementsAre(std::pair{serving, true}));
  EXPECT_TRUE(bench.driver.marks_requests_of(serving));

  point(serving, gpu_a, online_work::running, 1);  // It was on its way.
  bench.step();
  EXPECT_EQ(work(), online_work::unknown);

  *client = {};
  bench.settle();
  EXPECT_THAT(marks, ElementsAre(std::pair{serving, true}, std::pair{serving, false}));
  EXPECT_EQ(work(), online_work::unknown) << "nothing of before comes back";
  point(serving, gpu_a, online_work::running, 1);
  bench.step();
  EXPECT_EQ(work(), online_work::running);
}

TEST_F(Pointers, OfOthersStayWhenOneMarksItsRequests) {
  bench.create(serving + 1, role::online, gpu_a, {0});
  point(serving, gpu_a, online_work::waiting, 1);
  point(serving + 1, gpu_a, online_work::running, 1);
  bench.step();
  ASSERT_EQ(work(), online_work::waiting);
  auto client = bench.core->register_client({.name = "server", .gpus = {gpu_a}, .pid = serving});
  ASSERT_TRUE(client);
  bench.step();
  EXPECT_EQ(work(), online_work::running);
}

TEST(SeeingWork, IsACapabilityOfAGpuWithASourceThatShowsIt) {
  std::vector<std::size_t> changed;
  core_bench bench{quick_config(), make_policy([&](const snapshot& seen, decision_sink&) {
                     changed.push_back(seen.changed.size());
                   })};
  bench.create(training, role::offline, gpu_a, {0});
  bench.create(training + 1, role::offline, gpu_b, {0});
  bench.attach_all();
  const auto can = [&](gpu_id id) { return bench.core->seen().find(id)->can_see_work; };
  EXPECT_FALSE(can(gpu_a));
  changed.clear();
  bench.show_work(gpu_a);
  bench.settle();
  EXPECT_TRUE(can(gpu_a));
  EXPECT_FALSE(can(gpu_b));
  EXPECT_THAT(changed, ElementsAre(1U)) << "the policy gets a turn for its group there";
}

TEST(SeeingWork, EndsWithTheLastSourceThatShowsIt) {
  core_bench bench{quick_config(), make_policy([](const snapshot&, decision_sink&) {})};
  const auto show = [&](unsigned source, bool so) {
    observation seen;
    seen.kind = observation_kind::gpu_seen;
    seen.gpu = gpu_a;
    seen.shows_work = so;
    bench.core->observe(source, seen);
    bench.settle();
    return bench.core->seen().find(gpu_a)->can_see_work;
  };
  EXPECT_TRUE(show(0, true));
  EXPECT_TRUE(show(1, false));
  EXPECT_TRUE(show(1, true));
  EXPECT_TRUE(show(0, false));
  EXPECT_FALSE(show(1, false));
}

TEST(SeeingWork, IsACapabilityOfAnActingSideThatShowsIt) {
  core_bench bench{quick_config(), make_policy([](const snapshot&, decision_sink&) {})};
  bench.create(training, role::offline, gpu_a, {0});
  bench.attach_all();
  const auto can = [&] { return bench.core->seen().find(gpu_a)->can_see_work; };
  EXPECT_FALSE(can());
  bench.driver.act_by(shows_work);
  bench.settle();
  EXPECT_TRUE(can());
  bench.driver.act_by(testing::single_calls);
  bench.settle();
  EXPECT_FALSE(can());
}

TEST(PointerPolling, SuspendsThroughTheCoreAndIsMeasured) {
  core_bench bench{quick_config(), make_pointer_polling()};
  EXPECT_EQ(bench.core->pointer_interval(), duration::zero());
  bench.show_work(gpu_a);
  bench.create(serving, role::online, gpu_a, {0});
  bench.settle();
  EXPECT_EQ(bench.core->pointer_interval(), duration::zero()) << "nothing to suspend";
  bench.create(training, role::offline, gpu_a, {0});
  bench.attach_all();
  EXPECT_EQ(bench.core->pointer_interval(), 2ms);
  const auto point = [&](online_work work, std::uint32_t packets) {
    bench.see_pointers(serving, gpu_a, work, packets);
    bench.settle();
  };
  point(online_work::waiting, 1);
  EXPECT_TRUE(bench.driver.suspended(training, q(0)));
  EXPECT_EQ(bench.core->pointer_interval(), 200us);
  EXPECT_EQ(bench.stats().arrival_to_off.count(), 1U);
  point(online_work::consumed, 0);
  bench.run_for(500ms);
  EXPECT_TRUE(bench.driver.suspended(training, q(0)));
  point(online_work::finished, 0);
  bench.run_for(20ms);
  EXPECT_FALSE(bench.driver.suspended(training, q(0)));
  bench.run_for(2s);
  EXPECT_EQ(bench.core->pointer_interval(), 2ms);
}

/// What the acting side sees, where no source does.
class BackendsPointers : public Pointers {
 protected:
  observation seen(pid_t pid, gpu_id gpu, online_work work, std::uint32_t packets = 0) {
    observation made;
    made.kind = observation_kind::pointers_seen;
    made.pid = pid;
    made.start_time = start_time;
    made.gpu = gpu;
    made.work = work;
    made.count = packets;
    made.at = bench.time.now();
    return made;
  }
  void say(const observation& what) {
    bench.driver.see(what);
    bench.step();
  }
};

TEST_F(BackendsPointers, AreLookedAtAsOftenAsThePolicyWants) {
  EXPECT_EQ(bench.driver.work_interval(), 1ms);
  interval_ = 5ms;
  say(seen(serving, gpu_a, online_work::finished));
  EXPECT_EQ(bench.driver.work_interval(), 5ms);
  bench.core->begin_stop();
  bench.step();
  EXPECT_EQ(bench.driver.work_interval(), duration::zero());
}

TEST_F(BackendsPointers, CountAsThoseOfASource) {
  say(seen(serving, gpu_a, online_work::waiting, 3));
  EXPECT_EQ(work(), online_work::waiting);
  EXPECT_THAT(moved(), ElementsAre(told{gpu_a, 3}));
  say(seen(serving, gpu_a, online_work::finished));
  EXPECT_EQ(work(), online_work::finished);
}

TEST_F(BackendsPointers, OfAProcessThatMarksItsRequestsAreForgotten) {
  say(seen(serving, gpu_a, online_work::waiting, 3));
  ASSERT_EQ(work(), online_work::waiting);
  auto client = bench.core->register_client({.name = "server", .gpus = {gpu_a}, .pid = serving});
  ASSERT_TRUE(client);
  bench.step();
  EXPECT_TRUE(bench.driver.marks_requests_of(serving));
  EXPECT_EQ(work(), online_work::unknown);
  say(seen(serving, gpu_a, online_work::running, 1));  // It was on its way.
  EXPECT_EQ(work(), online_work::unknown);
  *client = {};
  bench.settle();
  EXPECT_FALSE(bench.driver.marks_requests_of(serving));
  say(seen(serving, gpu_a, online_work::running, 1));
  EXPECT_EQ(work(), online_work::running);
}

TEST_F(BackendsPointers, OfUnknownProcessesAndGpusAreDropped) {
  say(seen(302, gpu_a, online_work::waiting, 4));
  say(seen(serving, gpu_id{77}, online_work::waiting, 4));
  observation earlier = seen(serving, gpu_a, online_work::waiting, 4);
  earlier.start_time = 1;  // of the pid's owner before
  say(earlier);
  bench.create(302, role::online, gpu_b, {0});
  bench.settle();
  EXPECT_EQ(work(gpu_a), online_work::unknown);
  EXPECT_EQ(work(gpu_b), online_work::unknown);
  EXPECT_EQ(bench.core->seen().find(gpu_id{77}), nullptr);
  EXPECT_THAT(moved(), IsEmpty());
}

TEST_F(BackendsPointers, AreAllThatItCanSay) {
  for (int kind = 0; kind < 256; ++kind) {
    observation made_up = seen(serving, gpu_a, online_work::waiting);
    made_up.kind = static_cast<observation_kind>(kind);
    if (made_up.kind != observation_kind::pointers_seen) say(made_up);
  }
  ASSERT_NE(bench.core->seen().find(gpu_a), nullptr);
  EXPECT_EQ(work(), online_work::unknown);
  EXPECT_EQ(bench.core->look().groups.size(), 2U);
  for (const auto& each : bench.core->look().gpus) EXPECT_FALSE(each.breaker_open);
}

TEST_F(BackendsPointers, CannotComeFromTheFutureOrFromLongAgo) {
  bench.time.advance(1h);
  observation made_up = seen(serving, gpu_a, online_work::waiting, 1);
  made_up.at = time_point::max();
  say(made_up);
  EXPECT_EQ(bench.core->seen().find(gpu_a)->last_move, bench.time.now());
  made_up.at = time_point::min();
  say(made_up);
  EXPECT_EQ(bench.core->seen().find(gpu_a)->last_move, bench.time.now() - 1s);
}

TEST_F(BackendsPointers, AreForgottenWhenNobodyWantsThemAnyMore) {
  interval_ = {};
  say(seen(serving, gpu_a, online_work::waiting, 1));
  ASSERT_EQ(work(), online_work::unknown);
  say(seen(serving, gpu_a, online_work::waiting, 1));
  EXPECT_EQ(work(), online_work::unknown);
}

TEST(PointerPolling, HoldsOfflineWorkForWhatTheActingSideSees) {
  core_bench bench{quick_config(), make_pointer_polling()};
  bench.driver.act_by(shows_work);
  bench.create(serving, role::online, gpu_a, {0});
  bench.create(training, role::offline, gpu_a, {0});
  bench.attach_all();
  EXPECT_EQ(bench.driver.work_interval(), 2ms);
  const auto say = [&](online_work work, std::uint32_t packets) {
    observation made;
    made.kind = observation_kind::pointers_seen;
    made.pid = serving;
    made.start_time = start_time;
    made.gpu = gpu_a;
    made.work = work;
    made.count = packets;
    made.at = bench.time.now();
    bench.driver.see(made);
    bench.settle();
  };
  say(online_work::waiting, 1);
  EXPECT_TRUE(bench.driver.suspended(training, q(0)));
  EXPECT_EQ(bench.driver.work_interval(), 200us);
  EXPECT_EQ(bench.stats().arrival_to_off.count(), 1U);
  say(online_work::finished, 0);
  bench.run_for(20ms);
  EXPECT_FALSE(bench.driver.suspended(training, q(0)));
}

}  // namespace
}  // namespace sluice::tests::pointers_test
