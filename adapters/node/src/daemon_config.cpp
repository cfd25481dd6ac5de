#include "sluice/daemon_config.hpp"

#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <sstream>
#include <string_view>
#include <tuple>
#include <utility>

#include <spdlog/fmt/fmt.h>

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "sluice/duration_text.hpp"
#include "sluice/observe/metrics_address.hpp"
#include "sluice/os/whole_file.hpp"

namespace sluice {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view default_policy = "pointer_polling";
constexpr duration shortest_interval = 1s;
constexpr duration longest_interval = 24h;
/// "/clients.sock" there is a socket, which is made as "/clients.sock.PID" first: of a path the
/// kernel takes 107 bytes.
constexpr std::size_t longest_directory = 107 - std::string_view{"/clients.sock.4194304"}.size();

constexpr std::array modes{std::pair{std::string_view{"observe"}, node_mode::observe},
                           std::pair{std::string_view{"enforce"}, node_mode::enforce}};
constexpr std::array levels{std::pair{std::string_view{"info"}, daemon_log_level::info},
                            std::pair{std::string_view{"warning"}, daemon_log_level::warning},
                            std::pair{std::string_view{"error"}, daemon_log_level::error}};

std::string place(const std::string& path, const toml::node& node) {
  return fmt::format("{}:{}: ", path, node.source().begin.line);
}

/// Reads [daemon].
class daemon_reader {
 public:
  daemon_reader(const std::string& path, const drivers& all, daemon_config& into,
                std::vector<std::string>& problems)
      : path_(path), all_(all), into_(into), problems_(problems) {}

  void read(const toml::table& table) {
    for (const auto& [key, node] : table) {
      name_ = key.str();
      node_ = &node;
      if (!read_key()) wrong("is not a setting of [daemon]");
    }
  }

 private:
  /// \return whether there is such a key.
  bool read_key() {
    node_options& node = into_.node;
    if (name_ == "mode") return word(node.mode, modes);
    if (name_ == "directory") return directory(node.files.directory);
    if (name_ == "clients") return flag(node.clients);
    if (name_ == "socket_group") return group(node.socket_group);
    if (name_ == "control") return flag(node.control);
    if (name_ == "control_group") return group(node.control_group);
    if (name_ == "record") return text(node.record.file);
    if (name_ == "jobs") return jobs(node.observing.jobs);
    if (name_ == "metrics") return metrics(node.observing.metrics);
    if (name_ == "metrics_file") return file(node.observing.metrics_file);
    if (name_ == "trace") return file(node.observing.trace);
    if (name_ == "agent") return text(node.agent_path);
    if (name_ == "cpu_latency") return latency(node.cpu_latency);
    if (name_ == "driver") return driver(into_.driver);
    if (name_ == "log_level") return word(into_.log_level, levels);
    if (name_ == "log_levels") return parts();
    if (name_ == "statistics_interval") return span(into_.statistics_interval);
    return false;
  }

  void wrong(std::string_view what) {
    problems_.push_back(fmt::format("{}{} {}", place(path_, *node_), name_, what));
  }

  template <class Value, std::size_t Count>
  bool word(Value& into, const std::array<std::pair<std::string_view, Value>, Count>& words) {
    const auto given = node_->value_exact<std::string>();
    const auto found = std::ranges::find_if(
        words, [&](const auto& each) { return given && each.first == *given; });
    if (found != words.end()) {
      into = found->second;
      return true;
    }
    std::string all;
    for (const auto& each : words)
      all += fmt::format("{}\"{}\"", all.empty() ? "" : " or ", each.first);
    wrong("must be " + all);
    return true;
  }
  bool parts() {
    const auto* const table = node_->as_table();
    if (table == nullptr) wrong("must be a table such as { attach = \"error\" }");
    if (table == nullptr) return true;
    for (const auto& [key, node] : *table) {
      const std::string_view part = key.str();
      const auto found =
          std::ranges::find(all_log_parts, part, [](log_part each) { return to_string(each); });
      const std::string name = fmt::format("log_levels.{}", part);
      name_ = name;
      node_ = &node;
      if (found == all_log_parts.end()) {
        wrong("is not a part of the log; available: " + part_names());
      } else {
        daemon_log_level level{};
        const std::size_t before = problems_.size();
        (void)word(level, levels);
        if (problems_.size() == before)
          into_.log_levels[static_cast<std::size_t>(found - all_log_parts.begin())] = level;
      }
    }
    return true;
  }
  static std::string part_names() {
    std::string all;
    for (const log_part each : all_log_parts)
      all += fmt::format("{}{}", all.empty() ? "" : ", ", to_string(each));
    return all;
  }
  bool text(std::string& into) {
    if (auto given = node_->value_exact<std::string>())
      into = std::move(*given);
    else
      wrong("must be a string in quotes");
    return true;
  }
  bool file(std::string& into) {
    if (auto given = node_->value_exact<std::string>(); given && is_path(*given))
      into = std::move(*given);
    else
      wrong("must be the absolute path of a file, in quotes; use \"\" for no file");
    return true;
  }
  bool jobs(std::string& into) {
    if (auto given = node_->value_exact<std::string>();
        given && (*given == observing_options::jobs_to_log || is_path(*given)))
      into = std::move(*given);
    else
      wrong("must be \"log\", the absolute path of a file in quotes, or \"\" for no job lines");
    return true;
  }
  bool metrics(std::string& into) {
    if (auto given = node_->value_exact<std::string>();
        given && (given->empty() || observe::parse_metrics_address(*given)))
      into = std::move(*given);
    else
      wrong(
          "must be \"unix:/PATH\", an address with a port such as \"127.0.0.1:9464\" or "
          "\"[::1]:9464\", or \"\" for no metrics");
    return true;
  }
  static bool is_path(const std::string& given) {
    return given.empty() || (given.starts_with('/') && given.find('\0') == given.npos);
  }
  bool directory(std::string& into) {
    auto given = node_->value_exact<std::string>();
    if (given && given->starts_with('/') && given->find('\0') == given->npos) {
      while (given->size() > 1 && given->ends_with('/')) given->pop_back();
      into = std::move(*given);
    } else {
      wrong("must be the absolute path of a directory in quotes");
    }
    if (into.size() > longest_directory)
      wrong(fmt::format(
          "has {} bytes; use at most {} bytes, because the paths of sockets start with this path",
          into.size(), longest_directory));
    return true;
  }
  bool driver(std::string& into) {
    std::vector<std::string> names = driver_names(all_);
    names.insert(names.begin(), std::string{any_driver});
    auto given = node_->value_exact<std::string>();
    if (given && std::ranges::find(names, *given) != names.end())
      into = std::move(*given);
    else
      wrong(fmt::format("must be \"{}\"", fmt::join(names, "\" or \"")));
    return true;
  }
  bool group(std::optional<gid_t>& into) {
    const auto number = node_->value_exact<std::int64_t>();
    const auto name = node_->value_exact<std::string>();
    const ::group* const found =
        name && !name->empty() ? ::getgrnam(name->c_str()) : nullptr;  // NOLINT(concurrency-*)
    if (name && name->empty()) {
      into.reset();
    } else if (found != nullptr) {
      into = found->gr_gid;
    } else if (number && *number >= 0 && *number < std::numeric_limits<gid_t>::max()) {
      into = static_cast<gid_t>(*number);
    } else {
      wrong(
          "must be the name or number of a group on this machine, or \"\" for the daemon's own "
          "group");
    }
    return true;
  }
  bool flag(bool& into) {
    if (const auto given = node_->value_exact<bool>())
      into = *given;
    else
      wrong("must be true or false");
    return true;
  }
  bool span(duration& into) {
    const auto given = node_->value_exact<std::string>();
    const auto value = given ? parse_duration(*given) : std::nullopt;
    const bool any = value && *value >= shortest_interval && *value <= longest_interval;
    if (any || value == duration::zero())
      into = *value;
    else
      wrong(
          fmt::format("must be a duration in quotes with a unit, {} to {}, such as \"10min\", or "
                      "\"0s\" for no interval",
                      to_text(shortest_interval), to_text(longest_interval)));
    return true;
  }

  bool latency(std::optional<duration>& into) {
    const auto given = node_->value_exact<std::string>();
    const auto value = given ? parse_duration(*given) : std::nullopt;
    if (value && *value >= 0s && *value <= 1s)
      into = value;
    else if (given && given->empty())
      into.reset();
    else
      wrong(
          "must be a duration in quotes with a unit, 0 to 1 s, such as \"0us\", or \"\" for no "
          "limit");
    return true;
  }

  const std::string& path_;
  const drivers& all_;
  daemon_config& into_;
  std::vector<std::string>& problems_;
  std::string_view name_;
  const toml::node* node_ = nullptr;
};

/// Reads the table of a driver.
void read_settings(const std::string& path, const toml::table& table, driver& into,
                   std::vector<std::string>& problems) {
  for (const auto& [key, node] : table) {
    std::string wrong = "must be a string in quotes, true or false";
    if (const auto flag = node.value_exact<bool>())
      wrong = into.set(key.str(), *flag);
    else if (auto text = node.value_exact<std::string>())
      wrong = into.set(key.str(), std::move(*text));
    if (!wrong.empty())
      problems.push_back(fmt::format("{}{} {}", place(path, node), key.str(), wrong));
  }
}

void read_tables(const std::string& path, const toml::table& file, const drivers& all,
                 daemon_config& into, std::vector<std::string>& problems) {
  for (const auto& [key, node] : file) {
    const std::string_view name = key.str();
    if (name == "daemon") {
      if (const auto* const table = node.as_table())
        daemon_reader{path, all, into, problems}.read(*table);
      else
        problems.push_back(place(path, node) + "daemon must be a table: [daemon]");
    } else if (const auto of = std::ranges::find(all, name, &driver::name); of != all.end()) {
      if (const auto* const table = node.as_table())
        read_settings(path, *table, **of, problems);
      else
        problems.push_back(
            fmt::format("{}{} must be a table: [{}]", place(path, node), name, name));
    } else if (name == "policy") {
      std::ostringstream text;
      if (const auto* const table = node.as_table()) text << *table;
      into.policy_table = std::move(text).str();
    }
  }
}

/// It names programs to run, and whom to suspend. \return why it is not to be trusted; empty: it
/// is, or is no regular file: a pipe of who starts this program.
std::string mistrust(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return {};
  if (found.st_uid != 0 && found.st_uid != ::geteuid())
    return fmt::format("owned by user {}; make root or user {} its owner (chown)", found.st_uid,
                       ::geteuid());
  if ((found.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return "writable by group or others; run chmod go-w " + path;
  return {};
}

result<std::string> content_of(const std::string& path, std::vector<std::string>& problems) {
  if (const std::string why = mistrust(path); !why.empty()) {
    problems.push_back(path + ": cannot trust the configuration: " + why);
    return errc::bad_config;
  }
  auto content = read_whole_file(path);
  if (!content)
    problems.push_back(path + ": cannot read the configuration: " + content.error().message());
  return content;
}

policy_choice default_choice(const policy_registry& known) {
  return {known,
          std::string(default_policy),
          {},
          command_text(default_policy, *known.find(default_policy), {})};
}

void take(policy_choice chosen, daemon_config& into) {
  into.policy = chosen.text;
  into.node.settings.policy_text = chosen.text;
  into.node.settings.make_policy = [chosen = std::move(chosen)] { return chosen.make(); };
}

void choose(const drivers& all, daemon_config& into) {
  if (auto chosen = choose_driver(all, into.driver, into.no_driver))
    into.node.driver = std::move(*chosen);
}

result<daemon_config> load_defaults(const policy_registry& known, const drivers& all,
                                    std::vector<std::string>& problems) {
  daemon_config made;
  auto roles = roles::load_classification({}, problems);
  if (!roles) return roles.error();
  made.node.settings.roles = std::move(*roles);
  take(default_choice(known), made);
  choose(all, made);
  return made;
}

result<daemon_config> load_once(const std::string& path, const std::string& content,
                                const policy_registry& known, const drivers& all,
                                std::vector<std::string>& problems) {
  const toml::parse_result parsed = toml::parse(content, path);
  if (!parsed) {
    const auto& error = parsed.error();
    problems.push_back(fmt::format("{}:{}:{}: {}", path, error.source().begin.line,
                                   error.source().begin.column, error.description()));
    return errc::bad_config;
  }
  daemon_config made;
  read_tables(path, parsed.table(), all, made, problems);
  const auto driver_tables = driver_names(all);
  auto scheduler = load_config(path, problems, driver_tables);
  if (scheduler) made.node.settings.scheduler = *scheduler;
  auto policy = read_policy(known, path, problems, {}, driver_tables);
  if (policy) take(*policy ? std::move(**policy) : default_choice(known), made);
  auto roles = roles::load_classification(path, problems);
  if (roles) made.node.settings.roles = std::move(*roles);
  if (!problems.empty()) return errc::bad_config;
  made.node.record.policy = made.policy;
  choose(all, made);
  return made;
}

/// "FILE:12: ..." by its line.
int line_in(const std::string& problem, const std::string& path) {
  int line = 0;
  if (problem.starts_with(path + ":"))
    (void)std::sscanf(problem.c_str() + path.size() + 1, "%d", &line);
  return line;
}

}  // namespace

std::vector<std::string> daemon_config::missing_here() const {
  std::vector<std::string> found;
  const auto say = [&](std::string_view key, const std::string& value, std::string_view what) {
    found.push_back(fmt::format("[daemon] {} = {}: {}", key, value, what));
  };
  std::error_code error;
  const std::string& agent = node.agent_path;
  if (node.mode == node_mode::enforce && !agent.empty()) {
    const auto status = std::filesystem::status(agent, error);
    constexpr auto any_x = std::filesystem::perms::owner_exec | std::filesystem::perms::group_exec |
                           std::filesystem::perms::others_exec;
    if (status.type() != std::filesystem::file_type::regular)
      say("agent", agent, "program not found; set the path of sluice-agent");
    else if ((status.permissions() & any_x) == std::filesystem::perms::none)
      say("agent", agent, "not executable; run chmod a+x on it");
  }
  const auto look_at_file = [&](std::string_view key, const std::string& file) {
    if (file.empty()) return;
    const auto above = std::filesystem::path{file}.parent_path();
    if (!above.empty() && !std::filesystem::is_directory(above, error) &&
        error != std::errc::permission_denied)
      say(key, file, "directory " + above.string() + " does not exist; create it");
    else if (std::filesystem::is_directory(file, error))
      say(key, file, "is a directory; expected the path of a file");
  };
  look_at_file("record", node.record.file);
  if (node.observing.jobs != observing_options::jobs_to_log)
    look_at_file("jobs", node.observing.jobs);
  look_at_file("metrics_file", node.observing.metrics_file);
  look_at_file("trace", node.observing.trace);
  return found;
}

std::string daemon_config::fixed_differences(const daemon_config& other) const {
  std::string found;
  const auto look = [&found](std::string_view key, const auto& one, const auto& another) {
    if (!(one == another)) found += (found.empty() ? "" : ", ") + std::string{key};
  };
  look("mode", node.mode, other.node.mode);
  look("directory", node.files.directory, other.node.files.directory);
  look("clients", node.clients, other.node.clients);
  look("socket_group", node.socket_group, other.node.socket_group);
  look("control", node.control, other.node.control);
  look("control_group", node.control_group, other.node.control_group);
  look("record", node.record.file, other.node.record.file);
  look("jobs", node.observing.jobs, other.node.observing.jobs);
  look("metrics", node.observing.metrics, other.node.observing.metrics);
  look("metrics_file", node.observing.metrics_file, other.node.observing.metrics_file);
  look("trace", node.observing.trace, other.node.observing.trace);
  look("agent", node.agent_path, other.node.agent_path);
  look("cpu_latency", node.cpu_latency, other.node.cpu_latency);
  if (!node.driver || !other.node.driver) return found;
  look("driver", node.driver->name(), other.node.driver->name());
  if (node.driver->name() != other.node.driver->name()) return found;
  const auto now = node.driver->acting().settings;
  for (const auto& [key, value] : other.node.driver->acting().settings) {
    const auto same = now.find(key);
    look(fmt::format("{}.{}", node.driver->name(), key),
         same != now.end() ? same->second : std::string{}, value);
  }
  return found;
}

result<daemon_config> load_daemon_config(const std::string& path, const policy_registry& known,
                                         const driver_list& list,
                                         std::vector<std::string>& problems) {
  problems.clear();
  if (path.empty()) return load_defaults(known, make_all(list), problems);
  // Each table's reader opens the file by itself: it must have been the same one throughout.
  constexpr int most_tries = 5;
  for (int tries = 0;; ++tries) {
    problems.clear();
    const auto before = content_of(path, problems);
    if (!before) return before.error();
    auto made = load_once(path, *before, known, make_all(list), problems);
    std::vector<std::string> ignored;
    const auto after = content_of(path, ignored);
    if (after && *after == *before) {
      std::ranges::stable_sort(problems, {},
                               [&](const std::string& each) { return line_in(each, path); });
      // What no table's reader knows, each of them says.
      problems.erase(std::unique(problems.begin(), problems.end()), problems.end());
      return made;
    }
    if (tries == most_tries) {
      problems = {path +
                  ": the file keeps changing while it is read; try again when it is complete"};
      return errc::bad_config;
    }
  }
}

}  // namespace sluice
