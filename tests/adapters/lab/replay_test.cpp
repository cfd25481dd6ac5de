#include "replay.hpp"

#include "core_bench.hpp"
#include "experiment.hpp"
#include "outcome.hpp"
#include "scenarios.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/policies/hqd_reservation.hpp"
#include "sluice/policies/pointer_polling.hpp"
#include "sluice/policy_registry.hpp"
#include "sluice/recording.hpp"

namespace sluice::lab::replay_test {
namespace {

using namespace test;

class text_sink final : public record_sink {
 public:
  bool put(std::string_view line) noexcept override {
    text.append(line);
    return true;
  }
  std::string text;
};

/// What a recorder beside the simulated scheduler wrote.
std::string record(const scenario& what, const contender& who) {
  text_sink into;
  (void)simulate(what, who, {.record_into = &into});
  return into.text;
}

recording read(const std::string& text) {
  auto made = parse_recording(text, "test");
  EXPECT_TRUE(made) << made.error().message;
  return made ? std::move(*made) : recording{};
}

/// One GPU, an offline process, online work at 1 s and at 1.5 s.
std::string two_requests() { return record(known({1s, 1500ms}), at_once()); }

void expect_the_same(const outcome_summary& recorded, const outcome_summary& got,
                     const std::string& where) {
  ASSERT_EQ(recorded.decisions.size(), got.decisions.size()) << where;
  for (std::size_t i = 0; i < got.decisions.size(); ++i) {
    ASSERT_EQ(recorded.decisions[i], got.decisions[i]) << where << ", decision " << i;
  }
  EXPECT_EQ(recorded.preemptions, got.preemptions) << where;
  EXPECT_EQ(recorded.suspends, got.suspends) << where;
  EXPECT_EQ(recorded.resumes, got.resumes) << where;
  EXPECT_EQ(recorded.driver_calls, got.driver_calls) << where;
  EXPECT_EQ(recorded.forced_resumes, got.forced_resumes) << where;
  EXPECT_EQ(recorded.to_off, got.to_off) << where;
  EXPECT_EQ(recorded.held(), got.held()) << where;
  EXPECT_EQ(recorded.longest_hold(), got.longest_hold()) << where;
}

TEST(Replay, TheSamePolicyDecidesTheSameToTheNanosecond) {
  constexpr std::uint64_t runs = fast_build ? 25 : 3;
  std::uint64_t decisions = 0;
  for (std::uint64_t seed = 1; seed <= runs; ++seed) {
    const scenario what = any_scenario(seed);
    for (const contender& who : {at_once(), timeslice(20ms), restless(seed)}) {
      const std::string where = "seed " + std::to_string(seed) + ", " + who.name;
      const recording recorded = read(record(what, who));
      EXPECT_FALSE(recorded.why) << where;
      const auto got = replay(recorded, who.make());
      ASSERT_TRUE(got) << where << ": " << got.error().message;
      EXPECT_EQ(got->estimated, 0u) << where;
      EXPECT_EQ(got->run.end, recorded.end) << where;
      const outcome_summary before = summarize(recorded);
      expect_the_same(before, summarize(got->run), where);
      decisions += before.decisions.size();
    }
  }
  EXPECT_GT(decisions, 20 * runs);
}

/// What no laboratory does: failures, sessions that end, a gang, an agent that dies, what comes and
/// goes.
TEST(Replay, WhatGoesWrongIsPlayedAgain) {
  using tests::gpu_a, tests::gpu_b, tests::q;
  text_sink into;
  scheduler_config config = tests::quick_config();
  config.offline_floor = 0.3;
  config.floor_window = 1s;
  config.breaker_after = 2;
  const auto decider = [] { return make_fixed_timeslice({.slice = 20ms}); };
  tests::core_bench bench(config, decider(), {}, &into);
  bench.driver.set_delay(1ms);
  bench.create(100, role::offline, gpu_a, {0, 1});
  bench.create(200, role::offline, gpu_b, {7}, 55);
  bench.create(201, role::offline, gpu_a, {3}, 55);
  bench.create(300, role::online, gpu_a, {0});
  auto first = bench.client({gpu_a});
  auto second = bench.client();
  bench.driver.script_attach(200, errc::not_managed);
  bench.run_for(65s);
  const auto serve = [&](online_client& by) {
    by.begin();
    bench.run_for(30ms);
    by.end();
    bench.run_for(33ms);
  };
  serve(first);
  bench.driver.script_outcome(100, q(1), outcome::invalid);
  serve(second);
  bench.run_for(3s);
  bench.driver.script_outcome(100, q(0), outcome::failed);
  serve(first);
  bench.run_for(3s);
  bench.driver.end_session(201);
  serve(second);
  bench.run_for(3s);
  bench.create_queue(100, q(2), gpu_b);
  serve(second);
  first.begin();  // Until it is forced to run, and on.
  bench.run_for(2500ms);
  bench.driver.remove_queue(100, q(0));
  bench.run_for(500ms);
  first = {};
  bench.run_for(50ms);
  second.begin();
  bench.run_for(3ms);
  bench.driver.lose();
  bench.run_for(200ms);
  bench.driver.restore();
  bench.run_for(4s);
  second.end();
  bench.driver.lose_gpu(gpu_a);
  serve(second);
  bench.core->rearm(gpu_a);
  serve(second);
  bench.see_kind(observation_kind::process_gone, 200);
  serve(second);
  bench.core->begin_stop();
  bench.run_for(100ms);
  bench.core->finish_stop();

  const recording recorded = read(into.text);
  EXPECT_FALSE(recorded.why);
  const outcome_summary was = summarize(recorded);
  EXPECT_GE(was.preemptions, 15u);
  EXPECT_GE(was.failures, 2u);
  EXPECT_GE(was.forced_resumes, 2u);
  const auto got = replay(recorded, decider());
  ASSERT_TRUE(got) << got.error().message;
  expect_the_same(was, summarize(got->run), "scripted");
}

/// One GPU's driver takes none; the other's only once another program has let go, and it ends one
/// by itself. Meanwhile, and there, the policy suspends in turns.
TEST(Replay, ReservationsAreReadAndAnsweredAsTheyWere) {
  using tests::gpu_a, tests::gpu_b;
  const auto system_error = [](int number) {
    return error_code{number, boost::system::system_category()};
  };
  const auto decider = [] {
    parameters values;
    values.set("slots", std::int64_t{2});
    values.set("rotation", duration(50ms));
    std::string message;
    auto made = make_policy(hqd_reservation_kind(), values, message);
    EXPECT_TRUE(made) << message;
    return std::move(*made);
  };
  text_sink into;
  tests::core_bench bench(tests::quick_config(), decider(), {}, &into);
  bench.driver.set_delay(1ms);
  bench.create(100, role::offline, gpu_a, {0});
  bench.create(101, role::offline, gpu_a, {0});
  bench.create(200, role::offline, gpu_b, {0});
  bench.create(201, role::offline, gpu_b, {0});
  bench.attach_all();
  bench.driver.script_reservation(gpu_a, system_error(EBUSY));
  bench.driver.script_reservation(gpu_b, system_error(EOPNOTSUPP));
  bench.driver.act_by(testing::batched_calls);
  bench.run_for(3s);
  bench.driver.end_reservation(gpu_a, system_error(EFAULT));
  bench.run_for(3s);
  bench.core->begin_stop();
  bench.run_for(100ms);
  bench.core->finish_stop();

  const recording recorded = read(into.text);
  EXPECT_FALSE(recorded.why);
  std::vector<std::pair<gpu_id, int>> answers;  // With the errno.
  for (const recording::entry& each : recorded.entries) {
    const auto* const said = std::get_if<rec::reserved>(&each.what);
    if (said != nullptr) answers.emplace_back(said->gpu, said->error.value());
  }
  const std::vector<std::pair<gpu_id, int>> expected{
      {gpu_a, EBUSY},  {gpu_b, EOPNOTSUPP}, {gpu_a, 0}, {gpu_a, 0},
      {gpu_a, EFAULT}, {gpu_a, 0},          {gpu_a, 0}, {gpu_a, 0}};
  EXPECT_EQ(answers, expected) << "asked whether it can, told; both again; told of the end";
  const outcome_summary was = summarize(recorded);
  EXPECT_GE(was.suspends, 40u);
  const auto got = replay(recorded, decider());
  ASSERT_TRUE(got) << got.error().message;
  expect_the_same(was, summarize(got->run), "reservations");
}

/// One GPU's driver takes none; the other's refuses one for a while, and ends one by itself.
TEST(Replay, QuantaAreReadAndAnsweredAsTheyWere) {
  using tests::gpu_a, tests::gpu_b;
  const auto system_error = [](int number) {
    return error_code{number, boost::system::system_category()};
  };
  const auto decider = [] {
    return tests::make_policy([](const snapshot& seen, decision_sink& out) {
      for (const group_id id : seen.changed) out.set_quantum(id, 50us);
    });
  };
  text_sink into;
  tests::core_bench bench(tests::quick_config(), decider(), {}, &into);
  bench.driver.offer_quanta(gpu_a);
  bench.driver.script_quantum(system_error(EBUSY));
  bench.create(100, role::offline, gpu_a, {0});
  bench.create(101, role::offline, gpu_a, {0});
  bench.create(200, role::offline, gpu_b, {0});
  bench.attach_all();
  bench.run_for(5s);
  bench.driver.end_quantum(101, gpu_a, system_error(EFAULT));
  bench.run_for(5s);
  bench.core->begin_stop();
  bench.run_for(100ms);
  bench.core->finish_stop();

  const auto answers = [](const recording& of) {
    std::vector<std::tuple<time_point, process_id, gpu_id, int>> all;  // With the errno.
    for (const recording::entry& each : of.entries) {
      if (const auto* const said = std::get_if<rec::quantum_set>(&each.what)) {
        all.emplace_back(each.at, said->process, said->gpu, said->error.value());
      } else if (const auto* const told = std::get_if<rec::quantum>(&each.what)) {
        all.emplace_back(each.at, told->process, told->gpu, told->error.value());
      }
    }
    return all;
  };
  const recording recorded = read(into.text);
  EXPECT_FALSE(recorded.why);
  const auto was = answers(recorded);
  EXPECT_GE(was.size(), 12u);
  const auto got = replay(recorded, decider());
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(answers(got->run), was);
}

/// The driver refuses the quanta of one process and accepts those of another on the same GPU.
TEST(Replay, QuantaAreAnsweredByTarget) {
  using tests::gpu_a;
  const auto decider = [](bool changes) {
    return tests::make_policy([changes](const snapshot& seen, decision_sink& out) {
      for (const group_id id : seen.changed) out.set_quantum(id, 50us);
      const gpu_view* const on = seen.table.find(gpu_a);
      if (!changes || on == nullptr || on->offline.size() != 2) return;
      // That of the second process, again and again.
      const group_id last = std::max(on->offline[0], on->offline[1]);
      out.set_quantum(last, seen.turn % 2 == 0 ? 50us : 60us);
      out.wake_at(seen.now + 100ms);
    });
  };
  text_sink into;
  tests::core_bench bench(tests::quick_config(), decider(false), {}, &into);
  bench.driver.offer_quanta(gpu_a);
  bench.create(100, role::offline, gpu_a, {0});
  bench.create(101, role::offline, gpu_a, {0});
  const error_code refused{EPERM, boost::system::system_category()};
  bench.driver.script_quantum(refused);
  bench.driver.script_quantum({});
  for (int i = 0; i < 100; ++i) bench.driver.script_quantum(refused);
  bench.attach_all();
  bench.run_for(5s);
  bench.core->finish_stop();

  /// How often each process was answered, without and with an error.
  const auto answers = [](const recording& of) {
    std::map<process_id, pid_t> pids;
    std::map<std::pair<pid_t, bool>, int> counts;
    for (const recording::entry& each : of.entries) {
      if (const auto* const asked = std::get_if<rec::attach>(&each.what)) {
        pids[asked->process] = asked->pid;
      } else if (const auto* const said = std::get_if<rec::quantum_set>(&each.what)) {
        ++counts[{pids[said->process], static_cast<bool>(said->error)}];
      }
    }
    return counts;
  };
  const recording recorded = read(into.text);
  auto was = answers(recorded);
  ASSERT_GT((was[{100, true}]), 1);
  ASSERT_EQ((was[{101, false}]), 1);
  ASSERT_EQ(was.size(), 2u);
  const auto got = replay(recorded, decider(true));
  ASSERT_TRUE(got) << got.error().message;
  auto is = answers(got->run);
  EXPECT_GT((is[{100, true}]), 1);
  EXPECT_GT((is[{101, false}]), 10);
  EXPECT_EQ(is.size(), 2u) << "nothing else is answered";
}

TEST(Replay, TheSameRecordingGivesTheSameTextAgain) {
  const scenario what = any_scenario(3);
  const std::string text = record(what, timeslice(20ms));
  EXPECT_EQ(text, record(what, timeslice(20ms)));
  const auto once = replay(read(text), make_fixed_timeslice({.slice = 5ms}));
  const auto again = replay(read(text), make_fixed_timeslice({.slice = 5ms}));
  ASSERT_TRUE(once && again);
  EXPECT_EQ(summarize(once->run).decisions, summarize(again->run).decisions);
}

TEST(ReplayKnownAnswer, WhatHappenedIsCounted) {
  const recording recorded = read(two_requests());
  EXPECT_EQ(recorded.policy, "at_once");
  EXPECT_EQ(recorded.device, "lab");
  const outcome_summary got = summarize(recorded);
  EXPECT_EQ(got.preemptions, 2u);
  EXPECT_EQ(got.suspends, 2u);
  EXPECT_EQ(got.resumes, 2u);
  EXPECT_EQ(got.driver_calls, 4u);
  ASSERT_EQ(got.groups.size(), 1u);
  EXPECT_EQ(got.groups[0].name, "pid 1000");
  // From the turn that suspends until the resume has ended: the suspend and the request, the host's
  // wake-up and the reaction to its end, the resume.
  const scenario what = known({});
  const duration held = 5ms + 10ms + what.wake_up + what.reaction + 10ms;
  EXPECT_EQ(got.groups[0].longest_hold, held);
  // The second one ends with the scheduler, which resumes at once.
  EXPECT_EQ(got.groups[0].held, 2 * held - what.reaction);
  ASSERT_EQ(got.to_off.size(), 2u);
  EXPECT_EQ(got.to_off[0], what.reaction + 5ms);
}

TEST(ReplayKnownAnswer, ALongerSlicePreemptsOnceForBothAndHoldsOn) {
  const auto got = replay(read(two_requests()), make_fixed_timeslice({.slice = 800ms}));
  ASSERT_TRUE(got) << got.error().message;
  const outcome_summary sums = summarize(got->run);
  EXPECT_EQ(sums.preemptions, 1u);
  EXPECT_EQ(sums.suspends, 1u);
  EXPECT_GT(sums.longest_hold(), 500ms);
  // The same suspend, and the resume as long as the first recorded one.
  ASSERT_EQ(sums.to_off.size(), 1u);
  EXPECT_EQ(sums.to_off[0], known({}).reaction + 5ms);
}

TEST(Replay, CallsBeyondTheRecordedOnesTakeTheMedian) {
  // Recorded with one preemption for both requests, replayed with one for each.
  const recording recorded = read(record(known({1s, 1500ms}), timeslice(800ms)));
  EXPECT_EQ(summarize(recorded).preemptions, 1u);
  const auto got = replay(recorded, make_at_once());
  ASSERT_TRUE(got) << got.error().message;
  const outcome_summary sums = summarize(got->run);
  EXPECT_EQ(sums.preemptions, 2u);
  EXPECT_GE(got->estimated, 1u);
  EXPECT_EQ(got->given, 0u);
  EXPECT_EQ(sums.to_off, std::vector<duration>(2, known({}).reaction + 5ms));
}

TEST(Replay, WhatACallTakesMustComeFromSomewhere) {
  const contender idle{"idle", arrangement::scheduled,
                       [] { return make_fixed_timeslice({.slice = 1us}); }, 1};
  const recording recorded = read(record(known({}), idle));
  // Nothing came, nothing was suspended. Now something comes.
  std::string text = record(known({}), idle);
  const recording nothing = read(text);
  EXPECT_EQ(summarize(nothing).driver_calls, 0u);
  const std::string client = text.substr(text.find("\"is\":\"client\""));
  EXPECT_NE(client, "");
  const auto end = text.find("\"is\":\"stop\"");
  ASSERT_NE(end, text.npos);
  const auto line = text.rfind('\n', end) + 1;
  const std::string t = text.substr(line, text.find(',', line) - line);
  text.insert(line, t + ",\"is\":\"work\",\"client\":1,\"begun\":1}\n" + t + ",\"is\":\"turn\"}\n");
  const recording begun = read(text);
  const auto refused = replay(begun, make_at_once());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "test: the duration of a suspend is unknown: the recording has no such call; set the "
            "duration with --suspend-cost TIME");
  const auto got = replay(begun, make_at_once(), {.suspend_cost = 5ms, .resume_cost = 10ms});
  ASSERT_TRUE(got);
  EXPECT_GE(got->given, 1u);
  EXPECT_EQ(got->given, got->calls) << "none took a median: there is none";
}

TEST(Replay, APolicyThatNeedsPointersSaysThatThereAreNone) {
  const auto got = replay(read(two_requests()), make_pointer_polling());
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_TRUE(got->misses_pointers);
}

TEST(Replay, WhatTheActingSideSawComesAgain) {
  text_sink into;
  tests::core_bench bench{tests::quick_config(), make_pointer_polling(), {}, &into};
  bench.driver.act_by({"shows work", {capability::holds_end_with_maker, capability::read_backlog}});
  bench.create(300, role::online, tests::gpu_a, {0});
  bench.create(100, role::offline, tests::gpu_a, {0});
  bench.attach_all();
  const auto say = [&](online_work work, std::uint32_t packets) {
    observation seen;
    seen.kind = observation_kind::pointers_seen;
    seen.pid = 300;
    seen.start_time = tests::start_time;
    seen.gpu = tests::gpu_a;
    seen.work = work;
    seen.count = packets;
    seen.at = bench.time.now();
    bench.driver.see(seen);
    bench.run_for(100ms);
  };
  for (int request = 0; request < 3; ++request) {
    say(online_work::waiting, 1);
    say(online_work::finished, 0);
  }
  bench.core->finish_stop();
  const recording made = read(into.text);
  const outcome_summary recorded = summarize(made);
  EXPECT_EQ(recorded.suspends, 3u);
  const auto got = replay(made, make_pointer_polling());
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_FALSE(got->misses_pointers);
  expect_the_same(recorded, summarize(got->run), "what the acting side saw");
}

// Files ------------------------------------------------------------------------------------------

// Symptom: a replay crawled on at a microsecond a turn.
TEST(Replay, APolicyThatAsksForTurnAfterTurnIsRemovedWithTheReason) {
  class spinner final : public policy {
   public:
    std::string_view name() const noexcept override { return "spinner"; }
    void decide(const snapshot& seen, decision_sink& out) override {
      out.run(group_id{4711});
      out.wake_at(seen.now);
    }
  };
  const auto got = replay(read(two_requests()), std::make_unique<spinner>());
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(summarize(got->run).removals, 1u);
  EXPECT_NE(got->faults.removed_for.find("it requested 1000 turns within 10ms"), std::string::npos)
      << got->faults.removed_for;
  EXPECT_EQ(got->faults.unknown_groups, got->faults.any_ignored() ? 1001u : 0u);
}

TEST(Recording, IsReadUpToAGap) {
  std::string text = two_requests();
  const auto second = text.find("\"is\":\"batch\"", text.find("\"is\":\"batch\"") + 1);
  const auto line = text.rfind('\n', second) + 1;
  const auto number =
      std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(line), '\n');
  text.insert(line,
              text.substr(line, text.find(',', line) - line) + ",\"is\":\"gap\",\"count\":7}\n");
  const recording got = read(text);
  ASSERT_TRUE(got.why);
  EXPECT_EQ(got.why->count, 7u);
  EXPECT_EQ(got.why->text, "test:" + std::to_string(number + 1) +
                               ": 7 lines are missing here: the disk was too slow");
  EXPECT_EQ(summarize(got).suspends, 1u);
  EXPECT_TRUE(replay(got, make_at_once()));
}

TEST(Recording, CutShortAnywhereIsReadUpToThere) {
  const std::string text = two_requests();
  const auto header = text.find('\n') + 1;
  std::size_t before = 0;
  for (std::size_t size = header; size < text.size(); size += 97) {
    const auto got = parse_recording(text.substr(0, size), "test");
    ASSERT_TRUE(got) << size << ": " << got.error().message;
    ASSERT_TRUE(got->why) << size;
    ASSERT_GE(got->entries.size(), before) << size;
    before = got->entries.size();
    ASSERT_TRUE(replay(*got, make_at_once(), {.suspend_cost = 5ms, .resume_cost = 5ms})) << size;
  }
  EXPECT_FALSE(read(text).why);
}

TEST(Recording, DamageIsNamedByFileAndLine) {
  const std::string text = two_requests();
  const auto says = [&](std::string_view from, std::string_view to) {
    std::string changed = text;
    const auto at = changed.find(from);
    EXPECT_NE(at, changed.npos) << from;
    changed.replace(at, from.size(), to);
    const auto got = parse_recording(changed, "x.rec");
    return got ? std::string("fine") : got.error().message;
  };
  const std::string no = "x.rec:1: cannot read the recording: ";
  EXPECT_EQ(says("\"version\":2", "\"version\":1"),
            no + "format version 1; this program reads version 2; record again, or use the release "
                 "that recorded it");
  EXPECT_EQ(says("recording", "recordinh"), no + "the line is not a recording header");
  EXPECT_EQ(says("\"max_suspend\":1000000000", "\"max_suspend\":1"),
            no + "max_suspend is 1ns; it must be 1ms to 141s");
  const std::string damaged = ": the recording is damaged: ";
  EXPECT_EQ(says("\"what\":\"gpu_seen\"", "\"what\":\"gpu_sein\""),
            "x.rec:2" + damaged + "field 'what' has an unknown value");
  EXPECT_EQ(says("\"is\":\"seen\"", "\"is\":\"sean\""),
            "x.rec:2" + damaged + "field 'is' has an unknown value");
  EXPECT_EQ(parse_recording("", "x.rec").error().message,
            "x.rec: not a recording: the file is empty");
  EXPECT_EQ(parse_recording("hello\n", "x.rec").error().message,
            no + "the line is not a JSON object");
  EXPECT_EQ(read_recording("/nowhere/x.rec").error().message,
            "cannot open /nowhere/x.rec: No such file or directory");
}

/// Whatever stands in the file: a sentence, or a replay that ends.
TEST(RecordingRandom, DamageNeverCrashes) {
  const std::string text = two_requests();
  constexpr int runs = fast_build ? 2000 : 100;
  int refused = 0;
  for (int seed = 1; seed <= runs; ++seed) {
    std::mt19937_64 bits(static_cast<std::uint64_t>(seed));
    std::string changed = text;
    for (auto left = 1 + bits() % 3; left != 0; --left) {
      const auto at = bits() % changed.size();
      switch (bits() % 4) {
        case 0: changed[at] = static_cast<char>(bits()); break;
        case 1: changed[at] = static_cast<char>('0' + bits() % 10); break;
        case 2: changed.erase(at, 1 + bits() % 40); break;
        default: {
          const auto line = changed.rfind('\n', at) + 1;
          changed.insert(line, changed.substr(line, changed.find('\n', line) + 1 - line));
        }
      }
    }
    const auto got = parse_recording(changed, "x.rec");
    if (!got) {
      ++refused;
      EXPECT_EQ(got.error().message.rfind("x.rec:", 0), 0u) << seed << ": " << got.error().message;
      continue;
    }
    (void)summarize(*got);
    (void)replay(*got, make_fixed_timeslice({.slice = 20ms}),
                 {.suspend_cost = 5ms, .resume_cost = 5ms});
  }
  EXPECT_GT(refused, runs / 4);
}

}  // namespace
}  // namespace sluice::lab::replay_test
