#include "engine.hpp"

#include <algorithm>
#include <utility>

namespace sluice::sim {

timer_id engine::at(time_point when, std::function<void()> handler) {
  const timer_id id{std::max(when, now_), ++last_sequence_};
  planned_.emplace(id, std::move(handler));
  return id;
}

void engine::cancel(timer_id timer) { planned_.erase(timer); }

void engine::defer(std::function<void()> action) { deferred_.push_back(std::move(action)); }

void engine::after_step(std::function<void()> action) { next_step_.push_back(std::move(action)); }

std::optional<time_point> engine::next() const {
  if (!deferred_.empty() || !next_step_.empty()) return now_;
  if (planned_.empty()) return std::nullopt;
  return planned_.begin()->first.when;
}

void engine::run_until(time_point t) {
  t = std::max(t, now_);
  auto left = std::exchange(next_step_, {});
  for (;;) {
    while (!planned_.empty() && planned_.begin()->first.when <= t) {
      const auto event = planned_.extract(planned_.begin());
      now_ = event.key().when;
      event.mapped()();
    }
    now_ = t;
    if (left.empty() && deferred_.empty()) return;
    const auto actions = std::exchange(left.empty() ? deferred_ : left, {});
    for (const auto& action : actions) action();
  }
}

}  // namespace sluice::sim
