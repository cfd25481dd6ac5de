#include "policy_choice.hpp"

#include "choice.hpp"
#include "python_policy.hpp"

#include <utility>

#include "sluice/policies/all.hpp"

namespace sluice::cli {

using lab::checked;
using lab::failure;

checked<policy_registry> policies_for(const std::vector<std::string>& texts) {
  policy_registry known;
  for (auto& each : all_policies()) known.add(std::move(each));
  for (const std::string& text : texts) {
    const auto given = lab::parse_choice(text);
    if (given.has_error()) return failure("--policy: " + given.error().message);
    const std::string& file = given->name;
    if (!file.ends_with(".so") && !file.ends_with(".py")) continue;
    std::string message;
    auto kind = load_policy_file(file, message);
    if (!kind) return failure("--policy " + message);
    kind->name = file;
    known.add(std::move(*kind));
  }
  return known;
}

checked<std::function<std::unique_ptr<policy>()>> policy_maker(const policy_registry& known,
                                                               const std::string& text) {
  const auto given = lab::parse_choice(text);
  if (given.has_error()) return failure("--policy: " + given.error().message);
  std::string message;
  const auto make = [&known, name = given->name, values = given->values](std::string& why) {
    return known.make(name, values, why);
  };
  if (const auto tried = make(message); !tried) return failure("--policy " + text + ": " + message);
  return std::function<std::unique_ptr<policy>()>([make] {
    std::string ignored;
    return make(ignored).value();
  });
}

}  // namespace sluice::cli
