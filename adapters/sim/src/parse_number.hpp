#pragma once
/// \file
/// Numbers in names of entries and in lines of the control file.

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace sluice::sim {

/// The whole text as one decimal number.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace sluice::sim
