// What a client's calls cost it, and how soon the scheduler acts. The client is a process of its
// own; the backend touches nothing and answers at once: nothing here is a driver's or a GPU's
// time. Usage: client_latency [ROUNDS]

#include "../adapters/client/served_node.hpp"
#include "rows.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "sluice/client.hpp"

namespace {

using namespace std::chrono_literals;
using namespace sluice::test;
using sluice::clock;

/// In memory that both processes see.
struct stage {
  std::atomic<std::uint32_t> lives{0};  ///< Schedulers that have been started.
  std::atomic<bool> paired{false};      ///< The client is done with the first.
};

/// Of batches of a thousand pairs, the time of one call.
std::vector<double> pairs(sluice::client::connection& client, int batches) {
  std::vector<double> taken;
  for (int i = 0; i < batches; ++i) {
    const auto before = clock::now();
    for (int j = 0; j < 1000; ++j) {
      client.begin();
      client.end();
    }
    taken.push_back(nanoseconds(clock::now() - before) / 2000);
  }
  return taken;
}

int run_client(stage& seen_by_both, const std::string& socket, std::uint32_t rounds) {
  std::error_code error;
  auto client = sluice::client::connection::open({.socket = socket, .name = "bench"}, error);
  if (error) return 1;
  const int batches = static_cast<int>(std::max(rounds, 20U));
  pairs(client, 10);
  print_row("one begin() or end(), no scheduler", pairs(client, batches), "ns");
  const auto wait_for_life = [&](std::uint32_t number) {
    while (seen_by_both.lives != number || client.status().connections != number) {
      std::this_thread::sleep_for(1ms);
    }
  };
  wait_for_life(1);
  print_row("one begin() or end(), scheduler kept awake by them", pairs(client, batches), "ns");
  seen_by_both.paired = true;

  wait_for_life(2);
  std::vector<double> begins, ends;
  const auto timed = [&](std::vector<double>& taken, auto call) {
    std::this_thread::sleep_for(2ms);  // It has gone to sleep.
    const auto before = clock::now();
    call();
    taken.push_back(nanoseconds(clock::now() - before));
  };
  for (std::uint32_t i = 0; i < rounds; ++i) {
    while (client.status().suspended != 0) std::this_thread::sleep_for(100us);
    timed(begins, [&] { client.begin(); });
    while (client.status().suspended == 0) std::this_thread::sleep_for(100us);
    timed(ends, [&] { client.end(); });
  }
  print_row("one begin(), scheduler asleep: it writes the eventfd", begins, "ns");
  print_row("one end(), scheduler asleep: it writes the eventfd", ends, "ns");
  return std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const auto rounds = static_cast<std::uint32_t>(argc > 1 ? std::atoi(argv[1]) : 1000);
  const socket_place place;
  stage& seen_by_both = shared<stage>();
  print_head();
  const pid_t child = fork();
  if (child == 0) _exit(run_client(seen_by_both, place.path(), rounds));

  std::this_thread::sleep_for(500ms);  // The client measures alone.
  sluice::client::server_options options;
  options.socket = place.path();
  {
    served_node first(options);
    if (!first.runs()) return 1;
    seen_by_both.lives = 1;
    while (!seen_by_both.paired) std::this_thread::sleep_for(1ms);
  }
  served_node second(options);
  if (!second.runs()) return 1;
  seen_by_both.lives = 2;
  int status = 1;
  waitpid(child, &status, 0);
  // From the client's begin() to the batch that suspends being handed to the backend.
  const auto all = second.stats();
  print_row("from begin() to the suspend being submitted",
            microseconds(all.decision.percentile(50)), microseconds(all.decision.percentile(99)),
            "us");
  const bool complete = status == 0 && all.suspends == rounds && all.decision.count() == rounds;
  std::printf("%llu begins, %llu suspends, %llu of them measured: %s\n",
              static_cast<unsigned long long>(all.begins.value()),
              static_cast<unsigned long long>(all.suspends.value()),
              static_cast<unsigned long long>(all.decision.count()),
              complete ? "every begin was met" : "some begin was not met");
  return complete ? 0 : 1;
}
