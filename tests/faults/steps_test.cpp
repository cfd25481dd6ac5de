// NVIDIA's driver keeps what an agent suspended. So the agent is killed before and after each of
// its system calls between an order and the answer: each time, the guardian alone makes everything
// run again, and restores time slices.

#include "backend_loop.hpp"
#include "driver_call.hpp"
#include "eventually.hpp"
#include "hold_record.hpp"
#include "simulated_device.hpp"
#include "target_process.hpp"

#include <sched.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/nvidia/driver.hpp"
#include "sluice/nvidia/uapi.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::test::steps_test {
namespace {

using namespace std::chrono_literals;

constexpr process_id target_id{1};
constexpr std::uint64_t usual_slice = 2048;  ///< Of the profile's groups that compute.

enum class order : std::uint8_t { set_quantum, suspend, resume, restore_quantum };
constexpr std::array orders{order::set_quantum, order::suspend, order::resume,
                            order::restore_quantum};

std::uint64_t number_after(const std::string& text, const std::string& label) {
  const auto at = text.find(label);
  return at == text.npos ? 0 : std::strtoull(text.c_str() + at + label.size(), nullptr, 10);
}

/// Traces one thread from its next system call to another. Threading: one thread.
class stepped_thread {
 public:
  struct stop {
    bool begins = false;  ///< Of the call; else its end.
    std::uint64_t call = 0;
  };

  explicit stepped_thread(pid_t thread) : thread_(thread) {
    seized_ = ::ptrace(PTRACE_SEIZE, thread_, nullptr, PTRACE_O_TRACESYSGOOD) == 0 &&
              ::ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) == 0;
  }
  stepped_thread(const stepped_thread&) = delete;
  stepped_thread& operator=(const stepped_thread&) = delete;
  /// The process must be dead: a thread that a tracer has not waited for keeps it from being gone.
  ~stepped_thread() {
    if (seized_) ::waitpid(thread_, nullptr, __WALL);
  }
  bool is_traced() const { return seized_; }

  /// Goes on to the next stop. \return nothing where there is none yet: call it again.
  std::optional<stop> next() {
    int status = 0;
    // Most stops follow at once.
    for (const time_point soon = clock::now() + 300us;; ::sched_yield()) {
      if (::waitpid(thread_, &status, __WALL | WNOHANG) == thread_) break;
      if (clock::now() >= soon) return {};
    }
    if (!WIFSTOPPED(status)) {
      seized_ = false;
      return {};
    }
    std::optional<stop> seen;
    if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
      __ptrace_syscall_info info{};
      ::ptrace(PTRACE_GET_SYSCALL_INFO, thread_, sizeof info, &info);
      if (info.op == PTRACE_SYSCALL_INFO_ENTRY) call_ = info.entry.nr;
      seen = stop{info.op == PTRACE_SYSCALL_INFO_ENTRY, call_};
    }
    waits_ = true;
    if (!seen) go_on();
    return seen;
  }
  void go_on() {
    if (std::exchange(waits_, false)) ::ptrace(PTRACE_SYSCALL, thread_, nullptr, nullptr);
  }

 private:
  const pid_t thread_;
  bool seized_ = false;
  bool waits_ = false;
  std::uint64_t call_ = 0;
};

/// A target with one agent after the other.
class FaultSteps : public testing::Test {
 protected:
  /// Starts an agent and lets it do what comes before the order.
  void begin(order next) {
    const auto driver = nvidia::make_driver(
        {.where = {.device = device_.nvidia_device(), .proc = device_.nvidia_proc()}});
    loop_ = std::make_unique<backend_loop>(
        agent::make_agent_backend({.driver = driver->acting(),
                                   .agent_path = SLUICE_AGENT_PROGRAM,
                                   .owner_lock = lock_,
                                   .lease = 60s}));  // Steps take time.
    const auto started = loop_->start();
    ASSERT_TRUE(started) << started.error().message();
    ASSERT_TRUE(
        (*loop_)->attach(target_id, target_.pid(), start_time_of(target_.pid()).value_or(0)));
    ASSERT_TRUE(loop_->until([&] { return computing().size() == 8; }, patience));
    for (const order each : orders) {
      if (each == next) break;
      give(each);
      ASSERT_TRUE(loop_->until([&] { return answered(); }, patience));
    }
    std::ifstream owner{lock_};
    std::string host;
    std::getline(owner, host);
    owner >> agent_;
    ASSERT_GT(agent_, 0);
  }

  std::vector<queue_info> computing() const {
    std::vector<queue_info> some;
    for (const queue_info& each : loop_->added)
      if (each.type == queue_kind::compute) some.push_back(each);
    return some;
  }

  void give(order what) {
    const auto queues = computing();
    loop_->quanta.clear();
    batch_ = 0;
    if (what == order::set_quantum || what == order::restore_quantum) {
      const duration length = what == order::set_quantum ? duration{100us} : duration{};
      ASSERT_TRUE((*loop_)->set_quantum(target_id, queues.front().gpu, length));
    } else {
      batch work;
      work.id = batch_ = ++last_batch_;
      work.target = target_id;
      work.gpu = queues.front().gpu;
      work.kind = what == order::suspend ? command_kind::suspend : command_kind::resume;
      work.count = static_cast<std::uint16_t>(queues.size());
      std::ranges::transform(queues, work.queues.begin(), &queue_info::id);
      ASSERT_TRUE((*loop_)->submit(work));
    }
    (*loop_)->flush();
  }
  bool answered() const {
    return batch_ != 0 ? loop_->results.contains(batch_) : !loop_->quanta.empty();
  }

  /// The agent's thread that acts on the target.
  pid_t lane() const {
    for (const auto& each :
         std::filesystem::directory_iterator{"/proc/" + std::to_string(agent_) + "/task"})
      if (read_file(each.path().string() + "/comm") == "sluice-lane\n")
        return std::stoi(each.path().filename().string());
    return 0;
  }

  bool everything_runs() const {
    const auto stats = device_.stats();
    return number_after(stats, "\"held_channels\":") == 0 &&
           number_after(stats, "\"timeslice_us\":") == usual_slice;
  }
  /// By the guardian alone: the host does not even know yet.
  void expect_release(const std::string& when) {
    EXPECT_TRUE(eventually(patience,
                           [&] {
                             const auto left = agent::hold_record::look(agent::holds_beside(lock_));
                             return everything_runs() && left && left->holds.empty();
                           }))
        << when << ": " << device_.stats();
  }

  enum class ended : std::uint8_t { killed, answered, collided };
  /// Kills the agent at the stop of that number after it got the order.
  ended kill_at(order what, int number);

  simulated_device device_{{.profile = "h100"}};
  target_process target_{SLUICE_INTEGRATION_TARGET, {"1", "2000"}, device_.environment()};
  const std::string lock_ = device_.root() + "/owner";
  std::unique_ptr<backend_loop> loop_;
  pid_t agent_ = 0;
  std::uint64_t batch_ = 0;  ///< Of the last order; 0: it is about the quantum.
  std::uint64_t last_batch_ = 0;
  bool collided_ = false;  ///< The last order, with a look.
};

FaultSteps::ended FaultSteps::kill_at(order what, int number) {
  begin(what);
  if (HasFatalFailure()) return ended::answered;
  std::string when =
      "order " + std::to_string(static_cast<int>(what)) + ", stop " + std::to_string(number);
  auto how = ended::answered;
  {
    stepped_thread steps{lane()};
    EXPECT_TRUE(steps.is_traced());
    // Until it is about to wait. A suspend is followed by a look, which may have begun.
    bool looked = what != order::resume && !collided_;
    const auto waits = [](const stepped_thread::stop& seen) {
      return seen.call == SYS_epoll_wait || seen.call == SYS_epoll_pwait;
    };
    EXPECT_TRUE(loop_->until(
        [&] {
          while (const auto seen = steps.next()) {
            looked = looked || seen->call == SYS_read;
            if (looked && seen->begins && waits(*seen)) return true;
            steps.go_on();
          }
          return false;
        },
        patience));
    give(what);
    steps.go_on();
    int stops = 0;
    bool looks = false;  // The lane looks at the target, as it does from time to time.
    bool counts = false;
    const time_point give_up = clock::now() + 2 * patience;
    while (!answered()) {
      if (clock::now() >= give_up) {
        ADD_FAILURE() << when << ": neither stop nor answer";
        break;
      }
      loop_->turn(1ms);
      while (const auto seen = steps.next()) {
        if (waits(*seen)) {
          counts = looks = false;
        } else if (!counts && !looks && seen->begins) {
          // A look begins with the timer's count.
          looks = seen->call == SYS_read;
          counts = !looks;
          if (looks && stops == 0) how = ended::collided;
        }
        if (counts && stops++ == number) {
          how = ended::killed;
          when += std::string{seen->begins ? ", before" : ", after"} + " system call " +
                  std::to_string(seen->call);
          break;
        }
        steps.go_on();
      }
      if (how == ended::killed) break;
    }
    ::kill(agent_, SIGKILL);
  }
  expect_release(when);
  collided_ = how == ended::collided;
  std::printf("  %s%s\n", when.c_str(),
              how == ended::collided ? ": not shown, the agent looked at the target" : "");
  loop_.reset();
  return how;
}

TEST_F(FaultSteps, AnAgentKilledAtAnyOfThemLeavesNothingHeld) {
  ASSERT_EQ(target_.hear(patience), "ready");
  constexpr int most_collisions = 30;
  constexpr int most_stops = 60;  // There are up to ten.
  for (const order each : orders) {
    int number = 0;
    int collisions = 0;
    while (number < most_stops && collisions < most_collisions) {
      const auto how = kill_at(each, number);
      if (HasFailure()) return;
      if (how == ended::answered) break;
      if (how == ended::killed) ++number;
      if (how == ended::collided) ++collisions;
    }
    // Before and after the call itself, at the least.
    EXPECT_TRUE(number >= 2 || collisions == most_collisions) << static_cast<int>(each);
    EXPECT_LT(number, most_stops);
  }
  EXPECT_EQ(target_.ask("drain", 30s), "0") << "kernels lost, repeated or cut short";
}

TEST_F(FaultSteps, AnAgentKilledInTheCallLeavesNothingHeld) {
  ASSERT_EQ(target_.hear(patience), "ready");
  ASSERT_NO_FATAL_FAILURE(begin(order::suspend));
  std::ofstream{device_.root() + "/sim/control"} << "delay FIFO_DISABLE_CHANNELS:DISABLE 1s times=1"
                                                 << std::endl;
  const auto calls = [&] { return number_after(device_.stats(), "\"FIFO_DISABLE_CHANNELS\":"); };
  const auto before = calls();
  give(order::suspend);
  ASSERT_TRUE(loop_->until([&] { return calls() > before; }, patience));
  EXPECT_TRUE(is_in_ioctl(lane(), nvidia::uapi::NV_RM_CONTROL));
  ::kill(agent_, SIGKILL);
  expect_release("killed in the call");
  EXPECT_GT(number_after(device_.stats(), "\"queue_suspends\":"), 0U) << "the call was not made";
  EXPECT_EQ(target_.ask("drain", 30s), "0") << "kernels lost, repeated or cut short";
}

}  // namespace
}  // namespace sluice::test::steps_test
