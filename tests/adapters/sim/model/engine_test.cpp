#include "engine.hpp"

#include "task.hpp"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace sluice::sim::engine_test {
namespace {

using namespace std::chrono_literals;

TEST(Engine, RunsEventsInPlannedOrderAndThoseOfOneMomentAsTheyWerePlanned) {
  engine e{time_point{}};
  std::string order;
  e.at(time_point{2s}, [&] { order += 'c'; });
  e.at(time_point{1s}, [&] { order += 'a'; });
  e.at(time_point{1s}, [&] { order += 'b'; });
  e.run_until(time_point{3s});
  EXPECT_EQ(order, "abc");
}

TEST(Engine, ShowsEachEventItsPlannedTimeHoweverLateItRuns) {
  engine e{time_point{}};
  std::vector<time_point> seen;
  e.at(time_point{1s}, [&] {
    seen.push_back(e.now());
    e.at(e.now() + 1s, [&] { seen.push_back(e.now()); });
  });
  e.run_until(time_point{100s});
  EXPECT_EQ(seen, (std::vector{time_point{1s}, time_point{2s}}));
  EXPECT_EQ(e.now(), time_point{100s});
}

TEST(Engine, NeverGoesBack) {
  engine e{time_point{5s}};
  time_point seen{};
  e.at(time_point{1s}, [&] { seen = e.now(); });
  e.run_until(time_point{2s});
  EXPECT_EQ(seen, time_point{5s});
  EXPECT_EQ(e.now(), time_point{5s});
}

TEST(Engine, ForgetsCancelledEvents) {
  engine e{time_point{}};
  bool ran = false;
  const auto timer = e.at(time_point{1s}, [&] { ran = true; });
  e.cancel(timer);
  e.cancel(timer);
  e.cancel({});
  EXPECT_FALSE(e.next().has_value());
  e.run_until(time_point{2s});
  EXPECT_FALSE(ran);
}

// Invariant: deferred actions see everything that was due, and run before the step ends.
TEST(Engine, RunsDeferredActionsOnceAfterEverythingDue) {
  engine e{time_point{}};
  std::string order;
  e.at(time_point{1s}, [&] {
    order += 'a';
    e.defer([&] {
      order += "[";
      e.at(e.now(), [&] { order += 'c'; });
      e.defer([&] { order += "]"; });
    });
  });
  e.at(time_point{2s}, [&] { order += 'b'; });
  e.run_until(time_point{3s});
  EXPECT_EQ(order, "ab[c]");
}

// Invariant: what a step learnt from outside counts at the next step's moment, after all that was
// due before it.
TEST(Engine, RunsWhatAStepLeavesInTheNextOneAfterWhatIsDueThen) {
  engine e{time_point{}};
  std::string order;
  time_point when{};
  e.at(time_point{1s}, [&] {
    order += 'a';
    e.after_step([&] {
      order += 'c';
      when = e.now();
      e.at(e.now(), [&] { order += 'd'; });
      e.defer([&] { order += ']'; });
      e.after_step([&] { order += 'e'; });
    });
  });
  e.at(time_point{3s}, [&] { order += 'b'; });
  e.run_until(time_point{2s});
  EXPECT_EQ(order, "a");
  EXPECT_EQ(e.next(), time_point{2s}) << "now";
  e.run_until(time_point{4s});
  EXPECT_EQ(order, "abcd]");
  EXPECT_EQ(when, time_point{4s});
  e.run_until(time_point{4s});
  EXPECT_EQ(order, "abcd]e");
  EXPECT_EQ(e.next(), std::nullopt);
}

TEST(Engine, AsksForAStepWhileAnActionIsDeferred) {
  engine e{time_point{7s}};
  EXPECT_EQ(e.next(), std::nullopt);
  e.defer([] {});
  EXPECT_EQ(e.next(), time_point{7s});
}

task<int> answer(engine& e, int value, duration after) {
  co_await sleep_until{e, e.now() + after};
  co_return value;
}

task<void> lock_for(engine& e, async_mutex& m, duration held, std::string& log, char name) {
  const auto guard = co_await m.lock();
  log += name;
  co_await sleep_until{e, e.now() + held};
}

TEST(Task, ContinuesItsAwaiterWithItsValueAtThePlannedTime) {
  engine e{time_point{}};
  task_scope scope;
  int got = 0;
  time_point when{};
  scope.start([](engine& events, int& out, time_point& at) -> task<void> {
    out = co_await answer(events, 42, 3ms);
    at = events.now();
  }(e, got, when));
  e.run_until(time_point{1s});
  EXPECT_EQ(got, 42);
  EXPECT_EQ(when, time_point{3ms});
}

TEST(AsyncMutex, ServesFirstComeFirstServed) {
  engine e{time_point{}};
  async_mutex m{e};
  task_scope scope;
  std::string log;
  for (const char name : {'a', 'b', 'c'}) scope.start(lock_for(e, m, 10ms, log, name));
  e.run_until(time_point{5ms});
  EXPECT_EQ(log, "a");
  e.run_until(time_point{15ms});
  EXPECT_EQ(log, "ab");
  e.run_until(time_point{25ms});
  EXPECT_EQ(log, "abc");
}

// Symptom it guards against: frames destroyed while they wait leave timers that resume them.
TEST(TaskScope, DestroysWaitingTasksAndWhatTheyWaitFor) {
  engine e{time_point{}};
  async_mutex m{e};
  wait_queue q{e};
  interruption signal;
  std::string log;
  const auto alive = std::make_shared<int>();
  {
    task_scope scope;
    for (const char name : {'a', 'b', 'c'}) scope.start(lock_for(e, m, 10ms, log, name));
    scope.start([](wait_queue& queue, interruption& s, std::shared_ptr<int>) -> task<void> {
      co_await queue.wait(s, time_point{1s});
    }(q, signal, alive));
    e.run_until(time_point{10ms});
    EXPECT_GT(alive.use_count(), 1);
  }
  EXPECT_EQ(alive.use_count(), 1);
  EXPECT_EQ(e.next(), std::nullopt);
  e.run_until(time_point{2s});
}

task<void> wait_once(wait_queue& q, interruption& signal, time_point deadline,
                     std::vector<wake_reason>& out) {
  out.push_back(co_await q.wait(signal, deadline));
}

TEST(WaitQueue, TellsWhyAWaitEnded) {
  engine e{time_point{}};
  wait_queue q{e};
  interruption quiet;
  interruption late;
  task_scope scope;
  std::vector<wake_reason> reasons;
  scope.start(wait_once(q, quiet, never, reasons));
  q.wake_all();
  e.run_until(time_point{1ms});
  scope.start(wait_once(q, late, never, reasons));
  late.raise();
  e.run_until(time_point{2ms});
  scope.start(wait_once(q, quiet, time_point{3ms}, reasons));
  e.run_until(time_point{4ms});
  EXPECT_EQ(reasons,
            (std::vector{wake_reason::woken, wake_reason::interrupted, wake_reason::timed_out}));
}

TEST(WaitQueue, DoesNotSleepWithASignalPending) {
  engine e{time_point{}};
  wait_queue q{e};
  interruption signal;
  signal.raise();
  task_scope scope;
  std::vector<wake_reason> reasons;
  scope.start(wait_once(q, signal, never, reasons));
  EXPECT_EQ(reasons, std::vector{wake_reason::interrupted});
}

}  // namespace
}  // namespace sluice::sim::engine_test
