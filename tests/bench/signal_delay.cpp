// How much later a signal reaches the handler of a process that sluice traces: from just before
// kill() to the handler's stamp, for a process on the simulated device whose main thread sleeps.
// Nobody traces it; a bare tracer does, which only waits and passes signals on (the floor); the
// agent does, with its lane idle, and inside a driver call of 5 ms (whose floor is what was left of
// that call); the in-process backend does.
// usage: signal_delay [--quick]

#include "backend_loop.hpp"
#include "series.hpp"
#include "simulated_device.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/kfd/driver.hpp"
#include "sluice/kfd/in_process_backend.hpp"
#include "sluice/sim/client.hpp"

namespace sluice::bench {
namespace {

using namespace std::chrono_literals;

/// Between two signals, so that everybody sleeps when the next one comes.
constexpr duration rest = 500us;
/// After a batch was handed over: its driver call has begun, and is far from its end.
constexpr duration into_the_call = 1ms;
constexpr int patience_ms = 10'000;

template <class Value>
Value heard(int from, const char* what) {
  pollfd ready{from, POLLIN, 0};
  Value value{};
  if (::poll(&ready, 1, patience_ms) != 1 || ::read(from, &value, sizeof value) != sizeof value)
    throw std::runtime_error(std::string{what} + " says nothing");
  return value;
}

/// A forked child that says things through a pipe, killed at the end.
class child {
 public:
  explicit child(const std::function<void(int says)>& body) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0 || (pid_ = ::fork()) < 0)
      throw std::runtime_error("cannot fork");
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      body(ends[1]);
      ::_exit(1);
    }
    ::close(ends[1]);
    from_ = ends[0];
  }
  ~child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(from_);
  }
  child(const child&) = delete;
  child& operator=(const child&) = delete;

  pid_t pid() const { return pid_; }
  int from() const { return from_; }

 private:
  pid_t pid_ = 0;
  int from_ = -1;
};

int stamps_to = -1;

/// One queue, and a handler that stamps.
void live_as_target(const kfd::roots& where, int says) {
  const auto client = sim::gpu_client::open({.device = where.device, .sysfs = where.sysfs});
  if (!client) return;
  const auto queue = (*client)->create_queue({.packets = 64});
  if (!queue) return;
  stamps_to = says;
  struct sigaction action {};
  action.sa_handler = [](int) {
    const auto stamp = clock::now().time_since_epoch().count();
    (void)!::write(stamps_to, &stamp, sizeof stamp);
  };
  ::sigaction(SIGUSR1, &action, nullptr);
  const duration::rep ready = 0;
  (void)!::write(says, &ready, sizeof ready);
  for (;;) ::pause();
}

/// The least that a tracer can do.
void live_as_tracer(pid_t target, int says) {
  if (::ptrace(PTRACE_SEIZE, target, nullptr, nullptr) != 0) return;
  const char seized = 's';
  (void)!::write(says, &seized, sizeof seized);
  for (int status = 0; ::waitpid(target, &status, __WALL) == target && WIFSTOPPED(status);)
    ::ptrace(PTRACE_CONT, target, nullptr, std::uintptr_t(WSTOPSIG(status)));
}

pid_t tracer_of(pid_t pid) {
  const std::string status = test::read_file("/proc/" + std::to_string(pid) + "/status");
  const auto at = status.find("TracerPid:");
  return at == status.npos ? 0 : std::atoi(status.c_str() + at + 10);
}

void check_traced(pid_t pid, bool traced) {
  const time_point give_up = clock::now() + 5s;
  while ((tracer_of(pid) != 0) != traced) {
    if (clock::now() > give_up)
      throw std::runtime_error(traced ? "nobody traces the target" : "the target is traced still");
    std::this_thread::sleep_for(1ms);
  }
}

struct signalled {
  time_point sent{};
  time_point handled{};
};

signalled signal_once(const child& target) {
  signalled one;
  one.sent = clock::now();
  ::kill(target.pid(), SIGUSR1);
  one.handled = time_point{duration{heard<duration::rep>(target.from(), "the target's handler")}};
  return one;
}

void signals(
    const child& target, int count, series& into, const std::function<void()>& before = [] {}) {
  for (int i = 0; i < count; ++i) {
    before();
    std::this_thread::sleep_for(rest);
    const auto [sent, handled] = signal_once(target);
    into.add(handled - sent);
  }
  into.end_round();
}

/// A backend that has attached to the target and suspends its queue when told.
class attached_backend {
 public:
  attached_backend(std::unique_ptr<backend> driver, pid_t pid) : loop_(std::move(driver)) {
    const auto who = identity_of(pid);
    if (!who || !loop_.start() || !loop_->attach(target, pid, who->start_time) ||
        !loop_.until([&] { return loop_.added.size() == 1; }))
      throw std::runtime_error("the backend does not attach");
  }

  /// The agent hears that its host lives.
  void turn() { loop_.turn(0ns); }

  void begin(command_kind kind) {
    work_.id += 1;
    work_.target = target;
    work_.gpu = loop_.added.front().gpu;
    work_.kind = kind;
    work_.count = 1;
    work_.queues[0] = loop_.added.front().id;
    if (!loop_->submit(work_)) throw std::runtime_error("the batch was refused");
    loop_->flush();
  }
  batch_result end() {
    if (!loop_.until([&] { return loop_.results.contains(work_.id); }))
      throw std::runtime_error("the batch is not answered");
    const batch_result result = loop_.results.at(work_.id);
    if (result.outcomes[0] != outcome::done) throw std::runtime_error("the batch was not done");
    return result;
  }

 private:
  static constexpr process_id target{1};
  test::backend_loop loop_;
  batch work_;
};

/// Signals into suspends, with the lane in the middle of the driver's call.
void signals_in_calls(const child& target, attached_backend& acting, int count, series& delay,
                      series& left) {
  bool some = false;
  for (int i = 0; i < count; ++i) {
    acting.begin(command_kind::suspend);
    std::this_thread::sleep_for(into_the_call);
    const auto [sent, handled] = signal_once(target);
    const auto call = acting.end();
    acting.begin(command_kind::resume);
    acting.end();
    if (sent <= call.started || sent >= call.finished) continue;  // This thread slept too long.
    some = true;
    delay.add(handled - sent);
    left.add(call.finished - sent);
  }
  if (!some) throw std::runtime_error("no signal fell into a driver call");
  delay.end_round();
  left.end_round();
}

void measure(bool quick) {
  const test::simulated_device device{{.profile = "mi300x"}};
  const child target{[&](int says) { live_as_target(device.roots(), says); }};
  heard<duration::rep>(target.from(), "the target");
  series untraced{"signal_untraced"};
  series bare{"signal_bare_tracer"};
  series idle{"signal_agent"};
  series in_call{"signal_in_call"};
  series call_left{"rest_of_call"};
  series in_process{"signal_in_process"};
  const int rounds = quick ? 2 : 25;
  const int each = quick ? 20 : 100;
  const int calls = quick ? 3 : 8;
  for (int i = 0; i < rounds; ++i) {
    signals(target, each, untraced);
    {
      const child tracer{[&](int says) { live_as_tracer(target.pid(), says); }};
      heard<char>(tracer.from(), "the bare tracer");
      signals(target, each, bare);
    }
    check_traced(target.pid(), false);
    {
      attached_backend acting{
          agent::make_agent_backend({.driver = kfd::acting({.where = device.roots()}),
                                     .agent_path = SLUICE_AGENT_PROGRAM,
                                     .owner_lock = "",
                                     .lease = 4s}),
          target.pid()};
      check_traced(target.pid(), true);
      signals(target, each, idle, [&] { acting.turn(); });
      signals_in_calls(target, acting, calls, in_call, call_left);
    }
    check_traced(target.pid(), false);
    {
      attached_backend acting{
          kfd::make_in_process_backend({.roots = device.roots(), .owner_lock = ""}), target.pid()};
      signals(target, calls, in_process);
    }
    check_traced(target.pid(), false);
  }
  for (series* const one : {&untraced, &bare, &idle, &in_call, &call_left, &in_process})
    one->print();
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  try {
    sluice::bench::measure(argc > 1 && std::string_view{argv[1]} == "--quick");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "signal_delay: %s\n", error.what());
    return 1;
  }
  return 0;
}
