#pragma once
/// \file
/// How long one side believes that the other lives.

#include <algorithm>

#include "sluice/time.hpp"

namespace sluice::agent {

/// Lapses `length` after the last renewal. A renewal is a time that the other side wrote, so one
/// from the future counts as now, and one older than what is known counts for nothing.
class lease {
 public:
  lease(duration length, time_point now) noexcept : length_(length), renewed_(now) {}

  void renew(time_point written, time_point now) noexcept {
    renewed_ = std::max(renewed_, std::min(written, now));
  }
  time_point deadline() const noexcept { return renewed_ + length_; }
  bool lapsed(time_point now) const noexcept { return now >= deadline(); }

 private:
  duration length_;
  time_point renewed_;
};

}  // namespace sluice::agent
