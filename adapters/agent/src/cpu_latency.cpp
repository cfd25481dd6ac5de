#include "cpu_latency.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <utility>

namespace sluice::agent {

namespace {

/// No limit: PM_QOS_CPU_LATENCY_DEFAULT_VALUE of include/linux/pm_qos.h.
constexpr std::int32_t no_limit = 2'000'000'000;

}  // namespace

result<cpu_latency> cpu_latency::open(duration limit) {
  unique_fd device{::open("/dev/cpu_dma_latency", O_WRONLY | O_CLOEXEC)};
  if (!device) return last_system_error();
  const auto us = std::chrono::floor<std::chrono::microseconds>(limit).count();
  return cpu_latency{std::move(device), static_cast<std::int32_t>(us)};
}

void cpu_latency::set(bool limited) noexcept {
  if (std::exchange(limited_, limited) == limited) return;
  const std::int32_t value = limited ? limit_us_ : no_limit;
  // A number of four bytes is always taken.
  (void)!::write(device_.get(), &value, sizeof value);
}

}  // namespace sluice::agent
