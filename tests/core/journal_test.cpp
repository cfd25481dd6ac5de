// What the journal says of a scheduler, and the picture of one.

#include "sluice/journal.hpp"

#include "core_bench.hpp"
#include "test_seed.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/picture.hpp"
#include "sluice/policies/pointer_polling.hpp"

namespace sluice::tests::journal_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class kept_journal final : public journal_sink {
 public:
  void put(const journal_entry& entry) noexcept override { entries.push_back(entry); }
  void pass_on() noexcept override { ++passes; }

  std::vector<journal_entry> of(journal_kind kind) const {
    std::vector<journal_entry> found;
    for (const auto& one : entries)
      if (one.kind == kind) found.push_back(one);
    return found;
  }
  std::vector<journal_kind> kinds() const {
    std::vector<journal_kind> found;
    for (const auto& one : entries) found.push_back(one.kind);
    return found;
  }

  std::vector<journal_entry> entries;
  int passes = 0;
};

class journal_bench : public core_bench {
 public:
  explicit journal_bench(kept_journal& into, scheduler_config config = quick_config(),
                         std::unique_ptr<policy> decider = make_fixed_timeslice({.slice = 20ms}))
      : core_bench(config, std::move(decider), {}, nullptr, &into), journal(into) {}

  kept_journal& journal;
};

class Journal : public ::testing::Test {
 protected:
  kept_journal journal;
};

TEST_F(Journal, TellsOfAPreemptionFromItsCauseToItsEnd) {
  journal_bench bench(journal);
  bench.create(100, role::offline, gpu_a, {0, 1});
  auto client = bench.client();
  bench.attach_all();
  journal.entries.clear();
  client.begin();
  bench.settle();
  EXPECT_THAT(
      journal.kinds(),
      ElementsAre(journal_kind::begin, journal_kind::busy, journal_kind::held, journal_kind::batch,
                  journal_kind::process_off, journal_kind::done, journal_kind::off));
  const auto& all = journal.entries;
  EXPECT_EQ(all[0].client, client.id());
  EXPECT_EQ(all[1].gpu, gpu_a);
  EXPECT_EQ(all[2].why, journal_rule::policy);
  EXPECT_EQ(all[2].pid, 100);
  EXPECT_GT(all[2].until, all[2].at);
  EXPECT_EQ(all[3].command, command_kind::suspend);
  EXPECT_EQ(all[3].count, 2U);
  EXPECT_EQ(all[5].number, all[3].number);
  EXPECT_EQ(all[5].failed + all[5].invalid + all[5].gone, 0);
  EXPECT_LE(all[5].since, all[5].until);
  // What came in, was decided and handed over has one turn; the answer comes in a later one.
  EXPECT_EQ(all[0].turn, all[3].turn);
  EXPECT_LT(all[3].turn, all[5].turn);
  EXPECT_EQ(all[2].group, all[3].group);

  journal.entries.clear();
  client.end();
  bench.run_for(200ms);
  EXPECT_THAT(journal.kinds(),
              ElementsAre(journal_kind::end, journal_kind::idle, journal_kind::let_go,
                          journal_kind::batch, journal_kind::done, journal_kind::process_on));
  EXPECT_EQ(journal.entries[2].why, journal_rule::expired);
  EXPECT_EQ(journal.entries[3].command, command_kind::resume);
  EXPECT_EQ(journal.entries[5].length, journal.entries[5].at - journal.entries[5].since);
}

TEST_F(Journal, NamesTheProcessWhoseQueuePointersShowOnlineWork) {
  journal_bench bench(journal, quick_config(), make_pointer_polling({}));
  bench.show_work(gpu_a);
  bench.create(100, role::online, gpu_a, {0});
  bench.create(101, role::online, gpu_a, {1});
  bench.create(102, role::offline, gpu_a, {0});
  bench.attach_all();
  const auto busy = [&] {
    bench.settle();
    for (const auto& each : journal.entries)
      if (each.kind == journal_kind::busy) return each.pid;
    return pid_t{-1};
  };
  journal.entries.clear();
  bench.see_pointers(100, gpu_a, online_work::finished);
  bench.see_pointers(101, gpu_a, online_work::waiting, 1);
  EXPECT_EQ(busy(), 101);
  bench.see_pointers(101, gpu_a, online_work::finished);
  bench.settle();
  journal.entries.clear();
  auto client = bench.client();
  client.begin();
  EXPECT_EQ(busy(), 0) << "a client's work has entries of its own";
}

TEST_F(Journal, NamesTheLimitThatForcesARun) {
  journal_bench bench(journal, quick_config(),
                      make_policy([](const snapshot& seen, decision_sink& out) {
                        for (const group_id id : seen.changed) out.hold(id, never);
                      }));
  bench.create(100, role::offline, gpu_a, {0});
  bench.run_for(6s);
  const auto forced = journal.of(journal_kind::forced);
  ASSERT_FALSE(forced.empty());
  EXPECT_EQ(forced.front().why, journal_rule::max_suspend);
  const auto let_go = journal.of(journal_kind::let_go);
  ASSERT_FALSE(let_go.empty());
  // A declaration is as long as the limit at most: that it ended comes to the same moment.
  EXPECT_EQ(let_go.front().why, journal_rule::max_suspend);
  EXPECT_EQ(let_go.front().at - let_go.front().since, 1s);
}

TEST_F(Journal, NamesTheFloor) {
  auto config = quick_config();
  config.offline_floor = 0.5;
  config.floor_window = 1s;
  journal_bench bench(journal, config, make_policy([](const snapshot& seen, decision_sink& out) {
                        for (const group_id id : seen.changed) out.hold(id, never);
                      }));
  bench.create(100, role::offline, gpu_a, {0});
  bench.run_for(6s);
  const auto forced = journal.of(journal_kind::forced);
  ASSERT_FALSE(forced.empty());
  EXPECT_EQ(forced.front().why, journal_rule::offline_floor);
}

TEST_F(Journal, SaysWhyAGroupIsLetGo) {
  struct {
    const char* what;
    std::function<void(journal_bench&)> happens;
    journal_rule why;
  } const cases[] = {
      {"policy replaced", [](journal_bench& bench) { bench.core->set_policy(nullptr); },
       journal_rule::no_policy},
      {"stop", [](journal_bench& bench) { bench.core->begin_stop(); }, journal_rule::stop},
      {"role", [](journal_bench& bench) { bench.see(100, role::online); },
       journal_rule::not_offline},
      {"breaker", [](journal_bench& bench) { bench.driver.lose_gpu(gpu_a); },
       journal_rule::not_manageable},
      {"expiry", [](journal_bench& bench) { bench.run_for(500ms); }, journal_rule::expired},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.what);
    kept_journal kept;
    journal_bench bench(kept, quick_config(),
                        make_policy([](const snapshot& seen, decision_sink& out) {
                          if (seen.events.empty()) return;
                          for (const group_id id : seen.table.gpus().front().offline)
                            out.hold(id, seen.now + 400ms);
                        }));
    bench.create(100, role::offline, gpu_a, {0});
    auto client = bench.client();
    bench.attach_all();
    client.begin();
    bench.settle();
    ASSERT_TRUE(bench.driver.suspended(100, q(0)));
    each.happens(bench);
    bench.settle();
    const auto let_go = kept.of(journal_kind::let_go);
    ASSERT_THAT(let_go, SizeIs(1));
    EXPECT_EQ(let_go.front().why, each.why) << to_string(let_go.front().why);
    EXPECT_FALSE(bench.driver.suspended(100, q(0)));
  }
}

TEST_F(Journal, TellsOutcomesThatAreNotDone) {
  journal_bench bench(journal);
  bench.create(100, role::offline, gpu_a, {0, 1, 2});
  bench.driver.script_outcome(100, q(0), outcome::invalid);
  bench.driver.script_outcome(100, q(1), outcome::failed);
  auto client = bench.client();
  bench.attach_all();
  client.begin();
  bench.settle();
  const auto done = journal.of(journal_kind::done);
  ASSERT_FALSE(done.empty());
  EXPECT_EQ(done.front().invalid, 1);
  EXPECT_EQ(done.front().failed, 1);
  EXPECT_EQ(done.front().count, 3U);
}

TEST_F(Journal, TellsWhyAnAttachFailed) {
  journal_bench bench(journal);
  bench.driver.script_attach(100, errc::not_managed);
  bench.create(100, role::offline, gpu_a, {0});
  bench.attach_all();
  const auto attached = journal.of(journal_kind::attached);
  ASSERT_FALSE(attached.empty());
  EXPECT_EQ(attached.front().error, error_code(errc::not_managed).value());
  EXPECT_EQ(attached.front().words(),
            error_code(errc::not_managed).message().substr(0, journal_entry::longest_text));
}

TEST_F(Journal, KeepsTheBooksOfAProcess) {
  journal_bench bench(journal);
  bench.create(100, role::offline, gpu_a, {0, 1});
  auto client = bench.client();
  bench.attach_all();
  const time_point seen = journal.of(journal_kind::process).front().at;
  duration off{};
  duration longest{};
  for (const duration each : {30ms, 70ms, 50ms}) {
    client.begin();
    bench.run_for(each);
    client.end();
    bench.run_for(300ms);
  }
  const auto on = journal.of(journal_kind::process_on);
  ASSERT_THAT(on, SizeIs(3));
  for (const auto& each : on) {
    off += each.length;
    longest = std::max(longest, each.length);
  }
  const auto view = bench.core->look();
  ASSERT_THAT(view.groups, SizeIs(1));
  const auto& process = view.groups.front().processes.front();
  EXPECT_EQ(process.off_count, 3U);
  EXPECT_EQ(process.off_total, off);
  EXPECT_EQ(process.off_longest, longest);
  EXPECT_GE(off, 150ms);

  bench.see_kind(observation_kind::process_gone, 100);
  bench.settle();
  const auto gone = journal.of(journal_kind::process_gone);
  ASSERT_THAT(gone, SizeIs(1));
  EXPECT_EQ(gone.front().what, role::offline);
  EXPECT_EQ(gone.front().count, 3U);
  EXPECT_EQ(gone.front().length, off);
  EXPECT_EQ(gone.front().longest, longest);
  EXPECT_EQ(gone.front().since, seen);
}

TEST_F(Journal, CountsTheTimeOffOfAProcessThatEndsInIt) {
  journal_bench bench(journal);
  bench.create(100, role::offline, gpu_a, {0});
  auto client = bench.client();
  bench.attach_all();
  client.begin();
  bench.run_for(40ms);
  const auto off = journal.of(journal_kind::process_off);
  ASSERT_THAT(off, SizeIs(1));
  bench.see_kind(observation_kind::process_gone, 100);
  bench.settle();
  const auto gone = journal.of(journal_kind::process_gone);
  ASSERT_THAT(gone, SizeIs(1));
  EXPECT_EQ(gone.front().length, gone.front().at - off.front().at);
  EXPECT_EQ(gone.front().longest, gone.front().length);
}

TEST_F(Journal, TellsOfProcessesWhenTheirRoleIsKnownAndWhenItChanges) {
  journal_bench bench(journal);
  bench.see(100, role::offline);
  bench.see(100, role::offline);
  bench.see(100, role::online);
  const auto told = journal.of(journal_kind::process);
  ASSERT_THAT(told, SizeIs(2));
  EXPECT_EQ(told[0].what, role::offline);
  EXPECT_EQ(told[1].what, role::online);
}

TEST_F(Journal, TellsOfPoliciesBackendsAndBreakers) {
  journal_bench bench(journal);
  bench.create(100, role::offline, gpu_a, {0});
  bench.attach_all();
  bench.driver.lose();
  bench.settle();
  bench.driver.restore();
  bench.settle();
  bench.driver.lose_gpu(gpu_a);
  bench.settle();
  bench.core->rearm(gpu_a);
  bench.settle();
  bench.core->set_policy(make_policy([](const snapshot&, decision_sink&) { throw 1; }));
  bench.settle();
  EXPECT_THAT(journal.of(journal_kind::backend_lost), SizeIs(1));
  EXPECT_THAT(journal.of(journal_kind::backend_back), SizeIs(1));
  EXPECT_THAT(journal.of(journal_kind::breaker_closed), SizeIs(1));
  const auto opened = journal.of(journal_kind::breaker_open);
  ASSERT_THAT(opened, SizeIs(1));
  EXPECT_EQ(opened.front().cause, breaker_cause::stuck_call);
  const auto policies = journal.of(journal_kind::policy);
  ASSERT_THAT(policies, SizeIs(3));
  EXPECT_EQ(policies[1].words(), "function");
  EXPECT_EQ(policies[1].count, 0U);
  EXPECT_EQ(policies[2].words(), "");
  EXPECT_EQ(policies[2].count, 1U) << "removed";
}

TEST_F(Journal, PassesOnOncePerTurnThatHasEntries) {
  journal_bench bench(journal);
  bench.settle();
  const int before = journal.passes;
  bench.settle();
  EXPECT_EQ(journal.passes, before);
  bench.see(100, role::offline);
  bench.settle();
  EXPECT_EQ(journal.passes, before + 1);
}

TEST_F(Journal, CutsLongWords) {
  journal_entry entry;
  entry.set_text(std::string(200, 'x'));
  EXPECT_EQ(entry.words(), std::string(journal_entry::longest_text, 'x'));
}

/// What is counted is the sum of what the journal says.
void expect_the_counters_of(const kept_journal& journal, const statistics& seen) {
  statistics sum;
  for (const auto& one : journal.entries) {
    switch (one.kind) {
      case journal_kind::forced: sum.forced_resumes.add(); break;
      case journal_kind::attach: sum.attach_failures.add(one.error != 0 ? 1 : 0); break;
      case journal_kind::attached:
        (one.error != 0 ? sum.attach_failures : sum.attaches).add();
        break;
      case journal_kind::detach: sum.detaches.add(); break;
      case journal_kind::done: {
        sum.driver_calls.add();
        if (one.group == group_id::none) break;
        const auto not_done = static_cast<unsigned>(one.failed + one.invalid + one.gone);
        (one.command == command_kind::suspend ? sum.suspends : sum.resumes)
            .add(one.count - not_done);
        sum.failed_outcomes.add(one.failed);
        sum.invalid_outcomes.add(one.invalid);
        sum.gone_outcomes.add(one.gone);
        break;
      }
      case journal_kind::off: sum.arrival_to_off.record(one.length); break;
      case journal_kind::reserved:
        if (one.error == 0) sum.reservations.add(one.count);
        [[fallthrough]];
      case journal_kind::reservation_ended:
        if (one.error != 0) sum.failed_reservations.add(one.count);
        break;
      case journal_kind::client_thrown_out: sum.clients_thrown_out.add(); break;
      case journal_kind::begins_expired: sum.expired_begins.add(one.count); break;
      case journal_kind::spans_expired: sum.expired_spans.add(one.count); break;
      case journal_kind::spans_left: sum.abandoned_spans.add(one.count); break;
      case journal_kind::marks_dropped:
        sum.lost_marks.add(one.number);
        sum.stray_ends.add(one.count);
        break;
      case journal_kind::policy: sum.policy_ejections.add(one.count); break;
      case journal_kind::breaker_open:
        sum.open_breakers.add();
        sum.gpus_lost.add(one.count);
        break;
      case journal_kind::breaker_closed: sum.open_breakers.subtract(1); break;
      case journal_kind::acts_by: sum.mechanism_fallbacks.add(one.count); break;
      case journal_kind::backend_back: sum.backend_restarts.add(); break;
      case journal_kind::overflow: sum.inbox_overflows.add(one.number); break;
      case journal_kind::resync: sum.resyncs.add(); break;
      default: break;
    }
  }
  // Those that are no events: see core::journalist.
  for (const auto no_event :
       {&statistics::turns, &statistics::begins, &statistics::processes, &statistics::queues,
        &statistics::suspended_now, &statistics::forced_run_ns, &statistics::lost_records})
    sum.*no_event = (seen.*no_event).value();
  for (const counter_row& each : counter_rows)
    EXPECT_EQ((seen.*each.of).value(), (sum.*each.of).value()) << each.name;
  EXPECT_EQ(seen.arrival_to_off.count(), sum.arrival_to_off.count());
}

TEST_F(Journal, TellsWhatClientsAndSourcesDoWrong) {
  journal_bench bench(journal);
  bench.create(100, role::offline, gpu_a, {0});
  bench.attach_all();
  auto client = bench.client();
  client.begin();
  client.begin_span(span_kind::request, 1);
  client.end_span(span_kind::request, 2);  // never begun
  bench.settle();
  bench.run_for(bench.core->config().max_busy + 1min);
  {
    auto leaving = bench.client();
    leaving.begin_span(span_kind::request, 3);
    bench.settle();
  }
  bench.settle();
  bench.core->overflowed(2, 5);
  bench.core->resyncing(2);
  bench.core->set_policy(make_policy([](const snapshot&, decision_sink&) { throw 1; }));
  bench.settle();
  EXPECT_THAT(journal.of(journal_kind::begins_expired), SizeIs(1));
  EXPECT_THAT(journal.of(journal_kind::spans_expired), SizeIs(1));
  EXPECT_THAT(journal.of(journal_kind::spans_left), SizeIs(1));
  const auto dropped = journal.of(journal_kind::marks_dropped);
  ASSERT_THAT(dropped, SizeIs(1));
  EXPECT_EQ(dropped.front().count, 1U);
  EXPECT_EQ(dropped.front().number, 0U);
  EXPECT_EQ(dropped.front().client, client.id());
  const auto overflow = journal.of(journal_kind::overflow);
  ASSERT_THAT(overflow, SizeIs(1));
  EXPECT_EQ(overflow.front().count, 2U);
  EXPECT_EQ(overflow.front().number, 5U);
  EXPECT_THAT(journal.of(journal_kind::resync), SizeIs(1));
  expect_the_counters_of(journal, bench.stats());
}

TEST_F(Journal, TellsWhoIsAttachedAgainAfterTheBackendWasLost) {
  journal_bench bench(journal);
  bench.create(100, role::offline, gpu_a, {0});
  bench.create(101, role::offline, gpu_a, {0});
  bench.run_for(6s);
  ASSERT_EQ(bench.stats().attaches, 2U);
  bench.driver.script_attach(101, errc::not_managed);
  bench.driver.lose();
  bench.settle();
  bench.driver.restore();
  bench.run_for(6s);
  const auto again = journal.of(journal_kind::reattached);
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again.front().count, 1U);
  EXPECT_EQ(again.front().number, 2U);
  expect_the_counters_of(journal, bench.stats());
}

/// Plays random events, and checks that the sum of the entries is what the scheduler knows.
void expect_a_consistent_story(kept_journal& journal, std::uint64_t seed) {
  std::mt19937 random(seed);
  const auto any = [&](int most) { return std::uniform_int_distribution(0, most)(random); };
  auto config = quick_config();
  config.offline_floor = 0.2;
  config.floor_window = 2s;
  journal_bench bench(journal, config);
  bench.driver.set_delay(2ms);
  auto client = bench.client();
  bool busy = false;
  std::map<pid_t, std::uint32_t> alive;
  pid_t next = 100;
  for (int i = 0; i < 400; ++i) {
    switch (any(6)) {
      case 0:
        bench.create(next, role::offline, any(1) == 0 ? gpu_a : gpu_b, {0, 1}, any(2) == 0 ? 7 : 0);
        alive[next++] = 2;
        break;
      case 1:
        if (alive.empty()) break;
        bench.see_kind(observation_kind::process_gone, alive.begin()->first);
        alive.erase(alive.begin());
        break;
      case 2:
        if (alive.empty()) break;
        bench.see(alive.rbegin()->first, any(1) == 0 ? role::offline : role::unmatched);
        break;
      case 3:
        if (any(9) != 0 || alive.empty()) break;
        bench.driver.script_outcome(alive.begin()->first, q(0),
                                    any(1) == 0 ? outcome::invalid : outcome::failed);
        break;
      case 4:
        if (any(19) != 0) break;
        bench.driver.lose();
        bench.run_for(10ms);
        bench.driver.restore();
        break;
      default: busy ? client.end() : client.begin(); busy = !busy;
    }
    bench.run_for(std::chrono::milliseconds(any(400)));
  }

  struct books {
    bool off = false;
    std::uint64_t count = 0;
    duration total{};
    time_point since{};
  };
  std::map<process_id, books> processes;
  std::map<group_id, bool> held;
  std::map<std::uint64_t, process_id> batches;
  for (const auto& one : journal.entries) {
    books* const mine = one.process == process_id::none ? nullptr : &processes[one.process];
    switch (one.kind) {
      case journal_kind::process_off:
        ASSERT_FALSE(mine->off);
        mine->off = true;
        mine->since = one.at;
        ++mine->count;
        break;
      case journal_kind::process_on:
        ASSERT_TRUE(mine->off);
        ASSERT_EQ(one.since, mine->since);
        mine->off = false;
        mine->total += one.length;
        break;
      case journal_kind::process_gone:
        ASSERT_EQ(one.count, mine->count);
        ASSERT_EQ(one.length, mine->total + (mine->off ? one.at - mine->since : duration::zero()));
        processes.erase(one.process);
        break;
      case journal_kind::held:
        ASSERT_FALSE(held[one.group]);
        held[one.group] = true;
        break;
      case journal_kind::let_go:
        ASSERT_TRUE(held[one.group]);
        held[one.group] = false;
        break;
      case journal_kind::batch:
        if (one.error != 0) break;
        ASSERT_TRUE(batches.emplace(one.number, one.process).second);
        break;
      case journal_kind::done: ASSERT_EQ(batches.erase(one.number), 1U); break;
      case journal_kind::backend_lost: batches.clear(); break;
      default: break;
    }
  }
  expect_the_counters_of(journal, bench.stats());
  const auto now = bench.core->look();
  std::size_t seen = 0;
  for (const auto& group : now.groups) {
    EXPECT_EQ(group.held, held[group.id]);
    for (const auto& one : group.processes) {
      ++seen;
      const books& mine = processes[one.id];
      EXPECT_EQ(one.off, mine.off);
      EXPECT_EQ(one.off_count, mine.count);
      EXPECT_EQ(one.off_total, mine.total + (mine.off ? now.at - mine.since : duration::zero()));
    }
  }
  EXPECT_EQ(seen, alive.size());
}

TEST_F(Journal, AddsUpToThePicture) {
  expect_a_consistent_story(journal, 1);
  EXPECT_GT(journal.of(journal_kind::held).size(), 10U) << "the events tried too little";
}

TEST_F(Journal, AddsUpToThePictureForAnySeed) {
  const test::random_seed seed;
  expect_a_consistent_story(journal, seed.value());
}

TEST(Picture, ShowsGpusGroupsAndClients) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0, 1});
  bench.create(101, role::offline, gpu_b, {0}, 7);
  bench.create(102, role::offline, gpu_a, {0}, 7);
  bench.see(103, role::online);
  auto client = bench.client({gpu_a});
  bench.attach_all();
  client.begin();
  bench.settle();
  const picture seen = bench.core->look();
  EXPECT_EQ(seen.policy, "fixed_timeslice/client_done");
  EXPECT_TRUE(seen.acts);
  EXPECT_TRUE(seen.backend_up);
  ASSERT_THAT(seen.gpus, SizeIs(2));
  EXPECT_TRUE(seen.gpus[0].busy);
  EXPECT_FALSE(seen.gpus[1].busy);
  EXPECT_EQ(seen.gpus[0].online_in_flight, 1U);
  ASSERT_THAT(seen.clients, SizeIs(1));
  EXPECT_EQ(seen.clients[0].name, "test");
  EXPECT_THAT(seen.clients[0].gpus, ElementsAre(gpu_a));
  ASSERT_THAT(seen.groups, SizeIs(3));
  for (const auto& group : seen.groups) {
    EXPECT_EQ(group.gang, group.processes.size() == 2);
    const auto& first = group.processes.front();
    EXPECT_EQ(group.held, first.pid != 103);
    if (first.pid == 103) {
      EXPECT_THAT(first.queues, IsEmpty());
      continue;
    }
    EXPECT_EQ(group.actual, run_state::suspended);
    EXPECT_TRUE(group.wanted_off);
    for (const auto& one : group.processes) {
      ASSERT_THAT(one.queues, SizeIs(1));
      EXPECT_EQ(one.attach, attach_picture::attached);
      EXPECT_EQ(one.queues[0].suspended, one.queues[0].compute);
      EXPECT_TRUE(one.off);
    }
  }
}

TEST(JournalQueue, HandsOverInOrderAndCountsWhatItLoses) {
  auto made = journal::create(8);
  ASSERT_TRUE(made);
  journal& queue = **made;
  journal_entry entry;
  for (entry.number = 0; entry.number < 11; ++entry.number) queue.put(entry);
  EXPECT_EQ(queue.lost(), 3U);
  std::array<journal_entry, 5> some;
  ASSERT_EQ(queue.take(some), 5U);
  EXPECT_EQ(some[4].number, 4U);
  EXPECT_FALSE(queue.sleep());
  ASSERT_EQ(queue.take(some), 3U);
  EXPECT_EQ(some[2].number, 7U);
  EXPECT_TRUE(queue.sleep());
}

}  // namespace
}  // namespace sluice::tests::journal_test
