#include "rounds.hpp"

#include <utility>

namespace sluice::rounds {

void policy_in_rounds::decide(const snapshot& seen, decision_sink& out) {
  bool news = !seen.changed.empty() || seen.now >= wake_;
  if (seen.now >= wake_) wake_ = never;
  for (const event& one : seen.events) news = news || is_news(seen, one);
  if (!news) return;

  for (const group_id id : seen.changed) {
    const auto at =
        std::lower_bound(groups_.begin(), groups_.end(), id,
                         [](const contender& one, group_id wanted) { return one.id < wanted; });
    const group_view* const view = seen.table.find(id);
    if (view == nullptr || view->what != role::offline) {
      if (view != nullptr) out.run(id);
    } else if (at != groups_.end() && at->id == id) {
      at->declare = true;
    } else {
      groups_.insert(at, {.id = id, .seen = seen.now, .last_ran = seen.now});
    }
  }
  look(seen);
  prepare(out);
  const time_point next = choose(seen.now);

  for (contender& one : groups_) {
    if (!std::exchange(one.declare, false)) continue;
    one.runs ? out.run(one.id) : out.hold(one.id, never);
  }
  if (next < wake_) out.wake_at(wake_ = next);
}

bool policy_in_rounds::is_news(const snapshot& seen, const event& one) const noexcept {
  if (settings_.linger < duration::zero()) return false;
  const place* const on = find(one.gpu);
  const bool busy = on != nullptr && on->busy_until == never;
  switch (one.kind) {
    case event_kind::online_begin: return !busy;
    case event_kind::online_end: return busy && seen.table.find(one.gpu)->online_in_flight == 0;
    default: return false;
  }
}

/// Brings everything up to date but the choice itself.
void policy_in_rounds::look(const snapshot& seen) {
  for (const gpu_view& view : seen.table.gpus()) {
    if (find(view.id) == nullptr) places_.push_back({.id = view.id});
  }
  for (place& one : places_) {
    one = {.id = one.id, .view = seen.table.find(one.id)};
    if (settings_.linger < duration::zero()) continue;
    if (one.view->online_in_flight != 0) {
      one.busy_until = never;
    } else if (one.view->last_end != time_point{}) {
      one.busy_until = one.view->last_end + settings_.linger;
    }
    if (one.busy_until <= seen.now) one.busy_until = {};
  }
  std::erase_if(groups_, [&](contender& one) {
    one.view = seen.table.find(one.id);
    return one.view == nullptr || one.view->what != role::offline;
  });
  for (contender& one : groups_) charge(one, seen.now);
  level_service();
  for (contender& one : groups_) {
    one.pinned = !one.view->manageable || one.view->gpus.empty();
    one.able = !one.pinned && everywhere(one, [&](const place& on, std::uint32_t) {
      return on.busy_until == time_point{};
    });
    one.charged = !one.pinned && one.view->actual != run_state::suspended &&
                  one.view->actual != run_state::resuming;
  }
}

void policy_in_rounds::charge(contender& one, time_point now) {
  const duration ran = one.charged ? now - one.seen : duration::zero();
  one.seen = now;
  if (one.pinned || (one.runs && ran != duration::zero())) one.last_ran = now;
  if (one.able) one.service += static_cast<double>(ran.count()) / weight(one);
}

/// Makes the least service of those that could run and are connected by GPUs zero, so that being
/// alone, away or new gives nobody credit or debt.
void policy_in_rounds::level_service() {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    places_[i].linked = i;
    places_[i].least = std::numeric_limits<double>::infinity();
  }
  const auto first_linked = [&](gpu_id id) {
    auto at = static_cast<std::size_t>(find(id) - places_.data());
    while (places_[at].linked != at) at = places_[at].linked;
    return at;
  };
  // A group that has lost its GPUs meanwhile is connected to nobody.
  const auto counts = [](const contender& one) { return one.able && !one.view->gpus.empty(); };
  for (const contender& one : groups_) {
    if (!counts(one)) continue;
    for (const gpu_id id : one.view->gpus) {
      const std::size_t mine = first_linked(one.view->gpus.front());
      const std::size_t other = first_linked(id);
      places_[std::max(mine, other)].linked = std::min(mine, other);
    }
  }
  for (const contender& one : groups_) {
    if (!counts(one)) continue;
    place& first = places_[first_linked(one.view->gpus.front())];
    first.least = std::min(first.least, one.service);
  }
  for (contender& one : groups_) {
    if (counts(one)) one.service -= places_[first_linked(one.view->gpus.front())].least;
  }
}

bool policy_in_rounds::goes_before(const contender& one, const contender& other) const noexcept {
  if (one.pinned != other.pinned && rank(one) == rank(other)) return one.pinned;
  if (rank(one) != rank(other)) return rank(one) > rank(other);
  const bool goes_on = !new_round_ && one.runs;
  if (const bool others = !new_round_ && other.runs; goes_on != others) return goes_on;
  if (key(one) != key(other)) return key(one) < key(other);
  return one.id < other.id;
}

/// \return when to look again at the latest.
time_point policy_in_rounds::choose(time_point now) {
  new_round_ = now >= round_end_;
  order_.clear();
  for (contender& one : groups_) order_.push_back(&one);
  std::sort(order_.begin(), order_.end(), [this](const contender* one, const contender* other) {
    return goes_before(*one, *other);
  });
  bool contended = false;
  time_point next = never;
  for (contender* const one : order_) {
    const bool runs = one->pinned || (one->able && fits(*one));
    one->declare = one->declare || runs != one->runs;
    one->runs = runs;
    for_each_place(*one, [&](place& on, std::uint32_t queues) {
      if (runs) {
        on.queues += queues;
        on.groups += one->pinned ? 0 : 1;
        on.rank = std::max(on.rank, rank(*one));
      } else if (one->able) {
        on.waiting = std::min(on.waiting, one->service);
        contended = contended || (on.groups != 0 && on.rank == rank(*one));
      } else if (on.busy_until != time_point{}) {
        next = std::min(next, on.busy_until);
      }
    });
  }
  if (!contended) {
    round_end_ = {};
  } else if (new_round_) {
    round_end_ = now + settings_.round;
  }
  return contended ? std::min(next, round_end_) : next;
}

}  // namespace sluice::rounds
