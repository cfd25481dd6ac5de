#include "ring.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

namespace sluice::agent::ring_test {
namespace {

constexpr std::uint32_t capacity = 8;
using memory = ring_memory<std::uint64_t, capacity>;
using writer = ring_writer<std::uint64_t, capacity>;
using reader = ring_reader<std::uint64_t, capacity>;

/// A ring in the middle of memory that must stay as it is.
struct guarded {
  std::array<std::uint64_t, 1024> before{};
  memory ring;
  std::array<std::uint64_t, 1024> after{};

  bool untouched() const {
    constexpr std::array<std::uint64_t, 1024> zeros{};
    return before == zeros && after == zeros;
  }
};

TEST(Ring, IsEmptyAtFirst) {
  memory shared;
  reader out{shared};
  std::uint64_t value = 42;
  EXPECT_EQ(out.pop(value), ring_status::would_wait);
  EXPECT_EQ(value, 42U);
}

TEST(Ring, TakesItsCapacityAndNoMore) {
  memory shared;
  writer in{shared};
  reader out{shared};
  for (std::uint64_t value = 0; value < capacity; ++value)
    EXPECT_EQ(in.push(value), ring_status::done);
  EXPECT_EQ(in.push(99), ring_status::would_wait);
  std::uint64_t value = 99;
  EXPECT_EQ(out.pop(value), ring_status::done);
  EXPECT_EQ(value, 0U);
  EXPECT_EQ(in.push(8), ring_status::done);
  EXPECT_EQ(in.push(99), ring_status::would_wait);
  for (std::uint64_t expected = 1; expected <= 8; ++expected) {
    EXPECT_EQ(out.pop(value), ring_status::done);
    EXPECT_EQ(value, expected);
  }
  EXPECT_EQ(out.pop(value), ring_status::would_wait);
}

// At every fill level, past the end of the slots and past the end of the counts.
TEST(Ring, KeepsItsOrderWhereSlotsAndCountsWrapAround) {
  memory shared;
  shared.written = shared.taken = std::numeric_limits<std::uint32_t>::max() - 20;
  writer in{shared};
  reader out{shared};
  std::uint64_t next_in = 0;
  std::uint64_t next_out = 0;
  for (std::uint32_t fill = 1; fill <= capacity; ++fill) {
    for (int round = 0; round < 3; ++round) {
      for (std::uint32_t count = 0; count < fill; ++count)
        ASSERT_EQ(in.push(next_in++), ring_status::done);
      if (fill == capacity) {
        EXPECT_EQ(in.push(99), ring_status::would_wait);
      }
      std::uint64_t value = 0;
      for (std::uint32_t count = 0; count < fill; ++count) {
        ASSERT_EQ(out.pop(value), ring_status::done);
        ASSERT_EQ(value, next_out++);
      }
      EXPECT_EQ(out.pop(value), ring_status::would_wait);
    }
  }
  EXPECT_LT(shared.written.load(), 1000U) << "the counts did not wrap around";
}

/// Every distance that a count cannot have from the other.
constexpr std::array<std::uint32_t, 7> impossible{
    capacity + 1, capacity + 2, 1000, 0x7fff'ffff, 0x8000'0000, 0xffff'fffe, 0xffff'ffff};

TEST(Ring, WritesNothingWhereTheReadersCountIsForged) {
  for (const std::uint32_t distance : impossible) {
    const auto shared = std::make_unique<guarded>();
    writer in{shared->ring};
    ASSERT_EQ(in.push(1), ring_status::done);
    ASSERT_EQ(in.push(2), ring_status::done);
    shared->ring.taken = 2 - distance;
    EXPECT_EQ(in.push(99), ring_status::broken) << distance;
    EXPECT_EQ(shared->ring.written.load(), 2U);
    EXPECT_EQ(shared->ring.slots, (std::array<std::uint64_t, capacity>{1, 2}));
    EXPECT_TRUE(shared->untouched());
  }
}

TEST(Ring, ReadsNothingWhereTheWritersCountIsForged) {
  for (const std::uint32_t distance : impossible) {
    const auto shared = std::make_unique<guarded>();
    reader out{shared->ring};
    shared->ring.written = distance;
    std::uint64_t value = 42;
    EXPECT_EQ(out.pop(value), ring_status::broken) << distance;
    EXPECT_EQ(value, 42U);
    EXPECT_EQ(shared->ring.taken.load(), 0U);
  }
}

// The other side can write to both counts; what a side publishes of its own it never reads back.
TEST(Ring, GoesByItsOwnCountWhateverIsWrittenOverIt) {
  const auto shared = std::make_unique<guarded>();
  writer in{shared->ring};
  reader out{shared->ring};
  ASSERT_EQ(in.push(1), ring_status::done);
  shared->ring.written = 0xdead'beef;
  ASSERT_EQ(in.push(2), ring_status::done);
  EXPECT_EQ(shared->ring.written.load(), 2U);
  std::uint64_t value = 0;
  ASSERT_EQ(out.pop(value), ring_status::done);
  shared->ring.taken = 0xdead'beef;
  ASSERT_EQ(out.pop(value), ring_status::done);
  EXPECT_EQ(value, 2U);
  EXPECT_EQ(shared->ring.taken.load(), 2U);
  EXPECT_TRUE(shared->untouched());
}

// A lie within the range is not noticed; it may repeat or lose elements, and nothing else.
TEST(Ring, StaysInsideItsSlotsUnderPlausibleLies) {
  const auto shared = std::make_unique<guarded>();
  writer in{shared->ring};
  for (std::uint64_t value = 0; value < 100; ++value) {
    shared->ring.taken = static_cast<std::uint32_t>(value);  // "all taken"
    ASSERT_EQ(in.push(value + 1), ring_status::done);
  }
  EXPECT_TRUE(shared->untouched());
  shared->ring.taken = 0;
  reader out{shared->ring};
  for (std::uint32_t count = 1; count < 100; ++count) {
    shared->ring.written = count + capacity - 1;
    std::uint64_t value = 0;
    ASSERT_EQ(out.pop(value), ring_status::done);
    EXPECT_GT(value, 100U - capacity);
  }
}

/// Large enough that a copy cut in two would show.
struct wide {
  std::array<std::uint64_t, 32> words{};
};

TEST(Ring, CarriesEverythingInOrderBetweenTwoThreads) {
  constexpr std::uint64_t total = 200'000;
  ring_memory<wide, 16> shared;
  shared.written = shared.taken = std::numeric_limits<std::uint32_t>::max() - 1000;
  std::thread producer{[&shared] {
    ring_writer<wide, 16> in{shared};
    wide each;
    for (std::uint64_t number = 1; number <= total; ++number) {
      each.words.fill(number);
      while (in.push(each) != ring_status::done) std::this_thread::yield();
    }
  }};
  ring_reader<wide, 16> out{shared};
  wide each;
  std::uint64_t wrong = 0;
  for (std::uint64_t number = 1; number <= total; ++number) {
    while (out.pop(each) != ring_status::done) std::this_thread::yield();
    for (const std::uint64_t word : each.words) wrong += word == number ? 0 : 1;
  }
  producer.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(out.pop(each), ring_status::would_wait);
}

/// Says how much of it is used; nothing behind that is to be read or written.
struct partial {
  std::uint32_t count = 0;
  std::array<std::uint32_t, 8> words{};

  static std::size_t least_bytes() noexcept { return sizeof(std::uint32_t); }
  std::size_t used_bytes() const noexcept {
    return least_bytes() + std::min<std::size_t>(count, words.size()) * sizeof(std::uint32_t);
  }
};

TEST(Ring, CopiesWhatAnElementSaysIsUsedOfIt) {
  ring_memory<partial, capacity> shared;
  ring_writer<partial, capacity> in{shared};
  ring_reader<partial, capacity> out{shared};
  partial sent{.count = 3, .words = {1, 2, 3, 4, 5, 6, 7, 8}};
  ASSERT_EQ(in.push(sent), ring_status::done);
  EXPECT_EQ(shared.slots[0].words, (std::array<std::uint32_t, 8>{1, 2, 3}));
  partial got{.count = 9, .words = {9, 9, 9, 9, 9, 9, 9, 9}};
  ASSERT_EQ(out.pop(got), ring_status::done);
  EXPECT_EQ(got.count, 3U);
  EXPECT_EQ(got.words, (std::array<std::uint32_t, 8>{1, 2, 3, 9, 9, 9, 9, 9}));
}

TEST(Ring, CopiesNoMoreThanThereIsOfAnElementThatLies) {
  struct with_neighbour {
    partial got;
    std::uint64_t behind = 7;
  } mine;
  ring_memory<partial, capacity> shared;
  ring_reader<partial, capacity> out{shared};
  shared.slots[0].count = 1'000'000;
  shared.slots[0].words.fill(5);
  shared.written = 1;
  ASSERT_EQ(out.pop(mine.got), ring_status::done);
  EXPECT_EQ(mine.got.words.back(), 5U);
  EXPECT_EQ(mine.behind, 7U);
}

}  // namespace
}  // namespace sluice::agent::ring_test
