#pragma once
/// \file
/// Durations as people write them: "20ms", "1.5 s".

#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

struct duration_unit {
  std::string_view name;
  duration length;
};

/// Ascending; of two names for one length the last is the one to write.
inline constexpr duration_unit duration_units[] = {
    {"ns", std::chrono::nanoseconds(1)},  {"us", std::chrono::microseconds(1)},
    {"ms", std::chrono::milliseconds(1)}, {"s", std::chrono::seconds(1)},
    {"m", std::chrono::minutes(1)},       {"min", std::chrono::minutes(1)},
    {"h", std::chrono::hours(1)}};

/// A decimal number, perhaps a space, and a unit (ns, us, ms, s, m or min, h).
///
/// \param plain_unit of a number without a unit; zero: a unit is needed.
/// \return rounded to nanoseconds; nothing when it is no such text, or beyond 292 years.
inline std::optional<duration> parse_duration(std::string_view text, duration plain_unit = {}) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || !std::isfinite(number)) return std::nullopt;
  std::string_view suffix(rest, static_cast<std::size_t>(end - rest));
  if (suffix.starts_with(' ')) suffix.remove_prefix(1);
  duration length = suffix.empty() ? plain_unit : duration{};
  for (const auto& one : duration_units) {
    if (suffix == one.name) length = one.length;
  }
  const double ns = number * static_cast<double>(length.count());
  if (length == duration{} || std::abs(ns) > 9e18) return std::nullopt;
  return duration(std::llround(ns));
}

/// In the largest unit of which it is a whole number: 1500 us is "1500us", 2000 us is "2ms".
inline std::string to_text(duration value) {
  const duration_unit* best = &duration_units[0];
  for (const auto& one : duration_units) {
    if (value != duration{} && value % one.length == duration{}) best = &one;
  }
  return std::to_string(value / best->length).append(best->name);
}

}  // namespace sluice
#pragma GCC visibility pop
