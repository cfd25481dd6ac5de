// The processor time of one preemption, of both processes together: a client in this process says
// begin() and, later, end(); a scheduler in another one is woken, decides, suspends 8 queues, is
// told so, and resumes them when it is woken again. The driver takes no time. Both sleep between.
// The floor: this process wakes another one by an eventfd as often, with the same sleeps, and that
// has nothing to do. usage: preemption_cpu [--quick]

#include "child.hpp"
#include "quick_world.hpp"
#include "series.hpp"
#include "temporary_directory.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/client.hpp"
#include "sluice/client_server.hpp"
#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/reactor.hpp"
#include "sluice/scheduler.hpp"
#include "sluice/source.hpp"

namespace sluice::bench {
namespace {

using namespace std::chrono_literals;

constexpr auto patience = 20s;
/// For both processes to fall asleep.
constexpr auto pause = 1ms;

void expect(bool holds, const char* what) {
  if (!holds) throw std::runtime_error{what};
}

/// Shows the scheduler the affected process.
class shown_process final : public source {
 public:
  std::string_view name() const noexcept override { return "shown process"; }
  result<void> start(source_host& host) override {
    auto& to = host.claim_inbox();
    to.push(process_seen(affected_pid, role::offline));
    for (std::uint32_t number = 0; number < affected_queues; ++number)
      to.push(queue_seen(affected_pid, number, shared_gpu));
    return {};
  }
  void resync() override {}
  void stop() override {}
};

void serve(const std::string& socket) {
  auto loop = reactor::create();
  expect(loop.has_value(), "no reactor");
  auto driver = std::make_unique<test::instant_backend>();
  driver->add(affected_pid, shared_gpu, affected_queues);
  client::server_options options;
  options.socket = socket;
  options.allow = [](const client::peer&, role) { return true; };
  options.registered = options.withdrawn = [](const client::peer&, role) {};
  std::vector<std::unique_ptr<source>> sources;
  sources.push_back(std::make_unique<shown_process>());
  sources.push_back(client::make_server(std::move(options)));
  auto config = bench_config();
  config.max_suspend = 60s;
  auto made = scheduler::create(config, std::move(*loop), std::move(driver),
                                make_fixed_timeslice({.slice = 1us}), std::move(sources));
  expect(made.has_value() && (*made)->start().has_value(), "no scheduler");
  (*made)->run();
}

/// Sleeps until somebody writes, forever.
void be_woken(int doorbell) {
  const int waits = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  ::epoll_ctl(waits, EPOLL_CTL_ADD, doorbell, &event);
  while (::epoll_wait(waits, &event, 1, -1) == 1) {
    eventfd_t value = 0;
    ::eventfd_read(doorbell, &value);
  }
}

/// What a clock of processor time says.
duration used_by(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return std::chrono::seconds{now.tv_sec} + std::chrono::nanoseconds{now.tv_nsec};
}
/// What the threads of that process have used.
duration used_by(const child& other) {
  clockid_t of{};
  expect(::clock_getcpuclockid(other.pid(), &of) == 0, "a child ended");
  return used_by(of);
}

/// Of this process and that one, for each call of `one`.
template <class One>
duration cost(const child& other, int times, One one) {
  const auto now = [&] { return used_by(other) + used_by(CLOCK_PROCESS_CPUTIME_ID); };
  const duration before = now();
  for (int i = 0; i < times; ++i) one();
  return (now() - before) / times;
}

/// \param is_measurement otherwise its figures are not used, and preemptions may come late.
void measure(int rounds, int times, bool is_measurement) {
  const test::temporary_directory made;
  const std::string place = made.path() + "/clients.sock";
  const int doorbell = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  const child sleeper{[&] { be_woken(doorbell); }};
  const child scheduler{[&] { serve(place); }};
  std::error_code error;
  auto client = client::connection::open({.socket = place, .name = "bench"}, error);
  expect(!error, "no client");
  const auto suspended = [&] { return client.status().suspended; };

  // Until the offline process is attached, and everything has been done once.
  const time_point give_up = clock::now() + patience;
  client.begin();
  while (suspended() != affected_queues) {
    expect(clock::now() < give_up, "nothing is ever suspended");
    std::this_thread::sleep_for(pause);
  }
  client.end();
  while (suspended() != 0) {
    expect(clock::now() < give_up, "nothing is ever resumed");
    std::this_thread::sleep_for(pause);
  }

  series figure{"preemption_cpu"};
  series floor{"preemption_cpu.floor"};
  for (int round = 0; round < rounds; ++round) {
    int missed = 0;
    const auto settled = [&](std::uint64_t wanted) {
      std::this_thread::sleep_for(pause);
      if (suspended() == wanted) return;
      // Others have the processors.
      ++missed;
      const time_point end = clock::now() + patience;
      while (suspended() != wanted) {
        expect(clock::now() < end, "a preemption did not happen");
        std::this_thread::sleep_for(pause);
      }
    };
    figure.add(cost(scheduler, times, [&] {
      client.begin();
      settled(affected_queues);
      client.end();
      settled(0);
    }));
    floor.add(cost(sleeper, times, [&] {
      for (int i = 0; i < 2; ++i) {
        ::eventfd_write(doorbell, 1);
        std::this_thread::sleep_for(pause);
      }
    }));
    expect(!is_measurement || missed * 10 <= times,
           "the machine is too busy: preemptions came a millisecond late");
    figure.end_round();
    floor.end_round();
  }
  figure.print();
  floor.print();
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  const bool quick = argc == 2 && std::strcmp(argv[1], "--quick") == 0;
  try {
    quick ? sluice::bench::measure(2, 50, false) : sluice::bench::measure(9, 500, true);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "preemption_cpu: %s\n", problem.what());
    return 1;
  }
  return 0;
}
