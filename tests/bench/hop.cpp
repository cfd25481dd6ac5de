// One wake-up from thread to thread through sluice's reactor. Thread A, on a core of its own, waits
// until thread B sleeps, reads the clock and writes B's eventfd. Figure: until the handler of a
// reactor::watch() on B has read the clock. Floor: until B's blocking read() of the eventfd has
// returned and it has read the clock. For comparison: B in a bare epoll_wait(), and in Asio without
// sluice's reactor. Built once for each of Asio's backends.

#include "pinned.hpp"
#include "series.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "sluice/asio.hpp"
#include "sluice/reactor.hpp"
#include "sluice/time.hpp"

namespace sluice::bench {
namespace {

namespace asio = boost::asio;

/// What A writes last, so that B returns.
constexpr eventfd_t the_end = 1U << 20U;

/// What both threads share. B calls woken() as soon as it runs, then taken() with what it read.
struct hop {
  const int fd = ::eventfd(0, EFD_CLOEXEC);
  std::atomic<pid_t> thread{0};
  std::atomic<std::uint64_t> done{0};
  time_point woken_at{};  // B's, until done says that A may read it.

  hop() = default;
  ~hop() { ::close(fd); }
  hop(const hop&) = delete;
  hop& operator=(const hop&) = delete;

  void woken() noexcept { woken_at = clock::now(); }
  /// \return whether B shall go on.
  bool taken(eventfd_t value) noexcept {
    done.fetch_add(1, std::memory_order_release);
    return value != the_end;
  }
  bool take() noexcept {
    eventfd_t value = 0;
    ::eventfd_read(fd, &value);
    return taken(value);
  }
};

void by_read(hop& at) {
  eventfd_t value = 0;
  do {
    ::eventfd_read(at.fd, &value);
    at.woken();
  } while (at.taken(value));
}

void by_epoll(hop& at) {
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  ::epoll_ctl(set, EPOLL_CTL_ADD, at.fd, &wanted);
  do {
    epoll_event ready;
    while (::epoll_wait(set, &ready, 1, -1) != 1) {
    }
    at.woken();
  } while (at.take());
  ::close(set);
}

void by_asio(hop& at) {
  asio::io_context context(1);
  asio::posix::stream_descriptor descriptor(context, ::dup(at.fd));
  struct waiter {
    void arm() {
      descriptor.async_wait(asio::posix::descriptor_base::wait_read, [this](error_code) {
        at.woken();
        if (at.take()) arm();
      });
    }
    asio::posix::stream_descriptor& descriptor;
    hop& at;
  } one{descriptor, at};
  one.arm();
  context.run();
}

void by_reactor(hop& at) {
  auto loop = reactor::create();
  if (!loop) std::abort();
  const auto watch = (*loop)->watch(at.fd, [&] {
    at.woken();
    if (!at.take()) (*loop)->stop();
  });
  if (!watch) std::abort();
  (*loop)->run();
  (*loop)->unwatch(*watch);
}

/// \return whether every hop arrived, and B slept before each.
bool round(void (*wait)(hop&), int hops, series& into) {
  hop at;
  std::thread other([&] {
    pin_to_core(1);
    at.thread.store(::gettid());
    wait(at);
  });
  while (at.thread.load() == 0) std::this_thread::yield();
  const sleeper_watch watch(at.thread.load());
  const auto deadline = clock::now() + std::chrono::seconds(60);
  bool arrived = true;
  for (int i = 0; i <= hops; ++i) {
    while (!watch.sleeps() && clock::now() < deadline) {
    }
    const auto before = at.done.load(std::memory_order_acquire);
    const time_point written = clock::now();
    ::eventfd_write(at.fd, i < hops ? 1 : the_end);
    while (at.done.load(std::memory_order_acquire) == before && clock::now() < deadline) {
    }
    if (at.done.load(std::memory_order_acquire) != static_cast<std::uint64_t>(i) + 1)
      arrived = false;
    // The first ones warm up.
    if (i >= 10 && i < hops) into.add(at.woken_at - written);
  }
  other.join();
  into.end_round();
  return arrived;
}

int measure(bool quick) {
  pin_to_core(0);
  auto made = reactor::create();
  if (!made) {
    std::fprintf(stderr, "hop: no reactor: %s\n", made.error().message().c_str());
    return 1;
  }
  const std::string name =
      (*made)->backend() == reactor_backend::io_uring ? "hop.io_uring" : "hop.epoll";
  made->reset();
  struct way {
    void (*wait)(hop&);
    series taken;
  };
  std::array ways{way{by_reactor, series(name)}, way{by_read, series(name + ".read")},
                  way{by_epoll, series(name + ".epoll_wait")},
                  way{by_asio, series(name + ".asio")}};
  for (int i = 0; i < (quick ? 2 : 11); ++i) {
    for (way& each : ways) {
      if (round(each.wait, quick ? 300 : 4000, each.taken)) continue;
      std::fprintf(stderr, "hop: a wake-up did not arrive\n");
      return 1;
    }
  }
  for (way& each : ways) each.taken.print();
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::measure(argc > 1 && std::string_view(argv[1]) == "--quick");
}
