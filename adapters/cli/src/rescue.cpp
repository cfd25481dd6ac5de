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

/// Returns the driver of the daemon with this configuration, and sets its directory and agent. If
/// the file has errors, the rescue goes on with the defaults.
std::shared_ptr<const driver> read_config(rescue_options& chosen, const driver_list& known,
                                          std::string& agent) {
  const auto config = load_daemon(chosen.config, daemon_policies(), known);
  if (!config) {
    complain(fmt::format("warning: {} has errors; looking in {}", printable(chosen.config),
                         printable(chosen.files.directory)));
    return nullptr;
  }
  chosen.files = config->node.files;
  agent = config->node.agent_path;
  return config->node.driver;
}

/// The agent has the drivers, and the rights that they need.
int become_agent(rescue_options chosen, const driver_list& known) {
  std::string agent;
  std::shared_ptr<const driver> on;
  if (!chosen.config.empty()) on = read_config(chosen, known, agent);
  std::string tried;
  agent = agent::find_agent(agent, tried);
  if (agent.empty()) {
    complain(fmt::format("program sluice-agent not found (tried {}); set SLUICE_AGENT to its path",
                         printable(tried)));
    return exit_failed;
  }
  // Its first word is the name in its messages.
  std::vector<std::string> words{"sluice", "--rescue", "--owner-lock", chosen.files.owner()};
  if (chosen.everything) {
    if (!on || chosen.driver != any_driver) on = find_driver(known, chosen.driver);
    if (!on) return exit_failed;
    const acting_choice acting = on->acting();
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
      "Exit code 0: nothing is suspended, or everything runs again; 1: something could\n"
      "not be resumed; 2: invalid command line.");
  add_directory(*command, chosen->files);
  command->add_option("--config", chosen->config, "Use directory, agent and driver of this daemon")
      ->type_name("FILE");
  command->add_flag("--everything", chosen->everything,
                    "Resume all processes of the driver, also without a list");
  add_driver(*command, known, chosen->driver);
  return {command, [chosen, known] { return become_agent(*chosen, known); }};
}

}  // namespace sluice::cli
