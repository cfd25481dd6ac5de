#include "work_follower.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <utility>

#include "sluice/os/quiet_thread.hpp"

namespace sluice::agent {

namespace {

using namespace std::chrono_literals;

/// However often the host asks for a look.
constexpr duration least_interval = 50us;
/// Between two looks at a process: others get their turn, and a host that takes the reports.
constexpr duration least_pause = 20us;
/// Submissions to a GPU that has work anyway are told no more often than this.
constexpr duration least_report = 1ms;

/// \param when never: disarms it.
void arm(const unique_fd& timer, time_point when) {
  itimerspec at{};
  if (when != never) {
    const auto since = std::max(when.time_since_epoch(), duration{1});
    const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
    at.it_value = {seconds.count(), (since - seconds).count()};
  }
  ::timerfd_settime(timer.get(), TFD_TIMER_ABSTIME, &at, nullptr);
}

bool is_work(online_work state) {
  return state != online_work::finished && state != online_work::unknown;
}

}  // namespace

work_follower::~work_follower() {
  if (!worker_.joinable()) return;
  stopping_.store(true);
  ::eventfd_write(wake_.get(), 1);
  worker_.join();
}

result<void> work_follower::follow(pid_t pid, std::uint64_t start_time, duration every) {
  const std::pair which{pid, start_time};
  const auto asked = std::ranges::find(asked_, which);
  order next{.pid = pid, .start_time = start_time, .every = every, .fresh = nullptr};
  if (every == duration::zero()) {
    if (asked == asked_.end()) return {};
    asked_.erase(asked);
  } else if (asked == asked_.end()) {
    if (asked_.size() >= most_followed) return errc::full;
    auto made = make_(pid, start_time);
    if (!made) return made.error();
    next.fresh = std::move(*made);
    asked_.push_back(which);
  }
  if (!wake_) wake_ = unique_fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!wake_) return last_system_error();
  {
    const std::scoped_lock held{mutex_};
    orders_.push_back(std::move(next));
  }
  if (!worker_.joinable())
    if (const auto started = start_quiet_thread(worker_, [this] { run(); }); !started)
      return started;
  ::eventfd_write(wake_.get(), 1);
  return {};
}

bool work_follower::next(report& out) {
  const std::scoped_lock held{mutex_};
  if (reports_.empty()) return false;
  out = reports_.front();
  reports_.pop_front();
  return true;
}

// Everything below runs on the worker's thread.

void work_follower::take_orders() {
  std::vector<order> orders;
  {
    const std::scoped_lock held{mutex_};
    orders.swap(orders_);
  }
  for (order& each : orders) {
    const auto found = std::ranges::find_if(all_, [&](const followed& one) {
      return one.pid == each.pid && one.start_time == each.start_time;
    });
    if (each.every == duration::zero()) {
      if (found != all_.end()) all_.erase(found);
    } else if (each.fresh) {
      all_.push_back({each.pid, each.start_time, each.every, std::move(each.fresh), {}, {}});
    } else if (found != all_.end()) {
      found->every = each.every;
      found->due = {};
    }
  }
}

void work_follower::run() {
  ::pthread_setname_np(::pthread_self(), "sluice-follow");
  ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);  // The default of 50 us is jitter to us.
  const unique_fd timer{::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)};
  std::array<pollfd, 2> waits{{{wake_.get(), POLLIN, 0}, {timer.get(), POLLIN, 0}}};
  while (timer && !stopping_.load()) {
    eventfd_t ignored = 0;
    ::eventfd_read(wake_.get(), &ignored);
    take_orders();
    arm(timer, look(clock::now()));
    ::poll(waits.data(), waits.size(), -1);
  }
}

time_point work_follower::look(time_point now) {
  told_ = false;
  time_point next = never;
  for (auto each = all_.begin(); each != all_.end();) {
    if (each->due <= now) {
      found_.clear();
      if (!each->process->look(now, found_)) {
        each = all_.erase(each);
        continue;
      }
      tell(*each, now);
      now = clock::now();
      // From look to look, but with a pause where looks take long.
      each->due = std::max(each->due + std::max(each->every, least_interval), now + least_pause);
    }
    next = std::min(next, each->due);
    ++each;
  }
  if (told_) owner_.report();
  return next;
}

void work_follower::tell(followed& of, time_point now) {
  for (const auto& seen : found_) {
    auto known = std::ranges::find(of.places, seen.gpu, &place::gpu);
    if (known == of.places.end()) known = of.places.insert(known, place{.gpu = seen.gpu});
    known->untold += seen.came;
    const bool same = known->ever_told && seen.state == known->told;
    if (same &&
        (known->untold == 0 || (is_work(seen.state) && now - known->told_at < least_report)))
      continue;
    report made;
    made.kind = report_kind::observed;
    made.seen.kind = observation_kind::pointers_seen;
    made.seen.pid = of.pid;
    made.seen.start_time = of.start_time;
    made.seen.gpu = seen.gpu;
    made.seen.work = seen.state;
    made.seen.waiting = seen.waiting;
    made.seen.at = now;
    const std::scoped_lock held{mutex_};
    auto old = std::ranges::find_if(reports_, [&](const report& one) {
      return one.seen.pid == of.pid && one.seen.start_time == of.start_time &&
             one.seen.gpu == seen.gpu;
    });
    const std::uint64_t before = old == reports_.end() ? 0 : old->seen.count;
    made.seen.count = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(known->untold + before, std::numeric_limits<std::int32_t>::max()));
    if (old == reports_.end())
      reports_.push_back(made);
    else
      *old = made;
    *known = {seen.gpu, seen.state, now, 0, true};
    told_ = true;
  }
}

}  // namespace sluice::agent
