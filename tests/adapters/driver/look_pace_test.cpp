#include "look_pace.hpp"

#include <vector>

#include <gtest/gtest.h>

namespace sluice::look_pace_test {
namespace {

using namespace std::chrono_literals;

std::vector<duration> next_of(look_pace& pace, int count) {
  std::vector<duration> out;
  for (int i = 0; i < count; ++i) out.push_back(pace.next());
  return out;
}

TEST(LookPace, LooksOnceASecondWhileNothingOpensTheDevice) {
  look_pace pace;
  EXPECT_EQ(next_of(pace, 2), (std::vector<duration>{1s, 1s}));
}

TEST(LookPace, FindsAQueueBeforeTheTimeSinceTheOpenHasDoubled) {
  look_pace pace;
  (void)pace.next();
  pace.device_opened();
  EXPECT_EQ(next_of(pace, 8),
            (std::vector<duration>{20ms, 40ms, 80ms, 160ms, 320ms, 640ms, 1s, 1s}));
}

TEST(LookPace, BeginsAnewAtTheNextOpen) {
  look_pace pace;
  pace.device_opened();
  (void)next_of(pace, 3);
  pace.device_opened();
  EXPECT_EQ(pace.next(), look_pace::least);
}

}  // namespace
}  // namespace sluice::look_pace_test
