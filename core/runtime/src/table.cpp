#include "table.hpp"

#include <algorithm>
#include <utility>

namespace sluice::core {

queue* process::find(driver_queue_id driver_id) const noexcept {
  const auto found = std::lower_bound(
      queues.begin(), queues.end(), driver_id,
      [](const queue* one, driver_queue_id wanted) { return one->driver_id < wanted; });
  return found != queues.end() && (*found)->driver_id == driver_id ? *found : nullptr;
}

// What sources say ------------------------------------------------------------------------------

void table::observe(unsigned source, const observation& seen) {
  const std::uint32_t bit = std::uint32_t{1} << source;
  switch (seen.kind) {
    case observation_kind::process_seen: {
      auto& one = process_at(seen);
      one.seen_by |= bit;
      one.marked_by |= bit;
      if (one.in->key != seen.group_key) {
        leave(one);
        join(one, seen.group_key);
        // Its time off is in the other group's books: before it is held with this one, it runs.
        if (std::any_of(one.queues.begin(), one.queues.end(),
                        [](const queue* each) { return each->state != queue_state::running; })) {
          one.in->forced = true;
          one.in->forced_by = journal_rule::not_manageable;
          one.in->forced_until = never;
        }
      }
      if (one.priority != seen.priority) {
        one.priority = seen.priority;
        mark_reshaped(*one.in);
      }
      vote(one, bit, seen.what);
      tell(one);
      break;
    }
    case observation_kind::process_gone: {
      const auto found = by_pid_.find({seen.pid, seen.start_time});
      if (found != by_pid_.end()) forget(*processes_.find(found->second), bit);
      break;
    }
    case observation_kind::queue_seen: {
      auto& owner = process_at(seen);
      owner.seen_by |= bit;
      owner.marked_by |= bit;
      // What the backend's session says of a queue is better than what is seen from outside.
      queue* known = owner.find(seen.queue);
      if (known == nullptr || !known->managed) {
        known = &queue_at(owner, seen.queue, seen.gpu, seen.type);
      }
      known->seen_by |= bit;
      known->marked_by |= bit;
      tell(owner);
      break;
    }
    case observation_kind::queue_gone: {
      const auto found = by_pid_.find({seen.pid, seen.start_time});
      if (found == by_pid_.end()) break;
      if (queue* one = processes_.find(found->second)->find(seen.queue)) forget(*one, bit);
      break;
    }
    case observation_kind::gpu_seen: {
      gpu& one = gpu_at(seen.gpu);
      one.reset_domain = seen.group_key;
      if (seen.count != 0) view_of(one).slots = seen.count;
      break;
    }
    case observation_kind::gpu_lost:
    case observation_kind::breaker_kept:
    case observation_kind::breaker_rearmed:       // scheduler_core takes them for the breaker
    case observation_kind::pointers_seen: break;  // and gives this to the pointer_ledger
    case observation_kind::resync_begin:
      processes_.for_each([&](process& one) { one.marked_by &= ~bit; });
      queues_.for_each([&](queue& one) { one.marked_by &= ~bit; });
      break;
    case observation_kind::resync_end: sweep(bit); break;
  }
}

void table::sweep(std::uint32_t bit) {
  queues_.for_each([&](queue& one) {
    if ((one.seen_by & bit) != 0 && (one.marked_by & bit) == 0) forget(one, bit);
  });
  processes_.for_each([&](process& one) {
    if ((one.seen_by & bit) != 0 && (one.marked_by & bit) == 0) forget(one, bit);
  });
}

process& table::process_at(const observation& seen) {
  const process_key key{seen.pid, seen.start_time};
  if (const auto found = by_pid_.find(key); found != by_pid_.end()) {
    return *processes_.find(found->second);
  }
  auto& one = processes_.insert();
  stats_.processes.add();
  dirty_.reserve(processes_.capacity());
  one.pid = seen.pid;
  one.start_time = seen.start_time;
  one.seen_since = now_;
  one.own = seen.pid == own_pid_;
  if (one.own) own_ = one.id;
  by_pid_.emplace(key, one.id);
  join(one, seen.group_key);
  return one;
}

void table::vote(process& which, std::uint32_t bit, role what) {
  which.online_votes = what == role::online ? which.online_votes | bit : which.online_votes & ~bit;
  which.offline_votes =
      what == role::offline ? which.offline_votes | bit : which.offline_votes & ~bit;
  // One online vote settles it.
  set_role(which, which.online_votes != 0    ? role::online
                  : which.offline_votes != 0 ? role::offline
                                             : role::unmatched);
}

void table::set_role(process& which, role what) {
  if (which.what == what) return;
  for (const queue* one : which.queues) count(*one, false);
  which.what = what;
  for (const queue* one : which.queues) count(*one, true);
  mark_reshaped(*which.in);
  mark_dirty(which);
  reconsider_attach(which);
}

void table::join(process& which, std::uint64_t key) {
  group* target = nullptr;
  if (key != 0) {
    if (const auto found = by_key_.find(key); found != by_key_.end()) {
      target = groups_.find(found->second);
    }
  }
  if (target == nullptr) {
    target = &groups_.insert();
    for (auto* list : {&changed_, &touched_, &reshaped_}) list->reserve(groups_.capacity());
    for (auto& one : gpus_) {
      one.offline.reserve(groups_.capacity());
      view_of(one).offline = one.offline;
    }
    target->key = key;
    target->view.id = target->id;
    target->view.state_since = now_;
    if (key != 0) by_key_.emplace(key, target->id);
  }
  target->members.push_back(&which);
  which.in = target;
  for (const queue* one : which.queues) count(*one, true);
  mark_reshaped(*target);
  mark_dirty(which);
}

void table::leave(process& which) {
  for (const queue* one : which.queues) count(*one, false);
  group& from = *std::exchange(which.in, nullptr);
  std::erase(from.members, &which);
  if (!from.members.empty()) {
    mark_reshaped(from);
    return;
  }
  for (const gpu_id where : from.gpus) {
    update_offline(from, where, false);
    // There is room now, and the one that made it is no longer there to be listed.
    for (const group_id other : gpu_at(where).offline) mark_changed(*groups_.find(other));
  }
  if (from.key != 0) by_key_.erase(from.key);
  groups_.erase(from.id);
  ++shape_;
}

queue& table::queue_at(process& owner, driver_queue_id driver_id, gpu_id on, queue_kind type,
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
  auto& one = queues_.insert();
  one.seen_by = seen_by;
  one.marked_by = marked_by;
  stats_.queues.add();
  one.owner = &owner;
  one.on = &gpu_at(on);
  one.driver_id = driver_id;
  one.type = type;
  const auto place = std::lower_bound(
      owner.queues.begin(), owner.queues.end(), driver_id,
      [](const queue* each, driver_queue_id wanted) { return each->driver_id < wanted; });
  owner.queues.insert(place, &one);
  if (type == queue_kind::compute && owner.compute_queues++ == 0) {
    owner.compute_since = now_;
    reconsider_attach(owner);
  }
  count(one, true);
  mark_reshaped(*owner.in);
  return one;
}

void table::erase(queue& which) {
  process& owner = *which.owner;
  const bool was_off = owner.not_running != 0;
  count(which, false);
  keep_books(owner, was_off);
  std::erase(owner.queues, &which);
  // One on a lost GPU kept it from being attached.
  if (which.type == queue_kind::compute && (--owner.compute_queues == 0 || which.on->lost)) {
    reconsider_attach(owner);
  }
  mark_reshaped(*owner.in);
  queues_.erase(which.id);
  stats_.queues.subtract(1);
}

void table::forget(queue& which, std::uint32_t bit) {
  which.seen_by &= ~bit;
  if (which.seen_by == 0 && !which.managed) erase(which);
}

process* table::find(pid_t pid, std::uint64_t start_time) noexcept {
  const auto found = by_pid_.find({pid, start_time});
  return found == by_pid_.end() ? nullptr : processes_.find(found->second);
}

void table::forget(process& which, std::uint32_t bit) {
  which.seen_by &= ~bit;
  vote(which, bit, role::unmatched);
  if (which.seen_by != 0) {
    for (std::size_t i = which.queues.size(); i-- != 0;) forget(*which.queues[i], bit);
    tell(which);
    return;
  }
  tell_gone(which);
  // The pid may belong to a successor at once; the exited one is reachable by its id only.
  by_pid_.erase({which.pid, which.start_time});
  which.gone = true;
  ++shape_;
  mark_dirty(which);
  if (which.attach == attach_state::none) {
    erase(which);
  } else {
    attach_candidates_.push_back(which.id);
  }
}

void table::erase(process& which) {
  set_in_flight(which, 0);
  while (!which.queues.empty()) erase(*which.queues.back());
  set_attach(which, attach_state::none);
  leave(which);
  if (!which.gone) by_pid_.erase({which.pid, which.start_time});
  processes_.erase(which.id);
  stats_.processes.subtract(1);
}

// What the backend says -------------------------------------------------------------------------

void table::queue_added(process& owner, const queue_info& info) {
  const queue* const known = owner.find(info.id);
  const bool another = known != nullptr && known->managed && known->incarnation != info.incarnation;
  queue& one = queue_at(owner, info.id, info.gpu, info.type, another);
  count(one, false);
  one.managed = true;
  one.type = info.type;
  one.incarnation = info.incarnation;
  one.hold_off = {};  // The driver knows it (again).
  one.refused = false;
  count(one, true);
  mark_reshaped(*owner.in);
  mark_dirty(owner);
}

void table::queue_removed(process& owner, driver_queue_id driver_id) {
  queue* one = owner.find(driver_id);
  if (one == nullptr) return;
  set_state(*one, queue_state::running);
  count(*one, false);
  one->managed = false;
  count(*one, true);
  mark_reshaped(*owner.in);
  if (one->seen_by == 0) erase(*one);
}

void table::release(process& owner) {
  for (std::size_t i = owner.queues.size(); i-- != 0;) {
    queue_removed(owner, owner.queues[i]->driver_id);
  }
  set_in_flight(owner, 0);
  owner.lane_off = {};
}

void table::set_in_flight(process& which, std::uint64_t batch) noexcept {
  batches_in_flight_ += batch != 0 ? 1U : 0U;
  batches_in_flight_ -= which.batch_in_flight != 0 ? 1U : 0U;
  which.batch_in_flight = batch;
}

void table::lose(gpu& which) {
  which.lost = true;
  gpu_views_[which.index].lost = true;
  queues_.for_each([&](queue& one) {
    if (one.on != &which) return;
    mark_reshaped(*one.owner->in);
    mark_dirty(*one.owner);
  });
  which.not_off = 0;  // Nothing on it will be off; nobody should wait for it.
  which.arrival_open = which.decision_open = false;
}

void table::find_again(gpu& which) {
  which.hardware_failures = 0;
  which.rearm_at = never;
  which.lost = false;
  gpu_views_[which.index].lost = false;
  queues_.for_each([&](queue& one) {
    if (one.on != &which) return;
    if (one.managed && suspends(one.type) && one.owner->what == role::offline &&
        one.state != queue_state::suspended) {
      ++which.not_off;
    }
    mark_reshaped(*one.owner->in);
    mark_changed(*one.owner->in);
    mark_dirty(*one.owner);
    reconsider_attach(*one.owner);
  });
}

void table::set_state(queue& which, queue_state state) noexcept {
  if (which.state == state) return;
  const bool was_off = which.owner->not_running != 0;
  count(which, false);
  which.state = state;
  count(which, true);
  keep_books(*which.owner, was_off);
  touch(*which.owner->in);
}

void table::set_refused(queue& which, bool refused) noexcept {
  group& in = *which.owner->in;
  if (refused) in.refusing_until = std::max(in.refusing_until, which.hold_off);
  if (which.refused != refused) {
    count(which, false);
    which.refused = refused;
    count(which, true);
  }
  touch(in);
}

void table::set_attach(process& which, attach_state state) {
  if (which.attach == state) return;
  which.attach = state;
  if (state == attach_state::attaching) {
    for (const queue* one : which.queues) {
      if (std::find(which.attach_gpus.begin(), which.attach_gpus.end(), one->on) ==
          which.attach_gpus.end()) {
        which.attach_gpus.push_back(one->on);
        ++one->on->attaching;
      }
    }
  } else {
    for (gpu* one : which.attach_gpus) --one->attaching;
    which.attach_gpus.clear();
  }
  mark_reshaped(*which.in);
  mark_dirty(which);
}

gpu& table::gpu_at(gpu_id id) {
  if (gpu* known = find_gpu(id)) return *known;
  const auto index = static_cast<std::uint32_t>(gpus_.size());
  auto& one = gpus_.emplace_back();
  one.index = index;
  one.id = id;
  one.offline.reserve(groups_.capacity());
  gpu_views_.emplace_back().id = id;
  by_gpu_.emplace(id, index);
  ++new_gpus_;
  return one;
}

gpu* table::find_gpu(gpu_id id) noexcept {
  const auto found = by_gpu_.find(id);
  return found == by_gpu_.end() ? nullptr : &gpus_[found->second];
}

std::span<const gpu_id> table::own_gang() const noexcept {
  const process* const self = processes_.find(own_);
  if (self == nullptr || self->in->key == 0 || self->in->view.what != role::online) return {};
  return self->in->gpus;
}

const gpu_view* table::find(gpu_id id) const noexcept {
  const auto found = by_gpu_.find(id);
  return found == by_gpu_.end() ? nullptr : &gpu_views_[found->second];
}

const group_view* table::find(group_id id) const noexcept {
  const group* one = groups_.find(id);
  return one == nullptr ? nullptr : &one->view;
}

const client_view* table::find(client_id id) const noexcept {
  const auto found = clients_.find(id);
  return found == clients_.end() ? nullptr : &found->second;
}

// Bookkeeping -----------------------------------------------------------------------------------

void table::count(const queue& which, bool in) noexcept {
  if (!which.managed || !suspends(which.type)) return;
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

void table::touch(group& which) noexcept {
  if (std::exchange(which.touched, true)) return;
  touched_.push_back(which.id);
}

void table::mark_changed(group& which) noexcept {
  if (std::exchange(which.listed, true)) return;
  changed_.push_back(which.id);
}

void table::mark_dirty(process& which) noexcept {
  if (std::exchange(which.dirty, true)) return;
  dirty_.push_back(which.id);
}

void table::mark_reshaped(group& which) noexcept {
  ++shape_;
  if (std::exchange(which.reshaped, true)) return;
  reshaped_.push_back(which.id);
}

void table::reconsider_attach(process& which) {
  if (which.compute_queues == 0) which.attach_from = never;
  attach_candidates_.push_back(which.id);
}

void table::clear_changed() noexcept {
  for (const group_id id : changed_) {
    if (group* one = groups_.find(id)) one->listed = false;
  }
  changed_.clear();
}

void table::update_offline(group& which, gpu_id where, bool listed) {
  gpu& at = gpu_at(where);
  const auto found = std::find(at.offline.begin(), at.offline.end(), which.id);
  if (listed && found == at.offline.end()) at.offline.push_back(which.id);
  if (!listed && found != at.offline.end()) {
    *found = at.offline.back();
    at.offline.pop_back();
  }
  view_of(at).offline = at.offline;
}

void table::reshape() {
  for (const group_id id : reshaped_) {
    group* const one = groups_.find(id);
    if (one == nullptr) continue;
    one->reshaped = false;
    bool online = false;
    bool offline = true;
    bool attached = false;
    bool all_attached = true;
    bool lost = false;
    scratch_.clear();
    for (const process* member : one->members) {
      online |= member->what == role::online;
      offline &= member->what == role::offline;
      if (member->compute_queues != 0 && !member->gone) {
        attached |= member->attach == attach_state::attached;
        all_attached &= member->attach == attach_state::attached;
      }
      for (const queue* each : member->queues) {
        if (!suspends(each->type)) continue;
        scratch_.push_back(each->on->id);
        lost |= each->on->lost;
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
    one->view.manageable = offline && attached && all_attached && !lost;
    one->view.queues = 0;
    for (const auto number : one->counts) one->view.queues += number;
    mark_changed(*one);
    touch(*one);
  }
  reshaped_.clear();
}

bool table::refresh_state(group& which) noexcept {
  const auto number = [&](queue_state state) {
    return which.counts[static_cast<std::size_t>(state)];
  };
  const auto running = number(queue_state::running);
  const auto suspending = number(queue_state::suspending);
  const auto suspended = number(queue_state::suspended);
  const auto resuming = number(queue_state::resuming);
  const auto in_doubt = number(queue_state::in_doubt);
  run_state actual = run_state::mixed;
  if (suspending + suspended + resuming + in_doubt == 0) {
    actual = run_state::running;
  } else if (in_doubt != 0 || (suspending != 0 && resuming != 0)) {
    actual = run_state::mixed;
  } else if (suspending != 0) {
    actual = run_state::suspending;
  } else if (resuming != 0) {
    actual = run_state::resuming;
  } else if (running == 0) {
    actual = run_state::suspended;
  }
  if (actual != which.view.actual) {
    which.view.actual = actual;
    which.view.state_since = now_;
    mark_changed(which);
  }
  return std::exchange(which.off, actual != run_state::running) != which.off;
}

// For who looks ---------------------------------------------------------------------------------

void table::tell(process& which) {
  if (which.gone || (which.told_group == which.in->id && which.told_role == which.what)) return;
  which.told_group = which.in->id;
  which.told_role = which.what;
  auto entry = entry_of(which, journal_kind::process);
  entry.number = number_of(*which.in);
  journal_.put(entry, now_);
}

void table::tell_gone(process& which) {
  const duration last = which.not_running != 0 ? now_ - which.off_since : duration::zero();
  auto entry = entry_of(which, journal_kind::process_gone);
  entry.what = which.told_role;  // its sources have taken their votes back
  entry.count = static_cast<std::uint32_t>(which.off_count);
  entry.since = which.seen_since;
  entry.length = which.off_total + last;
  entry.longest = std::max(which.off_longest, last);
  journal_.put(entry, now_);
}

void table::keep_books(process& which, bool was_off) noexcept {
  const bool off = which.not_running != 0;
  if (off == was_off || which.gone) return;
  const duration length = off ? duration::zero() : now_ - which.off_since;
  if (off) {
    which.off_since = now_;
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
  journal_.put(entry, now_);
}

namespace {

attach_picture picture_of(attach_state value) noexcept {
  switch (value) {
    case attach_state::none: break;
    case attach_state::attaching: return attach_picture::attaching;
    case attach_state::attached: return attach_picture::attached;
    case attach_state::detaching: return attach_picture::detaching;
  }
  return attach_picture::none;
}

process_picture picture_of(const process& one, time_point now) {
  process_picture made{.id = one.id,
                       .pid = one.pid,
                       .start_time = one.start_time,
                       .what = one.what,
                       .priority = one.priority,
                       .own = one.own,
                       .attach = picture_of(one.attach),
                       .attach_refused = one.attach_refused,
                       .attach_failures = one.attach_failures,
                       .attach_again = one.attach_failures != 0 ? one.attach_from : time_point{},
                       .seen_since = one.seen_since,
                       .off = one.not_running != 0,
                       .off_count = one.off_count,
                       .off_total = one.off_total,
                       .off_longest = one.off_longest};
  if (made.off) {
    made.off_since = one.off_since;
    made.off_total += now - one.off_since;
    made.off_longest = std::max(made.off_longest, now - one.off_since);
  }
  for (const queue* const each : one.queues) {
    auto on = std::find_if(made.queues.begin(), made.queues.end(),
                           [&](const queues_on_gpu& known) { return known.gpu == each->on->id; });
    if (on == made.queues.end()) on = made.queues.insert(on, {.gpu = each->on->id});
    ++(each->type == queue_kind::compute ? on->compute : on->others);
    if (!each->managed || each->state == queue_state::running) continue;
    ++(each->state == queue_state::suspended ? on->suspended : on->in_doubt);
  }
  std::sort(made.queues.begin(), made.queues.end(),
            [](const auto& left, const auto& right) { return left.gpu < right.gpu; });
  return made;
}

group_picture picture_of(const group& one, time_point now) {
  group_picture made{.id = one.id,
                     .number = one.number,
                     .what = one.view.what,
                     .gang = one.key != 0,
                     .actual = one.view.actual,
                     .state_since = one.view.state_since,
                     .manageable = one.view.manageable,
                     .wanted_off = one.hold_until > now,
                     .wanted_until = one.hold_until,
                     .held = one.held,
                     .forced = one.forced};
  for (const process* const member : one.members)
    if (!member->gone) made.processes.push_back(picture_of(*member, now));
  return made;
}

}  // namespace

picture table::picture_of() const {
  picture made{.at = now_};
  for (const gpu& one : gpus_) {
    const gpu_view& view = gpu_views_[one.index];
    made.gpus.push_back({.id = one.id,
                         .slots = view.slots,
                         .online_in_flight = view.online_in_flight,
                         .work = view.work,
                         .busy = has_online_work(view),
                         .last_begin = view.last_begin,
                         .last_end = view.last_end,
                         .suspend_cost = view.suspend_cost,
                         .resume_cost = view.resume_cost,
                         .breaker_open = one.lost,
                         .breaker_until = one.rearm_at,
                         .not_off = one.not_off});
  }
  groups_.for_each([&](const group& one) {
    auto each = core::picture_of(one, now_);
    if (!each.processes.empty()) made.groups.push_back(std::move(each));
  });
  for (const auto& [id, one] : clients_)
    made.clients.push_back(
        {.id = id, .name = std::string(one.name), .gpus = {one.gpus.begin(), one.gpus.end()}});
  return made;
}

}  // namespace sluice::core
