#include "holds.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace sluice::core {
namespace {

using namespace std::chrono_literals;

/// Below this an allowance is used up: what is left is not worth a turn of its own.
constexpr duration negligible = 10us;

run_state state_of(const group& which) noexcept {
  const auto number = [&](queue_state state) {
    return which.counts[static_cast<std::size_t>(state)];
  };
  const auto suspending = number(queue_state::suspending);
  const auto suspended = number(queue_state::suspended);
  const auto resuming = number(queue_state::resuming);
  const auto in_doubt = number(queue_state::in_doubt);
  if (suspending + suspended + resuming + in_doubt == 0) return run_state::running;
  if (in_doubt != 0 || (suspending != 0 && resuming != 0)) return run_state::mixed;
  if (suspending != 0) return run_state::suspending;
  if (resuming != 0) return run_state::resuming;
  return number(queue_state::running) == 0 ? run_state::suspended : run_state::mixed;
}

}  // namespace

void holds::declare_hold(group& which, time_point until) noexcept {
  which.hold_until = std::min(until, table_.now() + config_.max_suspend);
  if (which.hold_until <= table_.now()) which.hold_until = {};
  which.ended_by = journal_rule::policy;
  table_.touch(which);
}

void holds::declare_run(group& which) noexcept {
  if (which.hold_until == time_point{}) return;
  which.hold_until = {};
  which.ended_by = journal_rule::policy;
  table_.touch(which);
}

duration holds::allowance(group& which, time_point now) noexcept {
  if (config_.offline_floor <= 0) return duration::max();
  const auto most = std::chrono::duration_cast<duration>(
      std::chrono::duration<double, std::nano>(config_.floor_window) * (1 - config_.offline_floor));
  return most - which.history.within(now, config_.floor_window);
}

void holds::refresh(group& which) noexcept {
  const time_point now = table_.now();
  const run_state actual = state_of(which);
  if (actual != which.view.actual) {
    which.view.actual = actual;
    which.view.state_since = now;
    table_.mark_changed(which);
  }
  const bool off = actual != run_state::running;
  if (std::exchange(which.off, off) == off) return;
  if (!which.off) {
    which.debt += now - which.off_since;
    which.on_since = now;
    which.history.turn_on(now, config_.floor_window);
    return;
  }
  const duration ran = now - which.on_since;
  which.debt =
      ran >= config_.min_run
          ? duration::zero()
          : std::max(duration::zero(),
                     which.debt - std::chrono::duration_cast<duration>(
                                      ran * (std::chrono::duration<double>(config_.max_suspend) /
                                             std::chrono::duration<double>(config_.min_run))));
  which.off_since = now;
  which.history.turn_off(now, config_.floor_window);
}

journal_rule holds::limit_of(const group& which, time_point now) const noexcept {
  return now >= must_run_at(which) ? journal_rule::max_suspend : journal_rule::offline_floor;
}

journal_rule holds::rule_of(const group& which, time_point now) const noexcept {
  if (released_) return journal_rule::stop;
  if (which.view.what != role::offline) return journal_rule::not_offline;
  if (!which.manageable_here) return journal_rule::not_manageable;
  if (!has_peers(which, now)) return journal_rule::peers;
  if (which.forced) return which.forced_by;
  return which.hold_until > now ? journal_rule::refused : which.ended_by;
}

void holds::tell(group& which, journal_kind kind, journal_rule why, time_point now) noexcept {
  if (kind != journal_kind::forced && !journal_.on()) return;
  journal_entry entry{.kind = kind,
                      .why = why,
                      .what = which.view.what,
                      .count = static_cast<std::uint32_t>(which.members.size()),
                      .group = which.id};
  if (!which.members.empty()) {
    const process& first = *which.members.front();
    entry.pid = first.pid;
    entry.process = first.id;
    entry.start_time = first.start_time;
  }
  if (kind == journal_kind::held)
    entry.until = why == journal_rule::peers ? which.peers_until : which.hold_until;
  if (kind == journal_kind::let_go) entry.since = which.held_since;
  if (kind == journal_kind::forced) {
    entry.length = config_.min_run;
    entry.number = table_.number_of(which);
  }
  journal_.put(entry, now);
}

void holds::before_policy(time_point now) {
  for (std::uint32_t slot = 0; deadlines_.pop_due(now, slot);) {
    if (group* const due = table_.group_in(slot)) table_.touch(*due);
  }
  for (const group_id id : table_.touched()) {
    group* const one = table_.find_group(id);
    if (one == nullptr) continue;
    refresh(*one);
    settle_manageable(*one, now);
    if (one->hold_until != time_point{} && one->hold_until <= now) {
      one->hold_until = {};
      one->ended_by = journal_rule::expired;
      table_.mark_changed(*one);
    }
    if (!one->forced) {
      if (one->off && (now >= must_run_at(*one) || allowance(*one, now) <= negligible)) {
        one->forced_by = limit_of(*one, now);
        if (one->held) tell(*one, journal_kind::forced, one->forced_by, now);
        one->forced = true;
        one->forced_until = never;
        one->hold_until = {};
        table_.mark_changed(*one);
      }
    } else if (!one->off) {
      if (one->forced_until == never) one->forced_until = now + config_.min_run;
      if (one->forced_until <= now) {
        // With too little allowance the next stretch would end as soon as it began.
        if (allowance(*one, now) >= config_.min_run) {
          one->forced = false;
          table_.mark_changed(*one);
        } else {
          one->forced_until = now + off_time::step(config_.floor_window);
        }
      }
    }
  }
}

void holds::after_policy(time_point now) {
  for (const group_id id : table_.touched()) {
    group* const one = table_.find_group(id);
    if (one == nullptr) continue;
    one->touched = false;
    // The rest of a gang, here or on other nodes, or of a process on several GPUs, would wait for
    // the part that is off.
    const bool parts = one->members.size() > 1 || one->gpus.size() > 1 || one->nodes >= 2;
    settle_manageable(*one, now);
    const bool whole =
        one->manageable_here && (!parts || one->refusing == 0 || one->refusing_until <= now);
    // Without a policy everything runs, also what peers on other nodes want held.
    const bool able = !one->forced && !released_ && (has_policy_ || one->nodes < 2) && whole &&
                      one->view.what == role::offline;
    const bool wanted = one->hold_until > now;
    const bool peers = one->nodes >= 2 && one->peers_hold;
    const bool held = able && has_peers(*one, now) && (wanted || peers);
    const bool was_for_peers = std::exchange(one->for_peers, held && !wanted);
    if (held != one->held) {
      one->held = held;
      if (held) one->held_since = now;
      if (!held && was_for_peers && has_policy_)
        one->ended_by = whole ? journal_rule::peers : journal_rule::refused;
      held
          ? tell(*one, journal_kind::held, wanted ? journal_rule::policy : journal_rule::peers, now)
          : tell(*one, journal_kind::let_go, rule_of(*one, now), now);
      for (process* const member : one->members) table_.mark_dirty(*member);
    }
    if (one->nodes >= 2)
      tell_wish(*one, !able ? gang_wish::refused : wanted ? gang_wish::hold : gang_wish::run);
    account_cost(*one, now);
    set_deadline(*one, now);
  }
  table_.touched().clear();
}

void holds::after_batches(time_point now) {
  for (const group_id id : table_.touched()) {
    group* const one = table_.find_group(id);
    if (one == nullptr) continue;
    one->touched = false;
    refresh(*one);
    set_deadline(*one, now);
  }
  table_.touched().clear();
}

void holds::settle_manageable(group& which, time_point now) noexcept {
  const bool manageable = which.manageable_here && has_peers(which, now);
  if (std::exchange(which.view.manageable, manageable) != manageable) table_.mark_changed(which);
}

void holds::tell_wish(group& which, gang_wish wish) {
  const bool same = std::exchange(which.told, wish) == wish;
  if (std::exchange(which.told_nodes, which.nodes) == which.nodes && same) return;
  if (hears_gangs_) hears_gangs_({.key = which.key, .nodes = which.nodes, .wish = wish});
}

void holds::set_deadline(group& which, time_point now) {
  time_point at = which.hold_until == time_point{} ? never : which.hold_until;
  if (which.nodes >= 2 && which.peers_until > now) at = std::min(at, which.peers_until);
  which.must_run_at = never;
  if (which.off && !which.forced) {
    which.must_run_at = must_run_at(which);
    at = std::min(at, which.must_run_at);
    if (const auto left = allowance(which, now); left != duration::max()) {
      at = std::min(at, now + std::max(left, negligible));
    }
  }
  if (which.forced && !which.off) {
    // Just back: the next turn starts the clock of min_run.
    at = std::min(at, which.forced_until == never ? now : which.forced_until);
  }
  if (which.refusing != 0 && which.refusing_until > now) at = std::min(at, which.refusing_until);
  deadlines_.set(table::slot_of(which), at);
}

void holds::account_cost(group& which, time_point now) noexcept {
  const bool costs = which.forced && !which.off && which.hold_until != time_point{};
  if (which.costs_since != never) {
    stats_.forced_run_ns.add(static_cast<std::uint64_t>((now - which.costs_since).count()));
  }
  which.costs_since = costs ? now : never;
}

void holds::release_all() {
  released_ = true;
  forget_declarations();
}

void holds::policy_is(bool there) {
  has_policy_ = there;
  forget_declarations();
}

void holds::forget_declarations() {
  table_.for_each_group([&](group& one) {
    one.hold_until = {};
    one.ended_by = journal_rule::no_policy;
    table_.touch(one);
  });
}

}  // namespace sluice::core
