// Declarations, and the limits that hold for every policy.

#include "core_bench.hpp"

#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::tests::limits_test {
namespace {

/// Holds every offline group it hears of, for as long as it may.
std::unique_ptr<policy> hold_always() {
  return make_policy([](const snapshot& seen, decision_sink& out) {
    for (const group_id id : seen.changed) out.hold(id, never);
  });
}

TEST(Declaration, StandsUntilItExpires) {
  core_bench bench(quick_config(), make_policy([](const snapshot& seen, decision_sink& out) {
                     for (const event& one : seen.events) {
                       for (const group_id id : seen.table.find(one.gpu)->offline) {
                         out.hold(id, seen.now + 40ms);
                       }
                     }
                   }));
  bench.create(100, role::offline, gpu_a, {0});
  auto client = bench.client();
  bench.attach_all();
  client.begin();
  bench.run_for(39ms);
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
  bench.run_for(1ms);
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
}

TEST(Declaration, IsListedAsChangedWhenItExpires) {
  std::vector<time_point> seen_changes;
  core_bench bench(quick_config(), make_policy([&](const snapshot& seen, decision_sink& out) {
                     if (!seen.changed.empty()) seen_changes.push_back(seen.now);
                     for (const event& one : seen.events) {
                       for (const group_id id : seen.table.find(one.gpu)->offline) {
                         out.hold(id, seen.now + 40ms);
                       }
                     }
                   }));
  bench.create(100, role::offline, gpu_a, {0});
  auto client = bench.client();
  bench.attach_all();
  client.begin();
  bench.settle();
  const auto expiry = bench.time.now() + 40ms;
  bench.run_for(100ms);
  EXPECT_THAT(seen_changes, ::testing::Contains(expiry));
}

TEST(Declaration, ThatIsRenewedAsItExpiresCausesNoDriverCall) {
  auto config = quick_config();
  config.max_suspend = 200ms;
  core_bench bench(config);  // fixed_timeslice asks for `never`, which is capped at max_suspend.
  bench.create(100, role::offline, gpu_a, {0});
  auto client = bench.client();
  bench.attach_all();
  const time_point held = bench.time.now();
  client.begin();
  bench.run_for(50ms);
  client.begin();
  bench.run_for(149ms);
  EXPECT_EQ(bench.driver.batches().size(), 1U);
  const group_picture group = bench.core->look().groups.front();
  EXPECT_EQ(group.must_run_at, held + 200ms) << "a renewal does not move it";
  EXPECT_GT(group.wanted_until, group.must_run_at);
  bench.run_for(20ms);
  EXPECT_EQ(bench.core->look().groups.front().must_run_at, never);
}

TEST(Declaration, OfARunEndsAHold) {
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
  bench.settle();
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
  client.end();
  bench.settle();
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
}

TEST(Declaration, ForAGroupThatIsUnknownIsIgnored) {
  core_bench bench(quick_config(), make_policy([](const snapshot& seen, decision_sink& out) {
                     out.hold(group_id{0}, never);
                     out.hold(group_id{99999}, never);
                     out.run(group_id{12345678901});
                     EXPECT_EQ(seen.table.find(group_id{99999}), nullptr);
                   }));
  bench.create(100, role::offline, gpu_a, {0});
  bench.attach_all();
  EXPECT_TRUE(bench.driver.batches().empty());
}

TEST(WakeAt, GivesOneTurnAtTheEarliestOfTheAskedTimes) {
  std::vector<time_point> turns;
  core_bench bench(quick_config(), make_policy([&](const snapshot& seen, decision_sink& out) {
                     turns.push_back(seen.now);
                     if (seen.events.empty()) return;
                     out.wake_at(seen.now + 30ms);
                     out.wake_at(seen.now + 10ms);
                     out.wake_at(seen.now + 20ms);
                   }));
  auto client = bench.client({gpu_a});
  client.begin();
  bench.settle();
  const auto began = bench.time.now();
  bench.run_for(100ms);
  EXPECT_EQ(turns, (std::vector<time_point>{began, began + 10ms}));
}

TEST(Snapshot, NumbersItsTurnsAndHasTheTurnsTime) {
  std::uint64_t last = 0;
  core_bench* the_bench = nullptr;
  core_bench bench(quick_config(), make_policy([&](const snapshot& seen, decision_sink&) {
                     EXPECT_EQ(seen.turn, last + 1);
                     EXPECT_EQ(seen.now, the_bench->time.now());
                     last = seen.turn;
                   }));
  the_bench = &bench;
  auto client = bench.client({gpu_a});
  for (int i = 0; i < 5; ++i) {
    client.begin();
    bench.run_for(1ms);
  }
  EXPECT_EQ(last, 5U);
}

TEST(Snapshot, ShowsWhatClientsDidOnEachGpu) {
  const gpu_view* found = nullptr;
  std::vector<event> events;
  core_bench bench(quick_config(), make_policy([&](const snapshot& seen, decision_sink&) {
                     found = seen.table.find(gpu_b);
                     events.assign(seen.events.begin(), seen.events.end());
                   }));
  auto client = bench.client({gpu_a, gpu_b});
  client.begin();
  const auto began = bench.time.now();
  bench.time.advance(3ms);
  client.begin();
  client.begin();
  client.end();
  bench.step();
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->online_in_flight, 2U);
  EXPECT_EQ(found->last_begin, began);
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0].kind, event_kind::online_begin);
  EXPECT_EQ(events[0].count, 3U);
  EXPECT_EQ(events[0].at, began);
  EXPECT_EQ(events[0].client, client.id());
  EXPECT_EQ(events[2].kind, event_kind::online_end);
  EXPECT_EQ(events[2].count, 1U);
}

TEST(Snapshot, KnowsAClientUntilTheTurnInWhichItWithdraws) {
  std::vector<std::string> names;
  core_bench bench(quick_config(), make_policy([&](const snapshot& seen, decision_sink&) {
                     for (const event& one : seen.events) {
                       const client_view* const by = seen.table.find(one.client);
                       names.emplace_back(by == nullptr ? "nobody" : by->name);
                     }
                   }));
  bench.create(100, role::offline, gpu_a, {0});
  client_id id{};
  {
    auto made = bench.core->register_client({"a name that is no short string", {gpu_a}, 100ms});
    ASSERT_TRUE(made);
    id = made->id();
    made->begin();
    bench.step();
  }
  bench.step();
  EXPECT_THAT(names, ::testing::ElementsAre("a name that is no short string",
                                            "a name that is no short string"));
  bench.step();
  EXPECT_EQ(bench.core->seen().find(id), nullptr);
}

TEST(Snapshot, ListsWhoSharedAGpuWithAGroupThatWent) {
  std::vector<group_id> changed;
  core_bench bench(quick_config(), make_policy([&](const snapshot& seen, decision_sink&) {
                     changed.assign(seen.changed.begin(), seen.changed.end());
                   }));
  bench.create(100, role::offline, gpu_a, {0});
  bench.create(101, role::offline, gpu_a, {0});
  bench.create(102, role::offline, gpu_b, {0});
  bench.settle();
  const group_id stays = bench.group_of(gpu_a, 1)->id;
  changed.clear();
  bench.see_kind(observation_kind::process_gone, 100);
  bench.step();
  EXPECT_THAT(changed, ::testing::ElementsAre(stays));
}

TEST(MaxSuspend, MakesAGroupRunForMinRunAndThenBeHeldAgain) {
  core_bench bench;  // max_suspend 1 s, min_run 100 ms
  bench.create(100, role::offline, gpu_a, {0});
  auto client = bench.client();
  bench.attach_all();
  client.begin();
  bench.settle();
  bench.run_for(999ms);
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
  bench.run_for(1ms);
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
  bench.run_for(99ms);
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
  bench.run_for(1ms);
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
  EXPECT_EQ(bench.stats().forced_resumes, 1U);
  EXPECT_EQ(bench.stats().forced_run_ns, 100'000'000U);
}

TEST(MaxSuspend, SaysWhoRunsAgainAndWhy) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  auto client = bench.client();
  bench.attach_all();
  client.begin();
  ::testing::internal::CaptureStderr();
  bench.run_for(1001ms);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("process 100 (group of 1): resumed by the limit max_suspend, against the "
                     "decision of the policy, for at least 100 ms part=scheduler pid=100 group=g1 "
                     "rule=max_suspend times=1\n"),
            std::string::npos)
      << log;
}

// A client that stays busy has the limit act each second, all day.
TEST(MaxSuspend, IsSummedUpInOneLineAMinute) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  auto client = bench.client();
  bench.attach_all();
  client.begin();
  ::testing::internal::CaptureStderr();
  bench.run_for(30s);
  client.end();
  client.begin();  // one without an end stops counting after a minute
  bench.run_for(35s);
  const std::string log = ::testing::internal::GetCapturedStderr();
  const auto first = log.find(" times=1\n");
  const auto second = log.find(" times=", first + 1);
  ASSERT_NE(first, log.npos) << log;
  ASSERT_NE(second, log.npos) << log;
  EXPECT_EQ(log.find(" times=", second + 1), log.npos) << log;
  EXPECT_NE(log.find(" similar lines suppressed)", first), log.npos) << log;
  EXPECT_GT(bench.stats().forced_resumes, 50U);
}

TEST(MaxSuspend, ListsTheGroupAsChangedAndCapsEveryPolicy) {
  std::vector<duration> changes;
  const auto began = testing::manual_clock{}.now();
  core_bench bench(quick_config(), make_policy([&](const snapshot& seen, decision_sink& out) {
                     for (const group_id id : seen.changed) {
                       out.hold(id, never);
                       changes.push_back(seen.now - began);
                     }
                   }));
  bench.create(100, role::offline, gpu_a, {0});
  bench.run_for(2s);  // Attached and suspended, both without taking time.
  bench.run_for(1s);
  EXPECT_THAT(changes, ::testing::Contains(duration(3s)));
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
}

TEST(MaxSuspend, CountsMinRunFromWhenTheGroupReallyRuns) {
  attached_bench bench;
  auto client = bench.client();
  client.begin();
  bench.settle();
  bench.run_for(500ms);
  bench.driver.set_delay(50ms);
  bench.run_for(500ms);  // The resume goes out here and takes 50 ms,
  bench.run_for(149ms);  // min_run is over at 150 ms,
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
  ASSERT_EQ(bench.driver.batches().size(), 2U);
  bench.run_for(1ms);
  EXPECT_EQ(bench.driver.batches().size(), 3U);
}

TEST(MaxSuspend, IsNotDodgedByAPolicyThatKeepsDeclaring) {
  core_bench bench(quick_config(), make_policy([](const snapshot& seen, decision_sink& out) {
                     for (const gpu_view& on : seen.table.gpus()) {
                       for (const group_id id : on.offline) out.hold(id, never);
                     }
                     out.wake_at(seen.now + 1ms);
                   }));
  bench.create(100, role::offline, gpu_a, {0});
  bench.attach_all();
  duration off{};
  duration longest{};
  duration ran{};
  duration shortest_run = 1h;
  for (int i = 0; i < 10'000; ++i) {
    bench.run_for(1ms);
    if (bench.driver.suspended(100, q(0))) {
      if (ran != 0ns && i > 2000) shortest_run = std::min(shortest_run, ran);
      ran = 0ns;
      longest = std::max(longest, off += 1ms);
    } else {
      off = 0ns;
      ran += 1ms;
    }
  }
  EXPECT_LE(longest, 1s);
  EXPECT_GE(longest, 990ms);
  EXPECT_GE(shortest_run, 99ms);
}

TEST(MaxSuspend, IsNotDodgedByArrivalsWhileTheResumeIsInFlight) {
  core_bench bench;  // max_suspend 1 s, min_run 100 ms
  bench.create(100, role::offline, gpu_a, {0});
  auto client = bench.client();
  bench.attach_all();
  bench.driver.set_delay(10ms);
  // 3 ms of work every 26 ms: it is suspended, resumed, and wanted off again before it runs.
  duration off{};
  duration longest{};
  duration ran{};
  for (int i = 0; i < 10'400; ++i) {
    if (i % 26 == 0) client.begin();
    if (i % 26 == 3) client.end();
    bench.run_for(1ms);
    if (bench.group_of(gpu_a)->actual == run_state::running) {
      if ((ran += 1ms) >= 100ms) off = 0ns;
    } else {
      ran = 0ns;
      longest = std::max(longest, off += 1ms);
    }
  }
  // And the calls that take it off and back, of which the last may just have begun.
  EXPECT_LE(longest, 1030ms);
  EXPECT_GE(bench.stats().forced_resumes, 8U);
}

TEST(MaxSuspend, AddsUpTimeOffBetweenRunsThatAreTooShort) {
  attached_bench bench;
  auto client = bench.client();
  // 100 ms off; 5 ms of running pay back 50 of them.
  for (int i = 0; i < 18; ++i) {
    client.begin();
    bench.run_for(100ms);
    EXPECT_TRUE(bench.driver.suspended(100, q(0))) << i;
    client.end();
    bench.run_for(5ms);
  }
  EXPECT_EQ(bench.stats().forced_resumes, 0U);
  client.begin();
  bench.run_for(105ms);
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
  EXPECT_EQ(bench.stats().forced_resumes, 1U);
}

TEST(MaxSuspend, StartsAnewAfterARunOfMinRun) {
  attached_bench bench;
  auto client = bench.client();
  for (int i = 0; i < 20; ++i) {  // 2 s off in all
    client.begin();
    bench.run_for(100ms);
    client.end();
    bench.run_for(100ms);
  }
  EXPECT_EQ(bench.stats().forced_resumes, 0U);
}

TEST(MaxSuspend, DoesNotForceMinRunAfterAnOrdinaryResume) {
  attached_bench bench;
  auto client = bench.client();
  for (int i = 0; i < 5; ++i) {
    client.begin();
    bench.run_for(30ms);
    EXPECT_TRUE(bench.driver.suspended(100, q(0)));
    client.end();
    bench.run_for(1ms);
    EXPECT_FALSE(bench.driver.suspended(100, q(0)));
  }
  EXPECT_EQ(bench.stats().forced_resumes, 0U);
}

TEST(OfflineFloor, IsKeptInEveryWindowWhateverThePolicyWants) {
  auto config = quick_config();
  config.max_suspend = 141s;  // So that only the floor acts.
  config.min_run = 10ms;
  config.floor_window = 1s;
  config.offline_floor = 0.2;
  core_bench bench(config, hold_always());
  bench.create(100, role::offline, gpu_a, {0});
  bench.attach_all();
  std::vector<bool> running;
  for (int i = 0; i < 5'000; ++i) {
    running.push_back(!bench.driver.suspended(100, q(0)));
    bench.run_for(1ms);
  }
  int in_window = 0;
  int least = 1000;
  int total = 0;
  for (std::size_t i = 0; i < running.size(); ++i) {
    in_window += running[i] ? 1 : 0;
    total += running[i] ? 1 : 0;
    if (i >= 1000) in_window -= running[i - 1000] ? 1 : 0;
    if (i >= 999) least = std::min(least, in_window);
  }
  EXPECT_GE(least, 199);
  // And no more than the floor and the measure's one step ask for.
  EXPECT_LE(total, 5 * 300);
  EXPECT_GT(bench.stats().forced_resumes, 0U);
}

TEST(OfflineFloor, DoesNotActBelowItsShare) {
  auto config = quick_config();
  config.offline_floor = 0.05;
  attached_bench bench({0}, config);
  auto client = bench.client();
  for (int i = 0; i < 200; ++i) {
    client.begin();
    bench.run_for(40ms);
    client.end();
    bench.run_for(10ms);
  }
  EXPECT_EQ(bench.stats().forced_resumes, 0U);
}

// Policies that misbehave -----------------------------------------------------------------------

TEST(Ejection, FollowsAThrow) {
  bool broken = false;
  int calls = 0;
  core_bench bench(quick_config(), make_policy([&](const snapshot& seen, decision_sink& out) {
                     ++calls;
                     if (broken) throw std::runtime_error("division by zero, say");
                     for (const group_id id : seen.changed) out.hold(id, never);
                   }));
  bench.create(100, role::offline, gpu_a, {0});
  auto client = bench.client();
  bench.attach_all();
  bench.run_for(500ms);
  broken = true;
  client.begin();
  bench.settle();
  EXPECT_EQ(bench.driver.suspended_count(), 0U);
  EXPECT_EQ(bench.stats().policy_ejections, 1U);
  const int before = calls;
  client.end();
  bench.run_for(10s);
  EXPECT_EQ(calls, before);
  EXPECT_EQ(bench.driver.suspended_count(), 0U);
}

TEST(Ejection, FollowsAThrowOfAnything) {
  core_bench bench(quick_config(), make_policy([](const snapshot&, decision_sink&) { throw 42; }));
  bench.create(100, role::offline, gpu_a, {0});
  bench.settle();
  EXPECT_EQ(bench.stats().policy_ejections, 1U);
}

struct slow_policy {
  testing::manual_clock* time = nullptr;
  bool slow = true;
};

TEST(Ejection, FollowsTheThirdLateReturn) {
  slow_policy how;
  core_bench bench(quick_config(), make_policy([&](const snapshot& seen, decision_sink& out) {
                     for (const gpu_view& on : seen.table.gpus()) {
                       for (const group_id id : on.offline) out.hold(id, never);
                     }
                     if (how.time != nullptr) how.time->advance(11ms);
                   }));
  bench.create(100, role::offline, gpu_a, {0});
  auto client = bench.client();
  bench.run_for(3s);
  bench.driver.hold_answers(true);  // So that only begins cause turns of the policy.
  bench.settle();
  how.time = &bench.time;
  client.begin();
  bench.step();
  client.begin();
  bench.step();
  EXPECT_EQ(bench.stats().policy_ejections, 0U);
  client.begin();
  bench.step();
  EXPECT_EQ(bench.stats().policy_ejections, 1U);
  bench.driver.hold_answers(false);
  bench.settle();
  EXPECT_EQ(bench.driver.suspended_count(), 0U);
}

/// Three late returns within a minute remove a policy, not three with a minute between each two.
TEST(Ejection, CountsLateReturnsOfOneMinute) {
  const auto ejections_with = [](duration apart) {
    testing::manual_clock* time = nullptr;
    core_bench bench(quick_config(), make_policy([&](const snapshot&, decision_sink&) {
                       if (time != nullptr) time->advance(11ms);
                     }));
    auto client = bench.client({gpu_a});
    time = &bench.time;
    for (int i = 0; i < 10; ++i) {
      client.begin();
      bench.step();
      client.end();
      bench.time.advance(apart);
    }
    return bench.stats().policy_ejections;
  };
  EXPECT_EQ(ejections_with(61s), 0U);
  EXPECT_EQ(ejections_with(31s), 0U);
  EXPECT_EQ(ejections_with(29s), 1U);
}

// Clients ---------------------------------------------------------------------------------------

TEST(Client, HoldsNothingWhenItNeverBegins) {
  attached_bench bench;
  auto client = bench.client();
  bench.run_for(1s);
  EXPECT_TRUE(bench.driver.batches().empty());
}

TEST(Client, MayComeBeginAndGoBetweenTwoLooks) {
  attached_bench bench;
  {
    auto client = bench.client();
    const auto busy = client.busy();
  }
  bench.settle();
  EXPECT_EQ(bench.stats().begins, 1U);
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));  // For the slice.
  bench.run_for(20ms);
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
}

TEST(Client, NoLongerCountsOnceItIsWithdrawn) {
  attached_bench bench;
  busy_token left_behind;
  {
    auto client = bench.client();
    left_behind = client.busy();
    client.begin();
    bench.run_for(100ms);
    EXPECT_TRUE(bench.driver.suspended(100, q(0)));
  }
  bench.settle();
  EXPECT_FALSE(bench.driver.suspended(100, q(0)));
  EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 0U);
  left_behind.end();
  bench.settle();
  EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 0U);
}

// Symptom: it went on counting for as long as what was moved from lived.
TEST(Client, IsWithdrawnByTheAssignmentOfAnother) {
  attached_bench bench;
  auto client = bench.client();
  client.begin();
  bench.settle();
  EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 1U);
  auto next = bench.client();
  const auto id = next.id();
  client = std::move(next);
  bench.settle();
  EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 0U);
  EXPECT_EQ(client.id(), id);
  EXPECT_EQ(next.id(), client_id::none);  // NOLINT: as documented.
  auto& same = client;
  client = std::move(same);
  EXPECT_EQ(client.id(), id);
}

TEST(Client, CountsOnAGpuThatAppearsLater) {
  core_bench bench;
  auto client = bench.client();
  client.begin();
  bench.settle();
  bench.create(100, role::offline, gpu_a, {0});
  const auto appeared = bench.time.now();
  bench.settle();
  EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 1U);
  EXPECT_EQ(bench.core->seen().find(gpu_a)->last_begin, appeared);
  bench.run_for(12s);  // Attached at the latest after 10 s: online work never pauses.
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
}

TEST(Client, ThatIsIdleDoesNotCountOnANewGpu) {
  core_bench bench;
  auto client = bench.client();
  client.begin();
  client.end();
  bench.settle();
  bench.create(100, role::offline, gpu_a, {0});
  bench.settle();
  EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 0U);
  EXPECT_EQ(bench.core->seen().find(gpu_a)->last_begin, time_point{});
}

TEST(Client, CountsBeginsOfSeveralAsOneSum) {
  core_bench bench;
  auto one = bench.client({gpu_a});
  auto two = bench.client({gpu_a, gpu_a});
  one.begin();
  two.begin();
  two.begin();
  bench.settle();
  EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 3U);
  two.end();
  bench.settle();
  EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 2U);
}

TEST(Client, RecoversFromAnEndWithoutABegin) {
  core_bench bench;
  auto client = bench.client({gpu_a});
  client.end();
  bench.settle();
  EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 0U);
  client.begin();
  bench.settle();
  EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 1U);
}

TEST(Client, StopsCountingABeginWithoutAnEndAfterMaxBusy) {
  attached_bench bench;
  auto client = bench.client();
  client.begin();
  bench.run_for(59'999ms);
  EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 1U);
  bench.run_for(1ms);
  EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 0U);
  EXPECT_EQ(bench.stats().expired_begins, 1U);
  EXPECT_EQ(bench.driver.suspended_count(), 0U);

  // And what is left of it disturbs nothing that follows.
  for (int i = 0; i < 3; ++i) {
    client.begin();
    bench.settle();
    EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 1U);
    client.end();
    bench.settle();
    EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 0U);
  }
  EXPECT_EQ(bench.stats().expired_begins, 1U);
}

TEST(Client, TakesAnEndThatComesAfterMaxBusy) {
  core_bench bench;
  auto client = bench.client({gpu_a});
  client.begin();
  bench.run_for(61s);
  ASSERT_EQ(bench.stats().expired_begins, 1U);
  client.end();
  bench.settle();
  client.begin();
  bench.settle();
  EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 1U);
}

TEST(Client, NeverExpiresWhileItsWorkMovesOn) {
  core_bench bench;
  auto client = bench.client({gpu_a});
  client.begin();
  for (int i = 0; i < 20; ++i) {
    bench.run_for(10s);
    client.begin();
    client.end();
  }
  bench.settle();
  EXPECT_EQ(bench.stats().expired_begins, 0U);
  EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 1U);
}

}  // namespace
}  // namespace sluice::tests::limits_test
