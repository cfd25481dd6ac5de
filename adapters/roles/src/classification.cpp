#include "sluice/roles/classification.hpp"

#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "sluice/roles/classifier.hpp"

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "sluice/os/whole_file.hpp"
#include "sluice/result.hpp"

namespace sluice::roles {

namespace {

constexpr std::string_view cgroup_wanted = "; a cgroup pattern must be one line that begins with /";

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

/// Reads the settings of one table into `rules`, what is right of them.
class table_reader {
 public:
  table_reader(const toml::table& from, classification_rules& rules) : from_(from), rules_(rules) {}

  std::vector<trouble> read() {
    for (const auto& entry : from_) (void)key(std::string_view{entry.first.str()}, entry.second);
    return std::move(troubles_);
  }

 private:
  /// As all that follow: \return whether nothing was wrong.
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
    if (name == "gang_across_nodes") return across(node);
    troubles_.push_back({&node, std::string{name} + " is not a setting of [roles]"});
    return false;
  }

  bool wrong(const toml::node& node, const std::string& allowed) {
    troubles_.push_back({&node, name_ + " is " + value_text(node) + "; it must be " + allowed});
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
    bool right = true;
    for (const toml::node& each : *array) {
      Value value{};
      if (read_one(each, value))
        into.push_back(std::move(value));
      else
        right = false;
    }
    return right;
  }
  bool texts(const toml::node& node, std::vector<std::string>& into) {
    return list(node, into, [this](const toml::node& each, std::string& value) {
      return text(each, value, "a list of strings in quotes");
    });
  }

  bool grant(const toml::node& node, claim_grant& into) {
    constexpr auto allowed =
        "a table { users = [...], groups = [...], cgroups = [...] } with any of these keys";
    const toml::table* const table = node.as_table();
    if (table == nullptr) return wrong(node, allowed);
    const std::string outer = name_;
    into = {};
    bool right = true;
    for (const auto& entry : *table) {
      const std::string_view part = entry.first.str();
      name_ = outer + "." + std::string{part};
      if (part == "users") {
        right &= users(entry.second, into);
      } else if (part == "groups") {
        right &= list(entry.second, into.groups,
                      [this](const toml::node& each, gid_t& value) { return group(each, value); });
      } else if (part == "cgroups") {
        right &= texts(entry.second, into.cgroups);
      } else {
        name_ = outer;
        right = wrong(node, allowed);
      }
    }
    return right;
  }
  bool users(const toml::node& node, claim_grant& into) {
    constexpr auto allowed =
        "a list of user names or numbers, \"@self\" (the user that runs sluice) or \"*\" (every "
        "user)";
    const toml::array* const array = node.as_array();
    if (array == nullptr) return wrong(node, allowed);
    bool right = true;
    for (const toml::node& each : *array) {
      if (const auto number = id_number(each)) {
        into.users.push_back(*number);
        continue;
      }
      const auto name = each.value_exact<std::string>();
      if (!name) {
        right = wrong(each, allowed);
      } else if (*name == "*") {
        into.everyone = true;
      } else if (*name == "@self") {
        into.users.push_back(::getuid());
      } else if (const passwd* const found = ::getpwnam(name->c_str())) {  // NOLINT(concurrency-*)
        into.users.push_back(found->pw_uid);
      } else {
        right = wrong(each, "the name or number of a user of this machine, \"@self\" or \"*\"");
      }
    }
    return right;
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

  /// \return the entry's role, nothing (and a trouble) unless the table has just `keys` and a role.
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
    bool right = true;
    for (const toml::node& each : *array) right &= pid(each);
    return right;
  }
  bool pid(const toml::node& node) {
    const std::string allowed = "{ pid = NUMBER";
    const auto what = entry(node, {"pid"}, allowed, true);
    if (!what) return false;
    const auto number = node.as_table()->get("pid")->value_exact<std::int64_t>();
    if (!number || *number <= 0 || *number > std::numeric_limits<pid_t>::max())
      return wrong(node, "a list of " + allowed + ", role = ... }");
    // One that is gone is no mistake: the file outlives it, and its pid's next owner is another.
    if (const auto who = identity_of(static_cast<pid_t>(*number))) rules_.by_pid[*who] = *what;
    return true;
  }
  bool across(const toml::node& node) {
    const auto given = node.value_exact<std::string>();
    if (!given || (!given->empty() && *given != "slurm"))
      return wrong(node, R"("slurm", or "" for none)");
    rules_.gangs.across_nodes = given->empty() ? gang_engine::none : gang_engine::slurm;
    return true;
  }
  bool gangs(const toml::node& node) {
    std::vector<std::string> named;
    constexpr auto allowed = "a list with any of \"ranks\", \"slurm\" and \"pods\"";
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
  std::vector<trouble> troubles_;
};

/// Every setting that cannot be: one sentence each, which begins with its key.
std::vector<std::string> rule_problems(const classification_rules& rules) {
  std::vector<std::string> found;
  for (const auto& [key, patterns] :
       {std::pair{"may_claim_online.cgroups", &rules.may_claim_online.cgroups},
        std::pair{"may_claim_offline.cgroups", &rules.may_claim_offline.cgroups},
        std::pair{"gang_cgroups", &rules.gangs.cgroups}}) {
    for (const std::string& each : *patterns)
      if (!is_cgroup_pattern(each))
        found.push_back(std::string{key} + " contains " + quoted(each) +
                        std::string{cgroup_wanted});
  }
  for (const cgroup_rule& each : rules.by_cgroup)
    if (!is_cgroup_pattern(each.cgroup))
      found.push_back("cgroups contains " + quoted(each.cgroup) + std::string{cgroup_wanted});
  const auto claims = [](role what) { return what == role::online || what == role::offline; };
  for (const environment_rule& each : rules.by_environment) {
    if (!is_variable(each.variable) || !claims(each.what))
      found.push_back("environment contains " + quoted(each.variable + "=" + each.value) + " as " +
                      std::string{to_string(each.what)} +
                      "; each entry must be KEY=pattern with the role online or offline");
  }
  for (const std::string& each : rules.gangs.variables)
    if (!is_variable(each))
      found.push_back("gang_variables contains " + quoted(each) +
                      "; each entry must be the name of a variable");
  for (const ring_rule& each : rules.by_ring) {
    if (each.first > each.last || !claims(each.what))
      found.push_back("rings contains " + hexadecimal(each.first) + " to " +
                      hexadecimal(each.last) + " as " + std::string{to_string(each.what)} +
                      "; 'from' must not exceed 'to'; 'role' must be \"online\" or \"offline\"");
  }
  if (rules.online_priority > highest_priority)
    found.push_back("online_priority is " + std::to_string(rules.online_priority) +
                    "; it must be 0 to " + std::to_string(highest_priority));
  if (rules.role_store.find('\0') != rules.role_store.npos)
    found.emplace_back("store contains a zero byte; it must be the path of a file");
  return found;
}

/// Reads TOML text whose table (`section` empty: the whole) holds settings, and adds what is wrong.
void read_text(std::string_view content, const std::string& where, std::string_view section,
               classification_rules& into, std::vector<std::string>& problems) {
  const toml::parse_result parsed = toml::parse(content, where);
  if (!parsed) {
    problems.push_back(where + ":" + std::to_string(parsed.error().source().begin.line) + ":" +
                       std::to_string(parsed.error().source().begin.column) + ": " +
                       std::string{parsed.error().description()});
    return;
  }
  const toml::table* table = &parsed.table();
  const auto line = [&](const toml::node& node) {
    return where + ":" + std::to_string(node.source().begin.line) + ": ";
  };
  if (!section.empty()) {
    const toml::node* const found = table->get(section);
    if (found == nullptr) return;
    if (found->as_table() == nullptr) {
      problems.push_back(line(*found) + "roles is " + value_text(*found) +
                         "; it must be a table: [roles]");
      return;
    }
    table = found->as_table();
  }
  for (const trouble& each : table_reader{*table, into}.read())
    problems.push_back(line(*each.at) + each.words);
  for (const std::string& each : rule_problems(into)) {
    const toml::node* const culprit = table->get(each.substr(0, each.find_first_of(" .")));
    problems.push_back(line(culprit != nullptr ? *culprit : *table) + each);
  }
}

}  // namespace

std::string classification_rules::problem() const {
  const auto found = rule_problems(*this);
  return found.empty() ? std::string{} : found.front();
}

result<classification_rules> read_classification(const std::string& path,
                                                 std::vector<std::string>& problems) {
  classification_rules rules;
  const std::size_t others = problems.size();
  if (!path.empty()) {
    const auto content = read_whole_file(path);
    if (!content) {
      problems.push_back(path + ": cannot read the configuration: " + content.error().message());
      return content.error();
    }
    read_text(*content, path, "roles", rules, problems);
    if (problems.size() != others) return errc::bad_config;
  }
  return rules;
}

result<classification_rules> load_classification(const std::string& path,
                                                 std::vector<std::string>& problems) {
  auto read = read_classification(path, problems);
  if (!read) return read.error();
  classification_rules rules = std::move(*read);
  const std::size_t others = problems.size();
  // NOLINTNEXTLINE(concurrency-mt-unsafe): see the header
  if (const char* const text = std::getenv("SLUICE_ROLES"); text != nullptr)
    read_text(text, "SLUICE_ROLES", {}, rules, problems);
  if (problems.size() != others) return errc::bad_config;
  return rules;
}

result<classification_rules> load_classification(const std::string& path, std::string& message) {
  std::vector<std::string> problems;
  auto rules = load_classification(path, problems);
  if (!rules) message = problems.front();
  return rules;
}

}  // namespace sluice::roles
