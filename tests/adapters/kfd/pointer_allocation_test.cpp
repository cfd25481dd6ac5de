// Reading queue pointers allocates nothing. A program of its own, for it replaces malloc.

#include "counted_allocations.hpp"
#include "fake_queue.hpp"
#include "family.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/kfd/queue_pointers.hpp"

namespace sluice::kfd::pointer_allocation_test {
namespace {

TEST(PointerAllocations, AreNotMadeByReading) {
  constexpr std::size_t queues = 1000;
  constexpr std::size_t stride = 16;
  void* const memory =
      ::mmap(nullptr, queues * stride, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const test::family target{[](int) -> int {
    for (;;) ::pause();
  }};
  auto pointers = queue_pointers::open(identity_of(target.pid()).value()).value();
  std::vector<pointer_addresses> addresses;
  for (std::size_t index = 0; index < queues; ++index) {
    const std::uint64_t at = reinterpret_cast<std::uintptr_t>(memory) + index * stride;
    addresses.push_back({at, at + 8});
  }
  addresses[10].read = 8;  // nobody's: the first read() finds out, without allocating either
  ASSERT_TRUE(pointers->watch(addresses));

  const test::counted_allocations counted;
  bool read = true;
  for (int round = 0; round < 10; ++round) read = pointers->read().has_value() && read;
  const unsigned long after = counted.so_far();
  EXPECT_TRUE(read);
  EXPECT_EQ(after, 0U);
  EXPECT_TRUE(pointers->values()[999].known);
  EXPECT_FALSE(pointers->values()[10].known);
  const std::vector<int> one(1);  // the count does count
  EXPECT_GT(counted.so_far(), after);
}

TEST(PointerAllocations, AreNotMadeByLooks) {
  test::fake_queue queue;
  test::fake_queue second;
  const test::family target{[](int) -> int {
    for (;;) ::pause();
  }};
  auto view = pointer_view::make({identity_of(target.pid()).value(),
                                  0,
                                  {queue.on(gpu_id{1}), second.on(gpu_id{2}), {.gpu = gpu_id{2}}}},
                                 "/nowhere")
                  .value();
  std::vector<agent::followed_process::work> found;
  found.reserve(2);
  time_point now{};
  const auto look = [&] {
    found.clear();
    ASSERT_TRUE(view->look(now += std::chrono::milliseconds{5}, found));
  };
  const test::counted_allocations counted;
  for (int round = 0; round < 100; ++round) {
    queue.submit();
    second.submit(false);
    look();
    queue.consume();
    second.consume();
    look();
    queue.finish();
    look();
  }
  EXPECT_EQ(counted.so_far(), 0U);
  EXPECT_EQ(found[0].state, online_work::finished);
  EXPECT_EQ(found[1].state, online_work::consumed);
}

}  // namespace
}  // namespace sluice::kfd::pointer_allocation_test
