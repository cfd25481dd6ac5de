#pragma once
/// \file
/// The one clock: monotonic, nanoseconds. Wall time appears in logs only.

#include <chrono>

#pragma GCC visibility push(default)
namespace sluice {

using clock = std::chrono::steady_clock;
using duration = std::chrono::nanoseconds;
using time_point = std::chrono::time_point<clock, duration>;

/// "Never", for expiries and wake-ups.
inline constexpr time_point never = time_point::max();

/// Where the runtime takes its time from: the steady clock, a test's manual one, or a simulation's.
/// Threading: as the implementation says; the runtime asks on the reactor thread.
class time_source {
 public:
  virtual time_point now() const noexcept = 0;

 protected:
  ~time_source() = default;
};

class steady_time final : public time_source {
 public:
  time_point now() const noexcept override { return clock::now(); }
};

}  // namespace sluice
#pragma GCC visibility pop
