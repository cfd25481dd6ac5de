#include "sluice/observe/job_record.hpp"

#include "json_text.hpp"
#include "seconds.hpp"

#include <ctime>

#include <spdlog/fmt/fmt.h>

namespace sluice::observe {
namespace {

void append_text(std::string& to, std::string_view name, std::string_view value) {
  to += ",\"";
  to += name;
  to += "\":";
  append_quoted(to, value);
}

}  // namespace

std::string to_text(wall_time when) {
  const auto whole = std::chrono::floor<std::chrono::seconds>(when);
  const std::time_t since_epoch = std::chrono::system_clock::to_time_t(whole);
  std::tm parts{};
  ::gmtime_r(&since_epoch, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     (when - whole).count());
}

std::string to_json(const job_record& record) {
  std::string line = fmt::format("{{\"time\":\"{}\",\"pid\":{},\"start\":{}", to_text(record.time),
                                 record.pid, record.start);
  append_text(line, "command", record.command);
  append_text(line, "user", record.user);
  append_text(line, "group", record.group);
  append_text(line, "role", to_string(record.what));
  line += ",\"gpus\":[";
  for (const gpu_id each : record.gpus) {
    if (line.back() != '[') line += ',';
    line += std::to_string(static_cast<std::uint32_t>(each));
  }
  line += "]";
  append_text(line, "end", to_string(record.end));
  if (record.observed) line += ",\"observed\":true";
  if (record.simulated) line += ",\"simulated\":true";
  const double wall = seconds(record.wall);
  line += fmt::format(
      ",\"wall_s\":{:.3f},\"suspended_s\":{:.6f},\"share\":{:.4f},\"suspensions\":{},"
      "\"longest_s\":{:.6f},\"max_suspend\":{},\"offline_floor\":{}}}",
      wall, seconds(record.suspended), wall > 0 ? seconds(record.suspended) / wall : 0.0,
      record.suspensions, seconds(record.longest), record.by_max_suspend, record.by_offline_floor);
  return line;
}

}  // namespace sluice::observe
