#pragma once
/// \file
/// The runtime's one way to log. Goes to spdlog's logger "sluice" when the program made one (which
/// should be asynchronous and drop when full: the reactor logs from its turns), else to standard
/// error, as far as that takes it without blocking. Never on the hot path.

#include <cstdint>
#include <string_view>
#include <utility>

#include <spdlog/fmt/fmt.h>

namespace sluice {

enum class log_level : std::uint8_t { info, warning, error };

/// Any thread; never throws.
void write_log(log_level level, std::string_view text) noexcept;

template <class... Args>
void log_line(log_level level, fmt::format_string<Args...> format, Args&&... args) noexcept {
  try {
    write_log(level, fmt::format(format, std::forward<Args>(args)...));
  } catch (...) {
    // Out of memory: the line is lost, the scheduler goes on.
  }
}

}  // namespace sluice
