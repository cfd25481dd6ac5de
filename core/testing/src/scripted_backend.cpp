#include "sluice/testing/scripted_backend.hpp"

#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace sluice::testing {

void scripted_backend::wake_by_descriptor() {
  ready_ = unique_fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
}

void scripted_backend::ring() noexcept {
  if (ready_ && !std::exchange(rung_, true)) ::eventfd_write(ready_.get(), 1);
}

void scripted_backend::report(std::function<void()> event) {
  events_.push_back(std::move(event));
  ring();
}

void scripted_backend::hold_answers(bool on) noexcept {
  hold_answers_ = on;
  if (!on && !in_flight_.empty()) ring();
}

auto scripted_backend::find(process_id target) -> fake_process* {
  for (auto& [pid, one] : processes_) {
    if (one.target == target) return &one;
  }
  return nullptr;
}

void scripted_backend::add_queue(pid_t pid, driver_queue_id id, gpu_id gpu, queue_kind type,
                                 std::uint64_t incarnation) {
  auto& owner = processes_[pid];
  if (incarnation == 0) incarnation = next_ring_ += 0x1000;
  owner.queues[id] = {{owner.target, id, gpu, type, incarnation, 0}, false};
  repeat_queue(pid, id);
}

void scripted_backend::repeat_queue(pid_t pid, driver_queue_id id) {
  report([this, pid, id] {
    auto& owner = processes_[pid];
    const auto found = owner.queues.find(id);
    if (!owner.attached || found == owner.queues.end()) return;
    found->second.info.target = owner.target;
    listener_->queue_added(found->second.info);
  });
}

void scripted_backend::remove_queue(pid_t pid, driver_queue_id id) {
  auto& owner = processes_[pid];
  owner.queues.erase(id);
  if (!owner.attached) return;
  report([this, target = owner.target, id] { listener_->queue_removed(target, id); });
}

void scripted_backend::script_outcome(pid_t pid, driver_queue_id id, outcome what, int times) {
  auto& script = processes_[pid].script[id];
  script.insert(script.end(), static_cast<std::size_t>(times), what);
}

void scripted_backend::finish_attaches() {
  for (const process_id target : std::exchange(held_attaches_, {})) {
    report([this, target] {
      auto* const one = find(target);
      if (one == nullptr) return;
      one->attached = true;
      listener_->attached(target, {});
      for (auto& [id, each] : one->queues) {
        each.info.target = target;
        listener_->queue_added(each.info);
      }
    });
  }
}

bool scripted_backend::complete() {
  if (in_flight_.empty()) return false;
  const flight one = in_flight_.front();
  in_flight_.erase(in_flight_.begin());
  report([this, one] { answer(one); });
  return true;
}

void scripted_backend::release(fake_process& one) {
  one.attached = false;
  one.quanta.clear();
  for (auto& [id, each] : one.queues) each.suspended = false;
  std::erase_if(in_flight_, [&](const flight& each) { return each.work.target == one.target; });
}

void scripted_backend::end_session(pid_t pid) {
  auto& one = processes_[pid];
  release(one);
  report([this, target = one.target] { listener_->detached(target); });
}

void scripted_backend::lose_gpu(gpu_id gpu) {
  report([this, gpu] { listener_->gpu_lost(gpu); });
}

void scripted_backend::see(const observation& what) {
  report([this, what] { listener_->observed(what); });
}

void scripted_backend::act_by(const capabilities& what, bool fell_back) {
  report([this, what, fell_back] {
    acts_by_ = what;
    listener_->acts_by(what, fell_back);
  });
}

void scripted_backend::offer_quanta(gpu_id gpu) {
  offers_quanta_.insert(gpu);
  report([this] {  // What act_by() has not reported yet comes before.
    acts_by_.can |= static_cast<std::uint16_t>(capability::set_quantum);
    listener_->acts_by(acts_by_, false);
  });
}

void scripted_backend::end_reservation(gpu_id gpu, error_code why) {
  report([this, gpu, why] { listener_->reserved(gpu, 1, why); });
}

result<void> scripted_backend::reserve(gpu_id gpu, double offline_share) {
  if (!up_) return errc::lost;
  if (!acts_by_.has(capability::reserve_slots)) return errc::not_supported;
  if (!reserve_refusals_.empty()) {
    const error_code error = reserve_refusals_.front();
    reserve_refusals_.pop_front();
    return error;
  }
  reservations_.push_back({gpu, offline_share});
  error_code error;
  if (auto& errors = reserve_errors_[gpu]; !errors.empty()) {
    error = errors.front();
    errors.pop_front();
  }
  report([this, gpu, offline_share, error] { listener_->reserved(gpu, offline_share, error); });
  return {};
}

void scripted_backend::end_quantum(pid_t pid, gpu_id gpu, error_code why) {
  fake_process& one = processes_[pid];
  one.quanta.erase(gpu);
  report([this, target = one.target, gpu, why] { listener_->quantum_set(target, gpu, {}, why); });
}

duration scripted_backend::quantum(pid_t pid, gpu_id gpu) const {
  const auto owner = processes_.find(pid);
  if (owner == processes_.end()) return {};
  const auto found = owner->second.quanta.find(gpu);
  return found == owner->second.quanta.end() ? duration::zero() : found->second;
}

result<void> scripted_backend::set_quantum(process_id target, gpu_id gpu, duration length) {
  ++quanta_asked_;
  if (!up_) return errc::lost;
  if (!offers_quanta_.contains(gpu)) return errc::not_supported;
  fake_process* const one = find(target);
  if (one == nullptr || !one->attached) {
    ++misuses_;
    return errc::unknown_target;
  }
  if (!quantum_refusals_.empty()) {
    const error_code error = quantum_refusals_.front();
    quantum_refusals_.pop_front();
    return error;
  }
  const auto pid = std::find_if(processes_.begin(), processes_.end(),
                                [&](const auto& each) { return &each.second == one; });
  quanta_.push_back({pid->first, gpu, length});
  error_code error;
  if (!quantum_errors_.empty()) {
    error = quantum_errors_.front();
    quantum_errors_.pop_front();
  }
  one->quanta[gpu] = error ? duration::zero() : length;
  report(
      [this, target, gpu, length, error] { listener_->quantum_set(target, gpu, length, error); });
  return {};
}

void scripted_backend::lose() {
  up_ = false;
  for (auto& [pid, one] : processes_) release(one);
  in_flight_.clear();
  held_attaches_.clear();
  events_.clear();
  report([this] { listener_->lost(errc::lost); });
}

void scripted_backend::restore() {
  report([this] {
    up_ = true;
    listener_->restored();
  });
}

bool scripted_backend::attached(pid_t pid) const {
  const auto found = processes_.find(pid);
  return found != processes_.end() && found->second.attached;
}

bool scripted_backend::suspended(pid_t pid, driver_queue_id id) const {
  const auto owner = processes_.find(pid);
  if (owner == processes_.end()) return false;
  const auto found = owner->second.queues.find(id);
  return found != owner->second.queues.end() && found->second.suspended;
}

std::size_t scripted_backend::suspended_count() const {
  std::size_t number = 0;
  for (const auto& [pid, one] : processes_) {
    for (const auto& [id, each] : one.queues) number += each.suspended ? 1 : 0;
  }
  return number;
}

time_point scripted_backend::next_answer() const noexcept {
  time_point next = never;
  if (hold_answers_) return next;
  for (const auto& one : in_flight_) next = std::min(next, one.due);
  return next;
}

result<void> scripted_backend::start(backend_listener& listener) {
  if (start_error_) return start_error_;
  listener_ = &listener;
  in_flight_.reserve(64);
  return {};
}

void scripted_backend::drain() {
  if (std::exchange(rung_, false)) {
    eventfd_t value = 0;
    ::eventfd_read(ready_.get(), &value);
  }
  while (!events_.empty()) {
    const auto one = std::move(events_.front());
    events_.pop_front();
    one();
  }
  if (hold_answers_ || in_flight_.empty()) return;
  const auto now = time_.now();
  for (std::size_t i = 0; i < in_flight_.size();) {
    if (in_flight_[i].due > now) {
      ++i;
      continue;
    }
    const flight one = in_flight_[i];
    in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(i));
    answer(one);
  }
}

void scripted_backend::answer(const flight& one) {
  auto* const owner = find(one.work.target);
  batch_result said;
  said.id = one.work.id;
  said.target = one.work.target;
  said.gpu = one.work.gpu;
  said.kind = one.work.kind;
  said.count = one.work.count;
  said.driver_errno = std::exchange(driver_errno_, 0);
  said.started = one.submitted;
  said.finished = one.submitted + delay_;
  for (std::size_t i = 0; i < one.work.count; ++i) {
    const driver_queue_id id = one.work.queues[i];
    said.queues[i] = id;
    said.outcomes[i] = outcome::invalid;
    if (owner == nullptr) continue;
    const auto found = owner->queues.find(id);
    auto what = found == owner->queues.end() ? outcome::invalid : outcome::done;
    if (const auto script = owner->script.find(id);
        script != owner->script.end() && !script->second.empty()) {
      what = script->second.front();
      script->second.pop_front();
    }
    said.outcomes[i] = what;
    // As the driver: a failed suspend has changed the software state.
    const bool changed = what == outcome::done ||
                         (what == outcome::failed && one.work.kind == command_kind::suspend);
    if (changed && found != owner->queues.end()) {
      found->second.suspended = one.work.kind == command_kind::suspend;
    }
  }
  listener_->completed(said);
}

result<void> scripted_backend::attach(process_id target, pid_t pid, std::uint64_t start_time) {
  if (!up_) return errc::lost;
  attaches_.push_back({target, pid, start_time});
  auto& owner = processes_[pid];
  owner.target = target;
  if (auto& errors = attach_errors_[pid]; !errors.empty()) {
    const error_code error = errors.front();
    errors.pop_front();
    if (error) {
      report([this, target, error] { listener_->attached(target, error); });
      return {};
    }
  }
  held_attaches_.push_back(target);
  if (!hold_attaches_) finish_attaches();
  return {};
}

result<void> scripted_backend::detach(process_id target) {
  if (!up_) return errc::lost;
  auto* const one = find(target);
  if (one == nullptr || !one->attached) return errc::unknown_target;
  if (!detach_errors_.empty()) {
    const error_code error = detach_errors_.front();
    detach_errors_.pop_front();
    return error;
  }
  detaches_.push_back(target);
  release(*one);
  report([this, target] { listener_->detached(target); });
  return {};
}

result<void> scripted_backend::submit(const batch& work) {
  if (!submit_errors_.empty()) {
    const error_code error = submit_errors_.front();
    submit_errors_.pop_front();
    return error;
  }
  if (!up_) return errc::lost;
  const auto* const owner = find(work.target);
  const bool busy = std::any_of(in_flight_.begin(), in_flight_.end(), [&](const flight& each) {
    return each.work.target == work.target;
  });
  if (owner == nullptr || !owner->attached || work.count == 0 || busy || work.id == 0) ++misuses_;
  if (busy) return errc::busy;
  ++submitted_;
  if (keep_batches_) batches_.push_back(work);
  const time_point now = time_.now();
  in_flight_.emplace_back(work, now, now + delay_);
  if (on_submit_) on_submit_(work);
  if (!hold_answers_) ring();
  return {};
}

time_point scripted_backend::tick(time_point now) {
  return ready_ ? never : now + std::chrono::milliseconds(100);
}

void scripted_backend::observed(unsigned source, const observation& seen) {
  if (on_observed_) on_observed_(source, seen);
}

void scripted_backend::stop() {
  stopped_ = true;
  for (auto& [pid, one] : processes_) release(one);
  if (on_stop_) on_stop_();
}

}  // namespace sluice::testing
