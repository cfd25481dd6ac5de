#include "sluice/os/message_sink.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::message_sink_test {
namespace {

// Lines of discovery and of the agent once had neither time nor level, while the runtime's did.
TEST(MessagesToStderr, LookLikeTheRuntimesLog) {
  ::testing::internal::CaptureStderr();
  messages_to_stderr()("cannot open /dev/kfd");
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      ::testing::MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}[.]"
                              "[0-9]{3} \\[sluice\\] \\[warning\\] cannot open /dev/kfd\n"));
}

}  // namespace
}  // namespace sluice::message_sink_test
