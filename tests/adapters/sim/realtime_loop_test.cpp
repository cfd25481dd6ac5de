#include "engine.hpp"
#include "loop.hpp"

#include <sys/eventfd.h>

#include <thread>

#include <gtest/gtest.h>

namespace sluice::sim::realtime_loop_test {
namespace {

using namespace std::chrono_literals;

struct running_loop {
  engine planned{clock::now()};
  realtime_loop loop{planned};
};

TEST(RealtimeLoop, RunsPlannedEventsNeverEarly) {
  running_loop here;
  const auto due = clock::now() + 5ms;
  time_point ran{};
  here.planned.at(due, [&] {
    ran = clock::now();
    here.loop.stop();
  });
  here.loop.run();
  EXPECT_GE(ran, due);
}

TEST(RealtimeLoop, RunsWhatWasPlannedEarlierBeforeWhatIsPosted) {
  running_loop here;
  std::vector<int> order;
  here.planned.at(clock::now(), [&] { order.push_back(1); });
  here.loop.post([&] {
    order.push_back(2);
    here.loop.stop();
  });
  here.loop.run();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(RealtimeLoop, RunsWhatAPostedCallPlansForNowInTheSameTurn) {
  running_loop here;
  bool ran = false;
  here.loop.post([&] {
    here.planned.at(here.planned.now(), [&] { ran = true; });
    here.loop.stop();
  });
  here.loop.run();
  EXPECT_TRUE(ran);
}

TEST(RealtimeLoop, TakesPostsFromManyThreadsLosingNone) {
  running_loop here;
  constexpr int threads = 4;
  constexpr int each = 5000;
  int count = 0;
  std::vector<std::thread> posters;
  for (int i = 0; i < threads; ++i) {
    posters.emplace_back([&] {
      for (int j = 0; j < each; ++j) {
        here.loop.post([&] {
          if (++count == threads * each) here.loop.stop();
        });
      }
    });
  }
  here.loop.run();
  for (auto& each_thread : posters) each_thread.join();
  EXPECT_EQ(count, threads * each);
}

// Symptom: the device stored into a client's page that the kernel was writing back, and waited for
// that; the request to write it back waited for the device, which alone was woken for it.
TEST(RealtimeLoop, CallsASharedWatcherBeforeWhatIsPlanned) {
  running_loop here;
  const unique_fd requests{eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::vector<int> order;
  here.loop.watch_shared(requests.get(), [&] {
    eventfd_t count = 0;
    eventfd_read(requests.get(), &count);
    order.push_back(1);
  });
  here.planned.at(clock::now(), [&] {
    order.push_back(2);
    here.loop.stop();
  });
  here.loop.run();
  here.loop.unwatch(requests.get());
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(RealtimeLoop, CallsAWatcherOnceForEachRing) {
  running_loop here;
  const unique_fd bell{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  int rung = 0;
  here.loop.watch(bell.get(), [&] {
    if (++rung == 3) {
      here.loop.stop();
      return;
    }
    eventfd_write(bell.get(), 1);  // Never drained: every write is an edge all the same.
  });
  eventfd_write(bell.get(), 1);
  here.loop.run();
  here.loop.unwatch(bell.get());
  EXPECT_EQ(rung, 3);
}

TEST(RealtimeLoop, LetsAWatcherUnwatchItself) {
  running_loop here;
  const unique_fd bell{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  int rung = 0;
  here.loop.watch(bell.get(), [&] {
    ++rung;
    here.loop.unwatch(bell.get());
    eventfd_write(bell.get(), 1);
    here.planned.at(clock::now() + 2ms, [&] { here.loop.stop(); });
  });
  eventfd_write(bell.get(), 1);
  here.loop.run();
  EXPECT_EQ(rung, 1);
}

// The events of one wake-up run 10 ms and 9 ms late.
TEST(RealtimeLoop, ReportsHowLateTheOldestEventOfAWakeUpRan) {
  running_loop here;
  std::vector<duration> reported;
  here.loop.on_late = [&](duration late) { reported.push_back(late); };
  const time_point due = clock::now();
  here.planned.at(due, [] {});
  here.planned.at(due + 1ms, [&] { here.loop.stop(); });
  std::this_thread::sleep_until(due + 10ms);
  const time_point before = clock::now();
  here.loop.run();
  ASSERT_EQ(reported.size(), 1U);
  EXPECT_GE(reported[0], before - due);
  EXPECT_LE(reported[0], clock::now() - due);
}

// 1000 events of 10 us each: far fewer wake-ups, and none is early.
TEST(RealtimeLoop, TakesSeveralShortEventsInOneWakeUp) {
  running_loop here;
  int wake_ups = 0;
  here.loop.on_late = [&](duration) { ++wake_ups; };
  int events = 0;
  std::function<void()> next = [&] {
    EXPECT_LE(here.planned.now(), clock::now());
    if (++events == 1000) {
      here.loop.stop();
      return;
    }
    here.planned.at(here.planned.now() + 10us, next);
  };
  here.planned.at(clock::now(), next);
  here.loop.run();
  EXPECT_LT(wake_ups, 500);
}

}  // namespace
}  // namespace sluice::sim::realtime_loop_test
