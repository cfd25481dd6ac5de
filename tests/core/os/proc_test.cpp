#include "sluice/os/proc.hpp"

#include "family.hpp"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include <gtest/gtest.h>

namespace sluice::proc_test {
namespace {

TEST(Proc, ReadsTheStartTimeBehindAnAwkwardCommand) {
  EXPECT_EQ(parse_start_time("42 (a) S 1) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20\n"),
            777U);
}

TEST(Proc, FindsNoStartTimeInAShortLine) {
  EXPECT_FALSE(parse_start_time("42 (cat) R 1 2 3"));
  EXPECT_FALSE(parse_start_time(""));
}

TEST(Proc, KnowsTheOwnStartTime) {
  const auto first = start_time_of(::getpid());
  ASSERT_TRUE(first);
  EXPECT_GT(*first, 0U);
  EXPECT_EQ(start_time_of(::getpid()), first);
}

TEST(Proc, KnowsNoStartTimeOfNobody) { EXPECT_FALSE(start_time_of(0x3fffffff)); }

/// A child that runs this, until the end.
class child {
 public:
  explicit child(void (*body)()) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    ::_exit(0);
  }
  ~child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  child(const child&) = delete;
  child& operator=(const child&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

TEST(Proc, KnowsAProcessThatIsExiting) {
  EXPECT_FALSE(is_exiting(::getpid()));
  EXPECT_FALSE(is_exiting(0x3fffffff));
  const child lives{[] { ::pause(); }};
  EXPECT_FALSE(is_exiting(lives.pid()));
  const child zombie{[] {}};
  EXPECT_TRUE(test::eventually(test::patience, [&] { return is_exiting(zombie.pid()); }));
}

TEST(Proc, DoesNotTakeAProcessForExitingOfWhichOnlyTheMainThreadHasEnded) {
  const child one{[] {
    std::thread{[] { ::pause(); }}.detach();
    ::syscall(SYS_exit, 0);
  }};
  const std::string main_thread = "/proc/" + std::to_string(one.pid()) + "/status";
  ASSERT_TRUE(test::eventually(test::patience, [&] {
    std::ifstream file{main_thread};
    const std::string text{std::istreambuf_iterator<char>{file}, {}};
    return text.find("State:\tZ") != text.npos;
  }));
  EXPECT_FALSE(is_exiting(one.pid()));
}

TEST(Proc, ReadsANumberFromAStatusText) {
  constexpr std::string_view text = "Name:\tcat\nTracerPid:\t17\nUid:\t1000\t0\t0\t0\n";
  EXPECT_EQ(status_number(text, "TracerPid"), 17U);
  EXPECT_EQ(status_number(text, "Uid"), 1000U);
  EXPECT_FALSE(status_number(text, "Tracer"));
}

TEST(Proc, KnowsTheOwnUserAndThatNobodyTracesUs) {
  EXPECT_EQ(user_of(::getpid()), ::getuid());
  EXPECT_EQ(tracer_of(::getpid()), 0);
}

TEST(Proc, KnowsThreadsOfTheKernel) {
  EXPECT_FALSE(is_kernel_thread(::getpid()));
  std::ifstream file{"/proc/2/comm"};
  const std::string name{std::istreambuf_iterator<char>{file}, {}};
  EXPECT_EQ(is_kernel_thread(2), name == "kthreadd\n");  // Not so in a PID namespace of one's own.
}

TEST(Proc, ParsesAttributeNumbersWithAndWithoutALineEnd) {
  EXPECT_EQ(parse_number<std::uint32_t>("19893"), 19893U);
  EXPECT_EQ(parse_number<std::uint32_t>("19893\n"), 19893U);
  EXPECT_FALSE(parse_number<std::uint32_t>(""));
  EXPECT_FALSE(parse_number<std::uint32_t>("12x"));
  EXPECT_FALSE(parse_number<std::uint32_t>("99999999999"));
}

}  // namespace
}  // namespace sluice::proc_test
