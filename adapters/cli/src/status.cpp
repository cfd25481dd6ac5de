// sluice status, sluice why: what the program that owns the node knows, and why it did what it did.

#include "control_link.hpp"
#include "orphans.hpp"
#include "output.hpp"
#include "status_view.hpp"
#include "subcommand.hpp"

#include <limits>
#include <memory>
#include <string>

#include <boost/json.hpp>
#include <fmt/format.h>

namespace sluice::cli {

namespace {

namespace json = boost::json;

struct status_options {
  node_files where;
  bool as_json = false;
  std::string what;
  std::size_t last = 10;
};

void add_common(CLI::App& to, status_options& chosen) {
  to.add_flag("--json", chosen.as_json, "Print one line of JSON");
  add_directory(to, chosen.where);
}

/// \return nothing, after a complaint.
std::optional<json::object> ask(const status_options& chosen, json::object request) {
  control_failure failed;
  auto answer = control_link{chosen.where}.ask(std::move(request), failed);
  if (!answer) complain(failed.sentence);
  return answer;
}

int do_status(const status_options& chosen) {
  auto answer = ask(chosen, {{"ask", "status"}});
  if (!answer) return exit_failed;
  // The daemon knows only of its running agent.
  const orphans all = find_orphans(chosen.where);
  mark_orphans(*answer, all);
  const bool said =
      chosen.as_json ? print(json::value(*answer)) : print(status_text(*answer, terminal_width()));
  for (const auto& [pid, left] : all) complain("warning: " + orphan_text(pid, left, chosen.where));
  return said ? exit_done : exit_failed;
}

/// "4242", "g7". \return nothing: it is neither.
std::optional<std::pair<std::string_view, std::uint64_t>> target_of(std::string_view text) {
  const bool group = text.starts_with('g');
  if (group) text.remove_prefix(1);
  const auto number = whole_number<std::uint64_t>(text);
  const std::uint64_t most = group ? std::numeric_limits<std::int64_t>::max() : 4'194'304;
  if (!number || *number == 0 || *number > most) return {};
  return std::pair(group ? std::string_view("group") : std::string_view("pid"), *number);
}

/// Which of the orphans the question is about. \return all.end(): none.
orphans::const_iterator orphan_of(const status_options& chosen, std::string_view what,
                                  std::uint64_t number, const orphans& all) {
  if (what == "pid") return all.find(static_cast<pid_t>(number));
  control_failure failed;
  const auto status = control_link{chosen.where}.ask({{"ask", "status"}}, failed);
  const auto* const groups = status ? status->if_contains("groups") : nullptr;
  if (groups == nullptr || !groups->is_array()) return all.end();
  for (const auto& each : groups->get_array()) {
    const auto* const group = each.if_object();
    const auto* const its = group != nullptr ? group->if_contains("group") : nullptr;
    if (its != nullptr && *its == number) return find_orphan(*group, all);
  }
  return all.end();
}

int do_why(const status_options& chosen) {
  const auto target = target_of(chosen.what);
  auto answer = ask(chosen, {{"ask", "why"}, {target->first, target->second}});
  if (!answer) return exit_failed;
  // The daemon knows only of its running agent.
  auto* const told = answer->if_contains("why");
  if (const orphans all = find_orphans(chosen.where);
      !all.empty() && told != nullptr && told->is_object()) {
    const auto left = orphan_of(chosen, target->first, target->second, all);
    if (left != all.end()) {
      told->get_object()["state"] = orphan_state(left->second);
      told->get_object()["sentence"] = orphan_text(left->first, left->second, chosen.where);
    }
  }
  const bool said =
      chosen.as_json ? print(json::value(*answer)) : print(why_text(*answer, chosen.last));
  return said ? exit_done : exit_failed;
}

}  // namespace

subcommand add_status(CLI::App& program) {
  const auto chosen = std::make_shared<status_options>();
  auto* const command =
      program.add_subcommand("status", "Show the node's GPUs, groups, clients and policy");
  command->footer(
      "Queries the program that owns the node through its control socket.\n"
      "GPU: number as in 'sluice queues' and 'sluice hqds'. GPU_ID: number as in the\n"
      "log. SLOTS: slots for compute queues, as listed in the driver's topology;\n"
      "'sluice hqds' counts the slots of every XCC. ONLINE, OFFLINE, OFF: numbers of\n"
      "online, offline and suspended queues; '-': the driver does not list them. STATE\n"
      "of a GPU: 'online' while online work is in flight, 'BREAKER' while its breaker\n"
      "is open, or 'free'. BACKLOG: online work that clients began and did not end;\n"
      "'+': packets wait in online queues; '?': the end of online work is not visible.\n"
      "BUSY%: share of the last minute with online work. STATE of a group: 'held' while\n"
      "it is suspended; FOR: its duration. OFF%: share of the last minute in which\n"
      "offline work was suspended. GPU TIME: -TIME: the offline group was suspended for\n"
      "this time; +TIME: since the online group became online, offline work on its GPUs\n"
      "was suspended for this time while online work was in flight.\n"
      "ROLE 'released' or 'gang': offline, but not suspended; see 'sluice why'.\n"
      "Exit code 0: done; 1: no answer, or permission denied; 2: invalid command line.");
  add_common(*command, *chosen);
  return {command, [chosen] { return do_status(*chosen); }};
}

subcommand add_why(CLI::App& program) {
  const auto chosen = std::make_shared<status_options>();
  auto* const command =
      program.add_subcommand("why", "Explain why a process or group runs or is suspended");
  command->footer(
      "Shows the current state and the latest decisions, the newest last. Each\n"
      "decision shows its reason, the events of the same turn, the commands to the\n"
      "driver, and their results. The daemon keeps them 10 min after a process ends.\n"
      "Exit code 0: done; 1: no answer, or unknown process or group; 2: invalid\n"
      "command line.");
  command->add_option("PID|GROUP", chosen->what, "Process id, or group as shown by status (g7)")
      ->required()
      ->type_name("")
      ->check(CLI::Validator{[](std::string& text) -> std::string {
                               if (target_of(text)) return {};
                               return fmt::format(
                                   "invalid target '{}': expected a process id or a group such "
                                   "as g7",
                                   printable(text));
                             },
                             ""});
  command->add_option("--last", chosen->last, "Number of decisions to show; 0: all")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(std::size_t{0}, std::size_t{1'000'000}));
  add_common(*command, *chosen);
  return {command, [chosen] { return do_why(*chosen); }};
}

}  // namespace sluice::cli
