#include "intake.hpp"

#include <algorithm>
#include <utility>

namespace sluice::core {

void intake::observe(unsigned source, const observation& seen) {
  const std::uint32_t bit = std::uint32_t{1} << source;
  switch (seen.kind) {
    case observation_kind::process_seen: {
      auto& one = members_.process_at(seen.pid, seen.start_time, seen.group_key);
      one.seen_by |= bit;
      one.marked_by |= bit;
      if (one.in->key != seen.group_key) members_.move(one, seen.group_key);
      // Of members that say different numbers, the highest counts.
      if (const auto nodes = std::max(one.in->nodes, seen.count);
          std::exchange(one.in->nodes, nodes) != nodes)
        table_.mark_reshaped(*one.in);
      if (one.priority != seen.priority) {
        one.priority = seen.priority;
        table_.mark_reshaped(*one.in);
      }
      vote(one, bit, seen.what);
      tell(one);
      break;
    }
    case observation_kind::process_gone: {
      if (process* const one = table_.find(seen.pid, seen.start_time)) forget(*one, bit);
      break;
    }
    case observation_kind::queue_seen: {
      auto& owner = members_.process_at(seen.pid, seen.start_time, seen.group_key);
      owner.seen_by |= bit;
      owner.marked_by |= bit;
      // What the backend's session says of a queue is better than what is seen from outside.
      queue* known = owner.find(seen.queue);
      if (known == nullptr || !known->managed) {
        known = &members_.queue_at(owner, seen.queue, seen.gpu, seen.type);
      }
      known->seen_by |= bit;
      known->marked_by |= bit;
      tell(owner);
      break;
    }
    case observation_kind::queue_gone: {
      const process* const owner = table_.find(seen.pid, seen.start_time);
      if (owner == nullptr) break;
      if (queue* const one = owner->find(seen.queue)) forget(*one, bit);
      break;
    }
    case observation_kind::gpu_seen: {
      gpu& one = table_.gpu_at(seen.gpu);
      one.reset_domain = seen.group_key;
      if (seen.count != 0) table_.view_of(one).slots = seen.count;
      one.shown_by = seen.shows_work ? one.shown_by | bit : one.shown_by & ~bit;
      break;
    }
    case observation_kind::gang_heard: {
      group* const one = seen.group_key != 0 ? table_.find_gang(seen.group_key) : nullptr;
      if (one == nullptr || one->nodes < 2) break;
      one->peers_until = seen.at;
      one->peers_hold = seen.count != 0;
      table_.touch(*one);
      break;
    }
    case observation_kind::gpu_lost:
    case observation_kind::breaker_kept:
    case observation_kind::breaker_rearmed:       // scheduler_core takes them for the breaker
    case observation_kind::pointers_seen: break;  // and gives this to the pointer_ledger
    case observation_kind::resync_begin:
      table_.for_each_process([&](process& one) { one.marked_by &= ~bit; });
      table_.for_each_queue([&](queue& one) { one.marked_by &= ~bit; });
      break;
    case observation_kind::resync_end: sweep(bit); break;
  }
}

void intake::sweep(std::uint32_t bit) {
  table_.for_each_queue([&](queue& one) {
    if ((one.seen_by & bit) != 0 && (one.marked_by & bit) == 0) forget(one, bit);
  });
  table_.for_each_process([&](process& one) {
    if ((one.seen_by & bit) != 0 && (one.marked_by & bit) == 0) forget(one, bit);
  });
}

void intake::vote(process& which, std::uint32_t bit, role what) {
  which.online_votes = what == role::online ? which.online_votes | bit : which.online_votes & ~bit;
  which.offline_votes =
      what == role::offline ? which.offline_votes | bit : which.offline_votes & ~bit;
  // One online vote settles it.
  members_.set_role(which, which.online_votes != 0    ? role::online
                           : which.offline_votes != 0 ? role::offline
                                                      : role::unmatched);
}

void intake::forget(queue& which, std::uint32_t bit) {
  which.seen_by &= ~bit;
  if (which.seen_by == 0 && !which.managed) members_.erase(which);
}

void intake::forget(process& which, std::uint32_t bit) {
  which.seen_by &= ~bit;
  vote(which, bit, role::unmatched);
  if (which.seen_by != 0) {
    for (std::size_t i = which.queues.size(); i-- != 0;) forget(*which.queues[i], bit);
    tell(which);
    return;
  }
  tell_gone(which);
  table_.mark_gone(which);
  if (which.attach == attach_state::none) {
    members_.erase(which);
  } else {
    table_.attach_candidates().push_back(which.id);
  }
}

void intake::tell(process& which) {
  if (which.gone || (which.told_group == which.in->id && which.told_role == which.what)) return;
  which.told_group = which.in->id;
  which.told_role = which.what;
  auto entry = entry_of(which, journal_kind::process);
  entry.number = table_.number_of(*which.in);
  journal_.put(entry, table_.now());
}

void intake::tell_gone(process& which) {
  const duration last = which.not_running != 0 ? table_.now() - which.off_since : duration::zero();
  auto entry = entry_of(which, journal_kind::process_gone);
  entry.what = which.told_role;  // its sources have taken their votes back
  entry.count = static_cast<std::uint32_t>(which.off_count);
  entry.since = which.seen_since;
  entry.length = which.off_total + last;
  entry.longest = std::max(which.off_longest, last);
  journal_.put(entry, table_.now());
}

}  // namespace sluice::core
