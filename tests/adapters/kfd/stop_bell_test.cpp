#include "stop_bell.hpp"

#include "family.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "sluice/kfd/tracee.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::kfd::stop_bell_test {
namespace {

using namespace std::chrono_literals;
using test::family;
using test::state_of;

/// Says 's' for each SIGUSR1.
int say_signals(int said) {
  static int to = said;
  struct sigaction action {};
  action.sa_handler = [](int) { (void)!::write(to, "s", 1); };
  ::sigaction(SIGUSR1, &action, nullptr);
  (void)!::write(said, "r", 1);
  for (;;) ::pause();
}

/// Waits for a stop of this thread's tracee, and leaves it to be served.
bool stands(const family& target) {
  siginfo_t stop{};
  return ::waitid(P_PID, static_cast<id_t>(target.pid()), &stop, WSTOPPED | WNOWAIT | __WALL) == 0;
}

/// What a tracer's thread has. Made and used on a thread that ends, since only that lets go of the
/// target.
struct listener {
  explicit listener(const family& target, bell_maker* maker = nullptr) {
    auto seized =
        tracee::seize(target.pid(), start_time_of(target.pid()).value_or(0), messages_to_stderr());
    if (seized) traced = std::move(*seized);
    bell = stop_bell::hang(rings.get(), maker);
  }
  bool ready() const { return traced && bell; }
  bool rung(duration limit = 5s) const {
    pollfd waiting{rings.get(), POLLIN, 0};
    eventfd_t count = 0;
    return ::poll(&waiting, 1, static_cast<int>(limit / 1ms)) == 1 &&
           ::eventfd_read(rings.get(), &count) == 0;
  }

  unique_fd rings{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::unique_ptr<tracee> traced;
  std::unique_ptr<stop_bell> bell;
};

class StopBell : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!stop_bell::offered()) GTEST_SKIP() << "needs Linux 6.7 and io_uring";
  }
  static void on_a_thread(const std::function<void()>& body) { std::thread{body}.join(); }
};

TEST_F(StopBell, RingsOnceForAStop) {
  const family target{say_signals};
  ASSERT_EQ(target.heard(), 'r');
  on_a_thread([&] {
    listener here{target};
    ASSERT_TRUE(here.ready());
    for (int round = 0; round < 3; ++round) {
      ASSERT_TRUE(here.bell->arm());
      EXPECT_FALSE(here.rung(10ms));
      ::kill(target.pid(), SIGUSR1);
      ASSERT_TRUE(here.rung());
      here.traced->service();
      EXPECT_EQ(target.heard(), 's');
    }
  });
}

TEST_F(StopBell, RingsForAStopThatCameBefore) {
  const family target{say_signals};
  ASSERT_EQ(target.heard(), 'r');
  on_a_thread([&] {
    listener here{target};
    ASSERT_TRUE(here.ready());
    ::kill(target.pid(), SIGUSR1);
    ASSERT_TRUE(stands(target));
    ASSERT_TRUE(here.bell->arm());
    EXPECT_TRUE(here.rung(0ms));
    here.traced->service();
  });
}

TEST_F(StopBell, GoesOnListeningWhenItsStopWasServedInPassing) {
  const family target{say_signals};
  ASSERT_EQ(target.heard(), 'r');
  on_a_thread([&] {
    listener here{target};
    ASSERT_TRUE(here.ready());
    ASSERT_TRUE(here.bell->arm());
    ::kill(target.pid(), SIGUSR1);
    ASSERT_TRUE(stands(target));
    here.traced->service();
    EXPECT_TRUE(here.rung());
    ASSERT_TRUE(here.bell->arm());
    EXPECT_FALSE(here.rung(10ms));
    ::kill(target.pid(), SIGUSR1);
    EXPECT_TRUE(here.rung());
    here.traced->service();
  });
}

TEST_F(StopBell, DoesNotRingForAnotherThreadsTracee) {
  const family quiet{say_signals};
  const family loud{say_signals};
  ASSERT_EQ(quiet.heard(), 'r');
  ASSERT_EQ(loud.heard(), 'r');
  on_a_thread([&] {
    listener here{quiet};
    ASSERT_TRUE(here.ready());
    ASSERT_TRUE(here.bell->arm());
    on_a_thread([&] {
      listener there{loud};
      ASSERT_TRUE(there.ready());
      ASSERT_TRUE(there.bell->arm());
      ::kill(loud.pid(), SIGUSR1);
      EXPECT_TRUE(there.rung());
      there.traced->service();
    });
    EXPECT_FALSE(here.rung(10ms));
  });
}

TEST_F(StopBell, RingsForTheEndAndWhenThereIsNobodyLeft) {
  const family target{say_signals};
  ASSERT_EQ(target.heard(), 'r');
  on_a_thread([&] {
    listener here{target};
    ASSERT_TRUE(here.ready());
    ASSERT_TRUE(here.bell->arm());
    ::kill(target.pid(), SIGKILL);
    // Threads that a sanitizer added to the target ring for themselves before it.
    auto seen = tracee::change::none;
    while (seen == tracee::change::none && here.rung()) {
      seen = here.traced->service();
      ASSERT_TRUE(here.bell->arm());
    }
    EXPECT_EQ(seen, tracee::change::exited);
    EXPECT_TRUE(here.rung(0ms));
  });
}

TEST_F(StopBell, RingsWhenAnotherThreadsExecTakesTheTraceeAway) {
  const family target{[](int said, int told) {
    std::thread other{[told] {
      char order = 0;
      (void)!::read(told, &order, 1);
      ::execl("/bin/sleep", "sleep", "60", nullptr);
    }};
    (void)!::write(said, "r", 1);
    for (;;) ::pause();
    return 0;
  }};
  ASSERT_EQ(target.heard(), 'r');
  on_a_thread([&] {
    listener here{target};
    ASSERT_TRUE(here.ready());
    ASSERT_TRUE(here.bell->arm());
    target.tell('x');
    ASSERT_TRUE(here.rung());
    EXPECT_TRUE(test::eventually(test::patience,
                                 [&] { return here.traced->service() == tracee::change::lost; }));
  });
}

// The thread may be in a driver call, which signals and what is made like them would break off.
TEST_F(StopBell, InterruptsNoCall) {
  const family target{say_signals};
  ASSERT_EQ(target.heard(), 'r');
  on_a_thread([&] {
    listener here{target};
    ASSERT_TRUE(here.ready());
    ASSERT_TRUE(here.bell->arm());
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    unique_fd reads{ends[0]};
    unique_fd writes{ends[1]};
    std::thread signalling{[&, caller = ::gettid()] {
      EXPECT_TRUE(test::eventually(test::patience, [&] { return state_of(caller) == 'S'; }));
      ::kill(target.pid(), SIGUSR1);
      EXPECT_TRUE(stands(target));
      (void)!::write(writes.get(), "e", 1);
    }};
    char byte = 0;
    EXPECT_EQ(::read(reads.get(), &byte, 1), 1) << std::strerror(errno);
    signalling.join();
    EXPECT_TRUE(here.rung());
    here.traced->service();
  });
}

// For an agent that may not make rings itself.
TEST_F(StopBell, IsMadeByAnotherProcess) {
  int confined = 0;
  const auto maker = bell_maker::start([&] { return ++confined == 1; });
  ASSERT_TRUE(maker);
  const family target{say_signals};
  ASSERT_EQ(target.heard(), 'r');
  for (int round = 0; round < 3; ++round) {
    on_a_thread([&] {
      listener here{target, maker->get()};
      ASSERT_TRUE(here.ready());
      ASSERT_TRUE(here.bell->arm());
      EXPECT_FALSE(here.rung(10ms));
      ::kill(target.pid(), SIGUSR1);
      EXPECT_TRUE(here.rung());
      here.traced->service();
    });
    EXPECT_EQ(target.heard(), 's');
  }
  EXPECT_EQ(confined, 0) << "that was for the child";
}

TEST_F(StopBell, IsDoneWithoutWhereItsMakerDoesNotConfineItself) {
  const auto maker = bell_maker::start([] { return false; });
  ASSERT_TRUE(maker);
  const unique_fd rings{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  EXPECT_EQ(stop_bell::hang(rings.get(), maker->get()), nullptr);
  EXPECT_EQ(stop_bell::hang(rings.get(), maker->get()), nullptr) << "and it is not asked again";
}

// Else whoever has the agent's ring could do by it what the filter forbids.
TEST_F(StopBell, RingsOfItsMakerTakeNoOtherRequest) {
  io_uring_params how{};
  unique_fd made{make_restricted_ring(how)};
  ASSERT_TRUE(made);
  const auto allow_more = [&] {
    io_uring_restriction more{};
    more.opcode = IORING_RESTRICTION_SQE_OP;
    more.sqe_op = IORING_OP_OPENAT;
    return ::syscall(SYS_io_uring_register, made.get(), IORING_REGISTER_RESTRICTIONS, &more, 1);
  };
  EXPECT_LT(allow_more(), 0);
  io_uring ring{};
  ASSERT_EQ(io_uring_queue_mmap(made.get(), &how, &ring), 0);
  ASSERT_EQ(enable_ring(made.get()), 0);
  EXPECT_LT(allow_more(), 0);
  for (const auto operation :
       {IORING_OP_NOP, IORING_OP_OPENAT, IORING_OP_SOCKET, IORING_OP_WRITE}) {
    io_uring_sqe* const request = io_uring_get_sqe(&ring);
    ASSERT_NE(request, nullptr);
    io_uring_prep_rw(operation, request, AT_FDCWD, "/dev/null", 0, 0);
    ASSERT_EQ(io_uring_submit_and_wait(&ring, 1), 1);
    io_uring_cqe* answer = nullptr;
    ASSERT_EQ(io_uring_peek_cqe(&ring, &answer), 0);
    EXPECT_EQ(answer->res, -EACCES) << "operation " << operation;
    io_uring_cqe_seen(&ring, answer);
  }
  (void)made.release();
  io_uring_queue_exit(&ring);
}

}  // namespace
}  // namespace sluice::kfd::stop_bell_test
