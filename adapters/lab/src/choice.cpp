#include "choice.hpp"

#include <fmt/format.h>

#include "sluice/policy_registry.hpp"

namespace sluice::lab {

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
  return failure(fmt::format("{}: unknown name '{}'; available: {}", what, given.name, names));
}

std::string describe(const std::vector<choice_kind>& kinds) {
  std::string text;
  for (const choice_kind& each : kinds) {
    text += fmt::format("  {:<16}{}\n", each.name, each.summary);
    for (const parameter& one : each.schema) {
      text += fmt::format("    {}={}  {} ({})\n", one.key,
                          one.optional ? "..." : to_text(one.fallback), one.help, range_text(one));
    }
  }
  return text;
}

}  // namespace sluice::lab
