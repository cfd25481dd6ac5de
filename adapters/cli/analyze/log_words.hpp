#pragma once
/// \file
/// Takes a line of a log apart from its front.

#include <charconv>
#include <concepts>
#include <cstddef>
#include <string_view>

namespace sluice::cli {

inline bool is_digit(char each) noexcept { return each >= '0' && each <= '9'; }

/// Without the blanks at its front.
inline std::string_view unindented(std::string_view text) noexcept {
  const auto first = text.find_first_not_of(' ');
  return first == std::string_view::npos ? std::string_view{} : text.substr(first);
}

/// Takes these words if they are there. \return whether they were.
inline bool take(std::string_view& text, std::string_view words) noexcept {
  if (!text.starts_with(words)) return false;
  text.remove_prefix(words.size());
  return true;
}

/// Takes the digits at the front. \return whether there were any, and the number fits; else `text`
/// and `value` stay.
template <std::unsigned_integral Number>
bool take_number(std::string_view& text, Number& value, int base = 10) noexcept {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{}) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

}  // namespace sluice::cli
