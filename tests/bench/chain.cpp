// From begin() to the agent's suspend call: by a client within the scheduler's program, and by one
// in a process of its own. Real processes through the simulated device and the real agent; one
// offline process with 8 queues shares a GPU with online work, and beside it there are others on
// other GPUs, up to 4096 queues of 64 processes. The floor is the same chain of hops on the same
// processors with nothing to do (floor_chain.hpp). All sleep when a measurement begins. usage:
// chain [--quick]

#include "floor_chain.hpp"
#include "series.hpp"
#include "shared_memory.hpp"
#include "simulated_device.hpp"
#include "tapped_backend.hpp"
#include "target_process.hpp"

#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/client.hpp"
#include "sluice/client_server.hpp"
#include "sluice/discovery.hpp"
#include "sluice/kfd/driver.hpp"
#include "sluice/kfd/node_view.hpp"
#include "sluice/kfd/survey.hpp"
#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/scheduler.hpp"

namespace sluice::bench {
namespace {

using namespace std::chrono_literals;

constexpr auto patience = 60s;
constexpr std::uint32_t affected_queues = 8;
/// What runs when another begins to wait for it.
constexpr int caller_core = 0;
constexpr int reactor_core = 1;

gpu_id first_gpu(const kfd::roots& where) {
  const auto seen = kfd::look_at_node(where);
  if (!seen || seen->gpus.empty()) throw std::runtime_error("no GPU is listed");
  return seen->gpus.front().id;
}

/// The offline processes: one on the first GPU, the others on the others.
class crowd {
 public:
  crowd(const test::simulated_device& device, std::uint32_t queues) {
    add(device, affected_queues, 0);
    std::uint32_t left = queues - affected_queues;
    const std::uint32_t others = std::min(63U, left / affected_queues);
    for (std::uint32_t i = 0; i < others; ++i) {
      const std::uint32_t mine = left / (others - i);
      left -= mine;
      add(device, mine, 1 + i % 7);
    }
  }
  std::size_t size() const { return all_.size(); }

 private:
  void add(const test::simulated_device& device, std::uint32_t queues, std::uint32_t gpu) {
    auto environment = device.environment();
    environment.emplace_back("AMD_QUEUE_TAG=OFFLINE_AI");
    all_.push_back(std::make_unique<test::target_process>(
        SLUICE_INTEGRATION_TARGET,
        std::vector<std::string>{std::to_string(queues), "0", "gpu=" + std::to_string(gpu)},
        environment));
    if (all_.back()->hear(30s) != "ready") throw std::runtime_error("a target did not start");
  }

  std::vector<std::unique_ptr<test::target_process>> all_;
};

/// What the process is told.
enum class order : eventfd_t { begin = 1, end, enter_floor, leave };

/// A client in a process of its own, which does as it is told by an eventfd.
class other_process {
 public:
  /// Forks.
  other_process(const std::string& socket, gpu_id gpu, int floor_entry)
      : orders_(::eventfd(0, EFD_CLOEXEC)), page_(shared<page>()) {
    pid_ = ::fork();
    if (pid_ == 0) ::_exit(live(socket, gpu, floor_entry));
  }
  ~other_process() {
    tell(order::leave);
    ::waitpid(pid_, nullptr, 0);
    ::close(orders_);
  }
  other_process(const other_process&) = delete;
  other_process& operator=(const other_process&) = delete;

  void tell(order what) const { ::eventfd_write(orders_, static_cast<eventfd_t>(what)); }
  bool connected() const { return page_.connected; }
  /// When it last began what it was told to begin; for whoever has seen the consequence.
  time_point began() const { return time_point{duration{page_.began.load()}}; }

 private:
  struct page {
    std::atomic<bool> connected{false};
    std::atomic<duration::rep> began{0};
  };

  int live(const std::string& socket, gpu_id gpu, int floor_entry) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::error_code error;
    client::options how;
    how.socket = socket;
    how.name = "bench";
    how.gpus = {static_cast<std::uint32_t>(gpu)};
    auto made = client::connection::open(how, error);
    if (error) return 1;
    while (made.status().connections == 0) std::this_thread::sleep_for(1ms);
    page_.connected = true;
    for (;;) {
      eventfd_t what = 0;
      ::eventfd_read(orders_, &what);
      switch (order{what}) {
        case order::begin:
          page_.began = clock::now().time_since_epoch().count();
          made.begin();
          break;
        case order::end: made.end(); break;
        case order::enter_floor:
          page_.began = clock::now().time_since_epoch().count();
          ::eventfd_write(floor_entry, 1);
          break;
        case order::leave: return 0;
      }
    }
  }

  const int orders_;
  page& page_;
  pid_t pid_ = 0;
};

/// A scheduler with the real agent on a thread of its own, and what the agent answers.
class node {
 public:
  node(const test::simulated_device& device, const std::string& socket)
      : answered_(::eventfd(0, EFD_CLOEXEC)) {
    auto loop = reactor::create();
    if (!loop) throw std::runtime_error("reactor: " + loop.error().message());
    auto driver = std::make_unique<tapped_backend>(
        agent::make_agent_backend({.driver = kfd::acting({.where = device.roots()}),
                                   .agent_path = SLUICE_AGENT_PROGRAM,
                                   .owner_lock = device.root() + "/owner",
                                   .lease = 10s}),
        [this](const batch_result& one) { heard(one); });
    driver_ = driver.get();
    std::vector<std::unique_ptr<source>> sources;
    sources.push_back(
        make_discovery(kfd::make_survey(device.roots()), {.role_store = device.root() + "/roles"}));
    client::server_options server;
    server.socket = socket;
    server.allow = [](const client::peer&, role) { return true; };
    sources.push_back(client::make_server(std::move(server)));
    scheduler_config config;
    config.attach_after = 0ns;
    config.attach_at_latest = 0ns;
    config.offline_floor = 0;
    config.min_run = 1ms;
    auto made = scheduler::create(config, std::move(*loop), std::move(driver),
                                  make_fixed_timeslice({.slice = 1us}), std::move(sources));
    if (!made) throw std::runtime_error("scheduler: " + made.error().message());
    scheduler_ = std::move(*made);
    if (const auto started = scheduler_->start(); !started)
      throw std::runtime_error("start: " + started.error().message());
    thread_ = std::thread([this] {
      pin_to_core(reactor_core);
      scheduler_->run();
    });
  }
  ~node() {
    scheduler_->stop();
    thread_.join();
    ::close(answered_);
  }
  node(const node&) = delete;
  node& operator=(const node&) = delete;

  scheduler& core() { return *scheduler_; }
  std::size_t queues() const { return driver_->queues(); }
  /// Waits for the next answer. \return when the agent began the call.
  time_point issued(command_kind kind) {
    eventfd_t value = 0;
    ::eventfd_read(answered_, &value);
    if (value != 1 || kind_ != kind || bad_) throw std::runtime_error("another call than expected");
    return time_point{duration{began_.load()}};
  }

 private:
  void heard(const batch_result& one) {
    const auto end = one.outcomes.begin() + one.count;
    if (one.count != affected_queues ||
        std::any_of(one.outcomes.begin(), end, [](outcome each) { return each != outcome::done; }))
      bad_ = true;
    kind_ = one.kind;
    began_ = one.started.time_since_epoch().count();
    ::eventfd_write(answered_, 1);
  }

  const int answered_;
  std::atomic<command_kind> kind_{};
  std::atomic<duration::rep> began_{0};
  std::atomic<bool> bad_{false};
  const tapped_backend* driver_ = nullptr;
  std::unique_ptr<scheduler> scheduler_;
  std::thread thread_;
};

template <class Condition>
void wait_for(const char* what, Condition condition) {
  const time_point give_up = clock::now() + patience;
  while (!condition()) {
    if (clock::now() > give_up) throw std::runtime_error(std::string("no ") + what);
    std::this_thread::sleep_for(1ms);
  }
}

void let_all_sleep() { std::this_thread::sleep_for(1ms); }

/// One number of queues: a device of its own, a scheduler, and clients of both kinds.
class world {
 public:
  /// Forks; nobody may have started a thread yet.
  world(std::uint32_t queues, const floor_chain& floor)
      : queues_(queues),
        device_({.profile = test::fast_profile(), .gpus = 8}),
        offline_(device_, queues),
        gpu_(first_gpu(device_.roots())),
        client_(socket(), gpu_, floor.entry()),
        embedded_("chain.embedded/" + std::to_string(queues)),
        by_client_("chain.client/" + std::to_string(queues)) {}

  void start() {
    here_.emplace(device_, socket());
    wait_for("attach", [&] {
      return here_->core().stats().attaches == offline_.size() && here_->queues() == queues_;
    });
    wait_for("client", [&] { return client_.connected(); });
    auto made = here_->core().register_client({"bench", {gpu_}});
    if (!made) throw std::runtime_error("no client");
    own_.emplace(std::move(*made));
  }

  void embedded_round(int samples) {
    for (int i = 0; i < samples; ++i) {
      let_all_sleep();
      const time_point began = clock::now();
      own_->begin();
      embedded_.add(here_->issued(command_kind::suspend) - began);
      own_->end();
      here_->issued(command_kind::resume);
    }
    embedded_.end_round();
  }
  void client_round(int samples) {
    for (int i = 0; i < samples; ++i) {
      let_all_sleep();
      client_.tell(order::begin);
      const time_point issued = here_->issued(command_kind::suspend);
      by_client_.add(issued - client_.began());
      client_.tell(order::end);
      here_->issued(command_kind::resume);
    }
    by_client_.end_round();
  }
  const other_process& client() const { return client_; }
  void print() {
    embedded_.print();
    by_client_.print();
  }

 private:
  std::string socket() const { return device_.root() + "/clients.sock"; }

  const std::uint32_t queues_;
  const test::simulated_device device_;
  const crowd offline_;
  const gpu_id gpu_;
  const other_process client_;
  series embedded_;
  series by_client_;
  std::optional<node> here_;
  std::optional<online_client> own_;
};

void floor_round(floor_chain& floor, int samples, series& into) {
  for (int i = 0; i < samples; ++i) {
    let_all_sleep();
    const time_point began = clock::now();
    ::eventfd_write(floor.entry(), 1);
    into.add(floor.arrived() - began);
  }
  into.end_round();
}

void floor_round(floor_chain& floor, const other_process& by, int samples, series& into) {
  for (int i = 0; i < samples; ++i) {
    let_all_sleep();
    by.tell(order::enter_floor);
    const time_point arrived = floor.arrived();
    into.add(arrived - by.began());
  }
  into.end_round();
}

void measure(const std::vector<std::uint32_t>& sizes, int rounds, int samples) {
  floor_chain floor(caller_core);
  std::vector<std::unique_ptr<world>> worlds;
  for (const auto each : sizes) worlds.push_back(std::make_unique<world>(each, floor));
  pin_to_core(caller_core);  // And so the agents, and the floor's lane.
  if (!floor.start([] { pin_to_core(reactor_core); })) throw std::runtime_error("no reactor");
  for (const auto& each : worlds) each->start();
  series embedded_floor("chain.embedded_floor");
  series client_floor("chain.client_floor");
  for (int round = 0; round < rounds; ++round) {
    for (const auto& each : worlds) each->embedded_round(samples);
    floor_round(floor, samples, embedded_floor);
    for (const auto& each : worlds) each->client_round(samples);
    floor_round(floor, worlds.front()->client(), samples, client_floor);
  }
  for (const auto& each : worlds) each->print();
  embedded_floor.print();
  client_floor.print();
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::string_view{argv[1]} == "--quick";
  try {
    if (quick) {
      sluice::bench::measure({8, 64}, 2, 10);
    } else {
      sluice::bench::measure({8, 64, 256, 1024, 4096}, 7, 150);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "chain: %s\n", error.what());
    return 1;
  }
  return 0;
}
