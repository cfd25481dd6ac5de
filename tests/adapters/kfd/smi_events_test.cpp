#include "sluice/kfd/smi_events.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <string_view>

#include <gtest/gtest.h>

namespace sluice::kfd::smi_events_test {
namespace {

using namespace std::string_view_literals;

class SmiStream : public ::testing::Test {
 protected:
  SmiStream() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) std::abort();
    driver_ = unique_fd{ends[1]};
    stream_ = std::make_unique<smi_stream>(gpu_id{7}, unique_fd{ends[0]});
  }
  void write(std::string_view text) const {
    ASSERT_EQ(::write(driver_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  unique_fd driver_;
  std::unique_ptr<smi_stream> stream_;
};

TEST_F(SmiStream, GivesWhatHasComeAndOnlyThat) {
  auto events = stream_->read();
  ASSERT_TRUE(events);
  EXPECT_TRUE(events->empty());
  write("3 7\na 1007 -4242 4db5 \0\n4 "sv);
  events = stream_->read();
  ASSERT_TRUE(events);
  ASSERT_EQ(events->size(), 2U);
  EXPECT_EQ((*events)[0].kind, smi_kind::gpu_pre_reset);
  EXPECT_EQ((*events)[1].pid, 4242);
  write("7\n"sv);
  events = stream_->read();
  ASSERT_TRUE(events);
  ASSERT_EQ(events->size(), 1U);
  EXPECT_EQ((*events)[0].kind, smi_kind::gpu_post_reset);
  EXPECT_FALSE(stream_->problems());
}

TEST_F(SmiStream, EndsWithTheDriver) {
  write("3 7\n"sv);
  driver_.reset();
  const auto events = stream_->read();
  ASSERT_TRUE(events);
  EXPECT_EQ(events->size(), 1U);
  const auto end = stream_->read();
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error(), errc::lost);
}

}  // namespace
}  // namespace sluice::kfd::smi_events_test
