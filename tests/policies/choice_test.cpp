// The policies that choose among offline groups, on a real scheduler_core in virtual time.

#include "core_bench.hpp"
#include "test_seed.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/policies/deadline.hpp"
#include "sluice/policies/fair_share.hpp"
#include "sluice/policies/hqd_reservation.hpp"
#include "sluice/policies/priority.hpp"
#include "sluice/policy_registry.hpp"
#include "sluice/testing/policy_harness.hpp"

namespace sluice::tests::choice_test {
namespace {

std::unique_ptr<policy> make(const policy_kind& kind, parameters values) {
  EXPECT_EQ(check_parameters(kind.schema, values), "");
  std::string problem;
  auto made = kind.make(values, problem);
  EXPECT_NE(made, nullptr) << problem;
  return made;
}

parameters with(std::initializer_list<std::pair<const char*, parameter_value>> values) {
  parameters made;
  for (const auto& [key, value] : values) made.set(key, value);
  return made;
}

/// The limits are out of the way: what runs is the policy's choice.
scheduler_config unlimited() {
  auto config = quick_config();
  config.attach_after = 0s;
  config.max_suspend = 141s;
  config.min_run = 1ms;
  config.max_busy = 24h;
  return config;
}

/// Processes by number, and how long each ran.
class node : public core_bench {
 public:
  explicit node(std::unique_ptr<policy> decider, scheduler_config config = unlimited())
      : core_bench(config, std::move(decider)) {}

  void add(pid_t pid, std::uint8_t priority, const std::vector<gpu_id>& on,
           std::uint32_t queues = 1) {
    observation one;
    one.kind = observation_kind::process_seen;
    one.what = role::offline;
    one.pid = pid;
    one.start_time = start_time;
    one.priority = priority;
    core->observe(0, one);
    std::uint32_t number = 0;
    for (const gpu_id gpu : on) {
      for (std::uint32_t i = 0; i < queues; ++i) {
        queues_[pid].push_back(q(number));
        create_queue(pid, q(number++), gpu);
      }
    }
    gpus_[pid] = on;
    run_for(1ms);
  }
  void remove(pid_t pid) {
    for (const auto id : queues_[pid]) driver.remove_queue(pid, id);
    see_kind(observation_kind::process_gone, pid);
    queues_.erase(pid);
    gpus_.erase(pid);
    settle();
  }
  bool runs(pid_t pid) const { return !driver.suspended(pid, q(0)); }
  std::set<pid_t> running() const {
    std::set<pid_t> all;
    for (const auto& [pid, queues] : queues_) {
      if (runs(pid)) all.insert(pid);
    }
    return all;
  }
  /// Lets time pass, by milliseconds, and calls `look()` after each.
  template <class Function>
  void watch(std::chrono::milliseconds left, Function&& look) {
    for (; left > 0ms; left -= 1ms) {
      for (const pid_t pid : running()) ran[pid] += 1ms;
      run_for(1ms);
      for (const auto& [pid, queues] : queues_) {
        for (const auto id : queues) {
          ASSERT_EQ(driver.suspended(pid, id), !runs(pid)) << "a part of " << pid;
        }
      }
      look();
    }
  }
  void watch(std::chrono::milliseconds span) {
    watch(span, [] {});
  }
  bool share_a_gpu(pid_t one, pid_t other) const {
    const auto& on = gpus_.at(other);
    return std::any_of(gpus_.at(one).begin(), gpus_.at(one).end(), [&](gpu_id each) {
      return std::find(on.begin(), on.end(), each) != on.end();
    });
  }

  std::map<pid_t, duration> ran;

 private:
  std::map<pid_t, std::vector<driver_queue_id>> queues_;
  std::map<pid_t, std::vector<gpu_id>> gpus_;
};

using pids = std::set<pid_t>;
constexpr gpu_id gpu_c{0xc};

// priority ---------------------------------------------------------------------------------------

TEST(Priority, RunsTheHighestLevelOfEachGpuAndThoseOfEqualLevelTogether) {
  node bench(make(priority_kind(), {}));
  bench.add(100, 3, {gpu_a});
  EXPECT_EQ(bench.running(), pids({100}));
  bench.add(101, 7, {gpu_a});
  bench.add(102, 7, {gpu_a});
  bench.add(103, 1, {gpu_b});
  EXPECT_EQ(bench.running(), pids({101, 102, 103}));
}

TEST(Priority, RunsTheNextLevelAtOnceWhenTheHighestOneIsGone) {
  node bench(make(priority_kind(), {}));
  bench.add(100, 3, {gpu_a});
  bench.add(101, 7, {gpu_a});
  EXPECT_EQ(bench.running(), pids({101}));
  bench.remove(101);
  EXPECT_EQ(bench.running(), pids({100}));
}

TEST(Priority, PutsOnlineWorkAboveEveryLevelAndWaitsForTheLinger) {
  node bench(make(priority_kind(), with({{"linger", duration(10ms)}})));
  bench.add(100, 15, {gpu_a});
  bench.add(101, 0, {gpu_b});
  auto client = bench.client({gpu_a});
  client.begin();
  bench.settle();
  EXPECT_EQ(bench.running(), pids({101}));
  client.end();
  bench.run_for(9ms);
  EXPECT_EQ(bench.running(), pids({101}));
  bench.run_for(1ms);
  EXPECT_EQ(bench.running(), pids({100, 101}));
}

TEST(Priority, HoldsBackNobodyForAGangThatCannotRun) {
  node bench(make(priority_kind(), {}));
  bench.add(100, 9, {gpu_a, gpu_b});
  bench.add(101, 5, {gpu_b});
  EXPECT_EQ(bench.running(), pids({100}));
  auto client = bench.client({gpu_a});
  client.begin();
  bench.settle();
  EXPECT_EQ(bench.running(), pids({101}));
}

/// 12 wants A and B, 11 wants B and C, 10 wants C and A: one runs, and it stays that one.
TEST(Priority, ChoosesOnceAmongGangsThatWantEachOthersGpus) {
  node bench(make(priority_kind(), {}));
  bench.add(100, 10, {gpu_c, gpu_a});
  bench.add(101, 11, {gpu_b, gpu_c});
  bench.add(102, 12, {gpu_a, gpu_b});
  const auto calls = bench.driver.submitted();
  bench.watch(5s);
  EXPECT_EQ(bench.running(), pids({102}));
  EXPECT_EQ(bench.driver.submitted(), calls);
}

TEST(Priority, GivesEqualLevelsTurnsWhereThatIsAskedFor) {
  node bench(
      make(priority_kind(), with({{"equal", std::string("turns")}, {"turn", duration(100ms)}})));
  bench.add(100, 5, {gpu_a});
  bench.add(101, 5, {gpu_a});
  bench.add(102, 4, {gpu_a});
  bench.ran.clear();
  bench.watch(2s, [&] { ASSERT_EQ(bench.running().size(), 1U); });
  EXPECT_NEAR(static_cast<double>(bench.ran[100].count()), 1e9, 1.1e8);
  EXPECT_NEAR(static_cast<double>(bench.ran[101].count()), 1e9, 1.1e8);
  EXPECT_EQ(bench.ran[102], 0ms);
}

TEST(Priority, RefusesAWordForEqualLevelsThatItDoesNotKnow) {
  std::string problem;
  auto values = with({{"equal", std::string("never")}});
  ASSERT_EQ(check_parameters(priority_kind().schema, values), "");
  EXPECT_EQ(priority_kind().make(values, problem), nullptr);
  EXPECT_EQ(problem, "equal is \"never\"; it must be together or turns");
}

// fair_share -------------------------------------------------------------------------------------

TEST(FairShare, GivesTwiceTheTimeToTwiceTheWeight) {
  node bench(make(fair_share_kind(), with({{"quantum", duration(50ms)}, {"weight.8", 2.0}})));
  bench.add(100, 0, {gpu_a});
  bench.add(101, 8, {gpu_a});
  bench.ran.clear();
  bench.watch(6s, [&] { ASSERT_EQ(bench.running().size(), 1U); });
  EXPECT_NEAR(static_cast<double>(bench.ran[100].count()), 2e9, 6e7);
  EXPECT_NEAR(static_cast<double>(bench.ran[101].count()), 4e9, 6e7);
}

TEST(FairShare, GivesNoCreditForTimeAway) {
  node bench(make(fair_share_kind(), with({{"quantum", duration(100ms)}})));
  bench.add(100, 0, {gpu_a});
  bench.watch(20s);
  bench.add(101, 0, {gpu_a});
  bench.ran.clear();
  bench.watch(1s);
  EXPECT_GE(bench.ran[100], 400ms);
  EXPECT_GE(bench.ran[101], 400ms);
}

/// 100 wants A and B. While online work keeps it from A, 101 has B for 20 s; that is nobody's debt.
TEST(FairShare, CountsTheTimeThatOnlineWorkTookForNobody) {
  node bench(make(fair_share_kind(), with({{"quantum", duration(100ms)}})));
  bench.add(100, 0, {gpu_a, gpu_b});
  bench.add(101, 0, {gpu_b});
  auto client = bench.client({gpu_a});
  client.begin();
  bench.watch(20s);
  EXPECT_EQ(bench.running(), pids({101}));
  client.end();
  bench.ran.clear();
  bench.watch(1s);
  EXPECT_GE(bench.ran[100], 400ms);
  EXPECT_GE(bench.ran[101], 400ms);
}

TEST(FairShare, RunsGangsAndSinglesInTurn) {
  node bench(make(fair_share_kind(), with({{"quantum", duration(100ms)}})));
  bench.add(100, 0, {gpu_a, gpu_b});
  bench.add(101, 0, {gpu_a});
  bench.add(102, 0, {gpu_b});
  bench.ran.clear();
  bench.watch(4s, [&] {
    const auto now = bench.running();
    ASSERT_TRUE(now == pids({100}) || now == pids({101, 102})) << now.size();
  });
  for (const pid_t pid : {100, 101, 102}) EXPECT_GE(bench.ran[pid], 1900ms) << pid;
}

/// The promised bound, over nodes of any shape: what two groups that share a GPU got, divided by
/// their weights, never drifts further than from one end of the bound to the other.
TEST(FairShare, KeepsTheLagThatItPromises) {
  const test::random_seed seed;
  std::mt19937_64 random(seed.value());
  constexpr duration quantum = 40ms;
  constexpr std::array weights{1.0, 2.0, 0.5, 3.0};
  for (int round = 0; round < 12; ++round) {
    node bench(make(fair_share_kind(), with({{"quantum", quantum},
                                             {"weight.1", weights[1]},
                                             {"weight.2", weights[2]},
                                             {"weight.3", weights[3]}})));
    const bool gangs = round % 3 != 0;
    std::map<pid_t, double> weight;
    const auto groups = static_cast<pid_t>(2 + random() % 5);
    for (pid_t pid = 100; pid < 100 + groups; ++pid) {
      std::set<gpu_id> on{std::array{gpu_a, gpu_b, gpu_c}[random() % 3]};
      while (gangs && random() % 2 == 0) on.insert(std::array{gpu_a, gpu_b, gpu_c}[random() % 3]);
      const auto priority = static_cast<std::uint8_t>(random() % weights.size());
      weight[pid] = weights[priority];
      bench.add(pid, priority, {on.begin(), on.end()});
    }
    bench.ran.clear();
    std::map<std::pair<pid_t, pid_t>, std::pair<double, double>> range;
    bench.watch(8s, [&] {
      for (const auto& [one, w] : weight) {
        for (const auto& [other, v] : weight) {
          if (one >= other || !bench.share_a_gpu(one, other)) continue;
          const double ahead = static_cast<double>(bench.ran[one].count()) / w -
                               static_cast<double>(bench.ran[other].count()) / v;
          auto& [low, high] = range[{one, other}];
          low = std::min(low, ahead);
          high = std::max(high, ahead);
        }
      }
    });
    for (const auto& [pair, ends] : range) {
      const double bound = (gangs ? 4.0 : 1.0) * static_cast<double>(quantum.count()) /
                           std::min(weight[pair.first], weight[pair.second]);
      const double grain = 4e6;  // Looked at every millisecond.
      EXPECT_LE(ends.second - ends.first, 2 * bound + grain)
          << "round " << round << ": " << pair.first << " and " << pair.second;
    }
    for (const auto& [pid, w] : weight) EXPECT_GT(bench.ran[pid], 0ms) << pid;
  }
}

TEST(FairShare, RefusesAWeightOfWhatIsNoPriority) {
  std::string problem;
  auto values = with({{"weight.16", 2.0}});
  ASSERT_EQ(check_parameters(fair_share_kind().schema, values), "");
  EXPECT_EQ(fair_share_kind().make(values, problem), nullptr);
  EXPECT_EQ(problem,
            "weight.16 is not a priority; write a whole number from 0 to 15 after the dot");
}

// deadline ---------------------------------------------------------------------------------------

TEST(Deadline, RunsWhoIsDueFirst) {
  node bench(make(deadline_kind(), with({{"turn", duration(100ms)},
                                         {"budget.9", duration(250ms)},
                                         {"otherwise", duration(2s)}})));
  bench.add(100, 0, {gpu_a});
  bench.add(101, 0, {gpu_a});
  bench.add(102, 9, {gpu_a});
  std::map<pid_t, duration> waited;
  std::map<pid_t, duration> longest;
  bench.watch(10s, [&] {
    const auto now = bench.running();
    ASSERT_EQ(now.size(), 1U);
    for (const pid_t pid : {100, 101, 102}) {
      waited[pid] = now.contains(pid) ? duration(0ns) : waited[pid] + 1ms;
      longest[pid] = std::max(longest[pid], waited[pid]);
    }
  });
  EXPECT_LE(longest[102], 350ms);  // Its budget, and the turn that is under way then.
  EXPECT_LE(longest[100], 2200ms);
  EXPECT_LE(longest[101], 2200ms);
  EXPECT_GT(longest[100], 500ms);  // Nobody runs more often than he must for 102 to be in time.
}

TEST(Deadline, StarvesNobodyWhereNoDeadlineCanBeMet) {
  node bench(make(
      deadline_kind(),
      with({{"turn", duration(100ms)}, {"budget.9", duration(1ms)}, {"otherwise", duration(3s)}})));
  bench.add(100, 0, {gpu_a, gpu_b});
  for (pid_t pid = 101; pid < 106; ++pid) bench.add(pid, 9, {pid % 2 == 0 ? gpu_a : gpu_b});
  bench.ran.clear();
  bench.watch(20s);
  // Every 3 s and a turn of each of the others, at least.
  EXPECT_GE(bench.ran[100], 500ms);
}

TEST(Deadline, TakesTurnsWhereBudgetsAreEqual) {
  node bench(make(deadline_kind(), with({{"turn", duration(100ms)}})));
  for (pid_t pid = 100; pid < 104; ++pid) bench.add(pid, 0, {gpu_a});
  bench.ran.clear();
  bench.watch(4s);
  for (pid_t pid = 100; pid < 104; ++pid) {
    EXPECT_NEAR(static_cast<double>(bench.ran[pid].count()), 1e9, 1.1e8) << pid;
  }
}

// What the limits do to all of them
// -----------------------------------------------------------------

/// They force a run, and what forced it is over afterwards: the group is held again.
TEST(Limits, AreFollowedByWhatThePolicyWants) {
  for (const auto& kind : {priority_kind(), fair_share_kind(), deadline_kind()}) {
    auto config = unlimited();
    config.max_suspend = 100ms;
    config.min_run = 10ms;
    node bench(make(kind, {}), config);
    bench.add(100, 0, {gpu_a});
    auto client = bench.client({gpu_a});
    client.begin();
    bench.settle();
    bench.ran.clear();
    bench.watch(1100ms);
    EXPECT_GE(bench.ran[100], 80ms) << kind.name;
    EXPECT_LE(bench.ran[100], 120ms) << kind.name;
  }
}

// hqd_reservation --------------------------------------------------------------------------------

/// 10 slots, of which offline queues get 5.
parameters half_of_ten() {
  return with({{"slots", std::int64_t{10}},
               {"offline_percent", std::int64_t{50}},
               {"rotation", duration(100ms)}});
}

TEST(HqdReservation, RunsEverybodyWhileAllFit) {
  node bench(make(hqd_reservation_kind(), half_of_ten()));
  bench.add(100, 0, {gpu_a}, 2);
  bench.add(101, 0, {gpu_a}, 3);
  const auto turns = bench.stats().turns;
  bench.watch(1s, [&] { ASSERT_EQ(bench.running(), pids({100, 101})); });
  EXPECT_EQ(bench.driver.submitted(), 0U);
  EXPECT_GT(bench.stats().turns, turns);
}

TEST(HqdReservation, KeepsTheLimitAndRotatesFairly) {
  node bench(make(hqd_reservation_kind(), half_of_ten()));
  for (pid_t pid = 100; pid < 103; ++pid) bench.add(pid, 0, {gpu_a}, 2);
  auto client = bench.client({gpu_a});
  client.begin();  // Makes no difference.
  bench.ran.clear();
  bench.watch(6s, [&] { ASSERT_EQ(bench.running().size(), 2U); });
  for (pid_t pid = 100; pid < 103; ++pid) {
    EXPECT_NEAR(static_cast<double>(bench.ran[pid].count()), 4e9, 2.1e8) << pid;
  }
}

TEST(HqdReservation, GivesAGroupThatIsTooBigItsTurnAlone) {
  node bench(make(hqd_reservation_kind(), half_of_ten()));
  bench.add(100, 0, {gpu_a, gpu_b}, 8);
  bench.add(101, 0, {gpu_a}, 1);
  bench.add(102, 0, {gpu_b}, 5);
  bench.ran.clear();
  bench.watch(4s, [&] {
    const auto now = bench.running();
    ASSERT_TRUE(now == pids({100}) || now == pids({101, 102})) << now.size();
  });
  EXPECT_NEAR(static_cast<double>(bench.ran[100].count()), 2e9, 1.1e8);
}

TEST(HqdReservation, TellsTheDriverAndHoldsNothingWhereItTakesReservations) {
  testing::policy_harness node(make(hqd_reservation_kind(), half_of_ten()));
  for (std::uint64_t id = 1; id < 5; ++id)
    node.table().add_group(group_id{id}, role::offline, {gpu_a}, {4});
  node.table().edit(gpu_a)->can_reserve = true;
  for (std::uint64_t id = 1; id < 5; ++id) node.change(group_id{id});
  node.advance(5s);
  std::size_t reservations = 0;
  for (const auto& one : node.calls()) {
    EXPECT_NE(one.what, testing::recording_sink::verb::hold);
    if (one.what != testing::recording_sink::verb::reserve) continue;
    ++reservations;
    EXPECT_EQ(one.gpu, gpu_a);
    EXPECT_EQ(one.offline_share, 0.5);
  }
  EXPECT_EQ(reservations, 1U);
}

TEST(HqdReservation, TakesTheSlotsThatTheGpuNames) {
  testing::policy_harness node(make(hqd_reservation_kind(), half_of_ten()));
  node.table().add_gpu(gpu_a).slots = 30;
  for (std::uint64_t id = 1; id < 4; ++id)
    node.table().add_group(group_id{id}, role::offline, {gpu_a}, {5});
  for (std::uint64_t id = 1; id < 4; ++id) node.change(group_id{id});
  for (std::uint64_t id = 1; id < 4; ++id) EXPECT_FALSE(node.held(group_id{id})) << id;
  node.table().add_group(group_id{4}, role::offline, {gpu_a}, {1});
  node.change(group_id{4});
  EXPECT_TRUE(node.held(group_id{4}));
}

// Symptom: weights for priorities that nobody has changed nothing, and nobody heard of it.
TEST(Levels, ThatFitNoGroupAreSaidOnce) {
  const auto notes = [](const policy_kind& kind, const char* key, parameter_value value,
                        std::uint8_t priority) {
    testing::policy_harness harness(make(kind, with({{key, std::move(value)}})));
    harness.table().add_group(group_id{1}, role::offline, {gpu_a}).priority = priority;
    harness.change(group_id{1});
    for (int i = 0; i < 300; ++i) {
      harness.blink(gpu_a);
      harness.change(group_id{1});
    }
    std::vector<std::string> all;
    for (const auto& one : harness.calls()) {
      if (one.what == testing::recording_sink::verb::note) all.push_back(one.text);
    }
    return all;
  };
  EXPECT_TRUE(notes(fair_share_kind(), "weight.8", 3.0, 8).empty());
  EXPECT_TRUE(notes(deadline_kind(), "budget.0", duration(1s), 0).empty());
  const auto weights = notes(fair_share_kind(), "weight.8", 3.0, 0);
  ASSERT_EQ(weights.size(), 1U);
  EXPECT_EQ(weights[0].substr(0, 19), "weight.8: no effect");
  EXPECT_EQ(notes(deadline_kind(), "budget.3", duration(1s), 4).size(), 1U);
}

}  // namespace
}  // namespace sluice::tests::choice_test
