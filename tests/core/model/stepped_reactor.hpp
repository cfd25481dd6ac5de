#pragma once
/// \file
/// A reactor without a loop or a clock of its own: the test says when it looks. What rings nobody
/// is never looked at, so a wake-up that a scheduler forgot shows.

#include <sys/eventfd.h>
#include <sys/poll.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "sluice/reactor.hpp"
#include "sluice/time.hpp"

namespace sluice::tests {

/// Watches eventfds only. Threading: one thread; outside of a handler and of exclusive() it counts
/// as some other thread.
class stepped_reactor final : public reactor {
 public:
  explicit stepped_reactor(const time_source& time) : time_(time) {}

  /// When the next timer is due.
  time_point next() const noexcept {
    time_point first = never;
    for (const auto& [id, one] : timers_) first = std::min(first, one.at);
    return first;
  }

  reactor_backend backend() const noexcept override { return reactor_backend::epoll; }
  bool hosted() const noexcept override { return false; }
  result<watch_id> watch(int fd, std::function<void()> ready, trigger by) override {
    const watch_id id{++last_};
    watches_.emplace(id, watching{fd, std::move(ready), by});
    return id;
  }
  void unwatch(watch_id id) noexcept override { watches_.erase(id); }
  result<timer_id> add_timer(std::function<void()> expired, bool) override {
    const timer_id id{++last_};
    timers_.emplace(id, timer{std::move(expired), never});
    return id;
  }
  void arm(timer_id id, time_point when) override { timers_.at(id).at = when; }
  void remove(timer_id id) noexcept override { timers_.erase(id); }
  void post(std::function<void()> work) override { posted_.push_back(std::move(work)); }
  void exclusive(const std::function<void()>& work) override {
    const auto inside = inside_;  // The work may be the reactor's end.
    const bool before = std::exchange(*inside, true);
    work();
    *inside = before;
  }
  bool running_here() const noexcept override { return *inside_; }
  void run() override {}
  void stop() noexcept override {}

  bool poll_once() override {
    bool any = false;
    for (auto& work : std::exchange(posted_, {})) {
      exclusive(work);
      any = true;
    }
    // A handler may end the watch or the timer that it belongs to, or all of them.
    const auto watches = watches_;
    for (const auto& [id, one] : watches) {
      if (!watches_.contains(id) || !is_rung(one)) continue;
      exclusive(one.ready);
      any = true;
    }
    const auto timers = timers_;
    for (const auto& [id, one] : timers) {
      const auto found = timers_.find(id);
      if (found == timers_.end() || found->second.at > time_.now()) continue;
      found->second.at = never;
      exclusive(one.expired);
      any = true;
    }
    return any;
  }

 private:
  struct watching {
    int fd;
    std::function<void()> ready;
    trigger by;
  };
  struct timer {
    std::function<void()> expired;
    time_point at;
  };
  static bool is_rung(const watching& one) noexcept {
    // Nobody else reads those by edge.
    eventfd_t value = 0;
    if (one.by == trigger::edge) return ::eventfd_read(one.fd, &value) == 0;
    pollfd looked{one.fd, POLLIN, 0};
    return ::poll(&looked, 1, 0) > 0;
  }

  const time_source& time_;
  std::uint64_t last_ = 0;
  std::map<watch_id, watching> watches_;
  std::map<timer_id, timer> timers_;
  std::vector<std::function<void()>> posted_;
  const std::shared_ptr<bool> inside_ = std::make_shared<bool>(false);
};

}  // namespace sluice::tests
