#pragma once
/// \file
/// Limits how long processors take to wake up, by the kernel's /dev/cpu_dma_latency: they then do
/// not sleep as deeply, and threads that rest are woken sooner.

#include <cstdint>

#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice::agent {

/// Threading: one thread. Lifetime: the kernel lifts the limit when this ends, or the process does.
class cpu_latency {
 public:
  /// \param limit in whole microseconds.
  /// \return the system's error.
  [[nodiscard]] static result<cpu_latency> open(duration limit);
  /// Sets the limit, or lifts it, as it is at first.
  void set(bool limited) noexcept;

 private:
  cpu_latency(unique_fd device, std::int32_t limit) noexcept
      : device_(std::move(device)), limit_us_(limit) {}

  unique_fd device_;
  std::int32_t limit_us_;
  bool limited_ = false;
};

}  // namespace sluice::agent
