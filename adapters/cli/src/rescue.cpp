// sluice rescue: resumes what an agent held that was killed together with its guardian. A daemon
// that is running resumes everything itself.

#include "control_link.hpp"
#include "daemon_choice.hpp"
#include "driver_choice.hpp"
#include "found_record.hpp"
#include "output.hpp"
#include "status_view.hpp"
#include "subcommand.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/json/object.hpp>
#include <fmt/format.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/node_files.hpp"
#include "sluice/os/node_lock.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::cli {

namespace {

using namespace std::chrono_literals;

/// A driver call in flight, which takes up to 9 s, and some more.
constexpr duration daemon_patience = 15s;
constexpr duration daemon_look = 20ms;

struct rescue_options {
  node_files files;
  std::string config;
  std::string driver;
  bool everything = false;
  bool no_pause = false;
};

/// By pid and start time.
using process_set = std::set<std::pair<pid_t, std::uint64_t>>;

/// What the daemon has suspended, or has in its record. std::nullopt: it does not answer.
std::optional<process_set> suspended_by(control_link& daemon, const node_files& files,
                                        control_failure& failed) {
  const auto status = daemon.ask({{"ask", "status"}}, failed);
  if (!status) return {};
  process_set all;
  for (const suspended_count& each : suspended_counts(*status))
    if (each.suspended != 0 || each.in_doubt != 0) all.emplace(each.pid, each.start_time);
  for (const auto& record : agent::find_records(files.owner()))
    if (record.owner_lock == files.owner())
      for (const hold& each : record.holds) all.emplace(each.pid, each.start_time);
  std::erase_if(all, [](const auto& each) { return start_time_of(each.first) != each.second; });
  return all;
}

/// Makes the daemon that owns the node resume everything, and keeps it from suspending again.
/// \return the exit code. std::nullopt: no daemon answers, or it cannot resume.
std::optional<int> rescue_by_daemon(const rescue_options& chosen, const node_files& files) {
  const auto owner = node_lock::look(files.owner());
  if (!owner || !*owner || (*owner)->ended) return {};
  // The daemon's next agent waits for it.
  for (const auto& record : agent::find_records(files.owner()))
    if (record.owner_lock == files.owner() && record.stopped_guardian != 0) return {};
  const std::string who = printable((*owner)->words);
  control_link daemon{files};
  control_failure failed;
  const auto before = suspended_by(daemon, files, failed);
  if (!before) {
    if (failed.what != control_problem::nobody) complain("warning: " + failed.sentence);
    return {};
  }
  if (before->empty() && !chosen.everything) {
    return print(who + " owns the node, and has suspended no process\n") ? exit_done : exit_failed;
  }
  if (!daemon.ask({{"ask", "pause"}, {"why", "sluice rescue"}}, failed)) {
    complain(fmt::format("cannot make {} resume everything: {}", who, failed.sentence));
    return exit_failed;
  }
  auto still = before;
  for (const time_point end = clock::now() + daemon_patience;
       still && !still->empty() && clock::now() < end;) {
    std::this_thread::sleep_for(daemon_look);
    still = suspended_by(daemon, files, failed);
  }
  if (!still) {
    complain(fmt::format("{} was paused, but does not answer any more: {}", who, failed.sentence));
    return exit_failed;
  }
  std::string resumed;
  std::size_t count = 0;
  for (const auto& each : *before) {
    if (still->contains(each)) continue;
    ++count;
    const bool lives = start_time_of(each.first) == each.second;
    resumed += fmt::format("  process {}{}\n", each.first,
                           lives ? " (" + command_of(each.first) + ")" : ", which has ended");
  }
  const bool printed = print(fmt::format(
      "resumed: {} of {}\n{}{} stays paused and suspends nothing; 'sluice unpause{}' ends the "
      "pause\n",
      count, before->size(), resumed, who, directory_words(files)));
  for (const auto& [pid, since] : *still)
    complain(fmt::format(
        "process {} ({}) is not resumed yet: a driver call may hang; see the daemon's log and "
        "'sluice doctor{}'",
        pid, command_of(pid), directory_words(files)));
  if (chosen.everything)
    complain(fmt::format(
        "processes that this daemon did not suspend were not touched; to resume them too, end the "
        "daemon and run 'sluice rescue --everything{}' again",
        directory_words(files)));
  return printed && still->empty() && !chosen.everything ? exit_done : exit_failed;
}

/// The records that are left to look at once a daemon runs everything: of agents of
/// `sluice suspend`.
bool has_more_records(const node_files& files) {
  return std::ranges::any_of(agent::find_records(files.owner()), [&](const auto& each) {
    return each.owner_lock != files.owner() && (each.error || !each.holds.empty());
  });
}

/// The agent has the drivers, and the rights that they need.
int become_agent(const rescue_options& chosen, chosen_daemon daemon, const driver_list& known) {
  std::string tried;
  const std::string agent = agent::find_agent(daemon.agent, tried);
  if (agent.empty()) {
    complain(fmt::format("program sluice-agent not found (tried {}); set SLUICE_AGENT to its path",
                         printable(tried)));
    return exit_failed;
  }
  // Its first word is the name in its messages.
  std::vector<std::string> words{"sluice", "--rescue", "--owner-lock", daemon.files.owner()};
  if (chosen.everything) {
    if (!daemon.on) daemon.on = find_driver(known, chosen.driver);
    if (!daemon.on) return exit_failed;
    const acting_choice acting = daemon.on->acting();
    words.insert(words.end(), {"--everything", "--driver", acting.driver});
    for (const auto& [key, value] : acting.settings)
      words.insert(words.end(), {"--set", key + "=" + value});
  }
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(agent.c_str(), arguments.data());
  complain(fmt::format("cannot execute {}: {}", printable(agent), error_text(errno)));
  return exit_failed;
}

int rescue(const rescue_options& chosen, const driver_list& known) {
  auto daemon = choose_daemon(chosen.config, chosen.files, chosen.driver, known);
  if (!daemon) {
    complain(fmt::format("warning: {} has errors; looking in {}", printable(chosen.config),
                         printable(chosen.files.directory)));
    daemon = chosen_daemon{.files = chosen.files};
  }
  if (!chosen.no_pause) {
    const auto done = rescue_by_daemon(chosen, daemon->files);
    if (done == exit_failed) return exit_failed;
    if (done && !has_more_records(daemon->files)) return exit_done;
  }
  return become_agent(chosen, std::move(*daemon), known);
}

}  // namespace

subcommand add_rescue(CLI::App& program, const driver_list& known) {
  const auto chosen = std::make_shared<rescue_options>();
  auto* const command =
      program.add_subcommand("rescue", "Resume what a killed agent left suspended");
  command->footer(
      "An agent lists in a file beside its lock what the kernel does not resume when\n"
      "the agent dies. This command resumes what is on the lists of the node's agent\n"
      "and of the agents of 'sluice suspend'. The next agent that starts does the same,\n"
      "and so does systemd when the service ends. If a daemon is running and has\n"
      "suspended processes, this command pauses the daemon, which resumes them; the\n"
      "pause lasts until 'sluice unpause'. What a running 'sluice suspend' holds stays\n"
      "suspended. Without a list, --everything does not restore shortened time slices.\n"
      "Exit code 0: nothing is listed, or everything runs again; 1: something could not\n"
      "be resumed; 2: invalid command line.");
  add_directory(*command, chosen->files);
  add_daemon(*command, chosen->config);
  command->add_flag("--everything", chosen->everything,
                    "Resume all processes of the driver, also without a list");
  command->add_flag("--no-pause", chosen->no_pause, "Do not pause a daemon that is running");
  add_driver(*command, known, chosen->driver);
  return {command, [chosen, known] { return rescue(*chosen, known); }};
}

}  // namespace sluice::cli
