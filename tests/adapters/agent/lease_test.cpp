#include "lease.hpp"

#include <chrono>

#include <gtest/gtest.h>

namespace sluice::agent {
namespace {

using namespace std::chrono_literals;

constexpr time_point start{1h};

TEST(Lease, LapsesItsLengthAfterTheStart) {
  const lease held{500ms, start};
  EXPECT_FALSE(held.lapsed(start + 499ms));
  EXPECT_TRUE(held.lapsed(start + 500ms));
  EXPECT_EQ(held.deadline(), start + 500ms);
}

TEST(Lease, CountsFromTheRenewalAndNotFromWhenItWasRead) {
  lease held{500ms, start};
  held.renew(start + 100ms, start + 400ms);
  EXPECT_FALSE(held.lapsed(start + 599ms));
  EXPECT_TRUE(held.lapsed(start + 600ms));
}

// The other side writes these; a wrong one must not keep targets suspended for ever.
TEST(Lease, TakesARenewalFromTheFutureForNow) {
  lease held{500ms, start};
  held.renew(start + 1h, start + 100ms);
  EXPECT_TRUE(held.lapsed(start + 600ms));
}

TEST(Lease, IgnoresAnOlderRenewal) {
  lease held{500ms, start};
  held.renew(start + 200ms, start + 200ms);
  held.renew(time_point{}, start + 300ms);
  EXPECT_FALSE(held.lapsed(start + 699ms));
}

}  // namespace
}  // namespace sluice::agent
