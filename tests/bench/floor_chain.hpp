#pragma once
/// \file
/// The hops from a program to the agent's lane with nothing done at any of them: an eventfd to a
/// reactor, an eventfd to another process, an eventfd to a thread of it. The same primitives wait
/// at each as in sluice: the reactor, epoll_wait, poll.

#include "pinned.hpp"
#include "shared_memory.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>

#include "sluice/reactor.hpp"
#include "sluice/time.hpp"

namespace sluice::bench {

/// Threading: construct before any thread of this process runs, for it forks; arrive() from one
/// thread. start() begins the reactor's thread, with that thread's processors.
class floor_chain {
 public:
  /// \param acting_core where the other process runs.
  explicit floor_chain(int acting_core)
      : entry_(made_eventfd()),
        doorbell_(made_eventfd()),
        end_(made_eventfd()),
        page_(shared<page>()) {
    acting_ = ::fork();
    if (acting_ == 0) act(acting_core);
  }
  ~floor_chain() {
    if (loop_) loop_->stop();
    if (thread_.joinable()) thread_.join();
    loop_.reset();
    ::kill(acting_, SIGKILL);
    ::waitpid(acting_, nullptr, 0);
    for (const int fd : {entry_, doorbell_, end_}) ::close(fd);
  }
  floor_chain(const floor_chain&) = delete;
  floor_chain& operator=(const floor_chain&) = delete;

  /// \param here called first on the reactor's thread.
  template <class Here>
  bool start(Here here) {
    auto made = reactor::create();
    if (!made) return false;
    loop_ = std::move(*made);
    const auto watched = loop_->watch(entry_, [this] {
      eventfd_t value = 0;
      ::eventfd_read(entry_, &value);
      ::eventfd_write(doorbell_, 1);
    });
    if (!watched) return false;
    thread_ = std::thread([this, here] {
      here();
      loop_->run();
    });
    return true;
  }
  pid_t acting() const noexcept { return acting_; }

  /// The first hop; any process that has this descriptor may write it.
  int entry() const noexcept { return entry_; }
  /// Blocks until the last hop has been made. \return when it was.
  time_point arrived() {
    eventfd_t value = 0;
    ::eventfd_read(end_, &value);
    return time_point{duration{page_.at.load(std::memory_order_acquire)}};
  }

 private:
  struct page {
    std::atomic<duration::rep> at{0};
  };
  static int made_eventfd() {
    const int fd = ::eventfd(0, EFD_CLOEXEC);
    if (fd < 0) std::abort();
    return fd;
  }
  /// The other process.
  [[noreturn]] void act(int core) {
    pin_to_core(core);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int lane = made_eventfd();
    std::thread([this, lane] {
      for (;;) {
        pollfd one{lane, POLLIN, 0};
        ::poll(&one, 1, -1);
        eventfd_t value = 0;
        ::eventfd_read(lane, &value);
        page_.at.store(clock::now().time_since_epoch().count(), std::memory_order_release);
        ::eventfd_write(end_, 1);
      }
    }).detach();
    const int set = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN;
    ::epoll_ctl(set, EPOLL_CTL_ADD, doorbell_, &event);
    for (;;) {
      ::epoll_wait(set, &event, 1, -1);
      eventfd_t value = 0;
      ::eventfd_read(doorbell_, &value);
      ::eventfd_write(lane, 1);
    }
  }

  const int entry_;
  const int doorbell_;
  const int end_;
  page& page_;
  pid_t acting_ = 0;
  std::unique_ptr<reactor> loop_;
  std::thread thread_;
};

}  // namespace sluice::bench
