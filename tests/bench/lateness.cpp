// How late a timeslice ends. Figure: from the moment at which the slice is over (the arrival as the
// policy was told, plus the slice) until a real scheduler on its own loop has handed over the batch
// that resumes. Floor: how late a bare thread returns from a blocking read of a timerfd that was
// set to a moment as far ahead, which the kernel does not round as it does a sleep. Built once for
// each of Asio's backends.

#include "running_world.hpp"
#include "series.hpp"

#include <sys/timerfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>

namespace sluice::bench {
namespace {

class bare_timer {
 public:
  ~bare_timer() { ::close(fd_); }

  duration lateness(duration ahead) const {
    const time_point wanted = clock::now() + ahead;
    const auto since = wanted.time_since_epoch();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
    itimerspec when{};
    when.it_value = {seconds.count(), (since - seconds).count()};
    ::timerfd_settime(fd_, TFD_TIMER_ABSTIME, &when, nullptr);
    std::uint64_t times = 0;
    (void)!::read(fd_, &times, sizeof times);
    return clock::now() - wanted;
  }

 private:
  const int fd_ = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
};

/// Longer than the offline process has to run before it may be suspended again.
duration pause_after(duration slice) { return slice / 4 + 3ms; }

bool measure(duration slice, int rounds, int cycles) {
  running_world world(slice);
  if (!world.warm_up()) {
    std::fprintf(stderr, "lateness: nothing was suspended and resumed\n");
    return false;
  }
  const std::string name =
      std::string("lateness.") +
      (world.backend() == reactor_backend::io_uring ? "io_uring." : "epoll.") +
      std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(slice).count()) + "us";
  series taken(name);
  series floor(name + ".timerfd");
  const bare_timer timer;
  for (int i = 0; i < rounds; ++i) {
    for (int each = 0; each < cycles; ++each) {
      const auto late = world.cycle();
      if (!late || *late < duration{}) {
        std::fprintf(stderr, "lateness: a slice did not end with a resume, or ended early\n");
        return false;
      }
      taken.add(*late);
      std::this_thread::sleep_for(pause_after(slice));
    }
    for (int each = 0; each < cycles; ++each) {
      floor.add(timer.lateness(slice));
      std::this_thread::sleep_for(pause_after(slice));
    }
    taken.end_round();
    floor.end_round();
  }
  taken.print();
  floor.print();
  return true;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace std::chrono_literals;
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  const bool done = sluice::bench::measure(2500us, quick ? 2 : 9, quick ? 30 : 100) &&
                    sluice::bench::measure(20ms, quick ? 2 : 9, quick ? 10 : 30);
  return done ? 0 : 1;
}
