#include "lease.hpp"

#include <chrono>

#include <gtest/gtest.h>

namespace sluice::agent::lease_test {
namespace {

using namespace std::chrono_literals;

constexpr time_point start{1h};

constexpr duration interval = 100ms;

/// Has been looked at in time until then, and nobody renewed it.
lease held_until(time_point then) {
  lease held{500ms, interval, start};
  for (time_point now = start + interval; now <= then; now += interval)
    held.renew(time_point{}, now);
  return held;
}

TEST(Lease, LapsesItsLengthAfterTheStart) {
  const lease held = held_until(start + 400ms);
  EXPECT_FALSE(held.lapsed(start + 499ms));
  EXPECT_TRUE(held.lapsed(start + 500ms));
  EXPECT_EQ(held.deadline(), start + 500ms);
}

TEST(Lease, CountsFromTheRenewalAndNotFromWhenItWasRead) {
  lease held = held_until(start + 300ms);
  held.renew(start + 100ms, start + 400ms);
  EXPECT_FALSE(held.lapsed(start + 599ms));
  EXPECT_TRUE(held.lapsed(start + 600ms));
}

// The other side writes these; a wrong one must not keep targets suspended for ever.
TEST(Lease, TakesARenewalFromTheFutureForNow) {
  lease held{500ms, interval, start};
  held.renew(start + 1h, start + 100ms);
  EXPECT_TRUE(held.lapsed(start + 600ms));
}

TEST(Lease, IgnoresAnOlderRenewal) {
  lease held = held_until(start + 100ms);
  held.renew(start + 200ms, start + 200ms);
  held.renew(time_point{}, start + 300ms);
  EXPECT_FALSE(held.lapsed(start + 699ms));
}

// Both were frozen for a minute: who is thawed first does not take the other for dead.
TEST(Lease, DoesNotCountTimeInWhichNobodyLooked) {
  lease held = held_until(start + 200ms);
  const time_point thawed = start + 1min;
  held.renew(start + 200ms, thawed);
  EXPECT_FALSE(held.lapsed(thawed));
  // 200 ms before, and the interval that the freeze fell into.
  EXPECT_EQ(held.deadline(), thawed + 500ms - interval);
}

// Else an owner of offline work could put off the end of its suspension with load alone.
TEST(Lease, IsLateOnceForEachRenewal) {
  lease held{500ms, interval, start};
  time_point now = start;
  for (int looks = 0; looks < 2; ++looks) held.renew(time_point{}, now += 1s);
  EXPECT_EQ(held.deadline(), start + 1s - interval + 500ms);
  EXPECT_TRUE(held.lapsed(now));
  held.renew(now, now);
  EXPECT_EQ(held.deadline(), now + 500ms);
  held.renew(now, now + 2s);
  EXPECT_EQ(held.deadline(), now + 2s - interval + 500ms);
}

}  // namespace
}  // namespace sluice::agent::lease_test
