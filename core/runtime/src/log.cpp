#include "log.hpp"

#include <memory>

#include <spdlog/spdlog.h>

namespace sluice {

void write_log(log_level level, std::string_view text) noexcept {
  try {
    // Looked up each time: the program may set it up after the runtime started.
    auto logger = spdlog::get("sluice");
    if (!logger) logger = spdlog::default_logger();
    if (!logger) return;
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
