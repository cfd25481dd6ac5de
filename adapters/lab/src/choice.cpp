#include "choice.hpp"

#include <charconv>
#include <cstdint>

#include <fmt/format.h>

#include "sluice/policy_registry.hpp"

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

}  // namespace

checked<choice> parse_choice(std::string_view text) {
  choice made;
  made.text = text;
  const auto colon = text.find(':');
  made.name = text.substr(0, colon);
  if (made.name.empty()) return failure(fmt::format("\"{}\" begins with no name", text));
  if (colon == std::string_view::npos) return made;
  std::string_view rest = text.substr(colon + 1);
  for (;;) {
    const auto comma = rest.find(',');
    const auto one = rest.substr(0, comma);
    const auto equals = one.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == one.size()) {
      return failure(fmt::format("\"{}\" of \"{}\" must be key=value", one, text));
    }
    std::string key(one.substr(0, equals));
    if (made.values.has(key)) {
      return failure(fmt::format("\"{}\" names {} twice", text, key));
    }
    made.values.set(std::move(key), value_of(one.substr(equals + 1)));
    if (comma == std::string_view::npos) return made;
    rest.remove_prefix(comma + 1);
  }
}

checked<std::size_t> resolve(choice& given, const std::vector<choice_kind>& kinds,
                             std::string_view what) {
  std::string names;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    names += (i == 0 ? "" : ", ") + std::string(kinds[i].name);
    if (kinds[i].name != given.name) continue;
    if (std::string wrong = check_parameters(kinds[i].schema, given.values); !wrong.empty()) {
      if (const auto at = wrong.find("of this policy"); at != std::string::npos) {
        wrong.replace(at, 14, fmt::format("of {}", given.name));
      }
      return failure(fmt::format("{} {}: {}", what, given.text, wrong));
    }
    return i;
  }
  return failure(fmt::format("{} {}: there is {}", what, given.name, names));
}

std::string describe(const std::vector<choice_kind>& kinds) {
  std::string text;
  for (const choice_kind& each : kinds) {
    text += fmt::format("  {:<12}{}\n", each.name, each.summary);
    for (const parameter& one : each.schema) {
      text += fmt::format("    {}={}  {} ({})\n", one.key,
                          one.optional ? "..." : to_text(one.fallback), one.help, range_text(one));
    }
  }
  return text;
}

}  // namespace sluice::lab
