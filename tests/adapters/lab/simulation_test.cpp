#include "experiment.hpp"
#include "scenarios.hpp"

#include <chrono>
#include <cstdint>
#include <ctime>
#include <iostream>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "sluice/policies/hqd_reservation.hpp"
#include "sluice/policies/pointer_polling.hpp"
#include "sluice/policy_registry.hpp"

namespace sluice::lab::simulation_test {
namespace {

using namespace test;

/// The latency of the only request.
duration latency(const run_result& of) { return of.requests.at(0).what.latency; }

TEST(LabKnownAnswer, ALatencyIsTheReactionTheSuspendAndTheWork) {
  const scenario what = known({1s, 1500ms});
  const run_result got = simulate(what, at_once(), {.keep_decisions = true});
  const duration whole = what.reaction + 5ms + 10ms;
  EXPECT_EQ(latency(got), whole);
  EXPECT_EQ(got.requests[1].what.latency, whole);
  EXPECT_EQ(got.suspends, 2u);
  EXPECT_EQ(got.resumes, 1u);  // The other comes after the last request's end.
  EXPECT_EQ(got.driver_calls, 3u);
  EXPECT_EQ(got.disturbing_cycles, 2u);
  EXPECT_EQ(got.disturbed, 10ms);
  EXPECT_EQ(got.switching, 20ms);
  EXPECT_EQ(got.stretch, 1500ms + whole + what.wake_up);
  // Offline runs until a suspend begins, and from the end of a resume on.
  const duration resumed = 1s + whole + what.wake_up + what.reaction + 10ms;
  EXPECT_EQ(got.offline_work, 1s + what.reaction + (1500ms + what.reaction - resumed));
  ASSERT_GE(got.decisions.size(), 3u);
  EXPECT_EQ(got.decisions[0].kind, command_kind::suspend);
  EXPECT_EQ(got.decisions[0].decided - got.zero, 1s + what.reaction);
  EXPECT_EQ(got.decisions[0].finished - got.decisions[0].started, 5ms);
  EXPECT_EQ(got.decisions[0].online_in_flight, 1u);
  EXPECT_EQ(got.decisions[1].kind, command_kind::resume);
  EXPECT_EQ(got.decisions[1].finished - got.zero, resumed);
  EXPECT_EQ(got.decisions[1].online_in_flight, 0u);
}

TEST(LabKnownAnswer, BatchCommandsAndMesCostWhatTheProfileSays) {
  scenario what = known({1050ms});  // In the middle of a kernel.
  what.machine.batch_commands = true;
  EXPECT_EQ(latency(simulate(what, at_once())), what.reaction + 500us + 10ms);
  // The firmware takes the queue off at once, and the others run on.
  what.machine.batch_commands = false;
  what.machine.gpus[0].scheduler = sim::queue_scheduler::mes;
  const run_result got = simulate(what, at_once());
  EXPECT_EQ(latency(got), what.reaction + 10ms);
  EXPECT_EQ(got.disturbed, 0ns);
  EXPECT_EQ(got.switching, 0ns);
}

TEST(LabKnownAnswer, TargetsOfOneGpuTakeTurnsAndBatchCommandsTakeThemTogether) {
  scenario what = known({1s});
  what.offline.processes = 4;
  EXPECT_EQ(latency(simulate(what, at_once())), what.reaction + 4 * 5ms + 10ms);
  what.machine.batch_commands = true;
  EXPECT_EQ(latency(simulate(what, at_once())), what.reaction + 500us + 10ms);
}

TEST(LabKnownAnswer, TargetsOfSeveralGpusDoNotWaitForEachOther) {
  scenario what = known({1s, 1s, 1s});
  what.machine = machine(3);
  const run_result got = simulate(what, at_once());
  ASSERT_EQ(got.requests.size(), 3u);
  for (const served& each : got.requests) {
    EXPECT_EQ(each.what.latency, what.reaction + 5ms + 10ms);
  }
}

TEST(LabKnownAnswer, WithoutASchedulerEachStepWaitsForAKernel) {
  scenario what = known({1050ms}, 3);
  what.service = service_kind::continuous;
  // 50 ms are left of a kernel; then two more run in the gaps between the three steps.
  const run_result got = simulate(what, {"", arrangement::unscheduled, {}, 1});
  EXPECT_EQ(latency(got), 50ms + 10ms + 1ms + 100ms + 1ms + 100ms + 1ms);
  EXPECT_EQ(got.requests[0].what.ttft, 50ms + 10ms + 1ms);
  ASSERT_EQ(got.gaps.size(), 2u);
  EXPECT_EQ(got.gaps[0], 101ms);
  // A stopped process has four in its queue, of which two are left for the gaps.
  EXPECT_EQ(latency(simulate(what, {"", arrangement::stopped, {}, 1})), latency(got));
  const duration gap = what.serving.host_gap + what.wake_up;
  EXPECT_EQ(latency(simulate(what, {"", arrangement::online_alone, {}, 1})), 13ms + 2 * gap);
}

TEST(LabKnownAnswer, AStoppedProcessRunsDryAfterWhatItHadQueued) {
  scenario what = known({1050ms}, 8);
  what.service = service_kind::continuous;
  // Four were in flight: the running one and three more; the later gaps are free.
  const duration gap = what.serving.host_gap + what.wake_up;
  EXPECT_EQ(latency(simulate(what, {"", arrangement::stopped, {}, 1})),
            50ms + 10ms + 8ms + 3 * 100ms + 4 * gap);
}

TEST(LabKnownAnswer, AStaticSplitStretchesWhatIsWiderThanItsPart) {
  const scenario what = known({1s});
  const run_result got = simulate(what, {"", arrangement::static_split, {}, 0.5});
  EXPECT_EQ(latency(got), 20ms);
  EXPECT_EQ(got.offline_work, got.stretch / 2);  // It runs all the time, at half the speed.
  // They end every 200 ms, from time zero on; alone every 100 ms.
  EXPECT_EQ(got.offline_kernels, 6u);
}

TEST(LabKnownAnswer, AGangsStepEndsWhenItsSlowestRankIsThere) {
  scenario what = known({});
  what.machine = machine(2);
  what.work.window = 1s;
  what.offline.gang = true;
  what.offline.all_reduce = 1ms;
  what.offline.shape.queues = 1;
  what.offline.shape.kernels_per_step = 1;
  what.offline.shape.gap_low = what.offline.shape.gap_high = 0ns;
  what.offline.shape.lengths = {{1, 10ms, 10ms}};
  what.wake_up = 0ns;
  const run_result got = simulate(what, {"", arrangement::offline_alone, {}, 1});
  // 11 ms a step, of which 10 are work, on both GPUs.
  EXPECT_NEAR(std::chrono::duration<double>(got.offline_work).count(), 2 * 10.0 / 11, 0.02);
  // Kernels of 5 to 15 ms: a step takes as long as the longer of two.
  what.offline.shape.lengths = {{1, 5ms, 15ms}};
  const run_result uneven = simulate(what, {"", arrangement::offline_alone, {}, 1});
  EXPECT_LT(uneven.offline_work, got.offline_work * 95 / 100);
  EXPECT_GT(uneven.offline_work, got.offline_work * 75 / 100);
}

/// Two GPUs, of which one has a server and both a rank.
TEST(LabKnownAnswer, AGangIsHeldOnAGpuWithoutAServerToo) {
  scenario what = known({1s});
  what.machine = machine(2);
  what.servers_on = 1;
  const auto held_by = [&](bool gang) {
    what.offline.gang = gang;
    const run_result got = simulate(what, at_once());
    EXPECT_EQ(got.requests.front().server, 0U);
    return 2 * got.stretch - got.offline_work;
  };
  const duration alone = held_by(false);
  EXPECT_GT(alone, 0ns);
  EXPECT_EQ(held_by(true), 2 * alone);
}

/// Eight queues of kernels that leave room, on a GPU of four slots, of which one is theirs.
scenario crowded() {
  scenario what = known({1s, 1300ms});
  what.machine.gpus[0].hqd_slots = 4;
  what.offline.processes = 4;
  what.offline.shape.queues = 2;
  what.offline.shape.occupancy_low = what.offline.shape.occupancy_high = 0.05;
  what.serving.prefill_occupancy = 0.5;  // Room for all: slots decide.
  return what;
}

contender reservation() {
  return {"reservation", arrangement::scheduled,
          [] {
            std::string message;
            parameters values;
            values.set("offline_percent", std::int64_t{25});
            return make_policy(hqd_reservation_kind(), std::move(values), message).value();
          },
          1};
}

TEST(LabKnownAnswer, AReservationIsTheDriversWhereItTakesOne) {
  scenario what = crowded();
  const run_result held = simulate(what, reservation());
  EXPECT_GT(held.suspends, 0u) << "by debug trap the policy does it";
  what.machine.batch_commands = true;
  const run_result got = simulate(what, reservation());
  EXPECT_EQ(got.suspends, 0u);
  EXPECT_TRUE(got.conserved);
  // One slot: one kernel at a time, but for the switches.
  EXPECT_LT(got.offline_work, got.stretch);
  EXPECT_GT(got.offline_work, got.stretch * 9 / 10);
  // No turn of the others takes the online queue's slot; all turns of the one slot cost a switch.
  const duration most = 10ms + 2 * what.machine.gpus[0].switch_cost;
  for (const served& each : got.requests) EXPECT_LE(each.what.latency, most);
  const run_result bare = simulate(what, {"", arrangement::unscheduled, {}, 1});
  EXPECT_GT(bare.requests[0].what.latency + bare.requests[1].what.latency, 2 * most)
      << "without one it waits for its turn";
  // Its firmware chooses slots by itself.
  what.machine.gpus[0].scheduler = sim::queue_scheduler::mes;
  EXPECT_GT(simulate(what, reservation()).suspends, 0u);
}

TEST(LabKnownAnswer, AQuantumShortensTheWaitOnATimeSlicedGpu) {
  scenario what = known({1s, 1500ms});
  what.machine.gpus[0].time_sliced = true;
  what.costs = {65ns, 1ms};  // 65 us for a request.
  const auto with = [](duration quantum) {
    class sets_a_quantum final : public policy {
     public:
      explicit sets_a_quantum(duration length) : length_(length) {}
      std::string_view name() const noexcept override { return "quantum"; }
      void decide(const snapshot& seen, decision_sink& out) override {
        for (const group_id id : seen.changed) out.set_quantum(id, length_);
      }

     private:
      const duration length_;
    };
    return contender{"quantum", arrangement::scheduled,
                     [quantum] { return std::make_unique<sets_a_quantum>(quantum); }, 1};
  };
  const run_result shared = simulate(what, {"", arrangement::unscheduled, {}, 1});
  const run_result own = simulate(what, with(0us));
  const run_result short_one = simulate(what, with(50us));
  for (std::size_t i = 0; i < 2; ++i) {
    const duration saved = 65us + 190us;
    EXPECT_GE(shared.requests[i].what.latency, saved);
    EXPECT_LE(shared.requests[i].what.latency, saved + 2048us);
    EXPECT_LE(own.requests[i].what.latency, saved + 2048us);
    EXPECT_LE(short_one.requests[i].what.latency, saved + 50us);
  }
  EXPECT_LT(latency(short_one), latency(own));
  EXPECT_EQ(short_one.suspends, 0u);
  EXPECT_TRUE(short_one.conserved);
  // Elsewhere nothing comes of it.
  what.machine.gpus[0].time_sliced = false;
  const run_result bare = simulate(what, with(0us));
  EXPECT_EQ(latency(simulate(what, with(50us))), latency(bare));
}

TEST(LabKnownAnswer, PointersShowTheWorkOfAServerThatSaysNothing) {
  scenario what = known({1s, 1500ms});
  what.clients = false;
  EXPECT_EQ(simulate(what, at_once()).suspends, 0u) << "who only listens hears nothing";
  const pointer_polling_options how{.fast = 100us, .slow = 1ms};
  const contender polling{"polling", arrangement::scheduled,
                          [how] { return make_pointer_polling(how); }, 1};
  const run_result got = simulate(what, polling);
  EXPECT_EQ(got.suspends, 2u);
  for (const served& each : got.requests) {
    EXPECT_GE(each.what.latency, what.reaction + 5ms + 10ms) << "before a look";
    EXPECT_LE(each.what.latency, how.slow + what.reaction + 5ms + 10ms);
  }
  EXPECT_EQ(got.left_suspended, 0u);
  what.clients = true;
  for (const served& each : simulate(what, polling).requests) {
    EXPECT_EQ(each.what.latency, what.reaction + 5ms + 10ms) << "both, the faster one counts";
  }
}

/// What the server may do because the model allows it.
TEST(LabModel, KernelsOfAStepInOnePieceGiveTheSameAsOneByOne) {
  for (const load_kind kind : {load_kind::long_kernels, load_kind::training}) {
    scenario what;
    what.machine = machine();
    what.work = generate(3, 3s);
    what.costs = scale_to_load(what.work, 0.5);
    what.offline.shape = shape_of(kind);
    for (const contender& who :
         {at_once(), timeslice(20ms), contender{"", arrangement::unscheduled, {}, 1}}) {
      what.whole_kernels = true;
      const run_result whole = simulate(what, who);
      what.whole_kernels = false;
      const run_result pieces = simulate(what, who);
      EXPECT_EQ(whole.offline_work, pieces.offline_work);
      ASSERT_EQ(whole.requests.size(), pieces.requests.size());
      for (std::size_t i = 0; i < whole.requests.size(); ++i) {
        ASSERT_EQ(whole.requests[i].what.latency, pieces.requests[i].what.latency) << i;
      }
    }
  }
}

TEST(LabRandom, KernelsRunOnceAndNothingStaysSuspended) {
  constexpr std::uint64_t runs = fast_build ? 60 : 6;
  for (std::uint64_t seed = 1; seed <= runs; ++seed) {
    const scenario what = any_scenario(seed);
    for (const contender& who :
         {at_once(), timeslice(20ms), restless(seed), contender{"", arrangement::stopped, {}, 1},
          contender{"", arrangement::static_split, {}, 0.6}}) {
      const run_result got = simulate(what, who);
      EXPECT_TRUE(got.conserved) << "seed " << seed << ", " << who.name;
      EXPECT_EQ(got.left_suspended, 0u) << "seed " << seed << ", " << who.name;
      EXPECT_EQ(got.faults.removed_for, "");
      EXPECT_EQ(got.faults.ignored_text(), "");
      EXPECT_EQ(got.requests.size(), what.work.requests.size()) << "seed " << seed;
    }
  }
}

TEST(LabRandom, APolicyIsDrivenAsTheRealCoreDrivesIt) {
  // Not a stand-in: its limits act, and a policy that wants offline work off for good does not get
  // it. max_suspend is a second, then at least min_run follows.
  scenario what = known({1s}, 4000);  // Four seconds of work.
  what.offline.shape.occupancy_low = what.offline.shape.occupancy_high = 0.5;
  const run_result got = simulate(what, at_once());
  EXPECT_GE(got.forced_resumes, 3u);
  EXPECT_LE(got.longest_starvation, 1s + 50ms);
}

/// What makes hours affordable. The bound is generous: CI machines are slow, sanitizers slower.
TEST(LabSpeed, AnHourOfArrivalsTakesSeconds) {
  scenario what;
  what.machine = machine();
  what.work = poisson(1, fast_build ? duration(1h) : duration(1min), 2.5);
  what.costs = scale_to_load(what.work, 0.6);
  what.serving.drain_limit = 1h;
  for (const load_kind kind : {load_kind::long_kernels, load_kind::training}) {
    what.offline.shape = shape_of(kind);
    const std::clock_t began = std::clock();
    const run_result got = simulate(what, timeslice(20ms));
    const double took = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
    std::cout << to_string(kind) << ": " << got.requests.size() << " requests, "
              << got.offline_kernels << " offline kernels in " << took << " s of CPU time\n";
#ifdef NDEBUG  // Builds without optimisation may take longer.
    EXPECT_LT(took, kind == load_kind::long_kernels ? 2 : 4);
#endif
  }
}

}  // namespace
}  // namespace sluice::lab::simulation_test
