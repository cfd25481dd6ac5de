#pragma once
/// \file
/// When what a preemption asked a backend for was done, as the answers say.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/time.hpp"

namespace sluice::bench {

/// Threading: heard() on the reactor's thread, the others on one other. Errors: throws
/// std::runtime_error.
class preemption_watch {
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

  /// For tapped_backend.
  void heard(const batch_result& what) {
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

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  command_kind kind_{};
  std::size_t left_ = 0;
  bool failed_ = false;
  time_point ended_{};
  std::vector<std::pair<time_point, time_point>> calls_;
};

}  // namespace sluice::bench
