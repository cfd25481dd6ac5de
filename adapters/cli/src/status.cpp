// sluice status, sluice why: what the program that owns the node knows, and why it did what it did.

#include "control_link.hpp"
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
  to.add_flag("--json", chosen.as_json, "One object on one line");
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
  const auto answer = ask(chosen, {{"ask", "status"}});
  if (!answer) return exit_failed;
  const bool said =
      chosen.as_json ? print(json::value(*answer)) : print(status_text(*answer, terminal_width()));
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

int do_why(const status_options& chosen) {
  const auto target = target_of(chosen.what);
  const auto answer = ask(chosen, {{"ask", "why"}, {target->first, target->second}});
  if (!answer) return exit_failed;
  const bool said =
      chosen.as_json ? print(json::value(*answer)) : print(why_text(*answer, chosen.last));
  return said ? exit_done : exit_failed;
}

}  // namespace

subcommand add_status(CLI::App& program) {
  const auto chosen = std::make_shared<status_options>();
  auto* const command = program.add_subcommand("status", "Show what the daemon knows and does");
  command->footer(
      "Asks the program that owns the node, over its control socket. GPU: as queues and\n"
      "hqds number them; GPU_ID: as the log does. SLOTS: for compute queues, as the\n"
      "topology says; hqds counts each XCC's. OFF%: share of the last minute in which\n"
      "offline work was off. GPU TIME: -, for which a group was off; +, for which\n"
      "offline work was off while online work was in flight on the group's GPUs, since\n"
      "it has been online. ROLE released, gang: offline but not touched; see 'why'.\n"
      "Exit code 0: done; 1: nobody answers, or not to this user; 2: usage.");
  add_common(*command, *chosen);
  return {command, [chosen] { return do_status(*chosen); }};
}

subcommand add_why(CLI::App& program) {
  const auto chosen = std::make_shared<status_options>();
  auto* const command =
      program.add_subcommand("why", "Say why a process or a group runs, or does not");
  command->footer(
      "What is true now, and the last decisions, the newest last: by what, what came in\n"
      "the same turn, what the driver was told, and what it answered. Processes that\n"
      "ended are known for 10 min.\n"
      "Exit code 0: done; 1: nobody answers, or knows it; 2: usage.");
  command->add_option("PID|GROUP", chosen->what, "A process id, or a group as status shows it (g7)")
      ->required()
      ->type_name("")
      ->check(CLI::Validator{[](std::string& text) -> std::string {
                               if (target_of(text)) return {};
                               return fmt::format(
                                   "'{}' is neither a process id nor a group such as g7",
                                   printable(text));
                             },
                             ""});
  command->add_option("--last", chosen->last, "Only so many decisions; 0: all that are known")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(std::size_t{0}, std::size_t{1'000'000}));
  add_common(*command, *chosen);
  return {command, [chosen] { return do_why(*chosen); }};
}

}  // namespace sluice::cli
