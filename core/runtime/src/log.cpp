#include "log.hpp"

#include <algorithm>
#include <memory>
#include <string>

#include <spdlog/spdlog.h>

#include "sluice/os/standard_error.hpp"

namespace sluice {
namespace {

std::string_view name(log_level level) noexcept {
  switch (level) {
    case log_level::info: return "info";
    case log_level::warning: return "warning";
    case log_level::error: return "error";
  }
  return {};
}

/// In quotes where it would not be told from what follows.
void append_value(std::string& line, std::string_view text) {
  const bool plain = !text.empty() && std::ranges::all_of(text, [](char each) {
    return each > ' ' && each != '"' && each != '=' && each != 0x7f;
  });
  if (plain) {
    line += text;
    return;
  }
  line += '"';
  for (const char each : text) {
    if (each == '"' || each == '\\') line += '\\';
    line += static_cast<unsigned char>(each) < ' ' || each == 0x7f ? '?' : each;
  }
  line += '"';
}

/// Looked up each time: the program may set it up after the runtime started.
std::shared_ptr<spdlog::logger> logger_of(log_part part) {
  auto own = spdlog::get("sluice." + std::string(to_string(part)));
  return own ? own : spdlog::get("sluice");
}

spdlog::level::level_enum grade(log_level level) noexcept {
  switch (level) {
    case log_level::info: return spdlog::level::info;
    case log_level::warning: return spdlog::level::warn;
    case log_level::error: break;
  }
  return spdlog::level::err;
}

}  // namespace

bool is_logged(log_level level, log_part part) noexcept {
  try {
    const auto logger = logger_of(part);
    return !logger || logger->should_log(grade(level));
  } catch (...) {
    return true;
  }
}

void write_log(log_level level, log_part part, log_fields about,
               std::string_view sentence) noexcept {
  try {
    std::string line{sentence};
    line += " part=";
    line += to_string(part);
    for (const log_field& each : about) {
      line += ' ';
      line += each.key;
      line += '=';
      if (each.is_number)
        line += std::to_string(each.number);
      else
        append_value(line, each.text);
    }
    const auto logger = logger_of(part);
    if (!logger) {
      // The reactor logs from its turns, and must not wait for a terminal or a pipe.
      log_to_standard_error("sluice", name(level), line);
      return;
    }
    const spdlog::string_view_t text{line.data(), line.size()};
    logger->log(grade(level), text);
  } catch (...) {
    // A sink that fails must not take the scheduler with it.
  }
}

}  // namespace sluice
