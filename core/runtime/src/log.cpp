#include "log.hpp"

#include <algorithm>
#include <string>

#include <spdlog/spdlog.h>

#include "sluice/standard_error.hpp"

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

}  // namespace

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
    // Looked up each time: the program may set it up after the runtime started.
    auto logger = spdlog::get("sluice." + std::string(to_string(part)));
    if (!logger) logger = spdlog::get("sluice");
    if (!logger) {
      // The reactor logs from its turns, and must not wait for a terminal or a pipe.
      log_to_standard_error("sluice", name(level), line);
      return;
    }
    const spdlog::string_view_t text{line.data(), line.size()};
    switch (level) {
      case log_level::info: logger->info(text); break;
      case log_level::warning: logger->warn(text); break;
      case log_level::error: logger->error(text); break;
    }
  } catch (...) {
    // A sink that fails must not take the scheduler with it.
  }
}

}  // namespace sluice
