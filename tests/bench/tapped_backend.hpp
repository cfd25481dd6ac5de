#pragma once
/// \file
/// Another backend, whose answers somebody reads along.

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "sluice/backend.hpp"

namespace sluice::bench {

class tapped_backend final : public backend, private backend_listener {
 public:
  /// \param heard told of every answer, on the reactor's thread, before the scheduler is.
  tapped_backend(std::unique_ptr<backend> real, std::function<void(const batch_result&)> heard)
      : real_(std::move(real)), heard_(std::move(heard)) {}

  /// Queues of attached processes. Any thread.
  std::size_t queues() const noexcept { return queues_; }

  std::string_view name() const noexcept override { return real_->name(); }
  result<void> start(backend_listener& listener) override {
    listener_ = &listener;
    return real_->start(*this);
  }
  int ready_fd() const noexcept override { return real_->ready_fd(); }
  void drain() override { real_->drain(); }
  result<void> attach(process_id target, pid_t pid, std::uint64_t start_time) override {
    return real_->attach(target, pid, start_time);
  }
  result<void> detach(process_id target) override { return real_->detach(target); }
  void expect() override { real_->expect(); }
  result<void> submit(const batch& work) override { return real_->submit(work); }
  result<void> reserve(gpu_id gpu, double offline_share) override {
    return real_->reserve(gpu, offline_share);
  }
  result<void> set_quantum(process_id target, gpu_id gpu, duration length) override {
    return real_->set_quantum(target, gpu, length);
  }
  void observed(unsigned source, const observation& seen) override {
    real_->observed(source, seen);
  }
  void poll_work(duration every) override { real_->poll_work(every); }
  void marks_requests(pid_t pid, bool so) override { real_->marks_requests(pid, so); }
  void flush() override { real_->flush(); }
  time_point tick(time_point now) override { return real_->tick(now); }
  void stop() override { real_->stop(); }

 private:
  void attach_refused(process_id target, std::string_view why) override {
    listener_->attach_refused(target, why);
  }
  void attached(process_id target, error_code error) override {
    listener_->attached(target, error);
  }
  void queue_added(const queue_info& queue) override {
    listener_->queue_added(queue);
    ++queues_;
  }
  void queue_removed(process_id target, driver_queue_id queue) override {
    listener_->queue_removed(target, queue);
    --queues_;
  }
  void completed(const batch_result& result) override {
    heard_(result);
    listener_->completed(result);
  }
  void detached(process_id target) override { listener_->detached(target); }
  void acts_by(const capabilities& what, bool fell_back) override {
    listener_->acts_by(what, fell_back);
  }
  void reserved(gpu_id gpu, double offline_share, error_code error) override {
    listener_->reserved(gpu, offline_share, error);
  }
  void quantum_set(process_id target, gpu_id gpu, duration length, error_code error) override {
    listener_->quantum_set(target, gpu, length, error);
  }
  void observed(const observation& seen) override { listener_->observed(seen); }
  void gpu_lost(gpu_id gpu) override { listener_->gpu_lost(gpu); }
  void lost(error_code reason) override { listener_->lost(reason); }
  void restored() override { listener_->restored(); }

  const std::unique_ptr<backend> real_;
  const std::function<void(const batch_result&)> heard_;
  backend_listener* listener_ = nullptr;
  std::atomic<std::size_t> queues_{0};
};

}  // namespace sluice::bench
