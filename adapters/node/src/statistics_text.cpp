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
  for (const counter_row& each : counter_rows)
    if (each.place == counter_place::always) add(line, each.name, (seen.*each.of).value());
  if (acts) {
    add_times(line, "suspend_call", seen.suspend_call);
    add_times(line, "arrival_to_off", seen.arrival_to_off);
  }
  for (const counter_row& each : counter_rows)
    if (const std::uint64_t value = seen.*each.of;
        each.place != counter_place::always && value != 0)
      add(line, each.name, value);
  return line;
}

}  // namespace sluice
