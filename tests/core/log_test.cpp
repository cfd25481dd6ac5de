// Logging from the reactor's turns must not wait for whoever reads the log.

#include "log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/ids.hpp"
#include "sluice/os/log_limiter.hpp"

namespace sluice::log_test {
namespace {

using ::testing::MatchesRegex;

const std::string stamp = "[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{3}";

/// Standard error is this pipe as long as it lives.
class stderr_pipe {
 public:
  stderr_pipe() : before_{::dup(STDERR_FILENO)} {
    EXPECT_EQ(::pipe2(ends_.data(), O_CLOEXEC), 0);
    ::dup2(ends_[1], STDERR_FILENO);
    ::fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  ~stderr_pipe() {
    restore();
    ::close(ends_[0]);
  }
  stderr_pipe(const stderr_pipe&) = delete;
  stderr_pipe& operator=(const stderr_pipe&) = delete;

  void close_reader() {
    ::close(ends_[0]);
    ends_[0] = -1;
  }
  std::string read() const {
    std::string all;
    std::array<char, 65536> some{};
    for (;;) {
      const ssize_t got = ::read(ends_[0], some.data(), some.size());
      if (got <= 0) return all;
      all.append(some.data(), static_cast<std::size_t>(got));
    }
  }

 private:
  void restore() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
    ::close(ends_[1]);
  }
  int before_;
  std::array<int, 2> ends_{-1, -1};
};

TEST(Log, GoesToStandardErrorWhereTheProgramMadeNoLogger) {
  const stderr_pipe errors;
  log_line(log_level::warning, log_part::breaker, {{"gpu", gpu_id{7}}, {"why", "a \"reset\""}},
           "GPU {}: {}", 7, "lost");
  EXPECT_THAT(errors.read(),
              MatchesRegex(stamp + R"( \[sluice\] \[warning\] GPU 7: lost part=breaker gpu=7 )" +
                           R"(why="a ..reset..".)"));
}

TEST(Log, CutsALineThatAPipeDoesNotTakeAtOnceAndEndsIt) {
  const stderr_pipe errors;
  log_line(log_level::info, log_part::node, {}, "{}", std::string(10'000, 'x'));
  const auto said = errors.read();
  EXPECT_EQ(said.size(), 4096U);
  EXPECT_TRUE(said.ends_with("xxx\n")) << said;
}

TEST(Log, SaysHowManyLinesAreLeftOutOnlyWhereSomeAre) {
  core::log_limiter limiter;
  std::uint64_t unsaid = 77;
  const time_point start{std::chrono::hours{1}};
  ASSERT_TRUE(limiter.allow(start, unsaid));
  EXPECT_EQ(core::left_out(unsaid), "");
  for (int i = 0; i < 3; ++i) ASSERT_FALSE(limiter.allow(start, unsaid));
  ASSERT_TRUE(limiter.allow(start + std::chrono::seconds{1}, unsaid));
  EXPECT_EQ(core::left_out(unsaid), " (3 similar lines suppressed)");
  ASSERT_FALSE(limiter.allow(start + std::chrono::seconds{1}, unsaid));
  ASSERT_TRUE(limiter.allow(start + std::chrono::seconds{2}, unsaid));
  EXPECT_EQ(core::left_out(unsaid), " (1 similar line suppressed)");
}

TEST(Log, LosesLinesRatherThanWaitingForTheirReader) {
  const stderr_pipe errors;
  for (int i = 0; i < 5000; ++i)
    log_line(log_level::error, log_part::node, {}, "line {} of a long story", i);
  const auto first = errors.read();
  EXPECT_NE(first.find("line 0 of"), std::string::npos);
  EXPECT_EQ(first.find("line 4999 of"), std::string::npos) << "the pipe was never full";
  EXPECT_EQ(first.back(), '\n') << "a line was cut";
  log_line(log_level::error, log_part::node, {}, "afterwards");
  const auto then = errors.read();
  EXPECT_THAT(then,
              MatchesRegex(
                  stamp + R"( \[sluice\] \[warning\] [0-9]+ log lines were lost: standard )" +
                  "error was blocked." + stamp + R"( \[sluice\] \[error\] afterwards part=node.)"));
}

TEST(Log, SurvivesAReaderThatWentAway) {
  stderr_pipe errors;
  errors.close_reader();
  log_line(log_level::error, log_part::node, {}, "to nobody");  // And no SIGPIPE.
}

}  // namespace
}  // namespace sluice::log_test
