#include "sluice/kfd/queue_pointers.hpp"

#include "family.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <new>
#include <vector>

#include <gtest/gtest.h>

namespace sluice::kfd::queue_pointers_test {
namespace {

using test::eventually;
using test::family;
using test::patience;

constexpr std::size_t page = 4096;

struct pair {
  std::atomic<std::uint64_t> write;
  std::uint64_t between[8];
  std::atomic<std::uint64_t> read;
};
static_assert(sizeof(pair) == 0x50);

/// Memory that a child inherits at the same addresses, and shares.
class shared_pairs {
 public:
  explicit shared_pairs(std::size_t count) : size_(count * sizeof(pair)) {
    memory_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) std::abort();
    for (std::size_t index = 0; index < count; ++index) {
      pair& each = *new (static_cast<pair*>(memory_) + index) pair{};
      each.write = index + 5;
      each.read = index;
      addresses_.push_back({reinterpret_cast<std::uintptr_t>(&each.read),
                            reinterpret_cast<std::uintptr_t>(&each.write)});
    }
  }
  ~shared_pairs() { ::munmap(memory_, size_); }
  shared_pairs(const shared_pairs&) = delete;
  shared_pairs& operator=(const shared_pairs&) = delete;

  pair& operator[](std::size_t index) { return static_cast<pair*>(memory_)[index]; }
  std::vector<pointer_addresses>& addresses() { return addresses_; }

 private:
  std::size_t size_;
  void* memory_;
  std::vector<pointer_addresses> addresses_;
};

/// Waits; 'x' makes it exec.
int wait_here(int said, int told) {
  (void)!::write(said, "r", 1);
  char order = 0;
  if (::read(told, &order, 1) == 1 && order == 'x') ::execl("/bin/sleep", "sleep", "60", nullptr);
  for (;;) ::pause();
}

std::unique_ptr<queue_pointers> open(pid_t pid) {
  auto opened = queue_pointers::open(identity_of(pid).value());
  EXPECT_TRUE(opened) << opened.error().message();
  return opened ? std::move(*opened) : nullptr;
}

TEST(QueuePointers, FollowsAnotherProcess) {
  shared_pairs memory{2};
  family target{wait_here};
  const auto pointers = open(target.pid());
  ASSERT_TRUE(pointers->watch(memory.addresses()));
  EXPECT_FALSE(pointers->values()[0].known);
  ASSERT_TRUE(pointers->read());
  ASSERT_EQ(pointers->values().size(), 2U);
  EXPECT_TRUE(pointers->values()[1].known);
  EXPECT_EQ(pointers->values()[1].read, 1U);
  EXPECT_EQ(pointers->values()[1].write, 6U);
  EXPECT_EQ(pointers->values()[1].pending(), 5U);
  memory[1].write = std::uint64_t{1} << 40U;
  memory[1].read = (std::uint64_t{1} << 40U) - 3;
  ASSERT_TRUE(pointers->read());
  EXPECT_EQ(pointers->values()[1].write, std::uint64_t{1} << 40U);
  EXPECT_EQ(pointers->values()[1].pending(), 3U);
  EXPECT_EQ(pointers->slow(), 0U);
}

// More than one system call takes, with what cannot be read at the first, the last and in between.
TEST(QueuePointers, LosesNoQueueToOneThatCannotBeRead) {
  shared_pairs memory{1500};
  void* const hole = ::mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ::munmap(hole, page);
  const auto nowhere = reinterpret_cast<std::uintptr_t>(hole);
  family target{wait_here};
  auto addresses = memory.addresses();
  for (const std::size_t bad : {0U, 511U, 512U, 700U, 1499U}) addresses[bad].read = nowhere;
  addresses[701].write = nowhere;
  const auto pointers = open(target.pid());
  ASSERT_TRUE(pointers->watch(addresses));
  for (int round = 0; round < 2; ++round) {
    memory[1498].write = 7000U + static_cast<unsigned>(round);
    ASSERT_TRUE(pointers->read());
    std::size_t known = 0;
    for (std::size_t index = 0; index < addresses.size(); ++index) {
      const pointer_values& each = pointers->values()[index];
      if (!each.known) continue;
      ++known;
      EXPECT_EQ(each.read, index);
      EXPECT_EQ(each.write, index == 1498 ? 7000U + static_cast<unsigned>(round) : index + 5);
    }
    EXPECT_EQ(known, 1494U);
    EXPECT_FALSE(pointers->values()[700].known);
    EXPECT_FALSE(pointers->values()[701].known);
  }
  EXPECT_EQ(pointers->slow(), 6U);
}

// process_vm_readv obeys a page's protection, /proc/PID/mem does not: as good as memory that only
// the latter can reach.
TEST(QueuePointers, ReadsSlowlyWhatCannotBeReadDirectly) {
  shared_pairs memory{2};
  void* const guarded =
      ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pair& hidden = *new (guarded) pair{};
  hidden.write = 42;
  hidden.read = 40;
  ::mprotect(guarded, page, PROT_NONE);
  family target{wait_here};
  auto addresses = memory.addresses();
  addresses.push_back({reinterpret_cast<std::uintptr_t>(&hidden.read),
                       reinterpret_cast<std::uintptr_t>(&hidden.write)});
  const auto pointers = open(target.pid());
  ASSERT_TRUE(pointers->watch(addresses));
  ASSERT_TRUE(pointers->read());
  EXPECT_EQ(pointers->slow(), 1U);
  ASSERT_TRUE(pointers->values()[2].known);
  EXPECT_EQ(pointers->values()[2].pending(), 2U);
  EXPECT_TRUE(pointers->values()[0].known);
  ::munmap(guarded, page);
}

TEST(QueuePointers, SaysThatTheProcessIsGone) {
  shared_pairs memory{1};
  auto target = std::make_unique<family>(wait_here);
  const auto pointers = open(target->pid());
  ASSERT_TRUE(pointers->watch(memory.addresses()));
  ASSERT_TRUE(pointers->read());
  target.reset();
  ASSERT_TRUE(eventually(patience, [&] { return !pointers->read(); }));
  EXPECT_EQ(pointers->read().error(), errc::unknown_target);
  EXPECT_FALSE(pointers->values()[0].known);
}

TEST(QueuePointers, TakesNothingFromTheNextProgramOfTheProcess) {
  shared_pairs memory{1};
  family target{wait_here};
  const auto pointers = open(target.pid());
  ASSERT_TRUE(pointers->watch(memory.addresses()));
  ASSERT_TRUE(pointers->read());
  target.tell('x');
  ASSERT_TRUE(eventually(patience, [&] { return !pointers->read(); }));
  EXPECT_EQ(pointers->read().error(), errc::unknown_target);
  EXPECT_TRUE(open(target.pid())->read());  // the next one's own
}

TEST(QueuePointers, RefusesAStrangerUnderThePid) {
  family target{wait_here};
  process_identity who = identity_of(target.pid()).value();
  --who.start_time;
  const auto opened = queue_pointers::open(who);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error(), errc::unknown_target);
  EXPECT_EQ(queue_pointers::open({0x3fffffff, 1}).error(), errc::unknown_target);
}

TEST(QueuePointers, RefusesWhatIsNoPointer) {
  shared_pairs memory{1};
  family target{wait_here};
  const auto pointers = open(target.pid());
  ASSERT_TRUE(pointers->watch(memory.addresses()));
  for (const pointer_addresses bad : {pointer_addresses{0, 8}, {8, 0}, {12, 8}, {8, 9}}) {
    const auto refused = pointers->watch({&bad, 1});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().value(), EINVAL);
  }
  ASSERT_TRUE(pointers->read());
  EXPECT_EQ(pointers->values().size(), 1U);
}

TEST(QueuePointers, KnowsTheLayoutOfRocr) {
  EXPECT_TRUE(is_rocr_layout({0x7f3a10201080, 0x7f3a10201038}));
  EXPECT_FALSE(is_rocr_layout({0x7f3a10201038, 0x7f3a10201080}));
  EXPECT_FALSE(is_rocr_layout({0x48, 0}));
}

}  // namespace
}  // namespace sluice::kfd::queue_pointers_test
