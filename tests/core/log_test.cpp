// Logging from the reactor's turns must not wait for whoever reads the log.

#include "log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string>

#include <gtest/gtest.h>

namespace sluice {
namespace {

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
  log_line(log_level::warning, "GPU {}: {}", 7, "lost");
  const auto said = errors.read();
  EXPECT_NE(said.find("[sluice] [warning] GPU 7: lost\n"), std::string::npos) << said;
}

TEST(Log, LosesLinesRatherThanWaitingForTheirReader) {
  const stderr_pipe errors;
  for (int i = 0; i < 5000; ++i) log_line(log_level::error, "line {} of a long story", i);
  const auto first = errors.read();
  EXPECT_NE(first.find("line 0 of"), std::string::npos);
  EXPECT_EQ(first.find("line 4999 of"), std::string::npos) << "the pipe was never full";
  EXPECT_EQ(first.back(), '\n') << "a line was cut";
  log_line(log_level::error, "afterwards");
  const auto then = errors.read();
  EXPECT_NE(then.find("log lines were lost"), std::string::npos) << then;
  EXPECT_NE(then.find("afterwards\n"), std::string::npos) << then;
}

TEST(Log, SurvivesAReaderThatWentAway) {
  stderr_pipe errors;
  errors.close_reader();
  log_line(log_level::error, "to nobody");  // And no SIGPIPE.
}

}  // namespace
}  // namespace sluice
