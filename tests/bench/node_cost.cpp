// What a node's daemon and agent cost while nothing happens, and how long a restart takes: `sluice
// run` and its agent on the simulated device, with 64 offline processes of 64 queues, all attached,
// and 8 connected clients. Processor time is what the scheduler of the kernel counted for all
// threads of a process; the floor, over the same time, is a process that only wakes as often as
// the intervals of each make it. Memory is smaps_rollup's Anonymous, and what is resident of files.
// A restart: from SIGKILL, with a new daemon started at once, until that says that it knows every
// process and queue, and every client is registered again. --quick: fewer and shorter.

#include "child.hpp"
#include "command.hpp"
#include "device_view.hpp"
#include "series.hpp"
#include "simulated_device.hpp"
#include "target_process.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/client.h"
#include "sluice/time.hpp"

namespace sluice::bench {
namespace {

using namespace std::chrono_literals;
using test::eventually;

constexpr auto patience = 60s;
constexpr std::size_t client_count = 8;

struct size {
  std::size_t processes = 64;
  std::size_t queues = 64;
  int rounds = 5;
  duration window = 10s;
  duration settle = 3s;
};
constexpr size whole{};
constexpr size quick{4, 8, 1, 400ms, 100ms};

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error{what};
}

/// What a process has used so far.
struct usage {
  std::uint64_t nanoseconds = 0;
  std::uint64_t sleeps = 0;  ///< As often it was woken.
};

usage usage_of(pid_t pid) {
  usage sum;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& each : std::filesystem::directory_iterator{tasks}) {
    std::uint64_t ran = 0;
    std::ifstream{each.path() / "schedstat"} >> ran;
    sum.nanoseconds += ran;
    std::ifstream status{each.path() / "status"};
    for (std::string word; status >> word;) {
      if (word != "voluntary_ctxt_switches:") continue;
      std::uint64_t times = 0;
      status >> times;
      sum.sleeps += times;
    }
  }
  return sum;
}

struct memory {
  double anonymous = 0;
  double of_files = 0;
  double stacks = 0;  ///< Of the anonymous: of threads other than the first.
};

memory memory_of(pid_t pid) {
  constexpr double kibi = 1024;
  const auto each_value = [&](const char* file, auto take) {
    std::ifstream text{"/proc/" + std::to_string(pid) + "/" + file};
    for (std::string line; std::getline(text, line);) {
      std::istringstream words{line};
      std::string key;
      double value = 0;
      if (words >> key >> value) take(key, value * kibi);
    }
  };
  memory found;
  double resident = 0;
  each_value("smaps_rollup", [&](const std::string& key, double value) {
    if (key == "Anonymous:") found.anonymous = value;
    if (key == "Rss:") resident = value;
  });
  found.of_files = resident - found.anonymous;
  // Mappings as long as this process's own limit says that stacks are; theirs was inherited.
  pthread_attr_t attributes;
  std::size_t stack = 0;
  pthread_attr_init(&attributes);
  pthread_attr_getstacksize(&attributes, &stack);
  pthread_attr_destroy(&attributes);
  bool is_stack = false;
  each_value("smaps", [&](const std::string& key, double value) {
    if (key == "Size:") is_stack = value == static_cast<double>(stack);
    if (key == "Anonymous:" && is_stack) found.stacks += value;
  });
  return found;
}

/// Wakes so often, and does nothing.
void only_wake(duration every) {
  const int timer = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
  const timespec period{0, every.count()};
  const itimerspec when{period, period};
  ::timerfd_settime(timer, 0, &when, nullptr);
  std::uint64_t ticks = 0;
  while (::read(timer, &ticks, sizeof ticks) == sizeof ticks) {
  }
}

/// In memory that all clients write to.
struct stage {
  /// Readable while the clients shall look; else they stay asleep, as idle ones do.
  const int look = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::array<std::atomic<pid_t>, client_count> registered_by{};  ///< A scheduler's pid.
};

void be_client(const std::string& socket, stage& shared, std::size_t number) {
  sluice_client_options with{};
  with.size = sizeof with;
  with.socket = socket.c_str();
  with.name = "bench";
  sluice_connection* connection = nullptr;
  if (sluice_client_open(&with, &connection) != 0) return;
  for (;;) {
    pollfd wanted{shared.look, POLLIN, 0};
    ::poll(&wanted, 1, -1);
    sluice_client_status now{};
    now.size = sizeof now;
    sluice_client_get_status(connection, &now);
    shared.registered_by[number] = now.connected != 0 ? now.scheduler_pid : 0;
    std::this_thread::sleep_for(2ms);
  }
}

class node_bench {
 public:
  explicit node_bench(const size& chosen) : size_(chosen) {
    std::filesystem::create_directory(directory_);
    void* const at =
        ::mmap(nullptr, sizeof(stage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    expect(at != MAP_FAILED, "no memory to share with the clients");
    shared_ = new (at) stage;
    for (std::size_t i = 0; i < client_count; ++i)
      clients_.push_back(std::make_unique<child>(
          [&, i] { be_client(directory_ + "/clients.sock", *shared_, i); }));
    for (std::size_t i = 0; i < size_.processes; ++i) offline_.push_back(target("OFFLINE_AI"));
    for (const auto& each : offline_) expect(each->hear(patience) == "ready", "a target ended");
  }

  void run() {
    start("name = \"fixed_timeslice\"\n");
    settle();
    measure_idle();
    measure_memory();
    measure_restarts();
    end();
    const auto server = target("ONLINE_AI");
    expect(server->hear(patience) == "ready", "the online process ended");
    start("name = \"pointer_polling\"\n", 1);
    settle();
    measure_polling();
    check_that_it_polls(*server);
    end();
  }

 private:
  std::unique_ptr<test::target_process> target(const std::string& tag) const {
    auto environment = device_.environment();
    environment.push_back("AMD_QUEUE_TAG=" + tag);
    return std::make_unique<test::target_process>(
        SLUICE_INTEGRATION_TARGET,
        std::vector<std::string>{std::to_string(size_.queues), "0", "all-gpus"}, environment);
  }

  void start(const std::string& policy, std::size_t online = 0) {
    online_ = online;
    std::ofstream{config_} << "[daemon]\nmode = \"enforce\"\ndirectory = \"" << directory_
                           << "\"\n[scheduler]\nattach_after = \"50ms\"\nattach_at_latest = "
                              "\"100ms\"\nbreaker_after = 1000\n[policy]\n"
                           << policy << "[roles]\nstore = \"\"\n";
    launch();
  }
  void launch() {
    auto environment = device_.environment();
    environment.push_back("SLUICE_BREAKERS=" + directory_ + "/breakers");
    environment.push_back("SLUICE_AGENT=" SLUICE_AGENT_PROGRAM);
    heard_ = 0;
    daemon_ = std::make_unique<test::command>(
        SLUICE_PROGRAM, std::vector<std::string>{"run", "-c", config_}, std::move(environment));
  }
  void end() {
    daemon_->signal(SIGTERM);
    expect(daemon_->ends() == 0, "the daemon failed: " + daemon_->err());
    daemon_.reset();
  }

  /// Until it has done what there is to do.
  void settle() {
    ::eventfd_write(shared_->look, 1);
    expect(eventually(patience, [&] { return clients_are_back(); }), "a client is missing");
    stop_looking();
    expect(eventually(patience, [&] { return all_attached(); }), "not every process is attached");
    expect(eventually(patience, [&] { return knows_all(); }), "it does not know every queue");
    std::this_thread::sleep_for(size_.settle);
  }
  void stop_looking() const {
    eventfd_t value = 0;
    ::eventfd_read(shared_->look, &value);
  }
  bool clients_are_back() const {
    const pid_t now = daemon_->pid();
    return std::all_of(shared_->registered_by.begin(), shared_->registered_by.end(),
                       [&](const auto& each) { return each == now; });
  }
  bool all_attached() const {
    return std::all_of(offline_.begin(), offline_.end(), [](const auto& each) {
      std::ifstream status{"/proc/" + std::to_string(each->pid()) + "/status"};
      for (std::string line; std::getline(status, line);)
        if (line.starts_with("TracerPid:")) return line != "TracerPid:\t0";
      return false;
    });
  }
  bool knows_all() {
    const std::string text =
        " queues=" + std::to_string((offline_.size() + online_) * size_.queues) + " ";
    heard_ += daemon_->err(heard_).size();
    daemon_->signal(SIGUSR1);
    std::string said;
    eventually(1s, [&] {
      said = daemon_->err(heard_);
      return said.find("statistics: ") != said.npos && said.ends_with('\n');
    });
    return said.find(text) != said.npos;
  }
  pid_t agent() const {
    std::ifstream lock{directory_ + "/owner"};
    pid_t host = 0;
    pid_t acting = 0;
    std::string name;
    lock >> host >> name >> acting;
    expect(host == daemon_->pid() && acting > 0, "the owner's file names somebody else");
    return acting;
  }

  struct watched {
    series* processor;
    series* wakes;
    pid_t pid;
    usage before{};
  };
  void measure(std::vector<watched> all) const {
    for (int round = 0; round < size_.rounds; ++round) {
      const time_point began = clock::now();
      for (auto& each : all) each.before = usage_of(each.pid);
      std::this_thread::sleep_for(size_.window);
      const double seconds = std::chrono::duration<double>(clock::now() - began).count();
      for (auto& each : all) {
        const usage now = usage_of(each.pid);
        const auto used = static_cast<double>(now.nanoseconds - each.before.nanoseconds);
        each.processor->add(used / 1e9 / seconds * 100);
        each.processor->end_round();
        if (each.wakes == nullptr) continue;
        each.wakes->add(static_cast<double>(now.sleeps - each.before.sleeps) / seconds);
        each.wakes->end_round();
      }
    }
    for (const auto& each : all) {
      each.processor->print();
      if (each.wakes != nullptr) each.wakes->print();
    }
  }

  void measure_idle() const {
    // The daemon renews its lease (500 ms) four times as often as it must, and its main thread and
    // discovery look once a second each; the agent's heart beats five times in a lease.
    const child daemon_floor{[] { only_wake(100ms); }};
    const child agent_floor{[] { only_wake(100ms); }};
    series daemon{"node.idle.daemon", "percent"};
    series daemon_wakes{"node.idle.daemon_wakes", "per_second"};
    series acting{"node.idle.agent", "percent"};
    series acting_wakes{"node.idle.agent_wakes", "per_second"};
    series floor{"node.idle.daemon_floor", "percent"};
    series acting_floor{"node.idle.agent_floor", "percent"};
    measure({{&daemon, &daemon_wakes, daemon_->pid()},
             {&acting, &acting_wakes, agent()},
             {&floor, nullptr, daemon_floor.pid()},
             {&acting_floor, nullptr, agent_floor.pid()}});
  }

  void measure_polling() const {
    // pointer_polling's `slow`, and the above.
    const child floor_process{[] { only_wake(2ms); }};
    series daemon{"node.polling.daemon", "percent"};
    series wakes{"node.polling.daemon_wakes", "per_second"};
    series floor{"node.polling.floor", "percent"};
    measure({{&daemon, &wakes, daemon_->pid()}, {&floor, nullptr, floor_process.pid()}});
  }
  /// A kernel that nobody reports has offline work suspended.
  void check_that_it_polls(test::target_process& server) const {
    expect(server.ask("run 300000", patience) == "submitted", "the online process does not submit");
    const test::device_view view{device_.root()};
    expect(eventually(patience,
                      [&] { return view.process(offline_.front()->pid()).queue_suspends > 0; }),
           "nobody saw the online process's kernel");
  }

  void measure_memory() const {
    const std::array<std::pair<std::string, pid_t>, 2> both{
        {{"daemon", daemon_->pid()}, {"agent", agent()}}};
    for (const auto& [name, pid] : both) {
      const memory found = memory_of(pid);
      const std::string prefix = "node.memory." + name;
      const std::array<std::pair<std::string, double>, 3> all{
          {{"", found.anonymous}, {".files", found.of_files}, {".stacks", found.stacks}}};
      for (const auto& [suffix, value] : all) {
        series one{prefix + suffix, "bytes"};
        one.add(value);
        one.print();
      }
    }
  }

  void measure_restarts() {
    series known{"node.restart.known"};
    series back{"node.restart.clients"};
    series whole_again{"node.restart"};
    series attached{"node.restart.attached"};
    for (int round = 0; round < size_.rounds; ++round) {
      ::eventfd_write(shared_->look, 1);
      const time_point killed = clock::now();
      daemon_->signal(SIGKILL);
      launch();
      bool owned = false;
      time_point ask = killed;  // seldom: its answer costs it processor time
      duration knows{};
      duration registered{};
      expect(eventually(patience,
                        [&] {
                          if (registered == 0ns && clients_are_back())
                            registered = clock::now() - killed;
                          owned = owned || owns();
                          if (knows == 0ns && owned && clock::now() >= ask) {
                            if (knows_all()) knows = clock::now() - killed;
                            ask = clock::now() + 5ms;
                          }
                          return knows != 0ns && registered != 0ns;
                        }),
             "the next daemon did not find everything");
      stop_looking();
      known.add(knows);
      back.add(registered);
      whole_again.add(std::max(knows, registered));
      expect(eventually(patience, [&] { return all_attached(); }), "not all are attached again");
      attached.add(clock::now() - killed);
      for (auto* const each : {&known, &back, &whole_again, &attached}) each->end_round();
    }
    for (auto* const each : {&known, &back, &whole_again, &attached}) each->print();
  }
  /// Before that, SIGUSR1 would end it.
  bool owns() const { return daemon_->err().find("owns the node") != std::string::npos; }

  const size size_;
  const test::simulated_device device_{{.profile = "mi300x", .gpus = 8}};
  const std::string directory_ = device_.root() + "/run";
  const std::string config_ = device_.root() + "/sluice.toml";
  stage* shared_ = nullptr;
  std::vector<std::unique_ptr<child>> clients_;
  std::vector<std::unique_ptr<test::target_process>> offline_;
  std::size_t online_ = 0;  ///< Processes beside those.
  std::unique_ptr<test::command> daemon_;
  std::size_t heard_ = 0;  ///< Of what it said.
};

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  const bool quick = argc == 2 && std::strcmp(argv[1], "--quick") == 0;
  try {
    sluice::bench::node_bench{quick ? sluice::bench::quick : sluice::bench::whole}.run();
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "node_cost: %s\n", problem.what());
    return 1;
  }
  return 0;
}
