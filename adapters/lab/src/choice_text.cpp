#include <charconv>
#include <cstdint>

#include <fmt/format.h>

#include "sluice/lab/choice.hpp"

namespace sluice::lab {
namespace {

parameter_value value_of(std::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  const char* const end = text.data() + text.size();
  std::int64_t whole = 0;
  if (const auto [rest, error] = std::from_chars(text.data(), end, whole);
      error == std::errc{} && rest == end) {
    return whole;
  }
  double number = 0;
  if (const auto [rest, error] = std::from_chars(text.data(), end, number);
      error == std::errc{} && rest == end) {
    return number;
  }
  return std::string(text);
}

/// Puts "key=value,key=value" into the choice.
checked<bool> take(std::string_view rest, choice& into) {
  for (;;) {
    const auto comma = rest.find(',');
    const auto one = rest.substr(0, comma);
    const auto equals = one.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == one.size()) {
      return failure(
          fmt::format("invalid parameter '{}' in '{}': expected KEY=VALUE", one, into.text));
    }
    std::string key(one.substr(0, equals));
    if (into.values.has(key)) {
      return failure(fmt::format("'{}' sets {} more than once", into.text, key));
    }
    into.values.set(std::move(key), value_of(one.substr(equals + 1)));
    if (comma == std::string_view::npos) return true;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace

checked<choice> parse_choice(std::string_view text) {
  choice made;
  made.text = text;
  const auto colon = text.find(':');
  made.name = text.substr(0, colon);
  if (made.name.empty())
    return failure(fmt::format("'{}' has no name; expected NAME[:KEY=VALUE,...]", text));
  if (colon == std::string_view::npos) return made;
  if (const auto taken = take(text.substr(colon + 1), made); !taken) return taken.error();
  return made;
}

checked<choice> parse_values(std::string_view text) {
  choice made;
  made.text = text;
  if (const auto taken = take(text, made); !taken) return taken.error();
  return made;
}

}  // namespace sluice::lab
