// The runtime's own containers: slot_table, deadline_heap, off_time, wait_list.

#include "deadline_heap.hpp"
#include "off_time.hpp"
#include "slot_table.hpp"
#include "test_seed.hpp"
#include "wait_list.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace sluice::core::containers_test {
namespace {

using namespace std::chrono_literals;

enum class thing_id : std::uint64_t {};
struct thing {
  thing_id id{};
  int value = 0;
};

time_point at(duration since_start) { return time_point(1h) + since_start; }

TEST(SlotTable, NeverGivesAnIdAgain) {
  slot_table<thing_id, thing> table;
  std::set<thing_id> used;
  for (int i = 0; i < 1000; ++i) {
    const auto id = table.insert().id;
    EXPECT_TRUE(used.insert(id).second);
    EXPECT_NE(id, thing_id{});
    table.erase(id);
    EXPECT_EQ(table.find(id), nullptr);
  }
  EXPECT_EQ(table.capacity(), 1U);
}

TEST(SlotTable, KeepsAddressesWhileItGrows) {
  slot_table<thing_id, thing> table;
  thing& first = table.insert();
  first.value = 42;
  const auto id = first.id;
  for (int i = 0; i < 1000; ++i) table.insert();
  EXPECT_EQ(table.find(id), &first);
  EXPECT_EQ(first.value, 42);
}

TEST(SlotTable, MayBeErasedFromWhileItIsWalked) {
  slot_table<thing_id, thing> table;
  for (int i = 0; i < 10; ++i) table.insert().value = i;
  table.for_each([&](thing& one) {
    if (one.value % 2 == 0) table.erase(one.id);
  });
  int left = 0;
  table.for_each([&](const thing& one) {
    EXPECT_EQ(one.value % 2, 1);
    ++left;
  });
  EXPECT_EQ(left, 5);
  EXPECT_EQ(table.size(), 5U);
}

TEST(DeadlineHeap, AgreesWithASortedMapUnderRandomMoves) {
  std::mt19937 random(7);
  deadline_heap heap;
  std::map<std::uint32_t, time_point> model;
  for (int i = 0; i < 20'000; ++i) {
    const auto slot = static_cast<std::uint32_t>(random() % 50);
    if (random() % 4 == 0) {
      heap.set(slot, never);
      model.erase(slot);
    } else {
      const auto when = at(std::chrono::microseconds(random() % 1000));
      heap.set(slot, when);
      model[slot] = when;
    }
    time_point least = never;
    for (const auto& [each, when] : model) least = std::min(least, when);
    ASSERT_EQ(heap.next(), least);
    if (random() % 8 == 0) {
      std::uint32_t due = 0;
      const auto now = at(std::chrono::microseconds(random() % 300));
      while (heap.pop_due(now, due)) {
        ASSERT_TRUE(model.contains(due));
        ASSERT_LE(model[due], now);
        model.erase(due);
      }
      for (const auto& [each, when] : model) ASSERT_GT(when, now);
    }
  }
}

/// The invariant that offline_floor stands on: never less than the truth, and above it by at most
/// one step.
TEST(OffTime, IsNeverBelowTheTruthAndAboveItByAtMostOneStep) {
  constexpr duration window = 1s;
  std::mt19937 random(11);
  off_time measured;
  std::vector<std::pair<time_point, time_point>> offs;
  auto now = at(0ns);
  bool off = false;
  for (int i = 0; i < 5'000; ++i) {
    now += std::chrono::microseconds(random() % (random() % 20 == 0 ? 2'500'000 : 60'000));
    duration truth{};
    for (auto& [from, to] : offs) {
      truth += std::max<duration>(0ns, std::min(to, now) - std::max(from, now - window));
    }
    if (off && !offs.empty()) {
      truth -= std::max<duration>(
          0ns, std::min(offs.back().second, now) - std::max(offs.back().first, now - window));
      truth += now - std::max(offs.back().first, now - window);
    }
    const auto found = measured.within(now, window);
    ASSERT_GE(found, truth) << i;
    ASSERT_LE(found, truth + off_time::step(window)) << i;
    if (random() % 2 == 0) continue;
    off = !off;
    if (off) {
      measured.turn_off(now, window);
      offs.emplace_back(now, now);
    } else {
      measured.turn_on(now, window);
      offs.back().second = now;
    }
  }
}

TEST(WaitList, AnswersWhoIsClearOrDueAndAsksOncePerClient) {
  const test::random_seed seed;
  std::mt19937 random(seed.value());
  wait_list list;
  struct expected {
    client_id client{};
    time_point deadline{};
  };
  std::map<std::uint64_t, expected> model;
  std::uint64_t last = 0;
  for (int turn = 0; turn < 1'000; ++turn) {
    const time_point now = at(std::chrono::milliseconds(turn));
    for (auto fresh = random() % 5; fresh != 0; --fresh) {
      const expected one{client_id{1 + random() % 8},
                         now + std::chrono::milliseconds(random() % 50)};
      list.add({++last, one.client, one.deadline, {}}, {});
      model.emplace(last, one);
    }
    const std::uint64_t stopped = 1 + random() % (last + 1);
    EXPECT_EQ(list.take(stopped).number, model.erase(stopped) != 0 ? stopped : 0);

    const client_id clear{random() % 60};  // Mostly nobody.
    std::set<client_id> asked;
    std::map<std::uint64_t, bool> answers;
    for (const auto& [one, was_clear] : list.take_answered(now, [&](client_id of, const auto&) {
           EXPECT_TRUE(asked.insert(of).second);
           return of == clear;
         })) {
      answers.emplace(one.number, was_clear);
    }
    std::map<std::uint64_t, bool> wanted;
    time_point next = never;
    std::erase_if(model, [&](const auto& each) {
      const bool answered = each.second.client == clear || each.second.deadline <= now;
      if (answered) wanted.emplace(each.first, each.second.client == clear);
      if (!answered) next = std::min(next, each.second.deadline);
      return answered;
    });
    ASSERT_EQ(answers, wanted);
    ASSERT_EQ(list.next(), next);
    ASSERT_EQ(list.size(), model.size());
  }
}

}  // namespace
}  // namespace sluice::core::containers_test
