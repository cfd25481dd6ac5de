// Debug sessions through the mount: who may, what suspend and resume answer, and what happens when
// one side is interrupted, killed or replaced.

#include "driver_call.hpp"
#include "kfd_calls.hpp"
#include "simulated_device.hpp"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "sluice/sim/client.hpp"

namespace sluice::test::debug_test {
namespace {

using namespace std::chrono_literals;
using ids = std::vector<std::uint32_t>;

constexpr std::uint32_t gpu = 51110;
constexpr std::uint32_t invalid = uapi::KFD_DBG_QUEUE_INVALID_MASK;
constexpr std::uint32_t failed = uapi::KFD_DBG_QUEUE_ERROR_MASK;

/// Costs that do not make a test wait.
std::string quick_profile() {
  return profile_text("",
                      "suspend_cost = \"300us\"\nresume_cost = \"300us\"\ncycle_cost = \"50us\"\n");
}

sim::client_options client_of(const simulated_device& device) {
  return {.device = device.roots().device, .sysfs = device.roots().sysfs, .gpu = 0};
}

/// A target with one queue on which it runs a kernel at a time for ever; ends when told "exit".
class busy_target {
 public:
  explicit busy_target(const simulated_device& device)
      : device_{device}, child_{[&device](channel& line) { return run(device, line); }} {
    if (!child_.says("ready", 10s)) throw std::runtime_error("the target did not start");
  }
  child_process& process() { return child_; }
  pid_t pid() const { return child_.pid(); }

  /// Kernels that the device has completed for it.
  long completed() const {
    const auto stats = device_.stats();
    const auto entry = stats.find("{\"pid\":" + std::to_string(pid()) + ",");
    const std::string label = "\"kernels_completed\":";
    const auto at = stats.find(label, entry);
    if (entry == std::string::npos || at == std::string::npos) return -1;
    return std::stol(stats.substr(at + label.size()));
  }
  bool progresses(std::chrono::milliseconds deadline = 10s) const {
    const auto before = completed();
    return eventually(deadline, [&] { return completed() > before + 1; });
  }
  /// Whether the device completes nothing for longer than many kernels take.
  bool stands_still() const {
    const auto before = completed();
    std::this_thread::sleep_for(20ms);
    return completed() == before;
  }

 private:
  static int run(const simulated_device& device, channel& line) {
    auto client = sim::gpu_client::open(client_of(device));
    if (!client) return 1;
    auto queue = (*client)->create_queue({});
    if (!queue) return 2;
    std::atomic<bool> stop{false};
    std::thread worker{[&] {
      while (!stop) {
        const auto index = (*queue)->submit({.length = 500us, .waves = 64});
        (*queue)->ring();
        while (!stop && !(*queue)->wait(*index, 50ms)) {
        }
      }
    }};
    while ((*queue)->completed() < 1) std::this_thread::sleep_for(100us);
    line.send("ready");
    line.receive(60s);
    stop = true;
    worker.join();
    return (*queue)->destroy() ? 0 : 3;
  }

  const simulated_device& device_;
  child_process child_;
};

// q0 normal, q1 new, q2 suspended: what the driver answers to the array [..], entry by entry.
class SuspendVectors : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(kfd_.runtime_enable(true), 0);
    ASSERT_EQ(memory_[0].create(kfd_.fd(), gpu), 0);
    ASSERT_EQ(memory_[1].create(kfd_.fd(), gpu), 1);
    ASSERT_EQ(memory_[2].create(kfd_.fd(), gpu), 2);
    ASSERT_EQ(self_.enable(0), 0);
    ASSERT_EQ(self_.clear_new(), 0);
    ids suspended{2};
    ASSERT_EQ(self_.suspend(suspended), 1);
    ASSERT_EQ(destroy_queue(kfd_.fd(), 1), 0);
    ASSERT_EQ(memory_[1].create(kfd_.fd(), gpu), 1);
  }
  void TearDown() override { EXPECT_EQ(self_.disable(), 0); }

  simulated_device device_{{.profile = quick_profile()}};
  raw_device kfd_{device_.roots().device};
  std::array<queue_memory, 3> memory_;
  debugger self_{kfd_.fd(), getpid()};
};

TEST_F(SuspendVectors, AnswersEveryEntryByItsQueuesState) {
  ids array{0, 1, 2, 9};
  EXPECT_EQ(self_.suspend(array), 2);
  EXPECT_EQ(array, (ids{0, 1 | invalid, 2, 9 | invalid}));
}

TEST_F(SuspendVectors, CountsASuspendedQueueAgain) {
  ids array{2};
  EXPECT_EQ(self_.suspend(array), 1);
  EXPECT_EQ(array, ids{2});
}

TEST_F(SuspendVectors, RefusesANewQueue) {
  ids array{1};
  EXPECT_EQ(self_.suspend(array), 0);
  EXPECT_EQ(array, ids{1 | invalid});
}

TEST_F(SuspendVectors, MatchesOnlyTheFirstOfTwoEqualEntries) {
  ids array{0, 0};
  EXPECT_EQ(self_.suspend(array), 1);
  EXPECT_EQ(array, (ids{0, 0 | invalid}));
}

TEST_F(SuspendVectors, ClearsNewOfSkippedQueuesWhenTheCallSucceedsForAnother) {
  ids both{0, 1};
  EXPECT_EQ(self_.suspend(both, uapi::KFD_EC_MASK(uapi::EC_QUEUE_NEW)), 1);
  EXPECT_EQ(both, (ids{0, 1 | invalid}));
  ids second{1};
  EXPECT_EQ(self_.suspend(second), 1);
  EXPECT_EQ(second, ids{1});
}

TEST_F(SuspendVectors, IgnoresBit31AndNotBit30OnInput) {
  ids error{failed};
  EXPECT_EQ(self_.suspend(error), 0);
  EXPECT_EQ(error, ids{failed | invalid});
  ids marked{invalid};
  EXPECT_EQ(self_.suspend(marked), 1);
  EXPECT_EQ(marked, ids{0});
}

TEST_F(SuspendVectors, ResumesWhatWasNeverSuspended) {
  ids array{0};
  EXPECT_EQ(self_.resume(array), 1);
  EXPECT_EQ(array, ids{0});
  ids unknown{9};
  EXPECT_EQ(self_.resume(unknown), 0);
  EXPECT_EQ(unknown, ids{9 | invalid});
}

TEST_F(SuspendVectors, ResumesAllForANullArray) { EXPECT_EQ(self_.resume_all(), 3); }

TEST_F(SuspendVectors, AnswersZeroToAnEmptyBatch) {
  ids none;
  EXPECT_EQ(self_.suspend(none), 0);
}

TEST(DebugSession, RefusesWithoutASessionAndWithoutARuntime) {
  const simulated_device device{{.profile = quick_profile()}};
  const raw_device kfd{device.roots().device};
  const queue_memory memory;
  ASSERT_EQ(memory.create(kfd.fd(), gpu), 0);
  debugger self{kfd.fd(), getpid()};
  ids array{0};
  EXPECT_EQ(self.suspend(array), -EINVAL);
  ASSERT_EQ(self.enable(0), 0);
  EXPECT_EQ(self.runtime().runtime_state, uapi::DBG_RUNTIME_STATE_DISABLED);
  EXPECT_EQ(self.suspend(array), -EPERM);
  EXPECT_EQ(array, ids{0});
  EXPECT_EQ(self.enable(0), -EALREADY);
}

TEST(DebugSession, BelongsToTheThreadThatTraces) {
  const simulated_device device{{.profile = quick_profile()}};
  busy_target target{device};
  const raw_device kfd{device.roots().device};
  debugger session{kfd.fd(), target.pid()};
  EXPECT_EQ(session.enable(usual_mask), -EPERM) << "without ptrace";
  ASSERT_TRUE(debugger::seize(target.pid()));
  ASSERT_EQ(session.enable(usual_mask), 0);
  EXPECT_EQ(session.runtime().runtime_state, uapi::DBG_RUNTIME_STATE_ENABLED);
  ASSERT_EQ(session.clear_new(), 0);
  ids array{0};
  int from_another_thread = 0;
  std::thread{[&] { from_another_thread = session.suspend(array); }}.join();
  EXPECT_EQ(from_another_thread, -EPERM);
  EXPECT_EQ(array, ids{0});
  EXPECT_EQ(session.suspend(array), 1);
  EXPECT_EQ(session.disable(), 0);
  EXPECT_TRUE(target.progresses());
}

TEST(DebugSession, SuspendsAndResumesARunningQueueWithoutLosingAKernel) {
  const simulated_device device{{.profile = quick_profile()}};
  busy_target target{device};
  const raw_device kfd{device.roots().device};
  debugger session{kfd.fd(), target.pid()};
  ASSERT_TRUE(debugger::seize(target.pid()));
  ASSERT_EQ(session.enable(usual_mask), 0);
  ASSERT_EQ(session.clear_new(), 0);
  for (int i = 0; i < 5; ++i) {
    ids array{0};
    ASSERT_EQ(session.suspend(array), 1);
    EXPECT_TRUE(target.stands_still());
    ASSERT_EQ(session.resume(array), 1);
    EXPECT_TRUE(target.progresses());
  }
  EXPECT_EQ(session.disable(), 0);
}

TEST(DebugSession, NotifiesOfNewAndDeletedQueues) {
  const simulated_device device{{.profile = quick_profile()}};
  const raw_device kfd{device.roots().device};
  ASSERT_EQ(kfd.runtime_enable(true), 0);
  debugger self{kfd.fd(), getpid()};
  ASSERT_EQ(self.enable(usual_mask), 0);
  EXPECT_FALSE(self.query());
  const queue_memory memory;
  ASSERT_EQ(memory.create(kfd.fd(), gpu), 0);
  EXPECT_TRUE(eventually(patience, [&] { return self.notified(); }));
  EXPECT_EQ(self.query(), uapi::KFD_EC_MASK(uapi::EC_QUEUE_NEW));
  ASSERT_EQ(destroy_queue(kfd.fd(), 0), 0);
  EXPECT_TRUE(eventually(patience, [&] { return self.notified(); }));
  EXPECT_EQ(self.query(), uapi::KFD_EC_MASK(uapi::EC_DEVICE_QUEUE_DELETE));
  EXPECT_FALSE(self.query());
  EXPECT_EQ(self.disable(), 0);
}

TEST(DebugSession, ResumesEverythingWhenTheDebuggerIsKilled) {
  const simulated_device device{{.profile = quick_profile()}};
  busy_target target{device};
  child_process killer{[&](channel& line) {
    const raw_device kfd{device.roots().device};
    debugger session{kfd.fd(), target.pid()};
    ids array{0};
    if (!debugger::seize(target.pid()) || session.enable(usual_mask) != 0 ||
        session.clear_new() != 0 || session.suspend(array) != 1) {
      return 1;
    }
    line.send("suspended");
    line.receive(60s);
    return 2;
  }};
  ASSERT_TRUE(killer.says("suspended", 10s));
  ASSERT_TRUE(target.stands_still());
  killer.signal(SIGKILL);
  EXPECT_TRUE(target.progresses(2s));
}

// Closing the device does not end a session: only the debugger's end does.
TEST(DebugSession, OutlivesTheDescriptorItWasOpenedThrough) {
  const simulated_device device{{.profile = quick_profile()}};
  busy_target target{device};
  ASSERT_TRUE(debugger::seize(target.pid()));
  {
    const raw_device kfd{device.roots().device};
    debugger session{kfd.fd(), target.pid()};
    ids array{0};
    ASSERT_EQ(session.enable(usual_mask), 0);
    ASSERT_EQ(session.clear_new(), 0);
    ASSERT_EQ(session.suspend(array), 1);
  }
  EXPECT_TRUE(target.stands_still());
  const raw_device again{device.roots().device};
  debugger session{again.fd(), target.pid()};
  EXPECT_EQ(session.resume_all(), 1);
  EXPECT_TRUE(target.progresses());
  EXPECT_EQ(session.disable(), 0);
}

TEST(DebugSession, HoldsTheTargetsRuntimeStartAndEndUntilAnswered) {
  const simulated_device device{{.profile = quick_profile()}};
  child_process target{[&](channel& line) {
    const raw_device kfd{device.roots().device};
    line.send("open");
    line.receive(10s);
    if (kfd.runtime_enable(true) != 0) return 1;
    line.send("enabled");
    if (kfd.runtime_enable(false) != 0) return 2;
    line.send("disabled");
    line.receive(10s);  // An exit now would end the session before the test does.
    return 0;
  }};
  ASSERT_TRUE(target.says("open", 10s));
  const raw_device kfd{device.roots().device};
  debugger session{kfd.fd(), target.pid()};
  ASSERT_TRUE(debugger::seize(target.pid()));
  ASSERT_EQ(session.enable(usual_mask), 0);
  EXPECT_EQ(session.runtime().runtime_state, uapi::DBG_RUNTIME_STATE_DISABLED);
  target.line().send("go");
  for (const auto* said : {"enabled", "disabled"}) {
    EXPECT_TRUE(eventually(patience, [&] { return session.notified(); }));
    EXPECT_EQ(session.query(), uapi::KFD_EC_MASK(uapi::EC_PROCESS_RUNTIME));
    EXPECT_FALSE(target.line().receive(50ms)) << "it did not wait";
    EXPECT_EQ(session.send_runtime_event(), 0);
    EXPECT_TRUE(target.says(said, 5s));
  }
  EXPECT_EQ(session.disable(), 0);
  target.line().send("end");
}

// A main thread that has ended has no memory, and so names no target any more; each other thread of
// its process does.
TEST(DebugSession, KnowsAProcessWithoutItsMainThreadByItsOtherThreadsOnly) {
  const simulated_device device{{.profile = quick_profile()}};
  child_process target{[&](channel& line) {
    static std::atomic<bool> alone{false};
    std::thread{[&] {
      const raw_device kfd{device.roots().device};
      const queue_memory memory;
      if (kfd.runtime_enable(true) != 0 || memory.create(kfd.fd(), gpu) != 0) _exit(1);
      line.send(std::to_string(gettid()));
      line.receive(10s);
      alone = true;
      alone.notify_one();
      line.receive(20s);
      _exit(0);
    }}.detach();
    alone.wait(false);
    syscall(SYS_exit, 0);  // pthread_exit() without unwinding the test's own frames.
    return 99;
  }};
  const auto said = target.line().receive(10s);
  ASSERT_TRUE(said);
  const raw_device kfd{device.roots().device};
  debugger by_leader{kfd.fd(), target.pid()};
  debugger by_worker{kfd.fd(), std::stoi(*said)};
  ASSERT_TRUE(debugger::seize(target.pid()));
  ASSERT_EQ(by_leader.enable(usual_mask), 0);
  ASSERT_EQ(by_leader.clear_new(), 0);
  ids array{0};
  ASSERT_EQ(by_leader.suspend(array), 1);
  target.line().send("go");
  EXPECT_TRUE(eventually(patience, [&] { return by_leader.resume(array) == -ESRCH; }));
  EXPECT_EQ(by_leader.disable(), -ESRCH);
  EXPECT_EQ(by_worker.resume(array), 1);
  EXPECT_EQ(by_worker.disable(), 0);
  target.line().send("end");
  EXPECT_TRUE(target.succeeds(10s));
}

// --- Calls that wait, and signals ---

std::atomic<int> signals_seen{0};
void count_signal(int) { signals_seen.fetch_add(1); }

void handle_sigusr1(int flags) {
  struct sigaction action {};
  action.sa_handler = count_signal;
  action.sa_flags = flags;
  sigaction(SIGUSR1, &action, nullptr);
}

/// Sends SIGUSR1 to the thread `tid` of this process until it says that it has seen one.
void interrupt_thread(pthread_t thread) {
  const int before = signals_seen;
  ASSERT_TRUE(eventually(patience, [&] {
    if (signals_seen == before) pthread_kill(thread, SIGUSR1);
    return signals_seen > before;
  }));
}

int wait_for_event(int fd, std::uint32_t event_id, std::uint32_t timeout_ms,
                   std::uint32_t& result) {
  uapi::kfd_event_data event{};
  event.event_id = event_id;
  uapi::kfd_ioctl_wait_events_args wait{};
  wait.events_ptr = address_of(&event);
  wait.num_events = 1;
  wait.timeout = timeout_ms;
  const int value = raw_call(fd, uapi::AMDKFD_IOC_WAIT_EVENTS, wait);
  result = wait.wait_result;
  return value;
}

class WaitEvents : public ::testing::Test {
 protected:
  void SetUp() override {
    uapi::kfd_ioctl_create_event_args create{};
    create.event_type = uapi::KFD_IOC_EVENT_SIGNAL;
    create.auto_reset = 1;
    ASSERT_EQ(raw_call(kfd_.fd(), uapi::AMDKFD_IOC_CREATE_EVENT, create), 0);
    event_ = create.event_id;
  }
  int set() {
    uapi::kfd_ioctl_set_event_args set{};
    set.event_id = event_;
    return raw_call(kfd_.fd(), uapi::AMDKFD_IOC_SET_EVENT, set);
  }

  simulated_device device_{{.profile = quick_profile()}};
  raw_device kfd_{device_.roots().device};
  std::uint32_t event_ = 0;
};

TEST_F(WaitEvents, TimesOut) {
  std::uint32_t result = 99;
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(wait_for_event(kfd_.fd(), event_, 20, result), 0);
  EXPECT_EQ(result, uapi::KFD_IOC_WAIT_RESULT_TIMEOUT);
  EXPECT_GE(std::chrono::steady_clock::now() - before, 20ms);
}

TEST_F(WaitEvents, RemembersAnEventSetBeforeTheWait) {
  std::uint32_t result = 99;
  ASSERT_EQ(set(), 0);
  EXPECT_EQ(wait_for_event(kfd_.fd(), event_, 10'000, result), 0);
  EXPECT_EQ(result, uapi::KFD_IOC_WAIT_RESULT_COMPLETE);
  EXPECT_EQ(wait_for_event(kfd_.fd(), event_, 0, result), 0) << "it resets itself";
  EXPECT_EQ(result, uapi::KFD_IOC_WAIT_RESULT_TIMEOUT);
}

TEST_F(WaitEvents, IsInterruptedByASignalWithoutRestart) {
  handle_sigusr1(0);
  int value = 0;
  std::atomic<bool> done{false};
  std::thread waiter{[&] {
    std::uint32_t result = 0;
    value = wait_for_event(kfd_.fd(), event_, 60'000, result);
    done = true;
  }};
  // A signal that comes before the wait does not interrupt it, so send until it has ended.
  EXPECT_TRUE(eventually(patience, [&] {
    if (!done) pthread_kill(waiter.native_handle(), SIGUSR1);
    return done.load();
  }));
  waiter.join();
  EXPECT_EQ(value, -EINTR);
}

TEST_F(WaitEvents, GoesOnAfterASignalWithRestart) {
  handle_sigusr1(SA_RESTART);
  int value = 1;
  std::uint32_t result = 99;
  std::atomic<bool> done{false};
  std::thread waiter{[&] {
    value = wait_for_event(kfd_.fd(), event_, 60'000, result);
    done = true;
  }};
  for (int i = 0; i < 20; ++i) interrupt_thread(waiter.native_handle());
  EXPECT_FALSE(done);
  EXPECT_EQ(set(), 0);
  waiter.join();
  EXPECT_EQ(value, 0);
  EXPECT_EQ(result, uapi::KFD_IOC_WAIT_RESULT_COMPLETE);
}

TEST_F(WaitEvents, EndsWhenTheWaitingProcessIsKilled) {
  child_process child{[&](channel& line) {
    const raw_device own{device_.roots().device};
    uapi::kfd_ioctl_create_event_args create{};
    create.auto_reset = 1;
    if (raw_call(own.fd(), uapi::AMDKFD_IOC_CREATE_EVENT, create) != 0) return 1;
    line.send("waiting");
    std::uint32_t result = 0;
    wait_for_event(own.fd(), create.event_id, 60'000, result);
    return 2;
  }};
  ASSERT_TRUE(child.says("waiting", 10s));
  child.signal(SIGKILL);
  const auto status = child.wait(5s);
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFSIGNALED(*status));
}

/// Whether a thread of this process is inside an ioctl that does not return at once.
/// A process that debugs itself and has suspended its queue.
class DestroyQueue : public ::testing::Test {
 protected:
  void SetUp() override {
    handle_sigusr1(0);
    ASSERT_EQ(kfd_.runtime_enable(true), 0);
    ASSERT_EQ(memory_.create(kfd_.fd(), gpu), 0);
    ASSERT_EQ(self_.enable(0), 0);
    ASSERT_EQ(self_.clear_new(), 0);
    ASSERT_EQ(self_.suspend(array_), 1);
  }

  /// Destroys it on a thread that gets signals until the call has returned. \return what it did.
  int interrupted_destroy() const {
    int value = 0;
    std::atomic<bool> done{false};
    std::thread owner{[&] {
      value = destroy_queue(kfd_.fd(), 0);
      done = true;
    }};
    EXPECT_TRUE(eventually(patience, [&] {
      if (!done) pthread_kill(owner.native_handle(), SIGUSR1);
      return done.load();
    }));
    owner.join();
    return value;
  }

  const simulated_device device_{{.profile = quick_profile()}};
  const raw_device kfd_{device_.roots().device};
  const queue_memory memory_;
  debugger self_{kfd_.fd(), getpid()};
  ids array_{0};
};

// The owner's destroy waits while its queue is suspended; a signal ends the wait, and from then on
// the queue counts as being destroyed.
TEST_F(DestroyQueue, WaitsWhileSuspendedAndIsInterruptible) {
  EXPECT_EQ(interrupted_destroy(), -EINTR);

  int value = 0;
  std::atomic<bool> done{false};
  std::thread again{[&] {
    value = destroy_queue(kfd_.fd(), 0);
    done = true;
  }};
  EXPECT_TRUE(eventually(patience, [&] {
    return done || any_thread_is_in_ioctl(getpid(), uapi::AMDKFD_IOC_DESTROY_QUEUE);
  }));
  std::uint32_t version = 0;
  EXPECT_EQ(kfd_.version(version, version), 0);  // By now the device has seen the call before.
  EXPECT_FALSE(done);
  EXPECT_EQ(self_.resume_all(), 1);
  again.join();
  EXPECT_EQ(value, 0);
  ids gone{0};
  EXPECT_EQ(self_.suspend(gone), 0);
  EXPECT_EQ(gone, ids{0 | invalid});
  EXPECT_EQ(self_.disable(), 0);
}

TEST_F(DestroyQueue, LeavesAnInterruptedQueueUnsuspendable) {
  interrupted_destroy();
  EXPECT_EQ(self_.resume(array_), 1);
  EXPECT_EQ(self_.suspend(array_), 0);
  EXPECT_EQ(array_, ids{0 | invalid});
  EXPECT_EQ(self_.disable(), 0);
}

}  // namespace
}  // namespace sluice::test::debug_test
