#include "log.hpp"
#include "measured_costs.hpp"
#include "toml_file.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "sluice/policy_registry.hpp"

namespace sluice {
namespace {

/// Fills `into` with the leaves of a table, by their paths, and `wrong` with what cannot be a
/// parameter.
void flatten(const toml::table& from, const std::string& prefix, parameters& into,
             std::vector<const toml::node*>& wrong) {
  for (const auto& [key, node] : from) {
    const std::string path = prefix + std::string(key.str());
    if (const auto* const table = node.as_table()) {
      flatten(*table, path + ".", into, wrong);
    } else if (const auto* const text = node.as_string()) {
      into.set(path, text->get());
    } else if (const auto* const whole = node.as_integer()) {
      into.set(path, whole->get());
    } else if (const auto* const number = node.as_floating_point()) {
      into.set(path, number->get());
    } else if (const auto* const flag = node.as_boolean()) {
      into.set(path, flag->get());
    } else {
      wrong.push_back(&node);
    }
  }
}

/// The line of the parameter that a message begins with, else that of the table.
std::uint32_t line_for(const toml::table& table, std::string_view message) {
  const auto culprit = table.at_path(message.substr(0, message.find(' ')));
  return core::line_of(culprit ? *culprit.node() : static_cast<const toml::node&>(table));
}

/// What a file asks for, and where it says so.
struct wish {
  policy_choice what;
  toml::table file;                     ///< Kept whole: a copy of a table knows no lines.
  error_code wrong = errc::bad_config;  ///< What to answer where it cannot be had.

  const toml::table* table() const { return file.get_as<toml::table>("policy"); }
};

/// Reads [policy]. What is wrong is added to `problems`.
class wish_reader {
 public:
  wish_reader(const std::string& path, wish& into, std::vector<std::string>& problems)
      : path_(path), into_(into), table_(*into.table()), problems_(problems) {}

  void read() {
    policy_choice& what = into_.what;
    std::vector<const toml::node*> wrong;
    flatten(table_, "", what.values, wrong);
    for (const toml::node* const each : wrong) {
      // The two keys that are not the policy's own have a better word for it.
      if (each != table_.get("name") && each != table_.get("plugin"))
        refuse(each, "a parameter must be a string, a number, true or false");
    }
    what.values.erase("name");
    what.values.erase("plugin");
    const auto name = word("name", "a policy's name");
    const auto library = word("plugin", "a file's path");
    if (!name || !library) return forget_name();
    if (!name->empty()) what.name = *name;
    std::string written = what.name;
    if (!library->empty()) {
      if (!load(*name, *library, written)) return forget_name();
    } else if (what.name.empty()) {
      refuse(&table_, "[policy] has neither name nor plugin; set one of them");
    }
    use_costs();
    const policy_kind* const chosen = written.empty() ? nullptr : what.known.find(what.name);
    if (chosen != nullptr) what.text = command_text(written, *chosen, what.values);
  }

 private:
  /// Whose parameters they are is not known.
  void forget_name() { into_.what.name.clear(); }

  void refuse(const toml::node* where, std::string_view why) {
    problems_.push_back(fmt::format("{}:{}: {}", path_, core::line_of(*where), why));
  }

  /// \return empty where the key is missing, nothing where it is wrong.
  std::optional<std::string> word(const char* key, const char* what) {
    const toml::node* const given = table_.get(key);
    if (given == nullptr) return std::string();
    auto text = given->value_exact<std::string>();
    if (text && !text->empty()) return text;
    refuse(given, fmt::format("{} must be {} in quotes", key, what));
    return {};
  }

  /// As a plugin's, the path of a profile begins at the file's folder.
  void use_costs() {
    policy_choice& what = into_.what;
    const policy_kind* kind = what.known.find(what.name);
    if (kind != nullptr && kind->wrap) {
      const auto of = what.values.all().find("of");
      const auto* const name =
          of == what.values.all().end() ? nullptr : std::get_if<std::string>(&of->second);
      kind = name == nullptr ? nullptr : what.known.find(*name);
    }
    if (kind == nullptr) return;
    const auto used =
        core::use_profile(*kind, what.values, std::filesystem::path(path_).parent_path());
    if (!used.wrong.empty()) refuse(table_.get("profile"), used.wrong);
    if (!used.note.empty())
      log_line(log_level::warning, log_part::policy, {{"config", path_}}, "{}", used.note);
  }

  bool load(const std::string& name, const std::string& library, std::string& written) {
    policy_choice& what = into_.what;
    const auto where = std::filesystem::path(path_).parent_path() / library;
    std::string message;
    const auto kind = what.known.load(where.string(), message);
    if (!kind) {
      refuse(table_.get("plugin"), message);
      into_.wrong = kind.error();
      return false;
    }
    const policy_kind* const outer = what.known.find(name);
    if (outer != nullptr && outer->wrap) {
      if (!what.values.has("of")) what.values.set("of", (*kind)->name);
    } else if (!name.empty() && (*kind)->name != name) {
      refuse(table_.get("name"),
             fmt::format("name is {}, but plugin {} contains policy {}; remove name or plugin",
                         name, where.string(), (*kind)->name));
      return false;
    } else {
      what.name = (*kind)->name;
    }
    // A command line names it by its file, and so cannot name what wraps it.
    written =
        what.name == (*kind)->name ? std::filesystem::absolute(where).string() : std::string();
    return true;
  }

  const std::string& path_;
  wish& into_;
  const toml::table& table_;
  std::vector<std::string>& problems_;
};

result<wish> read_wish(const policy_registry& known, const std::string& path,
                       std::string_view fallback, std::vector<std::string>& problems) {
  std::string message;
  auto file = core::read_toml(path, message);
  if (!file) {
    problems.push_back(message);
    return file.error();
  }
  const auto section = core::table_of(*file, path, "policy", message);
  if (!section) {
    problems.push_back(message);
    return section.error();
  }
  wish made{{known, std::string(fallback), {}, {}}, std::move(*file), errc::bad_config};
  if (made.table() == nullptr) {
    if (const policy_kind* const kind = known.find(fallback))
      made.what.text = command_text(fallback, *kind, {});
  } else {
    wish_reader{path, made, problems}.read();
  }
  return made;
}

/// Every parameter that is wrong; of what a policy wraps, where it wraps one.
std::vector<std::string> wrong_parameters(const policy_choice& what) {
  const policy_kind* kind = what.known.find(what.name);
  parameters values = what.values;
  if (kind != nullptr && kind->wrap) {
    const auto of = values.all().find("of");
    const auto* const name =
        of == values.all().end() ? nullptr : std::get_if<std::string>(&of->second);
    kind = name != nullptr ? what.known.find(*name) : nullptr;
    values.erase("of");
  }
  if (kind == nullptr || kind->wrap) return {};
  return parameter_problems(kind->schema, values);
}

/// \param before how many problems there were before the file was read.
result<std::unique_ptr<policy>> fulfil(const wish& what, const std::string& path,
                                       std::vector<std::string>& problems, std::size_t before,
                                       const std::vector<std::string>& others) {
  const policy_choice& chosen = what.what;
  std::vector<std::string> wrong = wrong_parameters(chosen);
  std::unique_ptr<policy> made;
  // What is missing would be blamed on top of what was not understood.
  if (wrong.empty() && problems.size() == before) {
    std::string message;
    if (auto tried = chosen.known.make(chosen.name, chosen.values, message))
      made = std::move(*tried);
    else
      wrong.push_back(std::move(message));
  }
  for (const std::string& each : wrong) {
    problems.push_back(what.table() == nullptr
                           ? fmt::format("{}: {}", path, each)
                           : fmt::format("{}:{}: {}", path, line_for(*what.table(), each), each));
  }
  if (std::string unknown = core::unknown_table(what.file, path, others); !unknown.empty())
    problems.push_back(std::move(unknown));
  if (problems.size() != before) return what.wrong;
  return made;
}

}  // namespace

result<std::unique_ptr<policy>> load_policy(const policy_registry& known, const std::string& path,
                                            std::string_view fallback, std::string& message,
                                            std::string* text,
                                            const std::vector<std::string>& others) {
  std::vector<std::string> problems;
  const auto made = [&]() -> result<std::unique_ptr<policy>> {
    auto read = read_wish(known, path, fallback, problems);
    if (!read) return read.error();
    if (read->what.name.empty() && problems.empty()) {
      problems.push_back(path + ": the table [policy] is missing; add it, with name or plugin");
      return errc::bad_config;
    }
    if (text != nullptr) *text = std::move(read->what.text);
    return fulfil(*read, path, problems, 0, others);
  };
  auto policy = made();
  if (!policy) message = problems.front();
  return policy;
}

std::unique_ptr<policy> policy_choice::make() const {
  std::string ignored;  // It has made one with the same values.
  auto made = known.make(name, values, ignored);
  return made ? std::move(*made) : nullptr;
}

result<std::optional<policy_choice>> read_policy(const policy_registry& known,
                                                 const std::string& path,
                                                 std::vector<std::string>& problems,
                                                 std::string_view fallback,
                                                 const std::vector<std::string>& others) {
  const std::size_t before = problems.size();
  auto read = read_wish(known, path, fallback, problems);
  if (!read) return read.error();
  if (read->what.name.empty() && problems.size() == before) {
    if (std::string unknown = core::unknown_table(read->file, path, others); !unknown.empty()) {
      problems.push_back(std::move(unknown));
      return errc::bad_config;
    }
    return std::optional<policy_choice>();
  }
  if (const auto tried = fulfil(*read, path, problems, before, others); !tried)
    return tried.error();
  return std::optional(std::move(read->what));
}

}  // namespace sluice
