#pragma once
/// \file
/// A backend whose driver takes no time: everything is answered by the next drain(). What a
/// scheduler costs on it is the scheduler's.

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/time.hpp"

namespace sluice::test {

/// Threading: as every backend's; add() before start().
class instant_backend : public backend {
 public:
  instant_backend() : ready_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { flying_.reserve(4096); }
  ~instant_backend() override { ::close(ready_); }
  instant_backend(const instant_backend&) = delete;
  instant_backend& operator=(const instant_backend&) = delete;

  void add(pid_t pid, gpu_id gpu, std::uint32_t queues) { queues_[pid] = {gpu, queues}; }
  std::uint64_t submitted() const noexcept { return submitted_; }
  /// When the last batch was handed over.
  time_point submitted_at() const noexcept { return submitted_at_; }

  std::string_view name() const noexcept override { return "instant"; }
  result<void> start(backend_listener& listener) override {
    listener_ = &listener;
    return {};
  }
  int ready_fd() const noexcept override { return ready_; }

  void drain() override {
    if (attached_.empty() && flying_.empty()) return;
    eventfd_t value = 0;
    ::eventfd_read(ready_, &value);
    for (const auto& [target, pid] : std::exchange(attached_, {})) {
      listener_->attached(target, {});
      queue_info one;
      one.target = target;
      one.gpu = queues_[pid].first;
      one.type = queue_type::compute_aql;
      for (std::uint32_t number = 0; number < queues_[pid].second; ++number) {
        one.id = driver_queue_id{number};
        one.ring_base = 0x1000 + number;
        listener_->queue_added(one);
      }
    }
    for (const batch_result& each : flying_) listener_->completed(each);
    flying_.clear();
  }

  result<void> attach(process_id target, pid_t pid, std::uint64_t) override {
    attached_.emplace_back(target, pid);
    ring();
    return {};
  }
  result<void> detach(process_id target) override {
    listener_->detached(target);
    return {};
  }
  result<void> submit(const batch& work) override {
    submitted_at_ = clock::now();
    ++submitted_;
    batch_result& done = flying_.emplace_back();
    done.id = work.id;
    done.target = work.target;
    done.gpu = work.gpu;
    done.kind = work.kind;
    done.count = work.count;
    done.driver_errno = 0;
    done.started = done.finished = submitted_at_;
    std::copy_n(work.queues.begin(), work.count, done.queues.begin());
    std::fill_n(done.outcomes.begin(), work.count, outcome::done);
    ring();
    return {};
  }
  time_point tick(time_point) override { return never; }
  void stop() override {}

 private:
  void ring() noexcept { ::eventfd_write(ready_, 1); }

  const int ready_;
  backend_listener* listener_ = nullptr;
  std::map<pid_t, std::pair<gpu_id, std::uint32_t>> queues_;
  std::vector<std::pair<process_id, pid_t>> attached_;  // to be told
  std::vector<batch_result> flying_;                    // to be answered
  std::uint64_t submitted_ = 0;
  time_point submitted_at_{};
};

}  // namespace sluice::test
