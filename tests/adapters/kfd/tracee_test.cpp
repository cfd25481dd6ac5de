#include "sluice/kfd/tracee.hpp"

#include "family.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/os/proc.hpp"

namespace sluice::kfd::tracee_test {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::family;
using test::patience;
using test::state_of;

/// A tracer's thread: seizes, serves every millisecond, ends (and so detaches) with the object.
class tracer {
 public:
  explicit tracer(pid_t pid) : tracer(pid, start_time_of(pid).value_or(0)) {}
  tracer(pid_t pid, std::uint64_t start_time) {
    std::promise<error_code> opened;
    auto outcome = opened.get_future();
    thread_ = std::thread{[this, pid, start_time, &opened] {
      auto seized =
          tracee::seize(pid, start_time, [this](std::string_view words) { message_ = words; });
      opened.set_value(seized ? error_code{} : seized.error());
      if (!seized) return;
      while (!stop_) {
        const auto change = (*seized)->service();
        if (change != tracee::change::none) change_ = change;
        if (change == tracee::change::exited || change == tracee::change::lost) return;
        std::this_thread::sleep_for(1ms);
      }
    }};
    error_ = outcome.get();
  }
  ~tracer() { end(); }
  void end() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  error_code error() const { return error_; }
  /// After a refusal.
  std::string message() {
    end();
    return message_;
  }
  bool sees(tracee::change what) {
    return eventually(patience, [&] { return change_ == what; });
  }

 private:
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<tracee::change> change_{tracee::change::none};
  error_code error_;
  std::string message_;
};

volatile std::sig_atomic_t said_to = -1;
void say_a_byte(int) { (void)!::write(said_to, "h", 1); }

/// Says 'r', then 'h' for every SIGUSR1.
int count_signals(int said) {
  said_to = said;
  struct sigaction action {};
  action.sa_handler = say_a_byte;
  ::sigaction(SIGUSR1, &action, nullptr);
  (void)!::write(said, "r", 1);
  for (;;) ::pause();
}

/// Waits for family::tell(), and so for what the test does first.
void wait_for_order(int told) {
  char order = 0;
  (void)!::read(told, &order, 1);
}

TEST(Tracee, PassesSignalsOnToTheTarget) {
  family target{count_signals};
  ASSERT_EQ(target.heard(), 'r');
  tracer tracing{target.pid()};
  ASSERT_FALSE(tracing.error());
  for (int round = 0; round < 20; ++round) {
    ::kill(target.pid(), SIGUSR1);
    ASSERT_EQ(target.heard(), 'h');
  }
}

class TraceeStop : public ::testing::TestWithParam<int> {};

// A stop must stop, must be seen by the real parent, and must end with SIGCONT.
TEST_P(TraceeStop, StopsAndContinuesAsIfUntraced) {
  family target{count_signals};
  ASSERT_EQ(target.heard(), 'r');
  tracer tracing{target.pid()};
  ASSERT_FALSE(tracing.error());
  for (int round = 0; round < 3; ++round) {
    ::kill(target.pid(), GetParam());
    const auto stopped = target.status();
    ASSERT_TRUE(stopped);
    EXPECT_TRUE(WIFSTOPPED(*stopped));
    EXPECT_EQ(WSTOPSIG(*stopped), GetParam());
    ::kill(target.pid(), SIGUSR1);
    EXPECT_FALSE(target.heard(50ms)) << "it ran while it was stopped";
    ::kill(target.pid(), SIGCONT);
    const auto continued = target.status();
    ASSERT_TRUE(continued);
    EXPECT_TRUE(WIFCONTINUED(*continued));
    EXPECT_EQ(target.heard(), 'h');
  }
}
INSTANTIATE_TEST_SUITE_P(Signals, TraceeStop,
                         ::testing::Values(SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU));

TEST(Tracee, StaysStoppedWhenItsTracerEnds) {
  family target{count_signals};
  ASSERT_EQ(target.heard(), 'r');
  {
    tracer tracing{target.pid()};
    ASSERT_FALSE(tracing.error());
    ::kill(target.pid(), SIGSTOP);
    ASSERT_TRUE(target.status());
  }
  EXPECT_TRUE(eventually(patience, [&] { return tracer_of(target.pid()) == 0; }));
  // Inside the kernel it wakes, to change from a tracer's stop to its own.
  EXPECT_TRUE(eventually(patience, [&] { return state_of(target.pid()) == 'T'; }));
  ::kill(target.pid(), SIGUSR1);
  EXPECT_FALSE(target.heard(50ms)) << "it runs";
  ::kill(target.pid(), SIGCONT);
  EXPECT_EQ(target.heard(), 'h');
}

TEST(Tracee, LeavesTheExitStatusToTheRealParent) {
  family target{[](int, int told) {
    wait_for_order(told);
    return 7;
  }};
  tracer tracing{target.pid()};
  ASSERT_FALSE(tracing.error());
  target.tell('e');
  const auto status = target.status();
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFEXITED(*status));
  EXPECT_EQ(WEXITSTATUS(*status), 7);
  EXPECT_TRUE(tracing.sees(tracee::change::exited));
}

TEST(Tracee, LeavesADeadlySignalToTheRealParent) {
  family target{count_signals};
  ASSERT_EQ(target.heard(), 'r');
  tracer tracing{target.pid()};
  ASSERT_FALSE(tracing.error());
  ::kill(target.pid(), SIGTERM);
  const auto status = target.status();
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFSIGNALED(*status));
  EXPECT_EQ(WTERMSIG(*status), SIGTERM);
  EXPECT_TRUE(tracing.sees(tracee::change::exited));
}

// A process that ends meanwhile is what the driver's ENABLE cannot bear.
TEST(Tracee, KeepsTheMemoryOfATargetThatEndsUntilItIsServed) {
  family target{count_signals};
  ASSERT_EQ(target.heard(), 'r');
  const auto started = start_time_of(target.pid());
  ASSERT_TRUE(started);
  const auto seized =
      tracee::seize(target.pid(), *started, [](std::string_view) { ADD_FAILURE(); });
  ASSERT_TRUE(seized);
  ::kill(target.pid(), SIGKILL);
  ASSERT_TRUE(eventually(patience, [&] { return state_of(target.pid()) == 't'; }));
  ::kill(target.pid(), SIGKILL);
  const unique_fd memory{
      ::open(("/proc/" + std::to_string(target.pid()) + "/mem").c_str(), O_RDONLY | O_CLOEXEC)};
  static const char in_both = 'x';  // The target is a copy of this process.
  char byte = 0;
  EXPECT_EQ(::pread(memory.get(), &byte, 1, std::bit_cast<off_t>(&in_both)), 1);
  EXPECT_EQ(byte, 'x');
  EXPECT_FALSE(target.status(50ms)) << "it ended before it was served";
  EXPECT_TRUE(eventually(patience, [&] { return (*seized)->service() == tracee::change::exited; }));
  const auto status = target.status();
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFSIGNALED(*status));
}

TEST(Tracee, LetsAWaitForAChildReturnOnlyAtItsEnd) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (;;) ::pause();
  }
  tracer tracing{child};
  ASSERT_FALSE(tracing.error());
  ::kill(child, SIGKILL);
  int status = 0;
  const pid_t got = ::waitpid(child, &status, 0);
  // The tracer's thread may take the status of a child of its own process first.
  EXPECT_TRUE(got == child ? WIFSIGNALED(status) : errno == ECHILD);
  EXPECT_EQ(::kill(child, 0), -1) << "it has not ended";
}

// Programs exist that take EINTR from epoll_wait for the end of the world.
TEST(Tracee, InterruptsNoBlockingCall) {
  family target{[](int said, int told) {
    const int events = ::epoll_create1(0);
    epoll_event event{.events = EPOLLIN, .data = {}};
    if (::epoll_ctl(events, EPOLL_CTL_ADD, told, &event) != 0) return errno;
    (void)!::write(said, "r", 1);
    return ::epoll_wait(events, &event, 1, -1) == 1 ? 0 : errno;
  }};
  ASSERT_EQ(target.heard(), 'r');
  ASSERT_TRUE(eventually(patience, [&] { return state_of(target.pid()) == 'S'; }));
  for (int round = 0; round < 5; ++round) {
    tracer tracing{target.pid()};
    ASSERT_FALSE(tracing.error());
    std::this_thread::sleep_for(10ms);
  }
  target.tell('e');
  const auto status = target.status();
  ASSERT_TRUE(status);
  EXPECT_EQ(WEXITSTATUS(*status), 0) << std::strerror(WEXITSTATUS(*status));
}

TEST(Tracee, ReportsAnExecAndKeepsTracing) {
  family target{[](int said, int told) {
    wait_for_order(told);
    // The shell says itself when it has set its trap.
    const std::string script = "trap 'exit 9' USR1; echo t >/proc/self/fd/" + std::to_string(said) +
                               "; while :; do sleep 0.01; done";
    ::fcntl(said, F_SETFD, 0);
    ::execl("/bin/sh", "sh", "-c", script.c_str(), nullptr);
    return 1;
  }};
  tracer tracing{target.pid()};
  ASSERT_FALSE(tracing.error());
  target.tell('x');
  ASSERT_TRUE(tracing.sees(tracee::change::exec));
  EXPECT_NE(tracer_of(target.pid()), 0);
  ASSERT_EQ(target.heard(), 't');
  EXPECT_EQ(command_of(target.pid()), "sh");
  ::kill(target.pid(), SIGWINCH);
  ::kill(target.pid(), SIGUSR1);
  const auto status = target.status();
  ASSERT_TRUE(status);
  EXPECT_EQ(WEXITSTATUS(*status), 9);
}

// The kernel gives the leader's id to the thread that execs, and that one is not traced.
TEST(Tracee, ReportsTheTargetLostWhenAnotherThreadExecs) {
  family target{[](int, int told) {
    std::thread other{[told] {
      wait_for_order(told);
      ::execl("/bin/sleep", "sleep", "60", nullptr);
    }};
    for (;;) ::pause();
    return 0;
  }};
  {
    tracer tracing{target.pid()};
    ASSERT_FALSE(tracing.error());
    target.tell('x');
    ASSERT_TRUE(tracing.sees(tracee::change::lost));
  }
  tracer again{target.pid()};
  EXPECT_FALSE(again.error());
  EXPECT_NE(tracer_of(target.pid()), 0);
}

TEST(Tracee, RefusesAProcessWithAnotherStartTime) {
  family target{count_signals};
  tracer tracing{target.pid(), start_time_of(target.pid()).value() + 1};
  EXPECT_EQ(tracing.error(), errc::unknown_target);
  EXPECT_EQ(tracer_of(target.pid()), 0);
}

TEST(Tracee, RefusesAProcessThatIsGone) {
  pid_t pid = 0;
  std::uint64_t start_time = 0;
  {
    family target{count_signals};
    pid = target.pid();
    start_time = start_time_of(pid).value();
  }
  ASSERT_TRUE(eventually(patience, [&] { return !start_time_of(pid); }));
  tracer tracing{pid, start_time};
  EXPECT_EQ(tracing.error(), errc::unknown_target);
}

// The kernel refuses to trace it, as it refuses a process for which the rights are missing.
TEST(Tracee, RefusesAProcessThatHasEndedAndWaitsForItsParent) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  ASSERT_GT(pid, 0);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  tracer tracing{pid};
  EXPECT_EQ(tracing.error(), errc::unknown_target);
  EXPECT_EQ(tracing.message(), "");
  EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
}

// A thread traces; who it belongs to, and how to make that let go, is what the reader needs.
TEST(Tracee, RefusesATracedProcessAndNamesTheTracersProcess) {
  family target{count_signals};
  ASSERT_EQ(target.heard(), 'r');
  const pid_t pid = target.pid();
  const std::string number = std::to_string(pid);
  const std::vector<std::pair<std::string, std::string>> advice{
      {"sluice", "run 'sluice resume " + number + "' to detach it"},
      {"sluice-agent", "this agent acts for a scheduler: run 'sluice release " + number +
                           "' to detach it; all schedulers on a node must share one owner lock "
                           "(directory in [daemon])"},
      {"gdb", "detach that program; if it is a scheduler, run 'sluice release " + number + "'"}};
  for (const auto& [name, way] : advice) {
    ASSERT_TRUE(eventually(patience, [&] { return tracer_of(pid) == 0; }))
        << "the one before is gone";
    family debugger{[pid, &name = name](int said) {
      ::prctl(PR_SET_NAME, name.c_str());
      std::thread{[pid, said] {
        ::prctl(PR_SET_NAME, "worker");
        if (::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) != 0) return;
        (void)!::write(said, "r", 1);
        for (;;) ::pause();
      }}.join();
      return 1;
    }};
    ASSERT_EQ(debugger.heard(), 'r');
    EXPECT_NE(tracer_of(pid), debugger.pid()) << "it is a thread of that";
    tracer tracing{pid};
    EXPECT_EQ(tracing.error(), errc::not_managed);
    EXPECT_EQ(tracing.message(), "cannot manage process " + number + " (" + command_of(pid) +
                                     "): it is traced by pid " + std::to_string(debugger.pid()) +
                                     " (" + name + "); " + way);
  }
}

// The kernel lets go of a tracee a little after the thread has been joined.
TEST(Tracee, FollowsATracerThatIsJustEnding) {
  family target{count_signals};
  ASSERT_EQ(target.heard(), 'r');
  for (int round = 0; round < 100; ++round) {
    tracer tracing{target.pid()};
    ASSERT_FALSE(tracing.error()) << "round " << round << ": " << tracing.message();
  }
}

TEST(Tracee, IsUntracedSoonAfterItsTracerEnds) {
  family target{count_signals};
  ASSERT_EQ(target.heard(), 'r');
  {
    tracer tracing{target.pid()};
    ASSERT_FALSE(tracing.error());
    EXPECT_NE(tracer_of(target.pid()), 0);
  }
  EXPECT_TRUE(eventually(patience, [&] { return tracer_of(target.pid()) == 0; }));
  ::kill(target.pid(), SIGUSR1);
  EXPECT_EQ(target.heard(), 'h');
}

}  // namespace
}  // namespace sluice::kfd::tracee_test
