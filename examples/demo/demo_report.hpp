#pragma once
/// \file
/// What the demo measured, and two of its forms: a table for people and a JSON file for programs.

#include "device_stats.hpp"
#include "options.hpp"
#include "wire_report.hpp"
#include "workload.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace demo {

/// The online side of one run.
struct online_run {
  std::uint64_t requests = 0;
  std::uint64_t unfinished = 0;  ///< Their latencies are lower bounds.
  percentiles latency;
  percentiles wake_up;
  sluice::duration turnaround{};                ///< Mean.
  std::vector<sluice::duration> samples = {};   ///< Latencies, those of unfinished ones last.
  std::vector<sluice::duration> arrivals = {};  ///< Of the samples, since the start of the run.
};
online_run summarize(const online_report& report);

/// The offline side of one run, by the device's counts over the measured stretch.
struct offline_run {
  sluice::duration wall{};
  sluice::duration gpu_time{};           ///< At least one offline kernel was running.
  sluice::duration online_unfinished{};  ///< Online packets were submitted and not completed.
  std::uint64_t kernels = 0;

  double kernels_per_second() const;
  double gpu_share() const;  ///< gpu_time ÷ wall.
  /// 100 × (1 − offline GPU time ÷ (wall time − time in which the GPU had unfinished online work)).
  /// Negative when offline work made more of the time beside online work than it lost elsewhere.
  double loss_percent() const;
};

struct load_report {
  load_kind load{};
  online_run online_alone;
  offline_run offline_alone;
  online_run unscheduled;
  offline_run unscheduled_offline;
  online_run scheduled;
  offline_run scheduled_offline;
  scheduler_report scheduler;
  verdict offline_kernels;            ///< Over the three runs with offline work.
  std::uint32_t still_suspended = 0;  ///< Queues, after the scheduled run.
  // By the device's count, in the scheduled run from its first arrival until its last request was
  // done; the scheduler's own counts go on until it has let everything run again.
  sluice::duration online_disturbed{};
  std::uint64_t driver_cycles = 0;  ///< Runlist cycles of the GPU.
  sluice::duration driver_cycle_time{};
  sluice::duration lateness_p50{};  ///< The device's own, up to the end of these runs.
  sluice::duration lateness_p99{};

  /// Offline kernels per second, scheduled ÷ alone.
  double share_of_alone() const;
  /// Whether the load is train, and online p99 became less than a third shorter.
  bool gains_little() const;
  /// Empty, or what went wrong in a way that no scheduler may ever cause.
  std::string broken_promise() const;
};

inline constexpr const char* why_it_gains_little =
    "Online work gained little: preemption does not pay if offline kernels are shorter than a "
    "suspend and leave gaps.";

/// "online p99 4.1 times shorter"; the first may be a lower bound.
std::string latency_against(const online_run& unscheduled, const online_run& scheduled);

std::string table(const load_report& report);
/// \param window of the arrivals as they were played.
std::string json(const load_report& report, const std::string& profile,
                 const arrival_options& asked, duration window);

}  // namespace demo
