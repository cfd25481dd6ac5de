#include "toml_file.hpp"

#include <string>
#include <string_view>
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

}  // namespace

result<std::unique_ptr<policy>> load_policy(const policy_registry& known, const std::string& path,
                                            std::string_view fallback, std::string& message) {
  const auto file = core::read_toml(path, message);
  if (!file) return file.error();
  const auto table = core::table_of(*file, path, "policy", message);
  if (!table) return table.error();
  std::string name(fallback);
  parameters values;
  if (*table != nullptr) {
    if (const toml::node* const wrong = flatten(**table, "", values)) {
      message = fmt::format("{}:{}: a parameter must be a text, a number, true or false", path,
                            core::line_of(*wrong));
      return errc::bad_config;
    }
    if (const auto* const given = (*table)->get("name")) {
      const auto text = given->value_exact<std::string>();
      if (!text) {
        message = fmt::format("{}:{}: name must be a policy's name in quotes", path,
                              core::line_of(*given));
        return errc::bad_config;
      }
      name = *text;
      parameters others;
      for (const auto& [key, value] : values.all()) {
        if (key != "name") others.set(key, value);
      }
      values = std::move(others);
    }
  }
  auto made = known.make(name, std::move(values), message);
  if (!made) {
    message = *table == nullptr
                  ? fmt::format("{}: {}", path, message)
                  : fmt::format("{}:{}: {}", path, line_for(**table, message), message);
    return errc::bad_config;
  }
  return made;
}

}  // namespace sluice
