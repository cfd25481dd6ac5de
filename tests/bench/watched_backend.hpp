#pragma once
/// \file
/// A backend that passes everything on and notes when what a preemption asked for was done.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/time.hpp"

namespace sluice::bench {

/// What somebody else than the reactor's thread knows of a watched_backend.
///
/// Threading: any thread. Errors: throws std::runtime_error.
class backend_watch {
 public:
  struct preemption {
    time_point ended{};  ///< The scheduler was told of the last queue.
    duration driver{};   ///< That some driver call took: what overlaps counts once.
    time_point first{};  ///< A driver call began.
    time_point last{};   ///< The last one had returned.
  };

  /// From now on, until wait(): so many queues.
  void expect(command_kind kind, std::size_t queues) {
    const std::scoped_lock held{mutex_};
    kind_ = kind;
    left_ = queues;
    failed_ = false;
    calls_.clear();
  }

  preemption wait() {
    std::unique_lock held{mutex_};
    if (!changed_.wait_for(held, std::chrono::seconds{30}, [&] { return failed_ || left_ == 0; }))
      throw std::runtime_error("the scheduler's commands do not come or do not end");
    if (failed_) throw std::runtime_error("the driver did not do what it was told");
    std::sort(calls_.begin(), calls_.end());
    preemption all{.ended = ended_, .first = calls_.front().first};
    time_point covered{};
    for (const auto& [started, finished] : calls_) {
      all.driver += std::max(finished - std::max(started, covered), duration{});
      covered = std::max(covered, finished);
    }
    all.last = covered;
    return all;
  }

  void wait_for_queues(std::size_t count) {
    std::unique_lock held{mutex_};
    if (!changed_.wait_for(held, std::chrono::seconds{60}, [&] { return queues_ == count; }))
      throw std::runtime_error("the targets were not attached");
  }

 private:
  friend class watched_backend;

  void added() {
    const std::scoped_lock held{mutex_};
    ++queues_;
    changed_.notify_all();
  }

  void done(const batch_result& what) {
    const std::scoped_lock held{mutex_};
    const auto end = what.outcomes.begin() + what.count;
    failed_ =
        failed_ || what.kind != kind_ || what.count > left_ ||
        std::any_of(what.outcomes.begin(), end, [](outcome each) { return each != outcome::done; });
    calls_.emplace_back(what.started, what.finished);
    left_ -= std::min<std::size_t>(left_, what.count);
    ended_ = clock::now();
    if (failed_ || left_ == 0) changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t queues_ = 0;
  command_kind kind_{};
  std::size_t left_ = 0;
  bool failed_ = false;
  time_point ended_{};
  std::vector<std::pair<time_point, time_point>> calls_;
};

/// Threading: as backend. Lifetime: the watch outlives it.
class watched_backend final : public backend, private backend_listener {
 public:
  watched_backend(std::unique_ptr<backend> other, backend_watch& watch)
      : other_(std::move(other)), watch_(watch) {}

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
  result<void> submit(const batch& work) override { return other_->submit(work); }
  result<void> reserve(gpu_id gpu, double offline_share) override {
    return other_->reserve(gpu, offline_share);
  }
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
  void queue_added(const queue_info& what) override {
    listener_->queue_added(what);
    watch_.added();
  }
  void queue_removed(process_id target, driver_queue_id id) override {
    listener_->queue_removed(target, id);
  }
  void completed(const batch_result& what) override {
    watch_.done(what);
    listener_->completed(what);
  }
  void detached(process_id target) override { listener_->detached(target); }
  void acts_by(mechanism what, bool fell_back) override { listener_->acts_by(what, fell_back); }
  void reserved(gpu_id gpu, double offline_share, error_code error) override {
    listener_->reserved(gpu, offline_share, error);
  }
  void gpu_lost(gpu_id gpu) override { listener_->gpu_lost(gpu); }
  void lost(error_code reason) override { listener_->lost(reason); }
  void restored() override { listener_->restored(); }

  const std::unique_ptr<backend> other_;
  backend_watch& watch_;
  backend_listener* listener_ = nullptr;
};

}  // namespace sluice::bench
