#include "toml_file.hpp"

#include <filesystem>
#include <optional>
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

/// What a file asks for, and where it says so.
struct wish {
  policy_choice what;
  toml::table file;  ///< Kept whole: a copy of a table knows no lines.

  const toml::table* table() const { return file.get_as<toml::table>("policy"); }
};

result<std::string> word_of(const toml::table& table, const char* key, const char* what,
                            const std::string& path, std::string& message) {
  const toml::node* const given = table.get(key);
  if (given == nullptr) return std::string();
  const auto word = given->value_exact<std::string>();
  if (word && !word->empty()) return *word;
  message = fmt::format("{}:{}: {} must be {} in quotes", path, core::line_of(*given), key, what);
  return errc::bad_config;
}

result<wish> read_wish(const policy_registry& known, const std::string& path,
                       std::string_view fallback, std::string& message) {
  auto file = core::read_toml(path, message);
  if (!file) return file.error();
  const auto section = core::table_of(*file, path, "policy", message);
  if (!section) return section.error();
  wish made{{known, std::string(fallback), {}, {}}, std::move(*file)};
  policy_choice& what = made.what;
  if (made.table() == nullptr) {
    if (const policy_kind* const kind = known.find(fallback)) {
      what.text = command_text(fallback, *kind, {});
    }
    return made;
  }
  const toml::table& table = *made.table();
  const auto refuse = [&](std::uint32_t line, std::string_view why) {
    message = fmt::format("{}:{}: {}", path, line, why);
    return errc::bad_config;
  };
  if (const toml::node* const wrong = flatten(table, "", what.values)) {
    return refuse(core::line_of(*wrong), "a parameter must be a text, a number, true or false");
  }
  // The two keys that are not the policy's own.
  const auto name = word_of(table, "name", "a policy's name", path, message);
  if (!name) return name.error();
  const auto library = word_of(table, "plugin", "a file's path", path, message);
  if (!library) return library.error();
  what.values.erase("name");
  what.values.erase("plugin");
  if (!name->empty()) what.name = *name;
  std::string written = what.name;
  if (!library->empty()) {
    const auto line = core::line_of(*table.get("plugin"));
    const auto where = std::filesystem::path(path).parent_path() / *library;
    const auto kind = what.known.load(where.string(), message);
    if (!kind) {
      refuse(line, message);
      return kind.error();
    }
    const policy_kind* const outer = what.known.find(*name);
    if (outer != nullptr && outer->wrap) {
      if (!what.values.has("of")) what.values.set("of", (*kind)->name);
    } else if (!name->empty() && (*kind)->name != *name) {
      return refuse(core::line_of(*table.get("name")),
                    fmt::format("name is {}, and plugin, {}, holds the policy {}: both are given, "
                                "leave one of the two out",
                                *name, where.string(), (*kind)->name));
    } else {
      what.name = (*kind)->name;
    }
    // A command line names it by its file, and so cannot name what wraps it.
    written =
        what.name == (*kind)->name ? std::filesystem::absolute(where).string() : std::string();
  } else if (what.name.empty()) {
    return refuse(core::line_of(table), "[policy] names no policy: it needs a name or a plugin");
  }
  const policy_kind* const chosen = written.empty() ? nullptr : what.known.find(what.name);
  if (chosen != nullptr) what.text = command_text(written, *chosen, what.values);
  return made;
}

result<std::unique_ptr<policy>> fulfil(const wish& what, const std::string& path,
                                       std::string& message) {
  auto made = what.what.known.make(what.what.name, what.what.values, message);
  if (made) {
    message = core::unknown_table(what.file, path);
    if (!message.empty()) return errc::bad_config;
    return made;
  }
  message = what.table() == nullptr
                ? fmt::format("{}: {}", path, message)
                : fmt::format("{}:{}: {}", path, line_for(*what.table(), message), message);
  return errc::bad_config;
}

}  // namespace

result<std::unique_ptr<policy>> load_policy(const policy_registry& known, const std::string& path,
                                            std::string_view fallback, std::string& message,
                                            std::string* text) {
  auto read = read_wish(known, path, fallback, message);
  if (!read) return read.error();
  if (read->what.name.empty()) {
    message = path + ": it has no table [policy]";
    return errc::bad_config;
  }
  if (text != nullptr) *text = std::move(read->what.text);
  return fulfil(*read, path, message);
}

std::unique_ptr<policy> policy_choice::make() const {
  std::string ignored;  // It has made one with the same values.
  auto made = known.make(name, values, ignored);
  return made ? std::move(*made) : nullptr;
}

result<std::optional<policy_choice>> read_policy(const policy_registry& known,
                                                 const std::string& path, std::string& message,
                                                 std::string_view fallback) {
  auto read = read_wish(known, path, fallback, message);
  if (!read) return read.error();
  if (read->what.name.empty()) {
    message = core::unknown_table(read->file, path);
    if (!message.empty()) return errc::bad_config;
    return std::optional<policy_choice>();
  }
  if (const auto tried = fulfil(*read, path, message); !tried) return tried.error();
  return std::optional(std::move(read->what));
}

}  // namespace sluice
