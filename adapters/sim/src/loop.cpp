#include "loop.hpp"

#include "engine.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace sluice::sim {

namespace {

// Keys in epoll_event.data; watched descriptors get numbers above these, never reused, so that an
// event of a descriptor unwatched in the same turn finds nobody.
constexpr std::uint64_t wake_key = 0;
constexpr std::uint64_t timer_key = 1;

int checked(int value, const char* what) {
  if (value < 0) throw std::system_error(errno, std::system_category(), what);
  return value;
}

void control(int epoll, int fd, std::uint32_t events, std::uint64_t key) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  checked(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

// The loop that hands in on this thread: it will look into its inbox once more before it sleeps.
thread_local const realtime_loop* handing_in = nullptr;

timespec to_timespec(time_point when) {
  const auto since = std::max(when.time_since_epoch(), duration{1});  // 0 would disarm.
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
  return {.tv_sec = seconds.count(), .tv_nsec = (since - seconds).count()};
}

}  // namespace

realtime_loop::realtime_loop(engine& planned)
    : planned_{planned},
      epoll_{checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")},
      wake_{checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")},
      timer_{
          checked(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), "timerfd_create")},
      last_key_{timer_key} {
  // Edge-triggered, so neither is ever read: a write, or an expiry after a new setting, is an edge.
  control(epoll_.get(), wake_.get(), EPOLLIN | EPOLLET, wake_key);
  control(epoll_.get(), timer_.get(), EPOLLIN | EPOLLET, timer_key);
}

void realtime_loop::post(std::function<void()> work) {
  bool first = false;
  {
    const std::lock_guard lock{inbox_mutex_};
    first = inbox_.empty();
    inbox_.push_back(std::move(work));
  }
  // Whoever finds the inbox filled knows that somebody has seen to it.
  if (first && handing_in != this) eventfd_write(wake_.get(), 1);
}

void realtime_loop::stop() noexcept {
  stopping_.store(true, std::memory_order_release);
  eventfd_write(wake_.get(), 1);
}

void realtime_loop::watch(int fd, std::function<void()> ready) {
  add(fd, EPOLLIN | EPOLLET, std::move(ready));
}

void realtime_loop::watch_shared(int fd, std::function<void()> ready) {
  add(fd, EPOLLIN | EPOLLEXCLUSIVE, std::move(ready));
  shared_ = last_key_;
}

void realtime_loop::add(int fd, std::uint32_t events, std::function<void()> ready) {
  const auto key = ++last_key_;
  control(epoll_.get(), fd, events, key);
  keys_.insert_or_assign(fd, key);
  watched_.emplace(key, std::make_shared<std::function<void()>>(std::move(ready)));
}

void realtime_loop::unwatch(int fd) {
  const auto found = keys_.find(fd);
  if (found == keys_.end()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  watched_.erase(found->second);
  keys_.erase(found);
}

void realtime_loop::arm() {
  const auto next = planned_.next();
  const auto when = next ? std::max(*next, last_timer_wake_ + coalesce) : never;
  if (when == armed_) return;
  itimerspec setting{};
  if (when != never) setting.it_value = to_timespec(when);
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &setting, nullptr);
  armed_ = when;
}

void realtime_loop::catch_up() {
  // A step may leave something for the next one at once; a chain without an end must not keep
  // others waiting.
  constexpr int most_steps = 8;
  for (int i = 0; i < most_steps; ++i) {
    planned_.run_until(clock::now());
    const auto next = planned_.next();
    if (!next || *next > planned_.now()) return;
  }
}

void realtime_loop::wake_up() {
  const auto now = clock::now();
  const auto next = planned_.next();
  if (on_late && next && *next < now) on_late(now - *next);
  catch_up();
}

void realtime_loop::hand_in() {
  for (;;) {
    {
      const std::lock_guard lock{inbox_mutex_};
      taken_.swap(inbox_);
    }
    if (taken_.empty()) return;
    for (auto& work : taken_) {
      catch_up();
      work();
    }
    taken_.clear();
  }
}

void realtime_loop::run() {
  std::array<epoll_event, 64> events{};
  while (!stopping_.load(std::memory_order_acquire)) {
    arm();
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
    handing_in = this;
    const auto call = [this](std::uint64_t key) {
      const auto found = watched_.find(key);
      if (found == watched_.end()) return;
      const auto ready = found->second;  // Kept alive: the handler may unwatch itself.
      (*ready)();
    };
    // First: no other thread was woken for it. It may be the request to write a page back, and what
    // is planned may store into that page, which waits for the answer.
    for (int i = 0; i < count; ++i)
      if (events[static_cast<std::size_t>(i)].data.u64 == shared_) call(shared_);
    wake_up();
    for (int i = 0; i < count; ++i) {
      const auto key = events[static_cast<std::size_t>(i)].data.u64;
      if (key == timer_key) {
        last_timer_wake_ = planned_.now();
        armed_ = never;
      } else if (key != shared_) {
        catch_up();
        call(key);
      }
    }
    hand_in();
    handing_in = nullptr;
    // Also runs what the above has planned for now, replies to be given among it.
    catch_up();
  }
}

}  // namespace sluice::sim
