#pragma once
/// \file
/// What the demo's programs tell sluice-demo at their end: one line of JSON each.

#include "kernel_ledger.hpp"
#include "workload.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/time.hpp"

namespace demo {

/// What the embedded scheduler counted; see sluice::statistics for the meaning of each.
struct scheduler_report {
  std::string settings;  ///< Policy and limits, for people.
  std::string reactor;   ///< "io_uring" or "epoll".
  std::uint64_t suspends = 0;
  std::uint64_t resumes = 0;
  std::uint64_t driver_calls = 0;
  std::uint64_t failed_outcomes = 0;
  std::uint64_t invalid_outcomes = 0;
  std::uint64_t forced_resumes = 0;
  std::uint64_t backend_restarts = 0;
  std::uint64_t policy_ejections = 0;
  std::uint64_t suspend_calls = 0;  ///< What the percentiles below are of.
  std::uint64_t resume_calls = 0;
  sluice::duration suspend_p50{};
  sluice::duration suspend_p99{};
  sluice::duration resume_p50{};
  sluice::duration resume_p99{};
  sluice::duration decision_p50{};
  sluice::duration decision_p99{};
  sluice::duration off_p50{};  ///< Online begin to the last offline queue being off.
  sluice::duration off_p99{};
};

struct online_report {
  std::vector<sluice::duration> finished;    ///< Latencies.
  std::vector<sluice::duration> unfinished;  ///< Lower bounds of latencies.
  std::vector<sluice::duration>
      arrivals;  ///< Since the start: of `finished`, then of `unfinished`.
  percentiles wake_up;
  sluice::duration turnaround{};  ///< Mean; serving_result::turnarounds.
  verdict kernels;
  std::optional<scheduler_report> scheduler;
};

std::string to_line(const online_report& report);
std::string to_line(const verdict& report);
checked<online_report> parse_online_report(std::string_view line);
checked<verdict> parse_verdict(std::string_view line);

}  // namespace demo
