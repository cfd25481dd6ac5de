#pragma once
/// \file
/// What the simulated device counted: the only witness of what ran when that is neither the online
/// nor the offline program.

#include "workload.hpp"

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/time.hpp"

namespace demo {

struct process_stats {
  pid_t pid = 0;
  bool alive = false;
  std::uint32_t queues = 0;
  std::uint32_t suspended_queues = 0;
  std::uint64_t kernels_completed = 0;
  sluice::duration busy{};        ///< At least one of its kernels was running.
  sluice::duration unfinished{};  ///< At least one packet was submitted and not completed.
  sluice::duration disturbed{};   ///< Had unfinished work while the GPU was in a driver cycle.
};

struct device_stats {
  sluice::duration now{};
  std::string profile;
  sluice::duration lateness_p50{};
  sluice::duration lateness_p99{};
  std::uint64_t driver_cycles = 0;
  sluice::duration driver_cycle_time{};
  std::vector<process_stats> processes;

  /// The latest process with that pid; zeros when the device never saw it.
  process_stats of(pid_t pid) const;
  std::uint32_t suspended_queues() const;  ///< Over all living processes.
};

checked<device_stats> parse_device_stats(std::string_view json);
/// \param root the device's directory, as given to `sluice-sim --root`.
checked<device_stats> read_device_stats(const std::string& root);

}  // namespace demo
