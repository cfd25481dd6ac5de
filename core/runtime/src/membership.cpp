#include "membership.hpp"

#include <algorithm>

namespace sluice::core {

// Processes and groups --------------------------------------------------------------------------

process& membership::process_at(pid_t pid, std::uint64_t start_time, std::uint64_t key) {
  if (process* const known = table_.find(pid, start_time)) return *known;
  auto& one = table_.insert_process(pid, start_time);
  join(one, key);
  return one;
}

void membership::move(process& which, std::uint64_t key) {
  leave(which);
  join(which, key);
  // Its time off is in the other group's books: before it is held with this one, it runs.
  if (std::any_of(which.queues.begin(), which.queues.end(),
                  [](const queue* each) { return each->state != queue_state::running; })) {
    which.in->forced = true;
    which.in->forced_by = journal_rule::not_manageable;
    which.in->forced_until = never;
  }
}

void membership::set_role(process& which, role what) {
  if (which.what == what) return;
  for (const queue* one : which.queues) count(*one, false);
  which.what = what;
  for (const queue* one : which.queues) count(*one, true);
  table_.mark_reshaped(*which.in);
  table_.mark_dirty(which);
  table_.reconsider_attach(which);
}

void membership::join(process& which, std::uint64_t key) {
  group* target = key != 0 ? table_.find_gang(key) : nullptr;
  if (target == nullptr) target = &table_.insert_group(key);
  target->members.push_back(&which);
  which.in = target;
  for (const queue* one : which.queues) count(*one, true);
  table_.mark_reshaped(*target);
  table_.mark_dirty(which);
}

void membership::leave(process& which) {
  for (const queue* one : which.queues) count(*one, false);
  group& from = *std::exchange(which.in, nullptr);
  std::erase(from.members, &which);
  if (!from.members.empty()) {
    table_.mark_reshaped(from);
    return;
  }
  for (const gpu_id where : from.gpus) {
    update_offline(from, where, false);
    // There is room now, and the one that made it is no longer there to be listed.
    for (const group_id other : table_.gpu_at(where).offline) {
      table_.mark_changed(*table_.find_group(other));
    }
  }
  table_.erase(from);
}

void membership::erase(process& which) {
  while (!which.queues.empty()) erase(*which.queues.back());
  leave(which);
  table_.erase(which);
}

// Queues ----------------------------------------------------------------------------------------

queue& membership::queue_at(process& owner, driver_queue_id driver_id, gpu_id on, queue_kind type,
                            bool another) {
  std::uint32_t seen_by = 0;
  std::uint32_t marked_by = 0;
  if (queue* known = owner.find(driver_id)) {
    another |= known->on->id != on || known->type != type;
    if (!another) return *known;
    // The number was used again for something else. Who sees it may have said so already: it is
    // not said twice.
    seen_by = known->seen_by;
    marked_by = known->marked_by;
    erase(*known);
  }
  auto& one = table_.insert_queue();
  one.seen_by = seen_by;
  one.marked_by = marked_by;
  one.owner = &owner;
  one.on = &table_.gpu_at(on);
  one.driver_id = driver_id;
  one.type = type;
  const auto place = std::lower_bound(
      owner.queues.begin(), owner.queues.end(), driver_id,
      [](const queue* each, driver_queue_id wanted) { return each->driver_id < wanted; });
  owner.queues.insert(place, &one);
  if (type == queue_kind::compute && owner.compute_queues++ == 0) {
    owner.compute_since = table_.now();
    table_.reconsider_attach(owner);
  }
  count(one, true);
  table_.mark_reshaped(*owner.in);
  return one;
}

void membership::erase(queue& which) {
  process& owner = *which.owner;
  const bool was_off = owner.not_running != 0;
  count(which, false);
  keep_books(owner, was_off);
  std::erase(owner.queues, &which);
  // One on a lost GPU kept it from being attached.
  if (which.type == queue_kind::compute && (--owner.compute_queues == 0 || which.on->lost)) {
    table_.reconsider_attach(owner);
  }
  table_.mark_reshaped(*owner.in);
  table_.erase(which);
}

void membership::count(const queue& which, bool in) noexcept {
  if (!which.managed || !table_.suspends(which.type)) return;
  const auto step = [in](auto& number) { in ? ++number : --number; };
  step(which.owner->in->counts[static_cast<std::size_t>(which.state)]);
  if (which.refused) step(which.owner->in->refusing);
  if (which.state != queue_state::running) {
    step(which.owner->not_running);
    in ? stats_.suspended_now.add() : stats_.suspended_now.subtract(1);
  }
  if (which.owner->what == role::offline && which.state != queue_state::suspended &&
      !which.on->lost) {
    step(which.on->not_off);
  }
}

void membership::keep_books(process& which, bool was_off) noexcept {
  const bool off = which.not_running != 0;
  if (off == was_off || which.gone) return;
  const duration length = off ? duration::zero() : table_.now() - which.off_since;
  if (off) {
    which.off_since = table_.now();
    ++which.off_count;
  } else {
    which.off_total += length;
    which.off_longest = std::max(which.off_longest, length);
  }
  if (!journal_.on()) return;
  auto entry = entry_of(which, off ? journal_kind::process_off : journal_kind::process_on);
  if (!off) {
    entry.since = which.off_since;
    entry.length = length;
  }
  journal_.put(entry, table_.now());
}

// Views -----------------------------------------------------------------------------------------

void membership::update_offline(group& which, gpu_id where, bool listed) {
  gpu& at = table_.gpu_at(where);
  const auto found = std::find(at.offline.begin(), at.offline.end(), which.id);
  if (listed && found == at.offline.end()) at.offline.push_back(which.id);
  if (!listed && found != at.offline.end()) {
    *found = at.offline.back();
    at.offline.pop_back();
  }
  table_.view_of(at).offline = at.offline;
}

void membership::reshape() {
  for (const group_id id : table_.reshaped()) {
    group* const one = table_.find_group(id);
    if (one == nullptr) continue;
    one->reshaped = false;
    bool online = false;
    bool offline = true;
    bool attached = false;
    bool all_attached = true;
    bool lost = false;
    one->refusing_until = {};
    scratch_.clear();
    for (const process* member : one->members) {
      online |= member->what == role::online;
      offline &= member->what == role::offline;
      if (member->compute_queues != 0 && !member->gone) {
        attached |= member->attach == attach_state::attached;
        all_attached &= member->attach == attach_state::attached;
      }
      for (const queue* each : member->queues) {
        if (!table_.suspends(each->type)) continue;
        scratch_.push_back(each->on->id);
        lost |= each->on->lost;
        if (each->managed && each->refused) {
          one->refusing_until = std::max(one->refusing_until, each->hold_off);
        }
      }
    }
    std::sort(scratch_.begin(), scratch_.end());
    one->queues_on.clear();
    for (std::size_t i = 0; i < scratch_.size(); ++i) {
      if (i == 0 || scratch_[i] != scratch_[i - 1]) one->queues_on.push_back(0);
      ++one->queues_on.back();
    }
    scratch_.erase(std::unique(scratch_.begin(), scratch_.end()), scratch_.end());

    for (const gpu_id where : one->gpus) {
      if (!offline || !std::binary_search(scratch_.begin(), scratch_.end(), where)) {
        update_offline(*one, where, false);
      }
    }
    one->gpus = scratch_;
    if (offline) {
      for (const gpu_id where : one->gpus) update_offline(*one, where, true);
    }
    one->view.what = online ? role::online : offline ? role::offline : role::unmatched;
    one->view.gpus = one->gpus;
    one->view.queues_on = one->queues_on;
    one->view.priority = 0;
    for (const process* member : one->members) {
      one->view.priority = std::max(one->view.priority, member->priority);
    }
    one->manageable_here = offline && attached && all_attached && !lost;
    one->view.queues = 0;
    for (const auto number : one->counts) one->view.queues += number;
    table_.mark_changed(*one);
    table_.touch(*one);
  }
  table_.reshaped().clear();
}

}  // namespace sluice::core
