#include "device_stats.hpp"

#include <boost/json.hpp>

#include "sluice/os/whole_file.hpp"

namespace demo {
namespace {

namespace json = boost::json;

std::uint64_t count(const json::object& from, const char* key) {
  return from.at(key).to_number<std::uint64_t>();
}

sluice::duration nanoseconds(const json::object& from, const char* key) {
  return sluice::duration{from.at(key).to_number<std::int64_t>()};
}

device_stats read(const json::object& from) {
  device_stats seen;
  seen.now = nanoseconds(from, "now_ns");
  seen.profile = from.at("profile").as_string();
  const json::object& lateness = from.at("lateness_ns").as_object();
  seen.lateness_p50 = nanoseconds(lateness, "p50");
  seen.lateness_p99 = nanoseconds(lateness, "p99");
  for (const json::value& each : from.at("gpus").as_array()) {
    // Only AMD's driver has them: they stop everybody on the GPU.
    if (!each.as_object().contains("cycles")) continue;
    seen.driver_cycles += count(each.as_object(), "cycles");
    seen.driver_cycle_time += nanoseconds(each.as_object(), "cycle_ns");
  }
  for (const json::value& each : from.at("processes").as_array()) {
    const json::object& row = each.as_object();
    process_stats made;
    made.pid = row.at("pid").to_number<pid_t>();
    made.alive = row.at("alive").as_bool();
    made.queues = static_cast<std::uint32_t>(count(row, "queues"));
    made.suspended_queues = static_cast<std::uint32_t>(count(row, "suspended_queues"));
    made.kernels_completed = count(row, "kernels_completed");
    made.busy = nanoseconds(row, "busy_ns");
    made.unfinished = nanoseconds(row, "unfinished_ns");
    if (row.contains("disturbed_ns")) made.disturbed = nanoseconds(row, "disturbed_ns");
    seen.processes.push_back(made);
  }
  return seen;
}

}  // namespace

process_stats device_stats::of(pid_t pid) const {
  for (auto each = processes.rbegin(); each != processes.rend(); ++each) {
    if (each->pid == pid) return *each;
  }
  return {};
}

std::uint32_t device_stats::suspended_queues() const {
  std::uint32_t sum = 0;
  for (const process_stats& each : processes) {
    if (each.alive) sum += each.suspended_queues;
  }
  return sum;
}

checked<device_stats> parse_device_stats(std::string_view text) {
  boost::system::error_code error;
  const json::value parsed = json::parse({text.data(), text.size()}, error);
  if (error) return failure("the device's statistics are not JSON: " + error.message());
  try {
    return read(parsed.as_object());
  } catch (const std::exception& wrong) {
    return failure(std::string("the device's statistics are incomplete: ") + wrong.what());
  }
}

checked<device_stats> read_device_stats(const std::string& root) {
  const std::string path = root + "/sim/stats.json";
  const auto text = sluice::read_whole_file(path);
  if (!text) return failure(path + ": cannot be read: " + text.error().message());
  return parse_device_stats(*text);
}

}  // namespace demo
