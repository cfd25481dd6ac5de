// Heap allocations of the whole program, by every thread, between an event and the batch that
// answers it and back: a real scheduler on its own loop, a client's begin() and end() on another
// thread, suspends and resumes of 8 queues. malloc, calloc, realloc, aligned_alloc, memalign and
// posix_memalign are replaced by ones that count. Beside it what the hook sees when a thread posts
// to an Asio loop that another one runs: it must see that, or a count of 0 would mean nothing.

#include "counted_allocations.hpp"
#include "running_world.hpp"
#include "series.hpp"

#include <chrono>
#include <cstdio>
#include <string_view>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "sluice/asio.hpp"

namespace sluice::bench {
namespace {

using counted = test::counted_allocations;

/// One asio::post from a thread that runs no loop.
unsigned long of_a_foreign_post() {
  boost::asio::io_context context;
  unsigned long seen = 0;
  std::thread([&] {
    const counted here;
    boost::asio::post(context, [] {});
    seen = here.so_far();
  }).join();
  context.run();
  return seen;
}

int measure(int rounds, int cycles) {
  running_world world(1ms);
  const auto cycle = [&] {
    const bool went = world.cycle().has_value();
    std::this_thread::sleep_for(2ms);  // It runs, so that it may be suspended again.
    return went;
  };
  bool went = world.warm_up();
  for (int i = 0; i < 20; ++i) went = cycle() && went;
  series taken("allocations", "calls");
  series control("allocations.foreign_post", "calls");
  for (int i = 0; i < rounds; ++i) {
    {
      const counted here;
      for (int each = 0; each < cycles; ++each) went = cycle() && went;
      taken.add(static_cast<double>(here.so_far()));
    }
    control.add(static_cast<double>(of_a_foreign_post()));
    taken.end_round();
    control.end_round();
  }
  if (!went) {
    std::fprintf(stderr, "allocations: not everything was suspended and resumed\n");
    return 1;
  }
  taken.print();
  control.print();
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  return quick ? sluice::bench::measure(1, 100) : sluice::bench::measure(5, 1000);
}
