#include "queue_ledger.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::kfd::queue_ledger_test {
namespace {

using entry = queue_ledger::entry;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

entry queue(std::uint32_t id, std::uint64_t ring, std::uint32_t gpu = 1) {
  entry made{};
  made.queue_id = id;
  made.ring_base_address = ring;
  made.read_pointer_address = ring + 0x80;
  made.write_pointer_address = ring + 0x38;
  made.gpu_id = gpu;
  made.queue_type = uapi::KFD_IOC_QUEUE_TYPE_COMPUTE_AQL;
  return made;
}

entry fresh(entry made) {
  made.exception_status = uapi::KFD_EC_MASK(uapi::EC_QUEUE_NEW);
  return made;
}

std::string text(char sign, const entry& which) {
  std::string made(1, sign);
  made += std::to_string(which.queue_id);
  return made;
}

std::vector<std::string> changes(queue_ledger& ledger, const std::vector<entry>& snapshot) {
  std::vector<std::string> seen;
  ledger.update(
      snapshot, [&](const entry& old) { seen.push_back(text('-', old)); },
      [&](const entry& now) { seen.push_back(text('+', now)); });
  return seen;
}

TEST(QueueLedger, ReportsEveryQueueOfTheFirstSnapshot) {
  queue_ledger ledger;
  EXPECT_THAT(changes(ledger, {fresh(queue(2, 0x3000)), queue(0, 0x1000), queue(1, 0x2000)}),
              ElementsAre("+0", "+1", "+2"));
}

TEST(QueueLedger, ReportsNothingWhenNothingChanged) {
  queue_ledger ledger;
  changes(ledger, {fresh(queue(0, 0x1000)), queue(1, 0x2000)});
  EXPECT_THAT(changes(ledger, {queue(1, 0x2000), queue(0, 0x1000)}), IsEmpty());
}

TEST(QueueLedger, ReportsWhatWentAndWhatCame) {
  queue_ledger ledger;
  changes(ledger, {queue(0, 0x1000), queue(1, 0x2000)});
  EXPECT_THAT(changes(ledger, {queue(1, 0x2000), fresh(queue(2, 0x3000))}),
              ElementsAre("-0", "+2"));
}

TEST(QueueLedger, RepeatsAQueueOnceWhenSomethingWentWrongWithIt) {
  queue_ledger ledger;
  changes(ledger, {queue(0, 0x1000), queue(1, 0x2000)});
  entry failed = queue(1, 0x2000);
  failed.exception_status = uapi::KFD_EC_MASK(uapi::EC_QUEUE_PREEMPTION_ERROR);
  EXPECT_THAT(changes(ledger, {queue(0, 0x1000), failed}), ElementsAre("+1"));
  EXPECT_THAT(changes(ledger, {queue(0, 0x1000), failed}), IsEmpty());
}

TEST(QueueLedger, TellsAReusedIdByItsRing) {
  queue_ledger ledger;
  changes(ledger, {queue(0, 0x1000)});
  EXPECT_THAT(changes(ledger, {queue(0, 0x9000)}), ElementsAre("-0", "+0"));
}

TEST(QueueLedger, TellsAReusedIdByItsGpu) {
  queue_ledger ledger;
  changes(ledger, {queue(0, 0x1000, 1)});
  EXPECT_THAT(changes(ledger, {queue(0, 0x1000, 2)}), ElementsAre("-0", "+0"));
}

// An allocator likes to hand out the same addresses again; QUEUE_NEW does not lie.
TEST(QueueLedger, TellsAReusedIdAtTheSameAddressesByQueueNew) {
  queue_ledger ledger;
  changes(ledger, {fresh(queue(0, 0x1000))});
  EXPECT_THAT(changes(ledger, {fresh(queue(0, 0x1000))}), ElementsAre("-0", "+0"));
}

TEST(QueueLedger, ReportsEverythingRemovedWhenCleared) {
  queue_ledger ledger;
  changes(ledger, {queue(0, 0x1000), queue(5, 0x2000)});
  std::vector<std::uint32_t> gone;
  ledger.clear([&](const entry& old) { gone.push_back(old.queue_id); });
  EXPECT_THAT(gone, ElementsAre(0, 5));
  EXPECT_THAT(ledger.known(), IsEmpty());
}

TEST(QueueLedger, ForgetsOneQueueOnce) {
  queue_ledger ledger;
  changes(ledger, {queue(0, 0x1000), queue(5, 0x2000)});
  int removed = 0;
  ledger.forget(5, [&](const entry&) { ++removed; });
  ledger.forget(5, [&](const entry&) { ++removed; });
  EXPECT_EQ(removed, 1);
  EXPECT_THAT(changes(ledger, {queue(0, 0x1000), queue(5, 0x2000)}), ElementsAre("+5"));
}

}  // namespace
}  // namespace sluice::kfd::queue_ledger_test
