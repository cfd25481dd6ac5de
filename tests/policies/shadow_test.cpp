#include "sluice/policies/shadow.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/testing/policy_harness.hpp"

namespace sluice::shadow_test {
namespace {

using namespace std::chrono_literals;
using verb = testing::recording_sink::verb;

constexpr gpu_id gpu_a{10};
constexpr group_id train{1};

/// One offline group; a suspend takes 2 ms, a resume 3 ms.
class node : public testing::policy_harness {
 public:
  node() : policy_harness(make_shadow(make_fixed_timeslice({.slice = 20ms}))) {
    table().add_group(train, role::offline, {gpu_a});
    table().edit(gpu_a)->suspend_cost = 2ms;
    table().edit(gpu_a)->resume_cost = 3ms;
  }
  std::vector<std::vector<double>> notes() const {
    std::vector<std::vector<double>> all;
    for (const auto& one : calls()) {
      if (one.what == verb::note) all.push_back(one.numbers);
    }
    return all;
  }
  bool touched() const {
    return std::any_of(calls().begin(), calls().end(), [](const auto& one) {
      return one.what == verb::hold || one.what == verb::run || one.what == verb::reserve ||
             one.what == verb::set_quantum;
    });
  }
};

TEST(Shadow, TouchesNothing) {
  node harness;
  for (int i = 0; i < 100; ++i) {
    harness.begin(gpu_a);
    EXPECT_FALSE(harness.held(train));
    harness.advance(13ms);
    harness.end(gpu_a);
    harness.advance(50ms);
  }
  EXPECT_FALSE(harness.touched());
}

TEST(Shadow, SaysWhatItWouldHaveDoneAndGained) {
  node harness;
  harness.advance(1min);
  EXPECT_TRUE(harness.notes().empty());
  for (int i = 0; i < 3; ++i) {
    harness.begin(gpu_a);
    harness.advance(30ms);
    harness.end(gpu_a);
    harness.advance(1s);
  }
  harness.begin(gpu_a);
  harness.advance(10ms);
  harness.end(gpu_a);
  harness.advance(20s);
  const auto notes = harness.notes();
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_EQ(notes[0][0], 1);  // The first hold, at once.
  // The other three; 3 x 30 ms and a slice of 20 ms; four round trips less the one said before; and
  // 100 ms of online work, less four suspends of which one was counted before, too.
  EXPECT_EQ(notes[1], (std::vector<double>{3, 110, 15, 94}));
}

TEST(Shadow, ExpiresWhatTheSchedulerWould) {
  node harness;
  harness.begin(gpu_a);
  harness.advance(5ms);
  harness.end(gpu_a);     // The inner policy holds on until the slice is over...
  harness.advance(30ms);  // ...which it is told then.
  const auto turns = harness.turns();
  harness.advance(30s);
  EXPECT_LE(harness.turns() - turns, 3U);  // Quiet, once it has reported.
}

TEST(Shadow, IsCalledAfterWhatItShadows) {
  EXPECT_EQ(make_shadow(make_fixed_timeslice({.slice = 20ms}))->name(),
            "shadow/fixed_timeslice/client_done");
}

}  // namespace
}  // namespace sluice::shadow_test
