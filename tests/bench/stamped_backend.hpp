#pragma once
/// \file
/// A backend that keeps when suspends were handed to another one, and when that made the calls.

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/backend.hpp"

namespace sluice::test {

/// Threading: as backend; what it kept is read once the scheduler has stopped.
class stamped_backend final : public backend, private backend_listener {
 public:
  explicit stamped_backend(std::unique_ptr<backend> other) : other_(std::move(other)) {}

  /// Suspends that were accepted, in order.
  const std::vector<time_point>& submitted() const noexcept { return submitted_; }
  /// Just before the driver call, by the clock of who makes it; suspends that were done, in order.
  const std::vector<time_point>& called() const noexcept { return called_; }

  std::string_view name() const noexcept override { return other_->name(); }
  result<void> start(backend_listener& listener) override {
    listener_ = &listener;
    return other_->start(*this);
  }
  int ready_fd() const noexcept override { return other_->ready_fd(); }
  void drain() override { other_->drain(); }
  result<void> attach(process_id target, pid_t pid, std::uint64_t start_time) override {
    return other_->attach(target, pid, start_time);
  }
  result<void> detach(process_id target) override { return other_->detach(target); }
  result<void> submit(const batch& work) override {
    const time_point now = clock::now();
    const auto handed = other_->submit(work);
    if (handed && work.kind == command_kind::suspend) submitted_.push_back(now);
    return handed;
  }
  result<void> reserve(gpu_id gpu, double share) override { return other_->reserve(gpu, share); }
  void observed(unsigned source, const observation& seen) override {
    other_->observed(source, seen);
  }
  void flush() override { other_->flush(); }
  time_point tick(time_point now) override { return other_->tick(now); }
  void stop() override { other_->stop(); }

 private:
  void attached(process_id target, error_code error) override {
    listener_->attached(target, error);
  }
  void queue_added(const queue_info& what) override { listener_->queue_added(what); }
  void queue_removed(process_id target, driver_queue_id id) override {
    listener_->queue_removed(target, id);
  }
  void completed(const batch_result& what) override {
    const auto outcomes = what.outcomes.begin();
    const bool done = std::all_of(outcomes, outcomes + what.count,
                                  [](outcome each) { return each == outcome::done; });
    if (done && what.kind == command_kind::suspend) called_.push_back(what.started);
    listener_->completed(what);
  }
  void detached(process_id target) override { listener_->detached(target); }
  void acts_by(mechanism what, bool fell_back) override { listener_->acts_by(what, fell_back); }
  void reserved(gpu_id gpu, double share, error_code error) override {
    listener_->reserved(gpu, share, error);
  }
  void gpu_lost(gpu_id gpu) override { listener_->gpu_lost(gpu); }
  void lost(error_code reason) override { listener_->lost(reason); }
  void restored() override { listener_->restored(); }

  const std::unique_ptr<backend> other_;
  backend_listener* listener_ = nullptr;
  std::vector<time_point> submitted_;
  std::vector<time_point> called_;
};

}  // namespace sluice::test
