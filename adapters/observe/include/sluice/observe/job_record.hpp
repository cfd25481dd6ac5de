#pragma once
/// \file
/// One line of a jobs file: what sluice did to one process, in one period of its life.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/role.hpp"
#include "sluice/time.hpp"

namespace sluice::observe {

using wall_time = std::chrono::time_point<std::chrono::system_clock, std::chrono::milliseconds>;

/// Why there is a line.
enum class job_end : std::uint8_t {
  ended,  ///< The process is gone.
  runs,   ///< It has run for another hour.
  left,   ///< Whoever watched it does not any more: what comes then, another line has.
};

constexpr std::string_view to_string(job_end value) noexcept {
  switch (value) {
    case job_end::ended: return "ended";
    case job_end::runs: return "runs";
    case job_end::left: break;
  }
  return "left";
}

/// Lines of one process (pid and start) follow each other without overlap: they may be added up.
struct job_record {
  wall_time time{};  ///< The period's end.
  pid_t pid = 0;
  std::uint64_t start = 0;  ///< As observation::start_time.
  std::string command{};
  std::string user{};
  std::string group{};          ///< As process_words::group.
  role what = role::unmatched;  ///< At the end.
  std::vector<gpu_id> gpus{};   ///< On which it had queues when somebody looked, or was suspended.
  job_end end{};
  bool observed = false;   ///< Nothing was touched: it would have been.
  bool simulated = false;  ///< The device was.
  duration wall{};         ///< Of the period.
  duration suspended{};    ///< Not all of its queues ran.
  std::uint64_t suspensions = 0;
  duration longest{};
  // How often a limit made its group run although the policy wanted it held.
  std::uint64_t by_max_suspend = 0;
  std::uint64_t by_offline_floor = 0;
};

/// One line, without its newline. Durations are seconds.
[[nodiscard]] std::string to_json(const job_record& record);

/// "2026-01-31T13:37:00.123Z".
[[nodiscard]] std::string to_text(wall_time when);

}  // namespace sluice::observe
