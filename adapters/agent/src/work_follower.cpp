#include "sluice/agent/work_follower.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>
#include <utility>

#include "sluice/os/quiet_thread.hpp"

namespace sluice::agent {

namespace {

using namespace std::chrono_literals;

/// Between two looks at a process: others get their turn, and a host that takes the reports.
constexpr duration least_pause = 20us;
/// Submissions to a GPU that has work anyway are told no more often than this.
constexpr duration least_report = 1ms;
/// A process without work for this long rests.
constexpr duration rests_after = 1s;

bool is_work(online_work state) {
  return state != online_work::finished && state != online_work::unknown;
}

}  // namespace

work_follower::work_follower(work_follower_options how)
    : how_(std::move(how)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

work_follower::~work_follower() {
  if (!worker_.joinable()) return;
  stopping_.store(true);
  ::eventfd_write(wake_.get(), 1);
  worker_.join();
}

result<void> work_follower::follow(const process_identity& who,
                                   std::unique_ptr<followed_process> process) {
  if (!wake_) return error_code{EMFILE, boost::system::system_category()};
  if (!worker_.joinable())
    if (const auto started = start_quiet_thread(worker_, [this] { run(); }); !started)
      return started;
  {
    const std::scoped_lock held{mutex_};
    orders_.push_back({who, std::move(process)});
  }
  ::eventfd_write(wake_.get(), 1);
  return {};
}

void work_follower::leave(const process_identity& who) {
  if (worker_.joinable()) (void)follow(who, nullptr);
}

void work_follower::pace(duration every) noexcept {
  if (every_.exchange(every.count()) != every.count()) ::eventfd_write(wake_.get(), 1);
}

// Everything below runs on the worker's thread.

void work_follower::take_orders(time_point now) {
  std::vector<order> orders;
  {
    const std::scoped_lock held{mutex_};
    orders.swap(orders_);
  }
  for (order& each : orders) {
    std::erase_if(all_, [&](const followed& one) { return one.who == each.who; });
    if (each.process)
      all_.push_back(
          {.who = each.who, .process = std::move(each.process), .due = now, .last_work = now});
  }
}

void work_follower::run() {
  ::pthread_setname_np(::pthread_self(), how_.thread.c_str());
  ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);  // The default of 50 us is jitter to us.
  pollfd woken{wake_.get(), POLLIN, 0};
  while (!stopping_.load()) {
    if (woken.revents != 0) {
      eventfd_t ignored = 0;
      ::eventfd_read(wake_.get(), &ignored);
      take_orders(clock::now());
    }
    const time_point next = look(clock::now());
    const duration left = std::max(next - clock::now(), duration{});
    const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
    const timespec wait{seconds.count(), (left - seconds).count()};
    if (::ppoll(&woken, 1, next == never ? nullptr : &wait, nullptr) < 0) woken.revents = 0;
  }
}

time_point work_follower::look(time_point now) {
  const duration every{every_.load()};
  if (every <= duration::zero()) all_.clear();
  const bool other_pace = std::exchange(pace_, every) != every;
  const bool all = restate_.exchange(false);
  time_point next = never;
  for (auto each = all_.begin(); each != all_.end();) {
    if (all)
      for (place& one : each->places) one.ever_told = false;
    if (other_pace) each->due = now;
    if (each->due <= now) {
      found_.clear();
      if (!each->ended && !each->process->look(now, found_)) {
        found_.clear();
        each->ended = true;
        for (place& one : each->places) one.ever_told = false;
      }
      // What it saw may have come during it.
      now = clock::now();
      add_missing(*each);
      tell(*each, now);
      const bool rests = now - each->last_work > rests_after;
      // From look to look, but with a pause where looks take long.
      each->due =
          std::max(each->due + (rests ? std::max(every, how_.rest) : every), now + least_pause);
      if (each->ended && std::ranges::all_of(each->places, &place::ever_told)) {
        each = all_.erase(each);
        continue;
      }
    }
    next = std::min(next, each->due);
    ++each;
  }
  return next;
}

void work_follower::add_missing(const followed& of) {
  for (const place& each : of.places)
    if (std::ranges::find(found_, each.gpu, &followed_process::work::gpu) == found_.end())
      found_.push_back({.gpu = each.gpu});
}

void work_follower::tell(followed& of, time_point now) {
  bool told = false;
  for (const auto& seen : found_) {
    auto known = std::ranges::find(of.places, seen.gpu, &place::gpu);
    if (known == of.places.end()) known = of.places.insert(known, place{.gpu = seen.gpu});
    known->untold += seen.came;
    if (is_work(seen.state) || seen.came != 0) of.last_work = now;
    if (known->ever_told) {
      const bool same = seen.state == known->told;
      if (same && known->untold == 0 && seen.waiting == known->told_waiting) continue;
      if (now - known->told_at < (same && is_work(seen.state) ? least_report : how_.apart))
        continue;
    }
    observation made;
    made.kind = observation_kind::pointers_seen;
    made.pid = of.who.pid;
    made.start_time = of.who.start_time;
    made.gpu = seen.gpu;
    made.work = seen.state;
    made.waiting = seen.waiting;
    made.count = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(known->untold, std::numeric_limits<std::int32_t>::max()));
    made.at = now;
    if (!how_.report(made)) continue;
    *known = {seen.gpu, seen.state, seen.waiting, now, 0, true};
    told = true;
  }
  if (told && how_.reported) how_.reported();
}

}  // namespace sluice::agent
