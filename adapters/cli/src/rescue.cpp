// sluice rescue: resumes what an agent held that was killed together with its guardian.

#include "control_link.hpp"
#include "daemon_choice.hpp"
#include "driver_choice.hpp"
#include "output.hpp"
#include "subcommand.hpp"

#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/node_files.hpp"

namespace sluice::cli {

namespace {

struct rescue_options {
  node_files files;
  std::string config;
  std::string driver;
  bool everything = false;
};

/// The agent has the drivers, and the rights that they need.
int become_agent(const rescue_options& chosen, const driver_list& known) {
  auto daemon = choose_daemon(chosen.config, chosen.files, chosen.driver, known);
  if (!daemon) {
    complain(fmt::format("warning: {} has errors; looking in {}", printable(chosen.config),
                         printable(chosen.files.directory)));
    daemon = chosen_daemon{.files = chosen.files};
  }
  std::string tried;
  const std::string agent = agent::find_agent(daemon->agent, tried);
  if (agent.empty()) {
    complain(fmt::format("program sluice-agent not found (tried {}); set SLUICE_AGENT to its path",
                         printable(tried)));
    return exit_failed;
  }
  // Its first word is the name in its messages.
  std::vector<std::string> words{"sluice", "--rescue", "--owner-lock", daemon->files.owner()};
  if (chosen.everything) {
    if (!daemon->on) daemon->on = find_driver(known, chosen.driver);
    if (!daemon->on) return exit_failed;
    const acting_choice acting = daemon->on->acting();
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

}  // namespace

subcommand add_rescue(CLI::App& program, const driver_list& known) {
  const auto chosen = std::make_shared<rescue_options>();
  auto* const command =
      program.add_subcommand("rescue", "Resume what a killed agent left suspended");
  command->footer(
      "An agent lists in a file beside its lock what the kernel does not resume when\n"
      "the agent dies. This command resumes what is on the lists of the node's agent\n"
      "and of the agents of 'sluice suspend'. Agents that are running, and their\n"
      "guardians, resume by themselves what they suspended. The next agent that starts\n"
      "does the same as this command, and so does systemd when the service ends.\n"
      "Without a list, --everything does not restore shortened time slices.\n"
      "Exit code 0: nothing is listed, or everything runs again; 1: something could not\n"
      "be resumed; 2: invalid command line.");
  add_directory(*command, chosen->files);
  add_daemon(*command, chosen->config);
  command->add_flag("--everything", chosen->everything,
                    "Resume all processes of the driver, also without a list");
  add_driver(*command, known, chosen->driver);
  return {command, [chosen, known] { return become_agent(*chosen, known); }};
}

}  // namespace sluice::cli
