#pragma once
/// \file
/// Keeps a repeated message from flooding the log.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice::core {

/// The end of the next line that is written: nothing where none was left out before it.
inline std::string left_out(std::uint64_t suppressed) {
  if (suppressed == 0) return {};
  if (suppressed == 1) return " (1 similar line suppressed)";
  return " (" + std::to_string(suppressed) + " similar lines suppressed)";
}

/// One line in each interval, several at once after a silence where that is asked for; and it says
/// how many were left out.
class log_limiter {
 public:
  explicit log_limiter(int burst = 1, duration interval = std::chrono::seconds(1)) noexcept
      : interval_(interval), spare_((burst - 1) * interval) {}

  /// \return whether to write now; then `suppressed` is how many were not written since.
  bool allow(time_point now, std::uint64_t& suppressed) noexcept {
    if (now + spare_ < next_) {
      ++suppressed_;
      return false;
    }
    next_ = std::max(next_, now) + interval_;
    suppressed = std::exchange(suppressed_, 0);
    return true;
  }

 private:
  duration interval_;
  duration spare_;
  time_point next_{};
  std::uint64_t suppressed_ = 0;
};

}  // namespace sluice::core
#pragma GCC visibility pop
