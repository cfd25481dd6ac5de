#include "virtual_backend.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <optional>
#include <utility>

namespace sluice::lab {

virtual_backend::virtual_backend(sim::engine& events, const capabilities& how,
                                 std::function<void()> news)
    : events_(events), how_(how), news_(std::move(news)) {}

void virtual_backend::record_decisions(std::vector<driver_decision>* into,
                                       std::function<std::uint32_t(gpu_id)> in_flight) {
  record_ = into;
  in_flight_ = std::move(in_flight);
}

std::size_t virtual_backend::suspended_queues() const {
  std::size_t number = 0;
  for (const auto& [pid, one] : targets_) {
    number +=
        static_cast<std::size_t>(std::count(one.suspended.begin(), one.suspended.end(), true));
  }
  return number;
}

auto virtual_backend::find(process_id id) -> session* {
  for (auto& [pid, one] : targets_) {
    if (one.id == id) return &one;
  }
  return nullptr;
}

gpu* virtual_backend::gpu_of(const session& whose, const batch& work) {
  return whose.what.queues[static_cast<std::size_t>(work.queues[0])].on;
}

gpu* virtual_backend::find(gpu_id id) {
  for (const auto& [pid, one] : targets_) {
    for (const auto& each : one.what.queues) {
      if (each.on->id() == id) return each.on;
    }
  }
  return nullptr;
}

duration virtual_backend::cost_of(const gpu& on, command_kind kind) {
  const auto& shape = on.shape();
  if (how_.has(capability::batch_targets)) {
    return kind == command_kind::suspend ? shape.batch_unmap_cost : shape.batch_remap_cost;
  }
  return kind == command_kind::suspend ? suspends_.next(shape.suspend_cost, shape.suspend_cost_p99)
                                       : resumes_.next(shape.resume_cost, shape.resume_cost_p99);
}

result<void> virtual_backend::start(backend_listener& listener) {
  listener_ = &listener;
  if (how_.has(capability::batch_targets) || how_.has(capability::set_quantum)) {
    reports_.push_back([this] { listener_->acts_by(how_, false); });
  }
  return {};
}

void virtual_backend::drain() {
  for (const auto& one : std::exchange(reports_, {})) one();
  // Nothing comes up while the listener is told: it is told in no time at all.
  for (const batch_result& one : results_) listener_->completed(one);
  results_.clear();
}

std::vector<gpu*> virtual_backend::gpus_of(const session& whose) {
  std::vector<gpu*> on;
  for (const auto& each : whose.what.queues) {
    if (std::find(on.begin(), on.end(), each.on) == on.end()) on.push_back(each.on);
  }
  return on;
}

/// One call per GPU of the target, side by side.
void virtual_backend::configure(session& whose, const std::function<void()>& then) {
  const std::vector<gpu*> on = gpus_of(whose);
  whose.calls_left = on.size();
  for (gpu* const each : on) {
    ++calls_;
    each->configure(each->shape().cycle_cost, [this, &whose, then](time_point) {
      if (--whose.calls_left != 0) return;
      reports_.push_back(then);
      news_();
    });
  }
}

result<void> virtual_backend::attach(process_id id, pid_t pid, std::uint64_t) {
  const auto found = targets_.find(pid);
  if (found == targets_.end()) return errc::unknown_target;
  session& one = found->second;
  one.id = id;
  one.suspended.assign(one.what.queues.size(), false);
  configure(one, [this, &one] {
    one.attached = true;
    ++attached_;
    mark(one, true);
    listener_->attached(one.id, {});
    for (std::size_t i = 0; i < one.what.queues.size(); ++i) {
      listener_->queue_added({one.id, driver_queue_id{static_cast<std::uint32_t>(i)},
                              one.what.queues[i].on->id(), queue_kind::compute, 0x1000 * (i + 1),
                              0});
    }
  });
  return {};
}

result<void> virtual_backend::detach(process_id id) {
  session* const one = find(id);
  if (one == nullptr || !one->attached) return errc::unknown_target;
  if (one->busy) return errc::busy;
  one->attached = false;
  --attached_;
  mark(*one, false);
  set_quantum(*one, nullptr, {});
  // As DISABLE: what is suspended runs again.
  for (std::size_t i = 0; i < one->suspended.size(); ++i) {
    if (!one->suspended[i]) continue;
    gpu* const on = one->what.queues[i].on;
    gpu::queues off;
    for (std::size_t j = i; j < one->suspended.size(); ++j) {
      if (!one->suspended[j] || one->what.queues[j].on != on) continue;
      off.push_back(one->what.queues[j].queue);
      one->suspended[j] = false;
    }
    ++calls_;
    on->change(std::move(off), true, cost_of(*on, command_kind::resume), [](time_point) {});
  }
  configure(*one, [this, id] { listener_->detached(id); });
  return {};
}

result<void> virtual_backend::submit(const batch& work) {
  session* const one = find(work.target);
  if (one == nullptr || !one->attached) return errc::unknown_target;
  if (one->busy) return errc::busy;
  one->busy = true;
  gpu& on = *gpu_of(*one, work);
  const std::uint32_t in_flight = record_ != nullptr ? in_flight_(work.gpu) : 0;
  waiting_batch waiting{work, events_.now(), in_flight};
  if (how_.has(capability::batch_targets)) {
    lanes_[&on].waiting.push_back(waiting);
    if (std::find(to_flush_.begin(), to_flush_.end(), &on) == to_flush_.end()) {
      to_flush_.push_back(&on);
    }
  } else {
    call(on, work.kind, {waiting}, [] {});
  }
  return {};
}

void virtual_backend::mark(const session& whose, bool marked) {
  for (gpu* const on : gpus_of(whose)) {
    if (!lanes_[on].limited) continue;
    gpu::queues which;
    for (const auto& each : whose.what.queues) {
      if (each.on == on) which.push_back(each.queue);
    }
    ++calls_;
    on->configure(
        on->shape().cycle_cost, [](time_point) {},
        [which = std::move(which), marked](sim::gpu_model& model) {
          for (const auto each : which) model.set_marked(each, marked);
        });
  }
}

result<void> virtual_backend::reserve(gpu_id id, double offline_share) {
  if (!how_.has(capability::reserve_slots)) return errc::not_supported;
  gpu* const on = find(id);
  const auto answer = [this, id, offline_share](int error) {
    reports_.push_back([this, id, offline_share, error] {
      listener_->reserved(id, offline_share, {error, boost::system::system_category()});
    });
    news_();
  };
  if (on == nullptr || on->shape().scheduler != sim::queue_scheduler::runlist) {
    answer(on == nullptr ? EINVAL : EOPNOTSUPP);
    return {};
  }
  gpu_lane& lane = lanes_[on];
  const bool limit = offline_share < 1;
  if (!limit && !lane.limited) {
    answer(0);
    return {};
  }
  // As the driver: whole percent, rounded down, but one slot where the share is not 0.
  std::optional<std::uint32_t> slots;
  if (limit) {
    const auto percent = static_cast<std::uint32_t>(std::lround(offline_share * 100));
    slots = offline_share <= 0 ? 0 : std::max(on->shape().hqd_slots * percent / 100, 1U);
  }
  gpu::queues marked;
  if (limit && !lane.limited) {
    for (const auto& [pid, one] : targets_) {
      for (const auto& each : one.what.queues) {
        if (one.attached && each.on == on) marked.push_back(each.queue);
      }
    }
  }
  lane.limited = limit;
  ++calls_;
  on->configure(
      on->shape().cycle_cost, [answer](time_point) { answer(0); },
      [slots, marked = std::move(marked)](sim::gpu_model& model) {
        for (const auto each : marked) model.set_marked(each, true);
        model.limit_marked(slots);
      });
  return {};
}

void virtual_backend::set_quantum(const session& whose, const gpu* only, duration length) {
  for (const auto& each : whose.what.queues) {
    if (only == nullptr || each.on == only) each.on->set_quantum(each.queue, length);
  }
}

result<void> virtual_backend::set_quantum(process_id whom, gpu_id id, duration length) {
  const gpu* const on = find(id);
  if (on == nullptr || !on->shape().time_sliced) return errc::not_supported;
  const session* const whose = find(whom);
  if (whose == nullptr || !whose->attached) return errc::unknown_target;
  set_quantum(*whose, on, length);
  reports_.push_back([this, whom, id, length] { listener_->quantum_set(whom, id, length, {}); });
  news_();
  return {};
}

void virtual_backend::flush() {
  for (gpu* const on : std::exchange(to_flush_, {})) serve(*on);
}

/// Of a GPU's lane: one call of all that waits for the same, suspends first.
void virtual_backend::serve(gpu& on) {
  gpu_lane& lane = lanes_[&on];
  if (lane.busy || lane.waiting.empty()) return;
  const auto resumes = std::stable_partition(
      lane.waiting.begin(), lane.waiting.end(),
      [](const waiting_batch& each) { return each.work.kind == command_kind::suspend; });
  const auto end = resumes == lane.waiting.begin() ? lane.waiting.end() : resumes;
  std::vector<waiting_batch> now(std::make_move_iterator(lane.waiting.begin()),
                                 std::make_move_iterator(end));
  lane.waiting.erase(lane.waiting.begin(), end);
  lane.busy = true;
  const command_kind kind = now.front().work.kind;
  call(on, kind, std::move(now), [this, &on] {
    lanes_[&on].busy = false;
    serve(on);
  });
}

void virtual_backend::call(gpu& on, command_kind kind, std::vector<waiting_batch> which,
                           std::function<void()> then) {
  gpu::queues queues;
  for (const auto& each : which) {
    const session& whose = *find(each.work.target);
    for (std::size_t i = 0; i < each.work.count; ++i) {
      queues.push_back(whose.what.queues[static_cast<std::size_t>(each.work.queues[i])].queue);
    }
  }
  ++calls_;
  on.change(std::move(queues), kind == command_kind::resume, cost_of(on, kind),
            [this, called = events_.now(), which = std::move(which),
             then = std::move(then)](time_point started) {
              for (const auto& each : which) complete(each, called, started);
              then();
              news_();
            });
}

void virtual_backend::complete(const waiting_batch& one, time_point called, time_point started) {
  session& whose = *find(one.work.target);
  whose.busy = false;
  batch_result& said = results_.emplace_back();
  said.id = one.work.id;
  said.target = one.work.target;
  said.gpu = one.work.gpu;
  said.kind = one.work.kind;
  said.count = one.work.count;
  said.started = called;  // As outside: waiting for the driver's lock is part of a call.
  said.finished = events_.now();
  for (std::size_t i = 0; i < one.work.count; ++i) {
    const auto queue = one.work.queues[i];
    said.queues[i] = queue;
    said.outcomes[i] = outcome::done;
    whose.suspended[static_cast<std::size_t>(queue)] = one.work.kind == command_kind::suspend;
  }
  if (record_ == nullptr) return;
  record_->push_back({one.decided, started, events_.now(), one.work.gpu, whose.what.number,
                      one.work.kind, one.work.count, one.in_flight});
}

}  // namespace sluice::lab
