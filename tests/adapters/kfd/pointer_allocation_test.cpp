// Reading queue pointers allocates nothing. A program of its own, for it replaces malloc.

#include "family.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/kfd/queue_pointers.hpp"

namespace {

// Constant-initialised, for malloc runs before main().
std::atomic<unsigned long> allocations{0};
void count() noexcept { allocations.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

// glibc's own names, which its malloc family is an alias of.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t size) {
  count();
  return __libc_malloc(size);
}
void* calloc(std::size_t number, std::size_t size) {
  count();
  return __libc_calloc(number, size);
}
void* realloc(void* old, std::size_t size) {
  count();
  return __libc_realloc(old, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
  count();
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  count();
  return __libc_memalign(alignment, size);
}
}

namespace sluice::kfd {
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

  const unsigned long before = allocations.load();
  bool read = true;
  for (int round = 0; round < 10; ++round) read = pointers->read().has_value() && read;
  const unsigned long after = allocations.load();
  EXPECT_TRUE(read);
  EXPECT_EQ(after, before);
  EXPECT_TRUE(pointers->values()[999].known);
  EXPECT_FALSE(pointers->values()[10].known);
  const std::vector<int> one(1);  // the count does count
  EXPECT_GT(allocations.load(), after);
}

}  // namespace
}  // namespace sluice::kfd
