// sluice role: what operators and job managers say of processes and cgroups.

#include "output.hpp"
#include "store_choice.hpp"
#include "subcommand.hpp"
#include "table.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "sluice/duration_text.hpp"
#include "sluice/roles/role_store.hpp"

namespace sluice::cli {

namespace {

namespace json = boost::json;

struct role_options {
  store_choice where;
  pid_t pid = 0;
  std::string cgroup;
  std::string what;
  std::optional<std::size_t> position;
  bool all = false;
  bool json = false;
};

role role_named(const std::string& name) {
  if (name == "online") return role::online;
  return name == "offline" ? role::offline : role::unmatched;
}

/// Sets or clears the one entry that the options name.
template <class Change>
int change_entry(const role_options& chosen, Change change) {
  auto store = find_store(chosen.where);
  if (!store) return exit_failed;
  std::string message;
  result<void> done;
  if (chosen.pid != 0) {
    const auto who = identity_of(chosen.pid);
    if (!who) {
      complain(fmt::format("there is no process {}", chosen.pid));
      return exit_failed;
    }
    done = change(*store, *who, message);
  } else {
    done = change(*store, chosen.cgroup, message);
  }
  if (done) return exit_done;
  complain(message);
  return exit_failed;
}

/// Whether the list of patterns is as long as the chosen position asks, its former entry aside.
bool position_fits(const role_options& chosen, const roles::role_store& store) {
  std::string message;
  const auto roles = store.read(message);
  if (!roles) {
    complain(message);
    return false;
  }
  const auto others = static_cast<std::size_t>(std::ranges::count_if(
      roles->by_cgroup, [&](const auto& each) { return each.cgroup != chosen.cgroup; }));
  if (*chosen.position <= others) return true;
  complain(fmt::format(
      "position {} is out of range: {} has {} other pattern{}; use 0 to {}; nothing was "
      "changed",
      *chosen.position, store.path(), others, others == 1 ? "" : "s", others));
  return false;
}

int set(const role_options& chosen) {
  const role what = role_named(chosen.what);
  if (chosen.position) {
    const auto store = find_store(chosen.where);
    if (!store || !position_fits(chosen, *store)) return exit_failed;
  }
  return change_entry(chosen,
                      [&](roles::role_store& store, const auto& entry, std::string& message) {
                        if constexpr (std::is_same_v<std::decay_t<decltype(entry)>, std::string>)
                          return store.set(entry, what, message, chosen.position);
                        else
                          return store.set(entry, what, message);
                      });
}

/// All roles. What somebody says meanwhile stays.
int clear_all(const role_options& chosen) {
  auto store = find_store(chosen.where);
  if (!store) return exit_failed;
  std::string message;
  const auto roles = store->read(message);
  const auto cleared = [&](const result<void>& done) {
    return done || done.error() == errc::unknown_target;  // it is gone, which is as good
  };
  const bool all = roles &&
                   std::ranges::all_of(roles->by_process,
                                       [&](const auto& each) {
                                         return cleared(store->clear(each.first, message));
                                       }) &&
                   std::ranges::all_of(roles->by_cgroup, [&](const auto& each) {
                     return cleared(store->clear(each.cgroup, message));
                   });
  if (!all) complain(message);
  return all ? exit_done : exit_failed;
}

int clear(const role_options& chosen) {
  if (chosen.all) return clear_all(chosen);
  return change_entry(chosen, [](roles::role_store& store, const auto& entry,
                                 std::string& message) { return store.clear(entry, message); });
}

int list(const role_options& chosen) {
  const auto store = find_store(chosen.where);
  if (!store) return exit_failed;
  std::string message;
  const auto roles = store->read(message);
  if (!roles) {
    complain(message);
    return exit_failed;
  }
  if (chosen.json) {
    json::array processes;
    for (const auto& [who, what] : roles->by_process)
      processes.push_back(json::object{{"pid", who.pid},
                                       {"start_time", who.start_time},
                                       {"command", command_of(who.pid)},
                                       {"role", to_string(what)}});
    json::array cgroups;
    for (const auto& each : roles->by_cgroup)
      cgroups.push_back(json::object{{"cgroup", each.cgroup}, {"role", to_string(each.what)}});
    json::array released;
    for (const auto& [who, until] : roles->released)
      released.push_back(json::object{{"pid", who.pid},
                                      {"start_time", who.start_time},
                                      {"command", command_of(who.pid)},
                                      {"left_ms", (until - roles::boot_time_now()).count()}});
    const json::object all{{"version", 1},
                           {"store", store->path()},
                           {"processes", std::move(processes)},
                           {"cgroups", std::move(cgroups)},
                           {"released", std::move(released)}};
    return print(json::value(all)) ? exit_done : exit_failed;
  }
  using enum table::align;
  table rows{{{"POSITION", right}, {"ROLE"}, {"PID", right}, {"COMMAND OR CGROUP"}}};
  for (const auto& [who, what] : roles->by_process)
    rows.add({"-", std::string{to_string(what)}, std::to_string(who.pid), command_of(who.pid)});
  for (std::size_t place = 0; place < roles->by_cgroup.size(); ++place) {
    const auto& each = roles->by_cgroup[place];
    rows.add(
        {std::to_string(place), std::string{to_string(each.what)}, "-", printable(each.cgroup)});
  }
  for (const auto& [who, until] : roles->released) {
    const auto left = std::chrono::ceil<std::chrono::seconds>(until - roles::boot_time_now());
    rows.add({"-", fmt::format("released for {}", to_text(duration{left})), std::to_string(who.pid),
              command_of(who.pid)});
  }
  const std::string text =
      rows.empty() ? store->path() + ": no roles and no releases\n" : rows.text(terminal_width());
  return print(text) ? exit_done : exit_failed;
}

CLI::Option_group* add_entry(CLI::App& to, const std::shared_ptr<role_options>& chosen) {
  auto* const entry = to.add_option_group("Target");
  entry->add_option("--pid", chosen->pid, "One process; the role ends with the process")
      ->check(a_process_id())
      ->type_name("PID");
  entry
      ->add_option("--cgroup", chosen->cgroup,
                   "Processes in or below these cgroups, e.g. '/batch/*'")
      ->check(CLI::Validator{
          [](std::string& text) -> std::string {
            if (text.starts_with('/') && text.find('\n') == text.npos) return {};
            return fmt::format("invalid cgroup pattern '{}': expected one line that begins with /",
                               printable(text));
          },
          ""})
      ->type_name("PATTERN");
  entry->require_option(1);
  return entry;
}

}  // namespace

subcommand add_role(CLI::App& program) {
  const auto chosen = std::make_shared<role_options>();
  auto* const command =
      program.add_subcommand("role", "Set, clear and list the roles of processes and cgroups");
  command->require_subcommand(1);
  command->footer(exit_codes);  // of those below, too

  auto* const set_command =
      command->add_subcommand("set", "Set a role; schedulers apply it within a second");
  add_entry(*set_command, chosen);
  set_command->add_option("role", chosen->what, "online, offline, or unmatched (never suspended)")
      ->required()
      ->check(CLI::IsMember({"online", "offline", "unmatched"}))
      ->type_name("ROLE");
  set_command
      ->add_option("--position", chosen->position,
                   "Position of the pattern, from 0; the first match applies")
      ->check(whole_number_of("position", 0, std::numeric_limits<std::int32_t>::max()))
      ->type_name("N")
      ->excludes("--pid");
  add_store(*set_command, chosen->where);

  auto* const clear_command = command->add_subcommand("clear", "Remove a role");
  add_entry(*clear_command, chosen)
      ->add_flag("--all", chosen->all, "Remove all roles; releases stay in effect");
  add_store(*clear_command, chosen->where);

  auto* const list_command = command->add_subcommand("list", "List roles and releases");
  list_command->add_flag("--json", chosen->json, "Print one line of JSON");
  add_store(*list_command, chosen->where);

  return {command, [chosen, set_command, clear_command] {
            if (set_command->parsed()) return set(*chosen);
            return clear_command->parsed() ? clear(*chosen) : list(*chosen);
          }};
}

}  // namespace sluice::cli
