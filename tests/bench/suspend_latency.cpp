// How soon a client's begin() becomes a suspend in the driver: real processes (client, scheduler
// with its agent, offline process) and real ioctls on the simulated device, up to the moment at
// which the agent makes the call. What the call then takes is the driver's and the GPU's, and not
// in it. Alternated with as many bare wake-ups, from process to process by eventfd. Usage:
// suspend_latency [ROUNDS]

#include "../adapters/client/served_node.hpp"
#include "rows.hpp"
#include "simulated_device.hpp"
#include "stamped_backend.hpp"
#include "target_process.hpp"

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/client.hpp"
#include "sluice/kfd/discovery.hpp"

namespace {

using namespace std::chrono_literals;
using namespace sluice;
using namespace sluice::test;

constexpr std::size_t most_rounds = 100'000;
/// Who is woken, one by the other: the scheduler, the agent, the agent's lane.
constexpr std::size_t wake_ups = 3;

/// In memory that all processes see.
struct stage {
  std::atomic<bool> attached{false};
  std::atomic<std::uint32_t> relayed{0};
  std::atomic<time_point> relayed_at{};
  std::array<time_point, most_rounds> begun;
  std::array<duration, most_rounds> floor;
};
static_assert(std::atomic<time_point>::is_always_lock_free);

int counter() {
  const int made = eventfd(0, EFD_CLOEXEC);
  if (made < 0) throw std::runtime_error("no eventfd");
  return made;
}

/// A chain of processes that do nothing but wake the next one; the last one says when.
class relay {
 public:
  explicit relay(stage& seen_by_all) {
    for (int& each : counters_) each = counter();
    for (std::size_t i = 0; i < wake_ups; ++i) {
      processes_[i] = fork();
      if (processes_[i] == 0) pass_on(seen_by_all, i);
    }
  }
  ~relay() {
    for (const pid_t each : processes_) {
      kill(each, SIGKILL);
      waitpid(each, nullptr, 0);
    }
    for (const int each : counters_) close(each);
  }
  relay(const relay&) = delete;
  relay& operator=(const relay&) = delete;

  int first() const noexcept { return counters_[0]; }

 private:
  [[noreturn]] void pass_on(stage& seen_by_all, std::size_t place) const {
    for (eventfd_t ignored = 0; eventfd_read(counters_[place], &ignored) == 0;) {
      if (place + 1 < wake_ups) {
        eventfd_write(counters_[place + 1], 1);
        continue;
      }
      seen_by_all.relayed_at = clock::now();
      ++seen_by_all.relayed;
    }
    _exit(1);
  }

  std::array<int, wake_ups> counters_{};
  std::array<pid_t, wake_ups> processes_{};
};

std::optional<duration> measure_floor(stage& seen_by_all, int first, std::uint32_t round) {
  const time_point before = clock::now();
  eventfd_write(first, 1);
  if (!eventually(patience, [&] { return seen_by_all.relayed == round + 1; })) return {};
  return seen_by_all.relayed_at.load() - before;
}

/// \return 0 unless something did not happen in time.
int run_client(stage& seen_by_all, const std::string& socket, int first, std::uint32_t rounds) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::error_code error;
  auto client = client::connection::open({.socket = socket, .name = "bench"}, error);
  if (error) return 1;
  const auto becomes = [&](bool suspended) {
    return eventually(patience, [&] { return (client.status().suspended != 0) == suspended; });
  };
  if (!eventually(patience, [&] { return seen_by_all.attached && client.status().connected; })) {
    return 1;
  }
  for (std::uint32_t i = 0; i < rounds; ++i) {
    std::this_thread::sleep_for(2ms);  // They have gone to sleep.
    const auto floor = measure_floor(seen_by_all, first, i);
    if (!floor) return 1;
    seen_by_all.floor[i] = *floor;
    std::this_thread::sleep_for(2ms);
    seen_by_all.begun[i] = clock::now();
    client.begin();
    if (!becomes(true)) return 1;
    client.end();
    if (!becomes(false)) return 1;
  }
  return 0;
}

/// A scheduler over the agent on the simulated device, on a thread of its own.
class node {
 public:
  node(const simulated_device& device, const std::string& socket) {
    auto driver = std::make_unique<stamped_backend>(
        agent::make_agent_backend({.roots = device.roots(),
                                   .agent_path = SLUICE_AGENT_PROGRAM,
                                   .owner_lock = device.root() + "/owner",
                                   .lease = 4s,
                                   .batch_commands = false}));
    driver_ = driver.get();
    client::server_options options;
    options.socket = socket;
    options.allow = [](const client::peer&, role) { return true; };
    std::vector<std::unique_ptr<source>> sources;
    sources.push_back(
        kfd::make_discovery(device.roots(), {.role_store = device.root() + "/roles"}));
    sources.push_back(client::make_server(std::move(options)));
    auto loop = reactor::create();
    if (!loop) throw std::runtime_error("no reactor: " + loop.error().message());
    auto made = scheduler::create(served_node::quick(), std::move(*loop), std::move(driver),
                                  make_fixed_timeslice({.slice = 1us}), std::move(sources));
    if (!made) throw std::runtime_error("no scheduler: " + made.error().message());
    core_ = std::move(*made);
    if (const auto started = core_->start(); !started) {
      throw std::runtime_error("the scheduler does not start: " + started.error().message());
    }
    runner_ = std::thread([this] { core_->run(); });
  }
  ~node() { stop(); }
  node(const node&) = delete;
  node& operator=(const node&) = delete;

  void stop() {
    if (!runner_.joinable()) return;
    core_->stop();
    runner_.join();
  }
  statistics stats() const { return core_->stats(); }
  /// \pre stopped
  const stamped_backend& driver() const noexcept { return *driver_; }

 private:
  stamped_backend* driver_ = nullptr;  // The scheduler's.
  std::unique_ptr<scheduler> core_;
  std::thread runner_;
};

/// \return whether each begin led to one suspend, which was called after it was submitted.
bool report(const stage& seen_by_all, const stamped_backend& driver, std::uint32_t rounds) {
  const auto& submitted = driver.submitted();
  const auto& called = driver.called();
  if (submitted.size() != rounds || called.size() != rounds) {
    std::printf("%u begins, %zu suspends submitted, %zu called\n", rounds, submitted.size(),
                called.size());
    return false;
  }
  std::vector<double> to_submit, to_call, floor;
  for (std::size_t i = 0; i < rounds; ++i) {
    if (submitted[i] < seen_by_all.begun[i] || called[i] < submitted[i]) {
      std::printf("round %zu is out of order\n", i);
      return false;
    }
    to_submit.push_back(microseconds(submitted[i] - seen_by_all.begun[i]));
    to_call.push_back(microseconds(called[i] - seen_by_all.begun[i]));
    floor.push_back(microseconds(seen_by_all.floor[i]));
  }
  print_row("from begin() to the suspend being submitted", to_submit, "us");
  print_row("from begin() to the suspend call issued by the agent", to_call, "us");
  print_row("three bare wake-ups by eventfd, process to process", floor, "us");
  return true;
}

int measure(std::uint32_t rounds) {
  const socket_place place;
  stage& seen_by_all = shared<stage>();
  const relay floor(seen_by_all);
  const pid_t child = fork();
  if (child == 0) _exit(run_client(seen_by_all, place.path(), floor.first(), rounds));

  const simulated_device device{{.profile = fast_profile()}};
  auto environment = device.environment();
  environment.push_back("AMD_QUEUE_TAG=OFFLINE_AI");
  target_process offline{SLUICE_INTEGRATION_TARGET, {"1", "2000"}, environment};
  if (offline.hear(30s) != "ready") throw std::runtime_error("the offline process did not start");
  node here(device, place.path());
  if (!eventually(patience, [&] { return here.stats().attaches == 1; })) {
    throw std::runtime_error("the offline process was not attached");
  }
  seen_by_all.attached = true;
  int status = 1;
  waitpid(child, &status, 0);
  here.stop();
  print_head();
  const bool good = status == 0 && report(seen_by_all, here.driver(), rounds);
  const bool whole = offline.ask("drain", 30s) == "0";
  std::printf("%u rounds: %s\n", rounds,
              good && whole ? "every begin led to one suspend call" : "something went wrong");
  return good && whole ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const long rounds = argc > 1 ? std::atol(argv[1]) : 1000;
  if (rounds < 1 || rounds > static_cast<long>(most_rounds)) {
    std::fprintf(stderr, "usage: suspend_latency [ROUNDS]; 1 to %zu\n", most_rounds);
    return 2;
  }
  try {
    return measure(static_cast<std::uint32_t>(rounds));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "suspend_latency: %s\n", error.what());
    return 1;
  }
}
