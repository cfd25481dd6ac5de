#include "actual_state.hpp"

#include <algorithm>

namespace sluice::core {

// Queues ----------------------------------------------------------------------------------------

void actual_state::queue_added(process& owner, const queue_info& info) {
  const queue* const known = owner.find(info.id);
  const bool another = known != nullptr && known->managed && known->incarnation != info.incarnation;
  queue& one = members_.queue_at(owner, info.id, info.gpu, info.type, another);
  members_.change(one, [&] {
    one.managed = true;
    one.refused = false;
  });
  one.incarnation = info.incarnation;
  one.hold_off = {};  // The driver knows it (again).
  table_.mark_reshaped(*owner.in);
  table_.mark_dirty(owner);
}

void actual_state::queue_removed(process& owner, driver_queue_id driver_id) {
  queue* one = owner.find(driver_id);
  if (one == nullptr) return;
  set_state(*one, queue_state::running);
  members_.change(*one, [&] { one->managed = false; });
  table_.mark_reshaped(*owner.in);
  if (one->seen_by == 0) members_.erase(*one);
}

void actual_state::set_state(queue& which, queue_state state) noexcept {
  if (which.state == state) return;
  members_.change(which, [&] { which.state = state; });
  table_.touch(*which.owner->in);
}

void actual_state::set_refused(queue& which, bool refused) noexcept {
  group& in = *which.owner->in;
  if (refused) in.refusing_until = std::max(in.refusing_until, which.hold_off);
  if (which.refused != refused) members_.change(which, [&] { which.refused = refused; });
  table_.touch(in);
}

// Processes -------------------------------------------------------------------------------------

void actual_state::set_attach(process& which, attach_state state) {
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
  table_.mark_reshaped(*which.in);
  table_.mark_dirty(which);
}

void actual_state::release(process& owner) {
  for (std::size_t i = owner.queues.size(); i-- != 0;) {
    queue_removed(owner, owner.queues[i]->driver_id);
  }
  set_in_flight(owner, 0);
  owner.lane_off = {};
}

void actual_state::set_in_flight(process& which, std::uint64_t batch) noexcept {
  batches_in_flight_ += batch != 0 ? 1U : 0U;
  batches_in_flight_ -= which.batch_in_flight != 0 ? 1U : 0U;
  which.batch_in_flight = batch;
}

// GPUs ------------------------------------------------------------------------------------------

void actual_state::lose(gpu& which) {
  which.lost = true;
  table_.view_of(which).lost = true;
  table_.for_each_queue([&](queue& one) {
    if (one.on != &which) return;
    table_.mark_reshaped(*one.owner->in);
    table_.mark_dirty(*one.owner);
  });
  which.not_off = 0;  // Nothing on it will be off; nobody should wait for it.
  which.arrival_open = which.decision_open = false;
}

void actual_state::find_again(gpu& which) {
  which.hardware_failures = 0;
  which.rearm_at = never;
  which.lost = false;
  table_.view_of(which).lost = false;
  table_.for_each_queue([&](queue& one) {
    if (one.on != &which) return;
    if (one.managed && table_.suspends(one.type) && one.owner->what == role::offline &&
        one.state != queue_state::suspended) {
      ++which.not_off;
    }
    table_.mark_reshaped(*one.owner->in);
    table_.mark_changed(*one.owner->in);
    table_.mark_dirty(*one.owner);
    table_.reconsider_attach(*one.owner);
  });
}

}  // namespace sluice::core
