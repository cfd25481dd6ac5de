#include "sluice/inbox.hpp"

#include "inbox_queue.hpp"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace sluice::inbox_test {
namespace {

observation numbered(std::uint64_t number) {
  observation one;
  one.kind = observation_kind::gpu_seen;
  one.start_time = number;
  return one;
}

struct receiver {
  explicit receiver(std::size_t capacity, bool same_thread = false)
      : box(capacity,
            {[this] { ++wakes; }, [same_thread] { return same_thread; },
             [this](const observation& one, time_point) { got.push_back(one.start_time); }}) {}
  std::atomic<int> wakes{0};
  std::vector<std::uint64_t> got;
  inbox box;
};

TEST(Inbox, DeliversInOrder) {
  receiver to(16);
  for (std::uint64_t i = 0; i < 16; ++i) EXPECT_TRUE(to.box.producer().push(numbered(i)));
  EXPECT_TRUE(to.box.has_news());
  to.box.drain();
  ASSERT_EQ(to.got.size(), 16U);
  for (std::uint64_t i = 0; i < 16; ++i) EXPECT_EQ(to.got[i], i);
  EXPECT_FALSE(to.box.has_news());
  EXPECT_FALSE(to.box.take_overflow());
  EXPECT_EQ(to.wakes, 16);
}

TEST(Inbox, SaysThatItIsFullCountsAndAsksForAResync) {
  receiver to(16);
  for (std::uint64_t i = 0; i < 16; ++i) ASSERT_TRUE(to.box.producer().push(numbered(i)));
  EXPECT_FALSE(to.box.producer().push(numbered(16)));
  EXPECT_FALSE(to.box.producer().push(numbered(17)));
  EXPECT_TRUE(to.box.has_news());
  EXPECT_TRUE(to.box.take_overflow());
  EXPECT_FALSE(to.box.take_overflow());
  EXPECT_EQ(to.box.take_dropped(), 2U);
  EXPECT_EQ(to.box.take_dropped(), 0U);
}

TEST(Inbox, WakesTheReactorForADropToo) {
  receiver to(16);
  for (std::uint64_t i = 0; i < 17; ++i) to.box.producer().push(numbered(i));
  EXPECT_EQ(to.wakes, 17);
}

TEST(Inbox, IsNeverFullForTheReactorThreadItself) {
  receiver to(16, true);
  for (std::uint64_t i = 0; i < 1000; ++i) ASSERT_TRUE(to.box.producer().push(numbered(i)));
  to.box.drain();
  ASSERT_EQ(to.got.size(), 1000U);
  for (std::uint64_t i = 0; i < 1000; ++i) ASSERT_EQ(to.got[i], i);
}

/// Every one that it has is handed over once, and what does not fit meanwhile is counted.
TEST(Inbox, TakesWhatIsSaidWhileItIsEmptied) {
  struct answering {
    std::vector<std::uint64_t> got;
    int refused = 0;
    inbox box{16,
              {[] {}, [] { return true; },
               [this](const observation& one, time_point) {
                 got.push_back(one.start_time);
                 if (one.start_time < 100 && !box.producer().push(numbered(100 + one.start_time)))
                   ++refused;
               }}};
  } to;
  for (std::uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(to.box.producer().push(numbered(i)));
  to.box.drain();
  EXPECT_EQ(to.got, (std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(to.refused, 4);
  EXPECT_EQ(to.box.take_dropped(), 4U);
  EXPECT_TRUE(to.box.take_overflow());
  to.got.clear();
  to.box.drain();
  EXPECT_EQ(to.got, (std::vector<std::uint64_t>{100, 101, 102, 103, 104, 105}));
}

/// What is delivered and what is counted as dropped add up, whatever the threads do.
TEST(Inbox, LosesNothingSilentlyBetweenTwoThreads) {
  constexpr std::uint64_t total = 200'000;
  receiver to(64);
  std::atomic<bool> done{false};
  std::thread producer([&] {
    for (std::uint64_t i = 0; i < total; ++i) to.box.producer().push(numbered(i));
    done.store(true, std::memory_order_release);
  });
  std::uint64_t dropped = 0;
  bool last = false;
  while (!last) {
    last = done.load(std::memory_order_acquire);
    dropped += to.box.take_dropped();
    to.box.drain();
  }
  producer.join();
  EXPECT_EQ(to.got.size() + dropped, total);
  EXPECT_TRUE(std::is_sorted(to.got.begin(), to.got.end()));
}

}  // namespace
}  // namespace sluice::inbox_test
