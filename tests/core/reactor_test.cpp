#include "sluice/reactor.hpp"

#include "eventually.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>

#include "sluice/asio.hpp"

namespace sluice::reactor_test {
namespace {

using namespace std::chrono_literals;
using test::patience;

/// A descriptor that closes itself.
class owned_fd {
 public:
  explicit owned_fd(int fd) : fd_(fd) { EXPECT_GE(fd, 0); }
  ~owned_fd() { close(fd_); }
  owned_fd(const owned_fd&) = delete;
  owned_fd& operator=(const owned_fd&) = delete;
  operator int() const { return fd_; }

 private:
  int fd_;
};

std::unique_ptr<reactor> make() {
  auto made = reactor::create();
  EXPECT_TRUE(made) << made.error().message();
  return std::move(*made);
}

/// Steps the loop until the condition holds.
template <class Condition>
bool run_until(reactor& loop, Condition&& condition) {
  const auto deadline = clock::now() + patience;
  while (!condition()) {
    if (clock::now() > deadline) return false;
    if (!loop.poll_once()) std::this_thread::yield();
  }
  return true;
}

TEST(Reactor, RunsOnTheBackendThatTheBuildChose) {
  EXPECT_EQ(make()->backend(), reactor_backend::SLUICE_EXPECTED_BACKEND);
}

TEST(Reactor, IsGrantedWhatTheProbeSays) {
  if (const auto probe = probe_io_uring(); !probe) {
    GTEST_SKIP() << "no io_uring here: " << probe.error().message();
  }
  EXPECT_TRUE(reactor::create());
}

TEST(Reactor, CallsBackWhenADescriptorIsReadable) {
  const auto loop = make();
  const owned_fd fd(eventfd(0, EFD_CLOEXEC));
  int calls = 0;
  ASSERT_TRUE(loop->watch(fd, [&] {
    eventfd_t value = 0;
    eventfd_read(fd, &value);
    ++calls;
  }));
  EXPECT_FALSE(loop->poll_once());
  eventfd_write(fd, 1);
  EXPECT_TRUE(run_until(*loop, [&] { return calls == 1; }));
  for (int i = 0; i < 100; ++i) loop->poll_once();
  EXPECT_EQ(calls, 1);
  eventfd_write(fd, 1);
  EXPECT_TRUE(run_until(*loop, [&] { return calls == 2; }));
}

TEST(Reactor, CallsAgainUntilADescriptorIsNoLongerReadable) {
  const auto loop = make();
  const owned_fd fd(eventfd(3, EFD_CLOEXEC | EFD_SEMAPHORE));
  int calls = 0;
  ASSERT_TRUE(loop->watch(fd, [&] {
    eventfd_t value = 0;
    eventfd_read(fd, &value);
    ++calls;
  }));
  EXPECT_TRUE(run_until(*loop, [&] { return calls == 3; }));
}

TEST(Reactor, RefusesADescriptorThatIsNotOpen) {
  EXPECT_FALSE(make()->watch(-1, [] {}));
}

TEST(Reactor, SeesAProcessExit) {
  const auto loop = make();
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const owned_fd fd(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  bool gone = false;
  watch_id id{};
  id = *loop->watch(fd, [&] {
    gone = true;
    loop->unwatch(id);
  });
  loop->poll_once();
  EXPECT_FALSE(gone);
  kill(child, SIGKILL);
  EXPECT_TRUE(run_until(*loop, [&] { return gone; }));
  waitpid(child, nullptr, 0);
}

TEST(Reactor, SeesAnInotifyEvent) {
  const auto loop = make();
  const auto folder =
      std::filesystem::temp_directory_path() / ("sluice_reactor_" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const owned_fd fd(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ASSERT_GE(inotify_add_watch(fd, folder.c_str(), IN_CREATE), 0);
  bool seen = false;
  ASSERT_TRUE(loop->watch(fd, [&] {
    alignas(inotify_event) char buffer[4096];
    seen = read(fd, buffer, sizeof buffer) > 0;
  }));
  std::ofstream(folder / "new") << "x";
  EXPECT_TRUE(run_until(*loop, [&] { return seen; }));
  std::filesystem::remove_all(folder);
}

TEST(Reactor, StopsCallingAfterUnwatch) {
  const auto loop = make();
  const owned_fd fd(eventfd(1, EFD_CLOEXEC));
  int calls = 0;
  const auto id = loop->watch(fd, [&] { ++calls; });
  ASSERT_TRUE(id);
  EXPECT_TRUE(run_until(*loop, [&] { return calls >= 2; }));
  loop->unwatch(*id);
  const int before = calls;
  for (int i = 0; i < 100; ++i) loop->poll_once();
  EXPECT_EQ(calls, before);
  loop->unwatch(*id);  // Gone already: nothing happens.
}

TEST(Reactor, MayBeToldToUnwatchInsideTheHandler) {
  const auto loop = make();
  const owned_fd fd(eventfd(1, EFD_CLOEXEC));
  watch_id id{};
  // On the heap, so that a sanitizer sees a handler that outlives its function.
  auto calls = std::make_unique<int>(0);
  id = *loop->watch(fd, [&, state = std::make_shared<int>(7)] {
    loop->unwatch(id);
    ++*calls;
    EXPECT_EQ(*state, 7);
  });
  EXPECT_TRUE(run_until(*loop, [&] { return *calls == 1; }));
  for (int i = 0; i < 100; ++i) loop->poll_once();
  EXPECT_EQ(*calls, 1);
}

TEST(Reactor, MayWatchADescriptorAgainAfterUnwatch) {
  const auto loop = make();
  const owned_fd fd(eventfd(1, EFD_CLOEXEC));
  const auto first = loop->watch(fd, [] { FAIL() << "the first watch has ended"; });
  ASSERT_TRUE(first);
  loop->unwatch(*first);
  bool seen = false;
  ASSERT_TRUE(loop->watch(fd, [&] { seen = true; }));
  EXPECT_TRUE(run_until(*loop, [&] { return seen; }));
}

/// Was broken where unwatch() cancelled an operation of the ring: after one round of its 16384
/// entries, cancelling one watch completed another.
TEST(Reactor, KeepsOtherWatchesWholeThroughManyUnwatches) {
  const auto loop = make();
  const owned_fd steady(eventfd(0, EFD_CLOEXEC));
  const owned_fd passing(eventfd(0, EFD_CLOEXEC));
  int calls = 0;
  ASSERT_TRUE(loop->watch(steady, [&] {
    eventfd_t value = 0;
    eventfd_read(steady, &value);
    ++calls;
  }));
  for (int i = 1; i <= 20'000; ++i) {
    const auto id = loop->watch(passing, [] { FAIL() << "nothing was written"; });
    ASSERT_TRUE(id);
    loop->poll_once();
    loop->unwatch(*id);
    eventfd_write(steady, 1);
    ASSERT_TRUE(run_until(*loop, [&] { return calls == i; })) << i;
  }
}

TEST(Reactor, MayBeDestroyedWithWatchesAndTimersInFlight) {
  const owned_fd fd(eventfd(1, EFD_CLOEXEC));
  const auto loop = make();
  ASSERT_TRUE(loop->watch(fd, [] {}));
  const auto timer = loop->add_timer([] {});
  ASSERT_TRUE(timer);
  loop->arm(*timer, clock::now() + 1h);
  loop->post([] {});
}

TEST(Reactor, FiresATimerOnceAtItsTimeOrAfter) {
  const auto loop = make();
  int fired = 0;
  const auto timer = loop->add_timer([&] { ++fired; });
  ASSERT_TRUE(timer);
  const auto when = clock::now() + 5ms;
  loop->arm(*timer, when);
  EXPECT_TRUE(run_until(*loop, [&] { return fired == 1; }));
  EXPECT_GE(clock::now(), when);
  const auto quiet = clock::now() + 20ms;
  while (clock::now() < quiet) loop->poll_once();
  EXPECT_EQ(fired, 1);
}

TEST(Reactor, MovesATimerInAndOut) {
  const auto loop = make();
  time_point fired{};
  const auto timer = loop->add_timer([&] { fired = clock::now(); });
  ASSERT_TRUE(timer);
  loop->arm(*timer, clock::now() + 1h);
  loop->arm(*timer, clock::now() + 1ms);
  EXPECT_TRUE(run_until(*loop, [&] { return fired != time_point{}; }));

  fired = {};
  const auto later = clock::now() + 40ms;
  loop->arm(*timer, clock::now() + 2ms);
  loop->arm(*timer, later);
  EXPECT_TRUE(run_until(*loop, [&] { return fired != time_point{}; }));
  EXPECT_GE(fired, later);
}

TEST(Reactor, NeverFiresAPunctualTimerEarlyWhateverItHasLearned) {
  const auto loop = make();
  time_point fired{};
  const auto timer = loop->add_timer([&] { fired = clock::now(); }, true);
  ASSERT_TRUE(timer);
  for (int i = 0; i < 300; ++i) {
    fired = {};
    const auto when = clock::now() + 200us + i * 1us;
    loop->arm(*timer, when);
    ASSERT_TRUE(run_until(*loop, [&] { return fired != time_point{}; }));
    ASSERT_GE(fired, when);
    // As if the loop had been kept from it, so that it learns to be early.
    loop->arm(*timer, clock::now() + 10us);
    std::this_thread::sleep_for(100us);
    fired = {};
    ASSERT_TRUE(run_until(*loop, [&] { return fired != time_point{}; }));
  }
}

TEST(Reactor, AWatchByEdgesIsCalledForEachWriteAndNeedsNoRead) {
  const auto loop = make();
  const owned_fd bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  int calls = 0;
  ASSERT_TRUE(loop->watch(
      bell, [&] { ++calls; }, reactor::trigger::edge));
  for (int i = 1; i <= 100; ++i) {
    eventfd_write(bell, 1);
    ASSERT_TRUE(run_until(*loop, [&] { return calls == i; }));
    while (loop->poll_once()) {
    }
    ASSERT_EQ(calls, i);
  }
}

TEST(Reactor, DoesNotFireADisarmedOrRemovedTimer) {
  const auto loop = make();
  int fired = 0;
  const auto disarmed = loop->add_timer([&] { ++fired; });
  const auto removed = loop->add_timer([&] { ++fired; });
  loop->arm(*disarmed, clock::now() + 1ms);
  loop->arm(*disarmed, never);
  loop->arm(*removed, clock::now() + 1ms);
  loop->remove(*removed);
  const auto quiet = clock::now() + 20ms;
  while (clock::now() < quiet) loop->poll_once();
  EXPECT_EQ(fired, 0);
}

TEST(Reactor, ArmsATimerFromItsOwnHandler) {
  const auto loop = make();
  int fired = 0;
  timer_id timer{};
  timer = *loop->add_timer([&] {
    if (++fired < 10) loop->arm(timer, clock::now() + 100us);
  });
  loop->arm(timer, clock::now());
  EXPECT_TRUE(run_until(*loop, [&] { return fired == 10; }));
}

TEST(Reactor, RunsPostedWorkLaterAndOnItsThread) {
  const auto loop = make();
  bool ran = false;
  std::thread([&] { loop->post([&] { ran = loop->running_here(); }); }).join();
  EXPECT_FALSE(ran);
  EXPECT_FALSE(loop->running_here());
  EXPECT_TRUE(run_until(*loop, [&] { return ran; }));
}

TEST(Reactor, StopsFromAnotherThread) {
  const auto loop = make();
  std::thread other([&] { loop->stop(); });
  loop->run();
  other.join();
}

TEST(Reactor, RemembersAStopThatCameBeforeRun) {
  const auto loop = make();
  loop->stop();
  loop->run();
}

TEST(Reactor, MayRunAgainAfterStop) {
  const auto loop = make();
  loop->stop();
  loop->run();
  bool ran = false;
  loop->post([&] {
    ran = true;
    loop->stop();
  });
  loop->run();
  EXPECT_TRUE(ran);
}

TEST(Reactor, KeepsHandlersOutDuringAnExclusiveCall) {
  const auto loop = make();
  const owned_fd fd(eventfd(1, EFD_CLOEXEC));
  std::atomic<int> inside{0};
  std::atomic<int> calls{0};
  ASSERT_TRUE(loop->watch(fd, [&] {
    EXPECT_EQ(inside.fetch_add(1), 0);
    ++calls;
    inside.fetch_sub(1);
  }));
  std::thread runner([&] { loop->run(); });
  for (int i = 0; i < 2'000; ++i) {
    loop->exclusive([&] {
      EXPECT_TRUE(loop->running_here());
      EXPECT_EQ(inside.fetch_add(1), 0);
      loop->exclusive([] {});  // Nested: at once.
      inside.fetch_sub(1);
    });
  }
  const auto deadline = clock::now() + patience;
  while (calls == 0 && clock::now() < deadline) std::this_thread::yield();
  EXPECT_GT(calls, 0);
  loop->stop();
  runner.join();
}

// On the host's loop ----------------------------------------------------------------------------

class HostedReactor : public ::testing::Test {
 protected:
  void run_threads(int number) {
    for (int i = 0; i < number; ++i) threads_.emplace_back([this] { context_.run(); });
  }
  void join() {
    for (auto& one : threads_) one.join();
    threads_.clear();
  }
  std::unique_ptr<reactor> make_hosted() {
    auto made = make_reactor(context_);
    EXPECT_TRUE(made);
    return std::move(*made);
  }

  boost::asio::io_context context_;
  std::vector<std::thread> threads_;
};

TEST_F(HostedReactor, LeavesRunningToTheHost) {
  const auto loop = make_hosted();
  EXPECT_TRUE(loop->hosted());
  EXPECT_EQ(loop->backend(), reactor_backend::SLUICE_EXPECTED_BACKEND);
  loop->run();
  EXPECT_FALSE(loop->poll_once());
}

TEST_F(HostedReactor, RunsHandlersOneAtATimeHoweverManyThreadsTheHostHas) {
  constexpr int descriptors = 4;
  constexpr int wanted = 2'000;
  auto loop = make_hosted();
  std::atomic<int> inside{0};
  std::atomic<int> overlaps{0};
  int calls = 0;  // Guarded by nothing but the promise.
  std::atomic<bool> enough{false};
  std::vector<std::unique_ptr<owned_fd>> fds;
  for (int i = 0; i < descriptors; ++i) {
    fds.push_back(std::make_unique<owned_fd>(eventfd(1, EFD_CLOEXEC)));
    loop->exclusive([&] {
      ASSERT_TRUE(loop->watch(*fds.back(), [&] {
        if (inside.fetch_add(1) != 0) ++overlaps;
        if (++calls == wanted) enough = true;
        inside.fetch_sub(1);
      }));
    });
  }
  run_threads(4);
  const auto deadline = clock::now() + patience;
  while (!enough && clock::now() < deadline) std::this_thread::sleep_for(100us);
  EXPECT_TRUE(enough);
  EXPECT_EQ(overlaps, 0);
  loop.reset();
  join();  // Nothing of the reactor keeps the context busy any more.
}

TEST_F(HostedReactor, MayBeDestroyedWhileTheHostRunsItsHandlers) {
  for (int round = 0; round < 50; ++round) {
    auto loop = make_hosted();
    const owned_fd fd(eventfd(1, EFD_CLOEXEC));
    auto state = std::make_unique<std::atomic<int>>(0);
    auto* const counter = state.get();
    loop->exclusive([&] {
      ASSERT_TRUE(loop->watch(fd, [counter] { ++*counter; }));
      const auto timer = loop->add_timer([counter] { ++*counter; });
      loop->arm(*timer, clock::now());
    });
    loop->post([counter] { ++*counter; });
    if (round == 0) context_.restart();
    run_threads(2);
    if (round % 2 == 0) {
      const auto deadline = clock::now() + patience;
      while (*state == 0 && clock::now() < deadline) std::this_thread::yield();
    }
    loop.reset();
    state.reset();  // A handler that ran now would be caught by a sanitizer.
    join();
    context_.restart();
  }
}

}  // namespace
}  // namespace sluice::reactor_test
