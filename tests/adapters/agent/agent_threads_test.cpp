// The agent's loop, its lanes and its host at once, for the thread sanitizer: attaches, batches,
// detaches, signals, execs and deaths of targets as a seed says. The host uses the agent's own
// page, so that the sanitizer sees both ends of the rings; the driver is one in this process's
// memory, which it does not see. SLUICE_TEST_SEED repeats what a host does, but not how threads
// meet.

#include "agent_in_process.hpp"
#include "eventually.hpp"
#include "test_seed.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

// For the thread sanitizer: it sees neither mmap nor munmap of liburing, so that a lane's ring
// seems to be the one that lay at the same address before.
extern "C" const char* __tsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "race:sluice::kfd::stop_bell::\n";
}

namespace sluice::fuzz::agent_threads_test {
namespace {

using test::eventually;
using test::patience;

constexpr std::size_t most_targets = 6;

/// Processes that sleep; SIGUSR1 makes one run another program. They are not this process's own
/// children, whose statuses any thread of it could take, and end with it.
class sleepers {
 public:
  sleepers() {
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "a socket");
    const pid_t parent = getpid();
    const pid_t nursery = fork();
    if (nursery == 0) serve(ends[1], parent);
    require(nursery > 0, "a process for processes");
    line_ = ends[0];
    close(ends[1]);
  }
  pid_t make() const {
    pid_t made = 0;
    require(
        ::write(line_, "", 1) == 1 && ::read(line_, &made, sizeof made) == sizeof made && made > 0,
        "a process to trace");
    return made;
  }

 private:
  [[noreturn]] static void serve(int line, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    std::signal(SIGCHLD, SIG_IGN);                // Nobody waits for them.
    sigprocmask(SIG_BLOCK, &to_exec(), nullptr);  // In each of them from its first moment.
    const pid_t own = getpid();
    for (char asked = 0; ::read(line, &asked, 1) == 1;) {
      const pid_t made = fork();
      if (made == 0) sleep(own);
      (void)!::write(line, &made, sizeof made);
    }
    _exit(0);
  }
  [[noreturn]] static void sleep(pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    siginfo_t heard{};
    while (sigwaitinfo(&to_exec(), &heard) < 0) continue;
    execl("/bin/sleep", "sleep", "1000", nullptr);
    _exit(1);
  }
  static const sigset_t& to_exec() {
    static const sigset_t only = [] {
      sigset_t made;
      sigemptyset(&made);
      sigaddset(&made, SIGUSR1);
      return made;
    }();
    return only;
  }
  int line_ = -1;
};

const sleepers& the_sleepers() {
  static const sleepers all;
  return all;
}

struct target {
  pid_t pid = 0;
  std::uint64_t start_time = 0;
  unique_fd pidfd;
  process_id id{};  ///< 0: not attached to, as far as the host knows.
};

struct counts {
  std::uint64_t attached = 0, refused = 0, queues = 0, done = 0, not_done = 0, detached = 0;
  std::uint64_t reserved = 0, fell_back = 0, deaths = 0, by_lanes = 0;
};

/// What differs from one test to the next.
struct world {
  driver::options answers = {};
  bool watches_children = false;
};

class host {
 public:
  host(std::uint64_t seed, world with) : random_(seed), with_(std::move(with)) {
    while (targets_.size() < most_targets) targets_.push_back(make_target());
  }
  ~host() {
    for (const auto& each : targets_) end(each);
  }
  host(const host&) = delete;
  host& operator=(const host&) = delete;

  /// An agent's life.
  void run(duration length) {
    const auto page = std::make_unique<agent::shared_page>();
    page_ = page.get();
    page_->lease_renewed = clock::now().time_since_epoch().count();
    commands_.emplace(page_->commands);
    reports_.emplace(page_->reports);
    driver::options how = with_.answers;
    for (auto& each : targets_) {
      how.users.insert(each.pid);
      each.id = {};
    }
    for (int i = 0; i < 40; ++i) how.refusals.push_back(static_cast<std::uint8_t>(random_()));
    the_driver().start(how);
    inherited descriptors;
    {
      std::atomic<int> asked{0};
      acting_agent acting{
          *page,
          {.watches_children = with_.watches_children, .admits = [&asked](pid_t, std::uint64_t) {
             return asked.fetch_add(1, std::memory_order_relaxed) % 16 != 15;
           }}};
      const time_point end = clock::now() + length;
      while (clock::now() < end && !acting.over()) take_a_step();
      EXPECT_FALSE(acting.over()) << "the agent ended by itself";
      descriptors.hang_up();
      EXPECT_TRUE(eventually(patience, [&] { return acting.over(); }));
      seen.by_lanes += acting.reports_by_lanes();
    }
    page_ = nullptr;
  }

  counts seen;

 private:
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }
  target& any() { return targets_[below(targets_.size())]; }

  static target make_target() {
    target made;
    made.pid = the_sleepers().make();
    made.start_time = start_time_of(made.pid);
    made.pidfd = unique_fd{static_cast<int>(syscall(SYS_pidfd_open, made.pid, 0))};
    require(bool{made.pidfd}, "a process's descriptor");
    return made;
  }
  static void end(const target& which) {
    (void)syscall(SYS_pidfd_send_signal, which.pidfd.get(), SIGKILL, nullptr, 0);
    require(eventually(patience,
                       [&] {
                         pollfd gone{which.pidfd.get(), POLLIN, 0};
                         return poll(&gone, 1, 0) > 0;
                       }),
            "a killed process ends");
  }

  void take_a_step() {
    page_->lease_renewed.store(clock::now().time_since_epoch().count(), std::memory_order_release);
    // Now and then for so long that the ring fills.
    if (pause_until_ <= clock::now()) {
      take_reports();
      if (below(400) == 0) pause_until_ = clock::now() + 20ms;
    }
    agent::command what;
    target& on = any();
    what.target = what.work.target = on.id;
    switch (below(20)) {
      case 0:
        if (below(3) == 0) kill(on);
        break;
      case 1:
        if (below(4) == 0) exec(on);
        break;
      case 2: ::kill(on.pid, SIGWINCH); break;
      case 3:
        ::kill(on.pid, SIGSTOP);
        ::kill(on.pid, SIGCONT);
        break;
      case 4:
        what.type = agent::command_type::detach;
        send(what);
        break;
      case 5:
        what.type = agent::command_type::reserve;
        what.gpu = gpu_id{gpus[below(gpus.size())]};
        what.offline_share = below(2) == 0 ? 1 : 0.25;
        send(what);
        break;
      case 6:
      case 7:
      case 8:
      case 9:
        if (on.id != process_id{}) break;
        what.type = agent::command_type::attach;
        what.target = on.id = process_id{++last_id_};
        what.pid = on.pid;
        what.start_time = on.start_time;
        send(what);
        break;
      case 10: std::this_thread::sleep_for(std::chrono::microseconds{below(500)}); break;
      default:
        what.type = agent::command_type::submit;
        what.work.id = ++last_batch_;
        what.work.kind = below(2) == 0 ? command_kind::suspend : command_kind::resume;
        const auto gpu = below(gpus.size());
        what.work.gpu = gpu_id{gpus[gpu]};
        // Its queues on that GPU, and at times one that there is not.
        for (std::uint32_t id = static_cast<std::uint32_t>(gpu); id < queues_each; id += 2)
          what.work.queues[what.work.count++] = driver_queue_id{below(50) == 0 ? 9 : id};
        send(what);
        std::this_thread::sleep_for(std::chrono::microseconds{below(100)});
    }
  }

  void send(const agent::command& what) {
    while (commands_->push(what) != agent::ring_status::done) {
      take_reports();
      std::this_thread::sleep_for(50us);
    }
    eventfd_write(agent::agent_doorbell_fd, 1);
  }

  void take_reports() {
    report one;
    while (reports_->pop(one) == agent::ring_status::done) {
      const auto whose = std::ranges::find(targets_, one.target, &target::id);
      const bool refused = one.error.where != plain_error::domain::none;
      switch (one.kind) {
        case report_kind::attached: ++(refused ? seen.refused : seen.attached); break;
        case report_kind::queue_added: ++seen.queues; break;
        case report_kind::completed:
          ++(one.result.outcomes[0] == outcome::done ? seen.done : seen.not_done);
          break;
        case report_kind::detached: ++seen.detached; break;
        case report_kind::reserved: ++seen.reserved; break;
        case report_kind::acts_by: seen.fell_back += one.fell_back; break;
        default: break;
      }
      const bool over =
          (one.kind == report_kind::attached && refused) || one.kind == report_kind::detached;
      if (over && whose != targets_.end()) whose->id = {};
    }
  }

  void kill(target& which) {
    end(which);
    the_driver().lose(which.pid);
    which = make_target();
    the_driver().add_user(which.pid);
    ++seen.deaths;
  }

  /// The process goes on, its memory does not: the driver knows it again once it has come to run
  /// the other program, for which who traces it has to let it.
  static void exec(const target& which) {
    const std::string proc = "/proc/" + std::to_string(which.pid);
    const auto first_word = [&](const char* name) {
      std::string word;
      std::ifstream{proc + name} >> word;
      return word;
    };
    ::kill(which.pid, SIGUSR1);
    require(eventually(patience, [&] { return first_word("/comm") == "sleep"; }),
            "a process runs another program");
    the_driver().lose(which.pid);
    const auto sleeps = [&] {
      const std::string call = first_word("/syscall");
      return std::ranges::any_of(
          std::array{SYS_clock_nanosleep, SYS_nanosleep, SYS_restart_syscall},
          [&](long one) { return call == std::to_string(one); });
    };
    require(eventually(patience, sleeps), "and comes to it");
    the_driver().regain(which.pid);
  }

  std::mt19937_64 random_;
  const world with_;
  std::vector<target> targets_;
  agent::shared_page* page_ = nullptr;
  std::optional<agent::command_writer> commands_;
  std::optional<agent::report_reader> reports_;
  std::uint64_t last_id_ = 0;
  std::uint64_t last_batch_ = 0;
  time_point pause_until_{};
};

class AgentThreads : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    inherited::leave_free();
    (void)the_sleepers();  // While there is one thread.
  }

  /// Runs agents with the steps of a drawn seed.
  static void live(const world& with, std::uint64_t counts::*also = &counts::done) {
    live_until_all_has_happened(with, also);
    const sluice::test::random_seed seed;
    host one{seed.value(), with};
    const time_point end = clock::now() + (sluice::test::long_tests() ? 10s : 1s);
    while (clock::now() < end) one.run(400ms);
  }

 private:
  /// Runs agents with the steps of a fixed seed until every kind of event has occurred.
  /// \param also has to be more than 0.
  static void live_until_all_has_happened(const world& with, std::uint64_t counts::*also) {
    host one{1, with};
    const time_point deadline = clock::now() + 2 * patience;
    const auto enough = [&] {
      const counts& all = one.seen;
      return all.attached > 20 && all.refused > 0 && all.done > 20 && all.detached > 5 &&
             all.deaths > 5 && all.by_lanes > 20 && all.*also > 0;
    };
    while (!enough() && clock::now() < deadline) one.run(400ms);
    const counts& all = one.seen;
    std::printf(
        "attached %llu, refused %llu, queues %llu, batches done %llu, not %llu, detached %llu, "
        "limits %llu, fell back %llu, deaths %llu, reports by lanes %llu\n",
        static_cast<unsigned long long>(all.attached), static_cast<unsigned long long>(all.refused),
        static_cast<unsigned long long>(all.queues), static_cast<unsigned long long>(all.done),
        static_cast<unsigned long long>(all.not_done),
        static_cast<unsigned long long>(all.detached),
        static_cast<unsigned long long>(all.reserved),
        static_cast<unsigned long long>(all.fell_back), static_cast<unsigned long long>(all.deaths),
        static_cast<unsigned long long>(all.by_lanes));
    EXPECT_TRUE(enough()) << "not everything happened that was to meet";
  }
};

TEST_F(AgentThreads, MeetInOrderByTheDebugTrap) { live({}); }

// The owner then looks at its lanes' targets itself.
TEST_F(AgentThreads, MeetInOrderWhereTheOwnerHearsOfTargets) {
  sigset_t children;
  sigset_t before;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  pthread_sigmask(SIG_BLOCK, &children, &before);
  live({.watches_children = true});
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST_F(AgentThreads, MeetInOrderWhereNobodyIsTraced) { live({.answers = {.by_process = true}}); }

TEST_F(AgentThreads, MeetInOrderByBatchCommands) {
  live({.answers = {.batch_commands = true}}, &counts::reserved);
}

// Lanes of all targets and GPUs then change to the debug trap at once.
TEST_F(AgentThreads, MeetInOrderWhenBatchCommandsAreGivenUp) {
  live({.answers = {.batch_commands = true, .batch_calls = 8}}, &counts::fell_back);
}

}  // namespace
}  // namespace sluice::fuzz::agent_threads_test
