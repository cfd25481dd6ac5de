#include "node.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace sluice::lab {
namespace {

sim::gpu_profile part_of(sim::gpu_profile shape, double share) {
  shape.compute_units = static_cast<std::uint32_t>(
      std::max(1l, std::lround(share * static_cast<double>(shape.compute_units))));
  return shape;
}

std::size_t index_of(sim::model_queue queue) { return static_cast<std::size_t>(queue) - 1; }

}  // namespace

gpu::gpu(sim::engine& events, const sim::gpu_profile& shape, double share)
    : events_(events),
      shape_(part_of(shape, share)),
      whole_waves_(shape.wave_slots()),
      model_(
          events, shape_,
          [this](sim::model_queue queue, std::uint64_t cookie, time_point at) {
            listeners_[index_of(queue)]->kernel_started(cookie, at);
          },
          [this](sim::model_queue queue, std::uint64_t cookie, time_point, time_point end) {
            listeners_[index_of(queue)]->kernel_finished(cookie, end);
          }) {}

sim::model_queue gpu::add_queue(sim::model_process owner, std::uint32_t priority,
                                kernel_listener& listener) {
  const auto made = model_.add_queue(owner, priority);
  listeners_.push_back(&listener);
  owners_.push_back(owner);
  model_.set_active(made, true);
  // Nothing has begun yet: what creating it costs is nobody's loss.
  model_.begin_cycle(sim::cycle_kind::ordinary);
  model_.end_cycle();
  return made;
}

double gpu::submit(sim::model_queue queue, duration length, double occupancy,
                   std::uint64_t cookie) {
  const double wanted = std::max(1.0, std::round(occupancy * whole_waves_));
  const auto there = static_cast<double>(shape_.wave_slots());
  const double longer = std::max(1.0, wanted / there);
  if (longer > 1) {
    length =
        std::chrono::round<duration>(std::chrono::duration<double, std::nano>(length) * longer);
  }
  if (model_.in_cycle() && !counted_ &&
      std::find(watched_.begin(), watched_.end(), owners_[index_of(queue)]) != watched_.end()) {
    counted_ = true;
    ++disturbing_;
  }
  model_.submit(queue, {length, static_cast<std::uint32_t>(std::min(wanted, there)), cookie});
  return longer;
}

void gpu::change(queues which, bool listed, duration cost, std::function<void(time_point)> done) {
  enter({std::move(which), listed, false, cost, std::move(done), 0, {}, {}});
}

void gpu::configure(duration cost, std::function<void(time_point)> done,
                    std::function<void(sim::gpu_model&)> apply) {
  enter({{}, false, true, cost, std::move(done), 0, {}, std::move(apply)});
}

void gpu::set_quantum(sim::model_queue of, duration length) {
  model_.set_quantum(owners_[index_of(of)], length);
}

void gpu::enter(call one) {
  calls_.push_back(std::move(one));
  if (calls_.size() == 1) begin();
}

void gpu::begin() {
  call& one = calls_.front();
  one.started = events_.now();
  if (shape_.scheduler == sim::queue_scheduler::mes && !one.configures) {
    next_on_mes();
    return;
  }
  if (shape_.scheduler != sim::queue_scheduler::runlist) {
    events_.at(events_.now() + one.cost, [this] {
      const call& over = calls_.front();
      for (const auto queue : over.which)
        model_.set_listed(queue, over.listed, sim::cycle_kind::debug);
      finish();
    });
    return;
  }
  for (const auto queue : one.which) model_.set_active(queue, one.listed);
  if (one.apply) one.apply(model_);
  // As the driver: with nothing on the runlist there is nothing to wait for.
  const duration cost = model_.runlist_in_use() ? one.cost : duration::zero();
  model_.begin_cycle(sim::cycle_kind::debug);
  counted_ = online_has_work();
  if (counted_) ++disturbing_;
  events_.at(events_.now() + cost, [this] {
    model_.end_cycle();
    finish();
  });
}

void gpu::next_on_mes() {
  call& one = calls_.front();
  if (one.next == one.which.size()) {
    finish();
    return;
  }
  const auto queue = one.which[one.next++];
  if (!one.listed) model_.set_listed(queue, false, sim::cycle_kind::debug);
  events_.at(events_.now() + one.cost, [this, queue, listed = one.listed] {
    if (listed) model_.set_listed(queue, true, sim::cycle_kind::debug);
    next_on_mes();
  });
}

void gpu::finish() {
  const call one = std::move(calls_.front());
  calls_.pop_front();
  // Whoever waits for the lock has it before the caller comes back.
  if (!calls_.empty()) begin();
  one.done(one.started);
}

bool gpu::online_has_work() const {
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    if (std::find(watched_.begin(), watched_.end(), owners_[i]) != watched_.end() &&
        model_.backlog(sim::model_queue{i + 1}) != 0) {
      return true;
    }
  }
  return false;
}

}  // namespace sluice::lab
