#pragma once
/// \file
/// A backend that writes down what goes down to another one and what comes up from it.

#include "record_stream.hpp"

#include "sluice/backend.hpp"

namespace sluice::core {

/// Threading: as backend. Lifetime: the other backend and the record outlive it.
class recording_backend final : public backend, private backend_listener {
 public:
  recording_backend(backend& other, record_stream& record) noexcept
      : other_(other), record_(record) {}

  std::string_view name() const noexcept override { return other_.name(); }
  bool acts() const noexcept override { return other_.acts(); }
  result<void> start(backend_listener& listener) override {
    listener_ = &listener;
    return other_.start(*this);
  }
  int ready_fd() const noexcept override { return other_.ready_fd(); }
  void drain() override { other_.drain(); }
  result<void> attach(process_id target, pid_t pid, std::uint64_t start_time) override {
    const auto asked = other_.attach(target, pid, start_time);
    record_.attach(target, pid, start_time, error_of(asked));
    return asked;
  }
  result<void> detach(process_id target) override {
    const auto asked = other_.detach(target);
    record_.detach(target, error_of(asked));
    return asked;
  }
  void expect() override { other_.expect(); }
  result<void> submit(const batch& work) override {
    const auto handed = other_.submit(work);
    record_.handed(work, error_of(handed));
    return handed;
  }
  result<void> reserve(gpu_id gpu, double offline_share) override {
    const auto asked = other_.reserve(gpu, offline_share);
    record_.reserve(gpu, offline_share, error_of(asked));
    return asked;
  }
  result<void> set_quantum(process_id target, gpu_id gpu, duration length) override {
    const auto asked = other_.set_quantum(target, gpu, length);
    record_.quantum(target, gpu, length, error_of(asked));
    return asked;
  }
  void observed(unsigned source, const observation& seen) override {
    other_.observed(source, seen);
  }
  void poll_work(duration every) override { other_.poll_work(every); }
  void marks_requests(pid_t pid, bool so) override { other_.marks_requests(pid, so); }
  void flush() override { other_.flush(); }
  time_point tick(time_point now) override { return other_.tick(now); }
  void stop() override { other_.stop(); }

 private:
  static error_code error_of(const result<void>& said) noexcept {
    return said ? error_code{} : said.error();
  }

  void attach_refused(process_id target, std::string_view why) override {
    listener_->attach_refused(target, why);
  }
  void attached(process_id target, error_code error) override {
    record_.attached(target, error);
    listener_->attached(target, error);
  }
  void queue_added(const queue_info& what) override {
    record_.queue(what);
    listener_->queue_added(what);
  }
  void queue_removed(process_id target, driver_queue_id id) override {
    record_.queue_gone(target, id);
    listener_->queue_removed(target, id);
  }
  void completed(const batch_result& what) override {
    record_.done(what);
    listener_->completed(what);
  }
  void detached(process_id target) override {
    record_.detached(target);
    listener_->detached(target);
  }
  void acts_by(const capabilities& what, bool fell_back) override {
    record_.acts_by(what, fell_back);
    listener_->acts_by(what, fell_back);
  }
  void reserved(gpu_id gpu, double offline_share, error_code error) override {
    record_.reserved(gpu, offline_share, error);
    listener_->reserved(gpu, offline_share, error);
  }
  void quantum_set(process_id target, gpu_id gpu, duration length, error_code error) override {
    record_.quantum_set(target, gpu, length, error);
    listener_->quantum_set(target, gpu, length, error);
  }
  // The listener records what it takes in of it.
  void observed(const observation& seen) override { listener_->observed(seen); }
  void gpu_lost(gpu_id gpu) override {
    record_.gpu_lost(gpu);
    listener_->gpu_lost(gpu);
  }
  void lost(error_code reason) override {
    record_.lost(reason);
    listener_->lost(reason);
  }
  void restored() override {
    record_.restored();
    listener_->restored();
  }

  backend& other_;
  record_stream& record_;
  backend_listener* listener_ = nullptr;
};

}  // namespace sluice::core
