#include "router.hpp"

#include "experiment.hpp"
#include "scenarios.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/lab/arrivals.hpp"

namespace sluice::lab {
namespace {

using namespace std::chrono_literals;
using test::known;

/// Reads both so often.
router_spec by(routing which, duration delay = {}, std::uint32_t room = 4) {
  return {"", which, delay, delay, room};
}

contender behind(contender what, const router_spec& how) {
  what.router = how;
  return what;
}

/// A fleet with a server on each node, and the requests of known().
scenario fleet(std::uint32_t nodes, const std::vector<duration>& at, std::uint32_t tokens = 0) {
  scenario made = known(at, tokens);
  made.nodes = nodes;
  return made;
}

std::vector<std::uint32_t> servers_of(const run_result& run) {
  std::vector<std::uint32_t> made;
  for (const served& each : run.requests) made.push_back(each.server);
  return made;
}

std::vector<duration> latencies_of(const run_result& run) {
  std::vector<duration> made;
  for (const served& each : run.requests) made.push_back(each.what.latency);
  return made;
}

void read(router& by, std::size_t server, const server_state& now) {
  by.read_load(server, now);
  by.read_offline(server, now);
}

using numbers = std::vector<std::uint32_t>;

TEST(Router, TakesServersInTurn) {
  router turn(by(routing::round_robin), 3);
  turn.read_load(1, {.requests = 9});
  EXPECT_EQ(turn.choose(), 0u);
  EXPECT_EQ(turn.choose(), 1u);
  EXPECT_EQ(turn.choose(), 2u);
  EXPECT_EQ(turn.choose(), 0u);
}

TEST(Router, CountsWhatItHasSentSinceItRead) {
  router least(by(routing::least_loaded), 3);
  least.read_load(0, {.requests = 2});
  EXPECT_EQ(least.choose(), 1u);
  EXPECT_EQ(least.choose(), 2u);
  EXPECT_EQ(least.choose(), 1u);
  EXPECT_EQ(least.choose(), 2u);
  EXPECT_EQ(least.choose(), 0u) << "all have two";
  least.read_load(2, {.requests = 0});
  EXPECT_EQ(least.choose(), 2u);
}

TEST(Router, PrefersRoomThenLittleOfflineWorkThenFewRequests) {
  router least(by(routing::least_offline, {}, 2), 4);
  read(least, 0, {.requests = 0, .offline = 2, .running = 0});
  read(least, 1, {.requests = 1, .offline = 1, .running = 1});
  read(least, 2, {.requests = 0, .offline = 1, .running = 1});
  read(least, 3, {.requests = 2, .offline = 0, .running = 0});
  EXPECT_EQ(least.choose(), 2u);
  EXPECT_EQ(least.choose(), 1u) << "as much offline work, as many requests, and the next in turn";
  EXPECT_EQ(least.choose(), 2u);
  // The others are full.
  EXPECT_EQ(least.choose(), 0u);
  EXPECT_EQ(least.choose(), 0u);
  // Now all are, and have two.
  EXPECT_EQ(least.choose(), 1u);
}

TEST(Router, PrefersGpusWhoseOfflineWorkIsSuspended) {
  router first(by(routing::suspended_first, {}, 2), 3);
  read(first, 0, {.requests = 0, .offline = 1, .running = 1});
  read(first, 1, {.requests = 1, .offline = 3, .running = 0});
  read(first, 2, {.requests = 0, .offline = 1, .running = 1});
  EXPECT_EQ(first.choose(), 1u);
  EXPECT_EQ(first.choose(), 2u) << "the other has no room any more";
}

TEST(Fleet, InTurnIsAsManyNodesByThemselves) {
  // None at the moment at which a kernel ends: who comes first then is a matter of the run.
  const std::vector<duration> at{1ms, 2ms, 3ms, 305ms, 312ms, 330ms, 341ms, 905ms};
  const std::uint32_t nodes = 3;
  for (const contender& who : {test::at_once(), contender{"", arrangement::unscheduled, {}, 1}}) {
    const scenario what = fleet(nodes, at);
    const run_result got = simulate(what, who);
    ASSERT_EQ(got.requests.size(), at.size());
    EXPECT_TRUE(got.conserved);
    EXPECT_EQ(got.left_suspended, 0u);
    std::uint64_t suspends = 0;
    const auto dealt = deal(what.work, nodes);
    for (std::uint32_t node = 0; node < nodes; ++node) {
      scenario one = what;
      one.nodes = 1;
      one.work = dealt[node];
      const run_result alone = simulate(one, who);
      suspends += alone.suspends;
      for (std::size_t i = 0; i < alone.requests.size(); ++i) {
        EXPECT_EQ(got.requests[i * nodes + node].server, node);
        EXPECT_EQ(got.requests[i * nodes + node].what.latency, alone.requests[i].what.latency);
      }
    }
    EXPECT_EQ(got.suspends, suspends);
  }
}

TEST(Fleet, SendsToIdleServersAsFarAsTheRouterKnows) {
  scenario what = fleet(2, {0ms, 1ms, 100ms});
  what.work.requests[0].context_tokens = 100'000;  // 1 s.
  const contender alone{"", arrangement::online_alone, {}, 1};
  EXPECT_EQ(servers_of(simulate(what, behind(alone, by(routing::least_loaded)))),
            (numbers{0, 1, 1}));
  // It was last read before the first arrival, so that each seems to have one.
  EXPECT_EQ(servers_of(simulate(what, behind(alone, by(routing::least_loaded, 1h)))),
            (numbers{0, 1, 0}));
  EXPECT_EQ(servers_of(simulate(what, behind(alone, by(routing::least_loaded, 20ms)))),
            (numbers{0, 1, 1}));
}

TEST(Fleet, NodesTakeTheMixInTurn) {
  scenario what = fleet(4, {0ms, 100ms, 200ms, 300ms});
  what.mix = {what.offline, {}};
  what.mix[1].processes = 0;
  const contender none{"", arrangement::unscheduled, {}, 1};
  EXPECT_EQ(servers_of(simulate(what, behind(none, by(routing::least_offline)))),
            (numbers{1, 3, 1, 3}));
  const run_result once = simulate(what, behind(test::at_once(), by(routing::least_offline)));
  EXPECT_EQ(servers_of(once), (numbers{1, 3, 1, 3}));
  EXPECT_EQ(once.suspends, 0u);
  const run_result offline = simulate(what, {"", arrangement::offline_alone, {}, 1});
  EXPECT_EQ(offline.stretch, what.work.window);
  // Two of four GPUs, but for the host's wake-up.
  EXPECT_GT(offline.offline_work, 2 * 0.99 * offline.stretch);
  EXPECT_LE(offline.offline_work, 2 * offline.stretch);
}

TEST(Fleet, SuspendsOnFewerNodesWhereWorkIsSuspendedAlready) {
  // Each takes 10 ms, and the next comes while one is served.
  const scenario what = fleet(4, {0ms, 8ms, 16ms, 24ms});
  const run_result turn = simulate(what, behind(test::at_once(), by(routing::round_robin)));
  EXPECT_EQ(turn.suspends, 4u);
  const run_result packed = simulate(what, behind(test::at_once(), by(routing::suspended_first)));
  EXPECT_EQ(servers_of(packed), (numbers{0, 0, 0, 0}));
  EXPECT_EQ(packed.suspends, 1u);
  EXPECT_GT(packed.offline_work, turn.offline_work);
}

TEST(Fleet, SuspendedGangsAreSeenOnAllTheirGpus) {
  scenario what = fleet(2, {0ms, 8ms});
  what.machine = test::machine(2);
  what.offline.shape.kernels_per_step = 1;
  what.offline.gang = true;
  const run_result got = simulate(what, behind(test::at_once(), by(routing::suspended_first)));
  EXPECT_EQ(servers_of(got), (numbers{0, 1})) << "the idle GPU of the node, not the other node";
}

TEST(Fleet, ExclusiveNodesAreThoseWithTheLeastOfflineWork) {
  scenario what = fleet(4, {0ms, 1ms, 2ms, 3ms});
  what.mix = {what.offline, {}};
  what.mix[1].processes = 0;
  const run_result got = simulate(what, {"", arrangement::exclusive, {}, 0.5});
  const run_result alone = simulate(what, {"", arrangement::offline_alone, {}, 1});
  EXPECT_EQ(latencies_of(got), latencies_of(simulate(fleet(2, {0ms, 1ms, 2ms, 3ms}),
                                                     {"", arrangement::online_alone, {}, 1})));
  EXPECT_EQ(got.offline_kernels, alone.offline_kernels);
  const run_result more = simulate(what, {"", arrangement::exclusive, {}, 0.75});
  EXPECT_LT(more.offline_kernels, alone.offline_kernels * 3 / 5);
  EXPECT_GT(more.offline_kernels, alone.offline_kernels * 2 / 5);
}

TEST(Fleet, LosesNothingAndRepeatsItself) {
  for (std::uint64_t seed = 1; seed <= (test::fast_build ? 40 : 6); ++seed) {
    scenario what = test::any_scenario(seed);
    what.nodes = 2 + static_cast<std::uint32_t>(seed % 3);
    what.work = poisson(seed, 2s, 20);
    what.mix = {what.offline, {}};
    what.mix[1].processes = 0;
    const auto which = static_cast<routing>(seed % 4);
    const contender who = behind(
        seed % 2 == 0 ? test::at_once() : test::restless(seed),
        by(which, seed % 3 == 0 ? 50ms : duration{}, 1 + static_cast<std::uint32_t>(seed % 3)));
    const run_result one = simulate(what, who), two = simulate(what, who);
    EXPECT_EQ(one.requests.size(), what.work.requests.size()) << "seed " << seed;
    EXPECT_TRUE(one.conserved) << "seed " << seed;
    EXPECT_EQ(one.left_suspended, 0u) << "seed " << seed;
    EXPECT_EQ(latencies_of(one), latencies_of(two)) << "seed " << seed;
    EXPECT_EQ(servers_of(one), servers_of(two)) << "seed " << seed;
    EXPECT_EQ(one.offline_work, two.offline_work) << "seed " << seed;
  }
}

}  // namespace
}  // namespace sluice::lab
