#pragma once
/// \file
/// The share of the time that offline work runs in any case.

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "sluice/time.hpp"

namespace sluice {

/// Counts what offline work ran more or less than its share, over some ten seconds.
class offline_share {
 public:
  explicit offline_share(double share) noexcept : share_(share) {}

  void count(duration passed, bool was_held) noexcept {
    const double earned = was_held ? -share_ : 1 - share_;
    credit_ = std::min(credit_ + earned * static_cast<double>(passed.count()), share_ * window);
  }
  /// Whether it must run now; if so, for at least eight round trips, so that most of that is run.
  /// \param changes when that will be another answer, from now; untouched where it will not.
  bool must_run(bool holding, duration round_trip, duration& changes) noexcept {
    if (share_ == 0) return false;
    const double stretch = (1 - share_) * 8 * static_cast<double>(round_trip.count());
    if (credit_ >= 0) owed_ = false;
    if (holding && credit_ <= -stretch) owed_ = true;
    const auto after = [](double amount, double rate) {
      return duration(static_cast<std::int64_t>(amount / rate));
    };
    if (owed_) {
      changes = after(-credit_, 1 - share_);
    } else if (holding) {
      changes = after(credit_ + stretch, share_);
    }
    return owed_;
  }

 private:
  static constexpr double window = 1e10;  // Nanoseconds.

  double share_;
  double credit_ = 0;  ///< Nanoseconds that it ran more than its share.
  bool owed_ = false;  ///< It runs until that is zero again.
};

}  // namespace sluice
