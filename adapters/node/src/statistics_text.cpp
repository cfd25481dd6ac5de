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

void add(std::string& line, std::string_view key, std::uint64_t value) {
  line += fmt::format(" {}={}", key, value);
}

void add_alarm(std::string& line, std::string_view key, std::uint64_t value) {
  if (value != 0) add(line, key, value);
}

void add_times(std::string& line, std::string_view key, const histogram& of) {
  if (of.count() != 0)
    line += fmt::format(" {0}_p50_ms={1:.2f} {0}_p99_ms={2:.2f}", key,
                        milliseconds(of.percentile(50)), milliseconds(of.percentile(99)));
}

}  // namespace

std::string statistics_line(const statistics& seen, node_mode mode) {
  const bool acts = mode == node_mode::enforce;
  std::string line = acts ? "statistics: mode=enforce"
                          : "statistics of decisions that were not carried out: "
                            "mode=observe";
  add(line, "turns", seen.turns.value());
  add(line, "begins", seen.begins.value());
  add(line, "processes", seen.processes.value());
  add(line, "queues", seen.queues.value());
  add(line, "attaches", seen.attaches.value());
  add(line, "suspends", seen.suspends.value());
  add(line, "suspended_now", seen.suspended_now.value());
  add(line, "resumes", seen.resumes.value());
  add(line, "driver_calls", seen.driver_calls.value());
  if (acts) {
    add_times(line, "suspend_call", seen.suspend_call);
    add_times(line, "arrival_to_off", seen.arrival_to_off);
  }
  add_alarm(line, "forced_resumes", seen.forced_resumes.value());
  add_alarm(line, "open_breakers", seen.open_breakers.value());
  add_alarm(line, "gpus_lost", seen.gpus_lost.value());
  add_alarm(line, "failed_outcomes", seen.failed_outcomes.value());
  add_alarm(line, "attach_failures", seen.attach_failures.value());
  add_alarm(line, "backend_restarts", seen.backend_restarts.value());
  add_alarm(line, "policy_ejections", seen.policy_ejections.value());
  add_alarm(line, "expired_begins", seen.expired_begins.value());
  add_alarm(line, "expired_spans", seen.expired_spans.value());
  add_alarm(line, "inbox_overflows", seen.inbox_overflows.value());
  return line;
}

}  // namespace sluice
