#include "policy_choice.hpp"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/lab/choice.hpp"
#include "sluice/policies/all.hpp"
#include "sluice/policy_registry.hpp"

namespace demo {
namespace {

/// A policy's name has none of these.
bool is_file(std::string_view name) {
  return name.find('/') != std::string_view::npos || name.ends_with(".so") || name.ends_with(".py");
}

}  // namespace

checked<sluice::policy_choice> choose_policy(const scheduling_options& with) {
  sluice::policy_registry known;
  for (sluice::policy_kind& kind : sluice::all_policies()) {
    if (kind.name == "fixed_timeslice") {
      for (sluice::parameter& each : kind.schema) {
        if (each.key == "slice") each.fallback = with.slice;
        if (each.key == "release") each.fallback = with.release;
      }
    }
    known.add(std::move(kind));
  }
  std::string message;
  if (with.policy.empty()) {
    const std::string fallback = "fixed_timeslice";
    if (with.config_file.empty()) {
      std::string text = sluice::command_text(fallback, *known.find(fallback), {});
      return sluice::policy_choice{std::move(known), fallback, {}, std::move(text)};
    }
    std::vector<std::string> problems;
    auto read = sluice::read_policy(known, with.config_file, problems, fallback, {"kfd", "nvidia"});
    if (read.has_error()) return failure(problems.front());
    return std::move(**read);
  }

  auto given = sluice::lab::parse_choice(with.policy);
  if (given.has_error()) return failure("--policy: " + given.error().message);
  if (given->name.ends_with(".py")) {
    return failure("--policy " + given->name +
                   ": a scheduler cannot load Python policies; 'sluice lab' can");
  }
  const std::string name = given->name;
  if (is_file(name)) {
    const auto plugin = known.load(given->name, message);
    if (plugin.has_error()) return failure("--policy " + message);
    given->name = (*plugin)->name;
  }
  if (const auto tried = known.make(given->name, given->values, message); tried.has_error())
    return failure("--policy " + with.policy + ": " + message);
  std::string text = sluice::command_text(name, *known.find(given->name), given->values);
  return sluice::policy_choice{std::move(known), given->name, given->values, std::move(text)};
}

checked<std::unique_ptr<sluice::policy>> make_policy(const scheduling_options& with,
                                                     std::string* text) {
  const auto chosen = choose_policy(with);
  if (chosen.has_error()) return chosen.error();
  if (text != nullptr) *text = chosen->text;
  return chosen->make();
}

}  // namespace demo
