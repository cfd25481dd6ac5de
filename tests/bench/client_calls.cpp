// What begin() and end() cost a client, a process of its own: while the scheduler is awake, and
// while it sleeps and has to be rung. Floors: an atomic addition to the same kind of memory, and a
// write to an eventfd that another process sleeps on. The driver takes no time here. usage:
// client_calls [--quick]

#include "../adapters/client/served_node.hpp"
#include "child.hpp"
#include "series.hpp"
#include "shared_memory.hpp"

#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

#include "sluice/client.hpp"

namespace sluice::bench {
namespace {

using namespace std::chrono_literals;

struct length {
  int rounds;
  int batches;  ///< Of a thousand pairs, in a round.
  int rings;    ///< In a round.
};

/// Which scheduler runs; the client follows.
struct stage {
  std::atomic<std::uint32_t> life{0};
  std::atomic<bool> paired{false};
};

/// Both calls of a batch of pairs, in nanoseconds each.
template <class Begin, class End>
double one_of_pairs(Begin begin, End end) {
  constexpr int pairs = 1000;
  const auto before = clock::now();
  for (int i = 0; i < pairs; ++i) {
    begin();
    end();
  }
  return static_cast<double>((clock::now() - before).count()) / (2 * pairs);
}

int live(stage& both, const std::string& socket, length how) {
  const int bell = ::eventfd(0, EFD_CLOEXEC);
  const child other([bell] {  // It sleeps in read().
    for (eventfd_t value = 0;;) ::eventfd_read(bell, &value);
  });
  auto& counter = shared<std::atomic<std::uint64_t>>();
  std::error_code error;
  auto client = client::connection::open({.socket = socket, .name = "bench"}, error);
  if (error) return 1;
  series alone("client.call_alone"), awake("client.call_awake"), floor("client.call_floor");
  const auto begin = [&] { client.begin(); };
  const auto end = [&] { client.end(); };
  const auto add = [&] { counter.fetch_add(1); };
  for (int round = 0; round < how.rounds; ++round) {
    for (int i = 0; i < how.batches; ++i) {
      alone.add(one_of_pairs(begin, end));
      floor.add(one_of_pairs(add, add));
    }
    alone.end_round();
    floor.end_round();
  }
  const auto wait_for_life = [&](std::uint32_t number) {
    while (both.life != number || client.status().connections != number) {
      std::this_thread::sleep_for(1ms);
    }
  };
  wait_for_life(1);
  for (int round = 0; round < how.rounds; ++round) {
    for (int i = 0; i < how.batches; ++i) awake.add(one_of_pairs(begin, end));
    awake.end_round();
  }
  both.paired = true;

  wait_for_life(2);
  series begins("client.begin_asleep"), ends("client.end_asleep"), writes("client.write_floor");
  const auto timed = [&](series& into, auto call) {
    std::this_thread::sleep_for(2ms);  // Everything has gone to sleep.
    const auto before = clock::now();
    call();
    into.add(clock::now() - before);
  };
  for (int round = 0; round < how.rounds; ++round) {
    for (int i = 0; i < how.rings; ++i) {
      while (client.status().suspended != 0) std::this_thread::sleep_for(100us);
      timed(begins, begin);
      while (client.status().suspended == 0) std::this_thread::sleep_for(100us);
      timed(ends, end);
      timed(writes, [&] { ::eventfd_write(bell, 1); });
    }
    for (auto* each : {&begins, &ends, &writes}) each->end_round();
  }
  for (auto* each : {&alone, &awake, &floor, &begins, &ends, &writes}) each->print();
  return 0;
}

int measure(length how) {
  const test::socket_place place;
  auto& both = shared<stage>();
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::_Exit(live(both, place.path(), how));
  }
  std::this_thread::sleep_for(how.rounds * 20ms);  // The client measures alone.
  client::server_options options;
  options.socket = place.path();
  {
    test::served_node first(options);
    if (!first.runs()) return 1;
    both.life = 1;
    while (!both.paired) std::this_thread::sleep_for(1ms);
  }
  test::served_node second(options);
  if (!second.runs()) return 1;
  both.life = 2;
  int status = 1;
  ::waitpid(child, &status, 0);
  const auto expected =
      static_cast<std::uint64_t>(how.rounds) * static_cast<std::uint64_t>(how.rings);
  const auto all = second.stats();
  if (status == 0 && all.suspends == expected && all.decision.count() == expected) return 0;
  std::fprintf(stderr, "client_calls: of %llu begins %llu led to a suspend\n",
               static_cast<unsigned long long>(expected),
               static_cast<unsigned long long>(all.suspends.value()));
  return 1;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::string_view{argv[1]} == "--quick";
  return sluice::bench::measure(quick ? sluice::bench::length{2, 10, 20}
                                      : sluice::bench::length{7, 100, 150});
}
