#pragma once
/// \file
/// What the pointers of one GPU's online queues tell: how long a kernel there takes, or the gap
/// between two, and until when online work goes on although nobody says so.

#include <algorithm>
#include <cstdint>

#include "sluice/ids.hpp"
#include "sluice/policies/pointer_polling.hpp"
#include "sluice/policy.hpp"
#include "sluice/time.hpp"
#include "sluice/world.hpp"

namespace sluice {

/// Lifetime: the options outlive it.
class pointer_track {
 public:
  pointer_track(gpu_id of, const pointer_polling_options& options) noexcept
      : id_(of), options_(&options) {}

  gpu_id id() const noexcept { return id_; }

  void follow(const gpu_view& on, const event& moved) {
    // A kernel's length is not seen. But while packets wait, those before them run; and who submits
    // one kernel after the other lets a kernel pass between two moves, or a gap. (A single packet
    // may only have waited for room on the GPU.)
    if (work_ == online_work::waiting && on.work == online_work::consumed && packets_ > 1) {
      learn((moved.at - since_) / static_cast<std::int64_t>(packets_ - 1), moved.at);
    } else if (work_ == online_work::consumed && moved.count != 0) {
      learn(moved.at - since_, moved.at);
    }
    packets_ += moved.count;
    // What came and was done between two looks is work that ended now.
    if (!is_work(on.work) && (is_work(work_) || moved.count != 0)) ended_ = moved.at;
    if (work_ == on.work && moved.count == 0) return;
    if (work_ != online_work::waiting || on.work != online_work::waiting) {
      since_ = moved.at;
      packets_ = moved.count;
    }
    work_ = on.work;
  }
  /// A client's work ended.
  void end(time_point when) noexcept { ended_ = when; }

  /// When the GPU's online work counts as ended, as far as can be said now; the epoch when there
  /// was none.
  time_point busy_until(const gpu_view& on) const {
    if (on.online_in_flight != 0) return never;
    const duration longest = std::max(longest_, before_);
    const duration settle =
        longest == duration{} ? options_->settle_max
                              : std::clamp(2 * longest, options_->settle_min, options_->settle_max);
    const time_point moved = std::max(on.last_move, since_);
    switch (on.work) {
      case online_work::waiting:
      case online_work::running: return moved + options_->give_up;
      case online_work::consumed: return moved + settle;
      case online_work::finished:
      case online_work::unknown: break;
    }
    return ended_ == time_point{} ? ended_ : ended_ + options_->linger;
  }

 private:
  static bool is_work(online_work work) noexcept {
    return work != online_work::unknown && work != online_work::finished;
  }
  void learn(duration length, time_point now) {
    if (now - window_ > options_->remember) {
      before_ = now - window_ > 2 * options_->remember ? duration{} : longest_;
      longest_ = {};
      window_ = now;
    }
    if (length < options_->settle_max) longest_ = std::max(longest_, length);
  }

  gpu_id id_{};
  const pointer_polling_options* options_;
  online_work work_ = online_work::unknown;
  time_point since_{};         // When `work_` became this.
  std::uint64_t packets_ = 0;  // That came since.
  time_point ended_{};
  duration longest_{};  // Kernel or gap, since `window_`...
  duration before_{};   // ...and in the window before.
  time_point window_{};
};

}  // namespace sluice
