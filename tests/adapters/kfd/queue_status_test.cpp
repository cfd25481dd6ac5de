#include "queue_status.hpp"

#include <gtest/gtest.h>

namespace sluice::kfd::queue_status_test {
namespace {

TEST(QueueStatus, IsDoneWhenTheIdComesBackBare) {
  EXPECT_EQ(decode_status(0, 0), outcome::done);
  EXPECT_EQ(decode_status(1023, 1023), outcome::done);
}

TEST(QueueStatus, IsInvalidWithBit31Alone) {
  EXPECT_EQ(decode_status(0, 0x80000000), outcome::invalid);
  EXPECT_EQ(decode_status(9, 0x80000009), outcome::invalid);
}

TEST(QueueStatus, IsFailedWithBit30) {
  EXPECT_EQ(decode_status(0, 0x40000000), outcome::failed);
  EXPECT_EQ(decode_status(7, 0x40000007), outcome::failed);
}

// A firmware command that failed, or a failed cycle over a queue that had been skipped.
TEST(QueueStatus, IsFailedWithBothBits) {
  EXPECT_EQ(decode_status(7, 0xC0000007), outcome::failed);
}

// Proposed on the kernel's list: a bit for queues that were reset. It must not look like an id.
TEST(QueueStatus, TakesAnUnknownHighBitForAFailure) {
  EXPECT_EQ(decode_status(7, 0x20000007), outcome::failed);
  EXPECT_EQ(decode_status(7, 0xA0000007), outcome::failed);
}

TEST(QueueStatus, TakesAnotherIdForAFailure) { EXPECT_EQ(decode_status(7, 8), outcome::failed); }

}  // namespace
}  // namespace sluice::kfd::queue_status_test
