// What policies tell the operator.

#include "core_bench.hpp"

#include <algorithm>
#include <array>
#include <string>

#include <gtest/gtest.h>

namespace sluice::tests::notes_test {
namespace {

/// What a policy notes comes into the log with its numbers, a few lines at a time.
TEST(Notes, AreLoggedAtABoundedRate) {
  core_bench bench(quick_config(), make_policy([](const snapshot& seen, decision_sink& out) {
                     for (const event& one : seen.events) {
                       if (one.kind != event_kind::online_begin) continue;
                       out.note("{} of {} lost; {}", std::array{2.5, 7.0});
                     }
                   }));
  auto client = bench.client({gpu_a});
  ::testing::internal::CaptureStderr();
  const auto lines = [&](int begins) {
    for (int i = 0; i < begins; ++i) {
      client.begin();
      bench.step();
    }
  };
  lines(100);
  bench.time.advance(3s);
  lines(1);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("policy function: 2.5 of 7 lost; {} part=policy policy=function\n"),
            std::string::npos)
      << log;
  EXPECT_NE(log.find("(92 earlier lines suppressed)"), std::string::npos) << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 9);
}

}  // namespace
}  // namespace sluice::tests::notes_test
