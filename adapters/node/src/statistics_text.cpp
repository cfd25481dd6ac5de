#include "sluice/statistics_text.hpp"

#include <chrono>
#include <cstdint>
#include <string_view>

#include <spdlog/fmt/fmt.h>

namespace sluice {
namespace {

double milliseconds(duration value) {
  return std::chrono::duration<double, std::milli>(value).count();
}

void add_alarm(std::string& line, std::string_view name, std::uint64_t value) {
  if (value != 0) line += fmt::format("; {} {}", value, name);
}

}  // namespace

std::string statistics_line(const statistics& seen, node_mode mode) {
  const bool acts = mode == node_mode::enforce;
  std::string line = acts ? "statistics: " : "statistics, observing, nothing was touched: ";
  const std::string_view would = acts ? "" : "would have ";
  line += fmt::format(
      "{} turns, {} begins; knows {} processes with {} queues; {}attached {} times, "
      "{}suspended {} queues ({} "
      "now) and {}resumed {} in {} calls",
      seen.turns.value(), seen.begins.value(), seen.processes.value(), seen.queues.value(), would,
      seen.attaches.value(), would, seen.suspends.value(), seen.suspended_now.value(), would,
      seen.resumes.value(), seen.driver_calls.value());
  if (acts && seen.suspend_call.count() != 0)
    line += fmt::format("; a suspend took p50/p99 {:.2f}/{:.2f} ms",
                        milliseconds(seen.suspend_call.percentile(50)),
                        milliseconds(seen.suspend_call.percentile(99)));
  if (acts && seen.arrival_to_off.count() != 0)
    line += fmt::format("; online arrival to offline off p50/p99 {:.2f}/{:.2f} ms",
                        milliseconds(seen.arrival_to_off.percentile(50)),
                        milliseconds(seen.arrival_to_off.percentile(99)));
  add_alarm(line,
            acts ? "groups made to run by the limits"
                 : "groups would have been made to run by the limits",
            seen.forced_resumes.value());
  add_alarm(line, "open breakers", seen.open_breakers.value());
  add_alarm(line, "GPUs lost", seen.gpus_lost.value());
  add_alarm(line, "failed outcomes", seen.failed_outcomes.value());
  add_alarm(line, "failed attaches", seen.attach_failures.value());
  add_alarm(line, "agent restarts", seen.backend_restarts.value());
  add_alarm(line, "policies removed", seen.policy_ejections.value());
  add_alarm(line, "begins without an end", seen.expired_begins.value());
  add_alarm(line, "spans without an end", seen.expired_spans.value());
  add_alarm(line, "observations lost and mended", seen.inbox_overflows.value());
  return line;
}

}  // namespace sluice
