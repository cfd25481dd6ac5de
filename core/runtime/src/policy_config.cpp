#include "toml_file.hpp"

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "sluice/policy_registry.hpp"

namespace sluice {
namespace {

/// Fills `into` with the leaves of a table, by their paths. \return what cannot be a parameter.
const toml::node* flatten(const toml::table& from, const std::string& prefix, parameters& into) {
  for (const auto& [key, node] : from) {
    const std::string path = prefix + std::string(key.str());
    if (const auto* const table = node.as_table()) {
      if (const toml::node* wrong = flatten(*table, path + ".", into)) return wrong;
    } else if (const auto* const text = node.as_string()) {
      into.set(path, text->get());
    } else if (const auto* const whole = node.as_integer()) {
      into.set(path, whole->get());
    } else if (const auto* const number = node.as_floating_point()) {
      into.set(path, number->get());
    } else if (const auto* const flag = node.as_boolean()) {
      into.set(path, flag->get());
    } else {
      return &node;
    }
  }
  return nullptr;
}

/// The line of the parameter that a message begins with, else that of the table.
std::uint32_t line_for(const toml::table& table, std::string_view message) {
  const auto culprit = table.at_path(message.substr(0, message.find(' ')));
  return core::line_of(culprit ? *culprit.node() : static_cast<const toml::node&>(table));
}

std::function<std::unique_ptr<policy>()> maker(policy_registry from, std::string name,
                                               parameters values) {
  return [from = std::move(from), name = std::move(name), values = std::move(values)] {
    std::string ignored;  // It has made one with the same values.
    auto made = from.make(name, values, ignored);
    return made ? std::move(*made) : nullptr;
  };
}

}  // namespace

result<std::function<std::unique_ptr<policy>()>> load_policy_maker(const policy_registry& known,
                                                                   const std::string& path,
                                                                   std::string_view fallback,
                                                                   std::string& message,
                                                                   std::string* text) {
  const auto file = core::read_toml(path, message);
  if (!file) return file.error();
  const auto section = core::table_of(*file, path, "policy", message);
  if (!section) return section.error();
  if (*section == nullptr) {
    if (const auto made = known.make(fallback, {}, message); !made) {
      message = fmt::format("{}: {}", path, message);
      return errc::bad_config;
    }
    if (text != nullptr) *text = command_text(fallback, *known.find(fallback), {});
    return maker(known, std::string(fallback), {});
  }
  const toml::table& table = **section;
  const auto refuse = [&](std::uint32_t line, std::string_view why) {
    message = fmt::format("{}:{}: {}", path, line, why);
    return errc::bad_config;
  };
  parameters values;
  if (const toml::node* const wrong = flatten(table, "", values)) {
    return refuse(core::line_of(*wrong), "a parameter must be a text, a number, true or false");
  }
  // The two keys that are not the policy's own.
  std::string name;
  std::string library;
  for (const auto& [key, into, what] :
       {std::tuple{"name", &name, "a policy's name"}, {"plugin", &library, "a file's path"}}) {
    const toml::node* const given = table.get(key);
    if (given == nullptr) continue;
    const auto word = given->value_exact<std::string>();
    if (!word || word->empty()) {
      return refuse(core::line_of(*given), fmt::format("{} must be {} in quotes", key, what));
    }
    *into = *word;
    values.erase(key);
  }
  policy_registry all = known;
  std::string written;
  if (!library.empty()) {
    const auto line = core::line_of(*table.get("plugin"));
    const auto where = std::filesystem::path(path).parent_path() / library;
    const auto kind = all.load(where.string(), message);
    if (!kind) {
      refuse(line, message);
      return kind.error();
    }
    const policy_kind* const outer = all.find(name);
    if (outer != nullptr && outer->wrap) {
      if (!values.has("of")) values.set("of", (*kind)->name);
    } else if (!name.empty() && (*kind)->name != name) {
      return refuse(core::line_of(*table.get("name")),
                    fmt::format("name is {}, and {} holds the policy {}: leave one of the two out",
                                name, where.string(), (*kind)->name));
    } else {
      name = (*kind)->name;
    }
    // A command line names it by its file, and so cannot name what wraps it.
    written = name == (*kind)->name ? std::filesystem::absolute(where).string() : std::string();
  } else if (name.empty()) {
    name = fallback;
  }
  if (library.empty()) written = name;
  if (text != nullptr) {
    const policy_kind* const chosen = written.empty() ? nullptr : all.find(name);
    *text = chosen != nullptr ? command_text(written, *chosen, values) : std::string();
  }
  if (const auto made = all.make(name, values, message); !made) {
    return refuse(line_for(table, message), message);
  }
  return maker(std::move(all), std::move(name), std::move(values));
}

result<std::unique_ptr<policy>> load_policy(const policy_registry& known, const std::string& path,
                                            std::string_view fallback, std::string& message,
                                            std::string* text) {
  const auto make = load_policy_maker(known, path, fallback, message, text);
  if (!make) return make.error();
  return (*make)();
}

}  // namespace sluice
