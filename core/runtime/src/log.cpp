#include "log.hpp"

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

}  // namespace

void write_log(log_level level, std::string_view text) noexcept {
  try {
    // Looked up each time: the program may set it up after the runtime started.
    const auto logger = spdlog::get("sluice");
    if (!logger) {
      // The reactor logs from its turns, and must not wait for a terminal or a pipe.
      log_to_standard_error("sluice", name(level), text);
      return;
    }
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
