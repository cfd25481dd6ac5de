#include "sluice/kfd/classification.hpp"

#include "classifier.hpp"

#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <type_traits>

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "sluice/result.hpp"
#include "sluice/whole_file.hpp"

namespace sluice::kfd {

namespace {

constexpr std::string_view cgroup_wanted =
    "; a pattern of cgroups must begin with / and be one line";

std::string quoted(std::string_view text) { return "\"" + std::string{text} + "\""; }

bool is_cgroup_pattern(const std::string& text) {
  return text.starts_with('/') && text.find('\n') == text.npos && text.find('\0') == text.npos;
}
bool is_variable(std::string_view text) {
  return !text.empty() && text.find('=') == text.npos && text.find('\0') == text.npos;
}

std::string hexadecimal(std::uint64_t value) {
  std::ostringstream text;
  text << "0x" << std::hex << value;
  return text.str();
}

/// What is found wrong while reading: thrown nowhere, carried up to the line.
struct trouble {
  const toml::node* at = nullptr;
  std::string words;
};

std::string value_text(const toml::node& node) {
  std::ostringstream text;
  node.visit([&](const auto& value) { text << value; });
  std::string line = std::move(text).str();
  std::ranges::replace(line, '\n', ' ');
  constexpr std::size_t most = 100;
  return line.size() <= most ? line : line.substr(0, most) + "...";
}

/// Reads the settings of one table into `rules`. The first trouble ends it.
class table_reader {
 public:
  table_reader(const toml::table& from, classification_rules& rules) : from_(from), rules_(rules) {}

  std::optional<trouble> read() {
    for (const auto& entry : from_) {
      if (!key(std::string_view{entry.first.str()}, entry.second)) break;
    }
    return trouble_;
  }

 private:
  bool key(std::string_view name, const toml::node& node) {
    name_ = name;
    if (name == "store") return text(node, rules_.role_store, "a path in quotes, or \"\" for none");
    if (name == "may_claim_online") return grant(node, rules_.may_claim_online);
    if (name == "may_claim_offline") return grant(node, rules_.may_claim_offline);
    if (name == "environment") {
      return list(node, rules_.by_environment,
                  [this](const toml::node& each, auto& into) { return environment(each, into); });
    }
    if (name == "pids") return pids(node);
    if (name == "cgroups") {
      return list(node, rules_.by_cgroup,
                  [this](const toml::node& each, auto& into) { return cgroup(each, into); });
    }
    if (name == "rings") {
      return list(node, rules_.by_ring,
                  [this](const toml::node& each, auto& into) { return ring(each, into); });
    }
    if (name == "online_priority") {
      const auto value = node.value_exact<std::int64_t>();
      if (!value || *value < 0 || *value > highest_priority)
        return wrong(node, "0 to " + std::to_string(highest_priority));
      rules_.online_priority = static_cast<unsigned>(*value);
      return true;
    }
    if (name == "queue_priority") return flag(node, rules_.queue_priority);
    if (name == "gangs") return gangs(node);
    if (name == "gang_variables") return texts(node, rules_.gangs.variables);
    if (name == "gang_cgroups") return texts(node, rules_.gangs.cgroups);
    if (name == "allow_partial_gang") return flag(node, rules_.gangs.allow_partial);
    trouble_ = {&node, std::string{name} + " is not a setting of [roles]"};
    return false;
  }

  bool wrong(const toml::node& node, const std::string& allowed) {
    trouble_ = {&node, name_ + " is " + value_text(node) + "; it must be " + allowed};
    return false;
  }

  bool text(const toml::node& node, std::string& into, const std::string& allowed) {
    const auto value = node.value_exact<std::string>();
    if (!value) return wrong(node, allowed);
    into = *value;
    return true;
  }
  bool flag(const toml::node& node, bool& into) {
    const auto value = node.value_exact<bool>();
    if (!value) return wrong(node, "true or false");
    into = *value;
    return true;
  }
  template <class Value, class Read>
  bool list(const toml::node& node, std::vector<Value>& into, Read read_one) {
    const toml::array* const array = node.as_array();
    if (array == nullptr) return wrong(node, "a list: [ ... ]");
    into.clear();
    for (const toml::node& each : *array) {
      Value value{};
      if (!read_one(each, value)) return false;
      into.push_back(std::move(value));
    }
    return true;
  }
  bool texts(const toml::node& node, std::vector<std::string>& into) {
    return list(node, into, [this](const toml::node& each, std::string& value) {
      return text(each, value, "a list of texts in quotes");
    });
  }

  bool grant(const toml::node& node, claim_grant& into) {
    constexpr auto allowed =
        "a table { users = [...], groups = [...], cgroups = [...] }, each of which may be missing";
    const toml::table* const table = node.as_table();
    if (table == nullptr) return wrong(node, allowed);
    const std::string outer = name_;
    into = {};
    for (const auto& entry : *table) {
      const std::string_view part = entry.first.str();
      name_ = outer + "." + std::string{part};
      if (part == "users") {
        if (!users(entry.second, into)) return false;
      } else if (part == "groups") {
        if (!list(entry.second, into.groups,
                  [this](const toml::node& each, gid_t& value) { return group(each, value); }))
          return false;
      } else if (part == "cgroups") {
        if (!texts(entry.second, into.cgroups)) return false;
      } else {
        name_ = outer;
        return wrong(node, allowed);
      }
    }
    return true;
  }
  bool users(const toml::node& node, claim_grant& into) {
    constexpr auto allowed =
        "a list of user names or numbers, \"@self\" (whom sluice runs as) or \"*\" (everyone)";
    const toml::array* const array = node.as_array();
    if (array == nullptr) return wrong(node, allowed);
    for (const toml::node& each : *array) {
      if (const auto number = id_number(each)) {
        into.users.push_back(*number);
        continue;
      }
      const auto name = each.value_exact<std::string>();
      if (!name) return wrong(each, allowed);
      if (*name == "*") {
        into.everyone = true;
      } else if (*name == "@self") {
        into.users.push_back(::getuid());
      } else if (const passwd* const found = ::getpwnam(name->c_str())) {  // NOLINT(concurrency-*)
        into.users.push_back(found->pw_uid);
      } else {
        return wrong(each, "the name or number of a user of this machine, \"@self\" or \"*\"");
      }
    }
    return true;
  }
  bool group(const toml::node& node, gid_t& into) {
    if (const auto number = id_number(node)) {
      into = *number;
      return true;
    }
    const auto name = node.value_exact<std::string>();
    const ::group* const found =
        name ? ::getgrnam(name->c_str()) : nullptr;  // NOLINT(concurrency-mt-unsafe)
    if (found == nullptr) return wrong(node, "the name or number of a group of this machine");
    into = found->gr_gid;
    return true;
  }
  static std::optional<std::uint32_t> id_number(const toml::node& node) {
    const auto value = node.value_exact<std::int64_t>();
    // The last one means "none" to the kernel.
    if (!value || *value < 0 || *value >= std::numeric_limits<std::uint32_t>::max()) return {};
    return static_cast<std::uint32_t>(*value);
  }

  /// \return the entry's role, nothing (and trouble) unless the table has just `keys` and a role.
  std::optional<role> entry(const toml::node& node, std::vector<std::string_view> keys,
                            const std::string& allowed, bool may_be_unmatched) {
    const toml::table* const table = node.as_table();
    std::optional<role> what;
    if (table != nullptr && table->size() == keys.size() + 1 &&
        std::ranges::all_of(keys, [&](std::string_view each) { return table->contains(each); })) {
      const auto name = (*table)["role"].value_exact<std::string>();
      if (name == "online") what = role::online;
      if (name == "offline") what = role::offline;
      if (name == "unmatched" && may_be_unmatched) what = role::unmatched;
    }
    if (!what) {
      wrong(node,
            "a list of " + allowed + ", role = \"online\"" +
                (may_be_unmatched ? ", \"offline\" or \"unmatched\" }" : " or \"offline\" }"));
    }
    return what;
  }

  bool environment(const toml::node& node, environment_rule& into) {
    const std::string allowed = "{ when = \"KEY=pattern\"";
    const auto what = entry(node, {"when"}, allowed, false);
    if (!what) return false;
    const auto when = node.as_table()->get("when")->value_exact<std::string>();
    const std::size_t equals = when ? when->find('=') : std::string::npos;
    if (equals == std::string::npos || equals == 0)
      return wrong(node, "a list of " + allowed + ", role = ... }");
    into = {when->substr(0, equals), when->substr(equals + 1), *what};
    return true;
  }
  bool cgroup(const toml::node& node, cgroup_rule& into) {
    const std::string allowed = "{ when = \"/pattern\"";
    const auto what = entry(node, {"when"}, allowed, true);
    if (!what) return false;
    const auto when = node.as_table()->get("when")->value_exact<std::string>();
    if (!when) return wrong(node, "a list of " + allowed + ", role = ... }");
    into = {*when, *what};
    return true;
  }
  bool ring(const toml::node& node, ring_rule& into) {
    const std::string allowed = "{ from = ADDRESS, to = ADDRESS";
    const auto what = entry(node, {"from", "to"}, allowed, false);
    if (!what) return false;
    const auto from = node.as_table()->get("from")->value_exact<std::int64_t>();
    const auto to = node.as_table()->get("to")->value_exact<std::int64_t>();
    if (!from || !to || *from < 0 || *to < 0)
      return wrong(node,
                   "a list of " + allowed + " (numbers such as 0x7f0000000000), role = ... }");
    into = {static_cast<std::uint64_t>(*from), static_cast<std::uint64_t>(*to), *what};
    return true;
  }
  bool pids(const toml::node& node) {
    const toml::array* const array = node.as_array();
    if (array == nullptr) return wrong(node, "a list: [ ... ]");
    rules_.by_pid.clear();
    for (const toml::node& each : *array) {
      const std::string allowed = "{ pid = NUMBER";
      const auto what = entry(each, {"pid"}, allowed, true);
      if (!what) return false;
      const auto pid = each.as_table()->get("pid")->value_exact<std::int64_t>();
      if (!pid || *pid <= 0 || *pid > std::numeric_limits<pid_t>::max())
        return wrong(each, "a list of " + allowed + ", role = ... }");
      // One that is gone is no mistake: the file outlives it, and its pid's next owner is another.
      if (const auto who = identity_of(static_cast<pid_t>(*pid))) rules_.by_pid[*who] = *what;
    }
    return true;
  }
  bool gangs(const toml::node& node) {
    std::vector<std::string> named;
    constexpr auto allowed = "a list of some of \"ranks\", \"slurm\" and \"pods\"";
    if (node.as_array() == nullptr) return wrong(node, allowed);
    if (!texts(node, named)) return false;
    rules_.gangs.ranks = rules_.gangs.slurm = rules_.gangs.pods = false;
    for (const std::string& each : named) {
      if (each == "ranks")
        rules_.gangs.ranks = true;
      else if (each == "slurm")
        rules_.gangs.slurm = true;
      else if (each == "pods")
        rules_.gangs.pods = true;
      else
        return wrong(node, allowed);
    }
    return true;
  }

  const toml::table& from_;
  classification_rules& rules_;
  std::string name_;  // the key being read
  std::optional<trouble> trouble_;
};

/// Reads TOML text whose table (`section` empty: the whole) holds settings.
result<void> read_text(std::string_view content, const std::string& where, std::string_view section,
                       classification_rules& into, std::string& message) {
  const toml::parse_result parsed = toml::parse(content, where);
  if (!parsed) {
    message = where + ":" + std::to_string(parsed.error().source().begin.line) + ":" +
              std::to_string(parsed.error().source().begin.column) + ": " +
              std::string{parsed.error().description()};
    return errc::bad_config;
  }
  const toml::table* table = &parsed.table();
  const auto line = [&](const toml::node& node) {
    return where + ":" + std::to_string(node.source().begin.line) + ": ";
  };
  if (!section.empty()) {
    const toml::node* const found = table->get(section);
    if (found == nullptr) return {};
    if (found->as_table() == nullptr) {
      message = line(*found) + "roles is " + value_text(*found) + "; it must be a table: [roles]";
      return errc::bad_config;
    }
    table = found->as_table();
  }
  if (const auto trouble = table_reader{*table, into}.read()) {
    message = line(*trouble->at) + trouble->words;
    return errc::bad_config;
  }
  if (const std::string wrong = into.problem(); !wrong.empty()) {
    const toml::node* const culprit = table->get(wrong.substr(0, wrong.find_first_of(" .")));
    message = line(culprit != nullptr ? *culprit : *table) + wrong;
    return errc::bad_config;
  }
  return {};
}

}  // namespace

std::string classification_rules::problem() const {
  for (const auto& [key, patterns] :
       {std::pair{"may_claim_online.cgroups", &may_claim_online.cgroups},
        std::pair{"may_claim_offline.cgroups", &may_claim_offline.cgroups},
        std::pair{"gang_cgroups", &gangs.cgroups}}) {
    for (const std::string& each : *patterns)
      if (!is_cgroup_pattern(each))
        return std::string{key} + " has " + quoted(each) + std::string{cgroup_wanted};
  }
  for (const cgroup_rule& each : by_cgroup)
    if (!is_cgroup_pattern(each.cgroup))
      return "cgroups has " + quoted(each.cgroup) + std::string{cgroup_wanted};
  const auto claims = [](role what) { return what == role::online || what == role::offline; };
  for (const environment_rule& each : by_environment) {
    if (!is_variable(each.variable) || !claims(each.what))
      return "environment has " + quoted(each.variable + "=" + each.value) + " as " +
             std::string{to_string(each.what)} + "; it must be KEY=pattern, and online or offline";
  }
  for (const std::string& each : gangs.variables)
    if (!is_variable(each))
      return "gang_variables has " + quoted(each) + "; it must be the name of a variable";
  for (const ring_rule& each : by_ring) {
    if (each.first > each.last || !claims(each.what))
      return "rings has " + hexadecimal(each.first) + " to " + hexadecimal(each.last) + " as " +
             std::string{to_string(each.what)} +
             "; the first address must not be above the last, and the role online or offline";
  }
  if (online_priority > highest_priority)
    return "online_priority is " + std::to_string(online_priority) + "; it must be 0 to " +
           std::to_string(highest_priority);
  if (role_store.find('\0') != role_store.npos) return "store has a zero byte; it must be a path";
  return {};
}

result<classification_rules> load_classification(const std::string& path, std::string& message) {
  classification_rules rules;
  if (!path.empty()) {
    const auto content = read_whole_file(path);
    if (!content) {
      message = path + ": cannot read the configuration: " + content.error().message();
      return content.error();
    }
    if (const auto done = read_text(*content, path, "roles", rules, message); !done)
      return done.error();
  }
  // NOLINTNEXTLINE(concurrency-mt-unsafe): see the header
  if (const char* const text = std::getenv("SLUICE_ROLES"); text != nullptr) {
    if (const auto done = read_text(text, "SLUICE_ROLES", {}, rules, message); !done)
      return done.error();
  }
  return rules;
}

}  // namespace sluice::kfd
