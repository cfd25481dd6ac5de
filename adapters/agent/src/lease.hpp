#pragma once
/// \file
/// How long one side believes that the other lives.

#include <algorithm>

#include "sluice/time.hpp"

namespace sluice::agent {

/// Lapses `length` after the last renewal. A renewal is a time that the other side wrote, so one
/// from the future counts as now, and one older than what is known counts for nothing.
///
/// Time in which the watching side did not run does not count, once for each renewal: where both
/// are frozen, or the machine stands still, nobody was found silent. Once, and by the longest such
/// time, for a watcher that is always late shall find out, too.
class lease {
 public:
  /// \param interval the longest time between two calls of renew() where nothing holds them up.
  lease(duration length, duration interval, time_point now) noexcept
      : length_(length), interval_(interval), renewed_(now), looked_(now) {}

  void renew(time_point written, time_point now) noexcept {
    written = std::min(written, now);
    if (written > renewed_) {
      renewed_ = written;
      late_ = {};
    }
    late_ = std::max(late_, std::min(now - looked_ - interval_, now - renewed_));
    looked_ = now;
  }
  time_point deadline() const noexcept { return renewed_ + late_ + length_; }
  bool lapsed(time_point now) const noexcept { return now >= deadline(); }

 private:
  duration length_;
  duration interval_;
  time_point renewed_;
  time_point looked_;  // when renew() was called last
  duration late_{};    // the longest of the calls since the renewal
};

}  // namespace sluice::agent
