// sluice fleet: many nodes at once, over ssh. No program of sluice listens on a network.

#include "output.hpp"
#include "remote_runs.hpp"
#include "status_view.hpp"
#include "subcommand.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iostream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "sluice/duration_text.hpp"

namespace sluice::cli {

namespace {

namespace json = boost::json;
using namespace std::chrono_literals;

struct fleet_options {
  std::vector<std::string> nodes;
  std::string file;
  std::string ssh = "ssh";
  std::string timeout = "10s";
  bool as_json = false;
};

std::vector<std::string> split(std::istream&& text) {
  std::vector<std::string> all;
  for (std::string each; text >> each;) all.push_back(each);
  return all;
}

/// Each name once, where it was first.
void keep_first(std::vector<std::string>& names) {
  std::set<std::string> seen;
  std::erase_if(names, [&](const auto& each) { return !seen.insert(each).second; });
}

/// Adds the names in a file: separated by blanks, '#' begins a comment.
/// \return false, after a complaint.
bool read_names(const std::string& path, std::vector<std::string>& into) {
  std::ifstream file;
  if (path != "-") {
    file.open(path);
    if (!file) {
      complain(
          fmt::format("{}: cannot read the list of nodes: {}", printable(path), error_text(errno)));
      return false;
    }
  }
  std::istream& from = path == "-" ? std::cin : file;
  for (std::string line; std::getline(from, line);) {
    const auto names = split(std::istringstream{line.substr(0, line.find('#'))});
    into.insert(into.end(), names.begin(), names.end());
  }
  return true;
}

/// \param problem why there is none.
json::object status_in(const std::string& answer, std::string& problem) {
  boost::system::error_code error;
  auto value = json::parse(answer, error);
  auto* const status = error ? nullptr : value.if_object();
  if (status != nullptr && status->contains("node")) return std::move(*status);
  problem =
      "the answer is not the JSON of 'sluice status'; does the shell of this user print text?";
  return {};
}

int do_status(const fleet_options& chosen) {
  auto nodes = chosen.nodes;
  if (!chosen.file.empty() && !read_names(chosen.file, nodes)) return exit_failed;
  if (nodes.empty() && !chosen.file.empty()) {
    complain(fmt::format("{}: the list names no node", printable(chosen.file)));
    return exit_failed;
  }
  if (nodes.empty()) {
    complain("NODE is missing: name one or more nodes, or use --nodes FILE (see --help)");
    return exit_usage;
  }
  if (const auto bad = std::ranges::find_if(
          nodes, [](const auto& each) { return each.empty() || each.starts_with('-'); });
      bad != nodes.end()) {
    complain(fmt::format("invalid name of a node '{}'", printable(*bad)));
    return exit_usage;
  }
  keep_first(nodes);
  auto ssh = split(std::istringstream{chosen.ssh});
  const duration limit = *parse_duration(chosen.timeout);
  ssh.insert(ssh.end(), {"-o", "BatchMode=yes", "-o",
                         fmt::format("ConnectTimeout={}",
                                     std::chrono::ceil<std::chrono::seconds>(limit).count())});
  const auto runs = run_on(nodes, ssh, "sluice status --json", limit);

  std::vector<fleet_row> rows;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    fleet_row row{.node = nodes[i], .problem = runs[i].problem, .status = {}};
    if (row.problem.empty()) row.status = status_in(runs[i].out, row.problem);
    rows.push_back(std::move(row));
  }
  bool said = true;
  if (chosen.as_json) {
    json::array all;
    for (fleet_row& each : rows) {
      const bool answered = each.problem.empty();
      all.push_back(
          {{"node", each.node},
           {"problem", answered ? json::value(nullptr) : json::value(each.problem)},
           {"status", answered ? json::value(std::move(each.status)) : json::value(nullptr)}});
    }
    said = print(json::value{{"version", 1}, {"nodes", std::move(all)}});
  } else {
    said = print(fleet_table(rows, terminal_width()));
    for (const fleet_row& each : rows)
      if (!each.problem.empty())
        complain(fmt::format("{}: no answer: {}", printable(each.node), each.problem));
  }
  const bool all_answered =
      std::ranges::all_of(rows, [](const fleet_row& each) { return each.problem.empty(); });
  return said && all_answered ? exit_done : exit_failed;
}

CLI::Validator an_ssh() {
  return {[](std::string& text) -> std::string {
            return split(std::istringstream{text}).empty() ? "the command is empty" : "";
          },
          ""};
}

CLI::Validator a_timeout() {
  return {[](std::string& text) -> std::string {
            const auto value = parse_duration(text);
            if (value && *value >= 1s && *value <= 1h) return {};
            return fmt::format("invalid duration '{}': expected 1s to 1h", printable(text));
          },
          ""};
}

}  // namespace

subcommand add_fleet(CLI::App& program) {
  const auto chosen = std::make_shared<fleet_options>();
  auto* const command = program.add_subcommand("fleet", "Show many nodes in one table");
  command->require_subcommand(1);
  auto* const status = command->add_subcommand("status", "Run 'sluice status' on nodes over ssh");
  status->footer(
      "BUSY%: share of the last minute with online work, mean of the GPUs. HELD: groups\n"
      "that are suspended now, of the offline ones. TARGET: whether the spans of the\n"
      "last 5 to 10 minutes kept the p99 targets of the policy; '?': fewer than 100\n"
      "spans; '-': no target. BREAKERS: gpu_ids of GPUs whose breaker is open.\n"
      "Exit code 0: all nodes answered; 1: a node did not; 2: invalid command line.");
  status->add_option("NODE", chosen->nodes, "Names for ssh, such as node1 or root@node1")
      ->type_name("");
  status->add_option("--nodes", chosen->file, "File with more names; '#': comment; '-': stdin")
      ->type_name("FILE");
  status->add_option("--ssh", chosen->ssh, "ssh program and its options, separated by blanks")
      ->type_name("COMMAND")
      ->check(an_ssh())
      ->capture_default_str();
  status->add_option("--timeout", chosen->timeout, "Longest time for one node, from 1s")
      ->type_name("TIME")
      ->check(a_timeout())
      ->capture_default_str();
  status->add_flag("--json", chosen->as_json, "Print one line of JSON");
  return {command, [chosen] { return do_status(*chosen); }};
}

}  // namespace sluice::cli
