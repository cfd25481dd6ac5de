#pragma once
/// \file
/// The runtime's one way to log. A line is a sentence for people, then what it is about as
/// key=value for programs: "process 42: ... part=attach pid=42". It goes to spdlog's logger
/// "sluice.PART" when the program made one, else to "sluice" (which should be asynchronous and drop
/// when full: the reactor logs from its turns), else to standard error, as far as that takes it
/// without blocking. Never on the hot path.

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <type_traits>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "sluice/os/log_part.hpp"

namespace sluice {

enum class log_level : std::uint8_t { info, warning, error };

/// What a line is about. Refers to what it is made of.
struct log_field {
  template <std::integral Number>
  log_field(std::string_view name, Number value) noexcept
      : key(name), number(static_cast<std::int64_t>(value)), is_number(true) {}
  template <class Id>
  requires std::is_enum_v<Id> log_field(std::string_view name, Id value)
  noexcept : log_field(name, static_cast<std::underlying_type_t<Id>>(value)) {}
  log_field(std::string_view name, std::string_view value) noexcept : key(name), text(value) {}

  std::string_view key;
  std::string_view text;
  std::int64_t number = 0;
  bool is_number = false;
};
using log_fields = std::initializer_list<log_field>;

/// Whether a line would be written at all. Any thread.
bool is_logged(log_level level, log_part part) noexcept;
/// Any thread; never throws.
void write_log(log_level level, log_part part, log_fields about,
               std::string_view sentence) noexcept;

template <class... Args>
void log_line(log_level level, log_part part, log_fields about, fmt::format_string<Args...> format,
              Args&&... args) noexcept {
  try {
    if (!is_logged(level, part)) return;
    write_log(level, part, about, fmt::format(format, std::forward<Args>(args)...));
  } catch (...) {
    // Out of memory: the line is lost, the scheduler goes on.
  }
}

}  // namespace sluice
