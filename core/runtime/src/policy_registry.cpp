#include "sluice/policy_registry.hpp"

#include "measured_costs.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "sluice/duration_text.hpp"
#include "sluice/plugin_loader.hpp"

namespace sluice {
namespace {

bool is_wildcard(const parameter& one) { return one.key.ends_with(".*"); }

bool matches(const parameter& one, std::string_view key) {
  if (!is_wildcard(one)) return one.key == key;
  const auto stem = std::string_view(one.key).substr(0, one.key.size() - 1);
  return key.size() > stem.size() && key.starts_with(stem);
}

/// As a double where it is a number of any kind.
double magnitude(const parameter_value& value) {
  return std::visit(
      [](const auto& held) -> double {
        using type = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<type, duration>)
          return static_cast<double>(held.count());
        else if constexpr (std::is_arithmetic_v<type>)
          return static_cast<double>(held);
        else
          return 0;
      },
      value);
}

/// A whole number stands for a number with a fraction, too.
void widen(const parameter& wanted, parameter_value& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value);
      whole != nullptr && std::holds_alternative<double>(wanted.fallback)) {
    value = static_cast<double>(*whole);
  }
  if (const auto* text = std::get_if<std::string>(&value);
      text != nullptr && std::holds_alternative<duration>(wanted.fallback)) {
    if (const auto read = parse_duration(*text)) value = *read;
  }
}

/// What a value of the wrong type should have been. The example's quotes are a file's; a shell
/// takes them away.
std::string type_text(const parameter& wanted) {
  if (std::holds_alternative<std::int64_t>(wanted.fallback)) return "a whole number, ";
  const auto* const usual = std::get_if<duration>(&wanted.fallback);
  if (usual == nullptr) return {};
  const duration example = std::max(*usual, duration(std::llround(wanted.low)));
  return fmt::format("a duration with a unit, such as \"{}\": ", to_text(example));
}

std::string key_list(const std::vector<parameter>& schema) {
  if (schema.empty()) return "it has no parameters";
  std::string all;
  for (const auto& one : schema) all += (all.empty() ? "" : ", ") + one.key;
  return "its parameters are " + all;
}

}  // namespace

std::string to_text(const parameter_value& value) {
  return std::visit(
      [](const auto& held) -> std::string {
        using type = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<type, duration>)
          return to_text(held);
        else if constexpr (std::is_same_v<type, std::string>)
          return '"' + held + '"';
        else
          return fmt::format("{}", held);
      },
      value);
}

std::string range_text(const parameter& which) {
  if (std::holds_alternative<bool>(which.fallback)) return "true or false";
  if (std::holds_alternative<std::string>(which.fallback)) return "a string";
  if (std::holds_alternative<duration>(which.fallback)) {
    return fmt::format("{} to {}", to_text(duration(std::llround(which.low))),
                       to_text(duration(std::llround(which.high))));
  }
  return fmt::format("{} to {}", which.low, which.high);
}

std::vector<std::string> parameter_problems(const std::vector<parameter>& schema,
                                            parameters& given) {
  std::vector<std::string> problems;
  parameters checked;
  for (const auto& entry : given.all()) {
    const std::string& key = entry.first;  // No structured binding: clang 14 cannot capture one.
    const parameter_value& raw = entry.second;
    const auto wanted = std::find_if(schema.begin(), schema.end(),
                                     [&](const parameter& one) { return matches(one, key); });
    if (wanted == schema.end()) {
      problems.push_back(
          fmt::format("{} is not a parameter of this policy; {}", key, key_list(schema)));
      continue;
    }
    parameter_value value = raw;
    widen(*wanted, value);
    if (value.index() != wanted->fallback.index()) {
      problems.push_back(fmt::format("{} is {}; it must be {}{}", key, to_text(value),
                                     type_text(*wanted), range_text(*wanted)));
      continue;
    }
    const bool ranged = !std::holds_alternative<std::string>(value);
    // Written so that NaN is out of range.
    if (ranged && !(magnitude(value) >= wanted->low && magnitude(value) <= wanted->high)) {
      problems.push_back(
          fmt::format("{} is {}; it must be {}", key, to_text(value), range_text(*wanted)));
      continue;
    }
    checked.set(key, std::move(value));
  }
  if (!problems.empty()) return problems;
  for (const auto& one : schema) {
    if (one.optional || is_wildcard(one) || checked.has(one.key)) continue;
    checked.set(one.key, one.fallback);
  }
  given = std::move(checked);
  return problems;
}

std::string check_parameters(const std::vector<parameter>& schema, parameters& given) {
  const auto problems = parameter_problems(schema, given);
  return problems.empty() ? std::string() : problems.front();
}

std::string command_text(std::string_view name, const policy_kind& kind, parameters values) {
  if (name.find(':') != name.npos) return {};
  if (!kind.wrap) (void)check_parameters(kind.schema, values);
  std::string text(name);
  char before = ':';
  for (const auto& [key, value] : values.all()) {
    const auto* const words = std::get_if<std::string>(&value);
    const std::string written = words != nullptr ? *words : to_text(value);
    if (written.empty() || written.find(',') != written.npos) return {};
    text += fmt::format("{}{}={}", std::exchange(before, ','), key, written);
  }
  return text;
}

result<std::unique_ptr<policy>> make_policy(const policy_kind& kind, parameters values,
                                            std::string& message) {
  if (!kind.make) {
    message = fmt::format(
        "policy {} cannot be created alone: it wraps another policy; use a registry that contains "
        "that policy",
        kind.name);
    return errc::bad_config;
  }
  message = check_parameters(kind.schema, values);
  if (!message.empty()) return errc::bad_config;
  auto made = kind.make(values, message);
  if (made == nullptr) return errc::bad_config;
  return made;
}

void policy_registry::add(policy_kind kind) {
  std::string name = kind.name;
  kinds_.insert_or_assign(std::move(name), std::move(kind));
}

result<const policy_kind*> policy_registry::load(const std::string& path, std::string& message) {
  auto loaded = load_policy_plugin(path, message);
  if (!loaded) return loaded.error();
  std::string name = loaded->name;
  return &kinds_.insert_or_assign(std::move(name), std::move(*loaded)).first->second;
}

const policy_kind* policy_registry::find(std::string_view name) const noexcept {
  const auto found = kinds_.find(name);
  return found == kinds_.end() ? nullptr : &found->second;
}

result<std::unique_ptr<policy>> policy_registry::make(std::string_view name, parameters values,
                                                      std::string& message) const {
  const policy_kind* const kind = find(name);
  if (kind == nullptr) {
    message = fmt::format("unknown policy '{}'; available: {}", name, fmt::join(names(), ", "));
    return errc::unknown_target;
  }
  if (kind->wrap) return wrap(*kind, values, message);
  message = core::use_profile(*kind, values).wrong;
  if (!message.empty()) return errc::bad_config;
  return make_policy(*kind, std::move(values), message);
}

result<std::unique_ptr<policy>> policy_registry::wrap(const policy_kind& kind,
                                                      const parameters& values,
                                                      std::string& message) const {
  std::string of;
  parameters others;
  for (const auto& [key, value] : values.all()) {
    if (key != "of") {
      others.set(key, value);
    } else if (const auto* const text = std::get_if<std::string>(&value)) {
      of = *text;
    }
  }
  if (const policy_kind* const other = find(of); other == nullptr || other->wrap) {
    std::vector<std::string_view> known;
    for (const auto& [name, each] : kinds_) {
      if (!each.wrap) known.push_back(name);
    }
    message = fmt::format(
        "the parameter 'of' is {}; it must name the policy that {} wraps; available: {}",
        values.has("of") ? to_text(values.all().find("of")->second) : "missing", kind.name,
        fmt::join(known, ", "));
    return errc::bad_config;
  }
  auto other = make(of, std::move(others), message);
  if (!other) return other.error();
  return kind.wrap(std::move(*other));
}

std::vector<std::string_view> policy_registry::names() const {
  std::vector<std::string_view> all;
  all.reserve(kinds_.size());
  for (const auto& [name, kind] : kinds_) all.push_back(name);
  return all;
}

}  // namespace sluice
