// sluice rescue: resumes what an agent held that was killed together with its guardian.

#include "control_link.hpp"
#include "output.hpp"
#include "subcommand.hpp"

#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/node_files.hpp"

namespace sluice::cli {

namespace {

/// The agent has the drivers, and the rights that they need.
int become_agent(const node_files& files) {
  std::string tried;
  const std::string agent = agent::find_agent("", tried);
  if (agent.empty()) {
    complain(fmt::format("program sluice-agent not found (tried {}); set SLUICE_AGENT to its path",
                         printable(tried)));
    return exit_failed;
  }
  ::execl(agent.c_str(), "sluice-agent", "--rescue", "--owner-lock", files.owner().c_str(),
          nullptr);
  complain(fmt::format("cannot execute {}: {}", printable(agent), error_text(errno)));
  return exit_failed;
}

}  // namespace

subcommand add_rescue(CLI::App& program) {
  const auto files = std::make_shared<node_files>();
  auto* const command =
      program.add_subcommand("rescue", "Resume what a killed agent left suspended");
  command->footer(
      "The agent lists in a file beside the owner lock what the kernel does not resume\n"
      "when the agent dies. This command resumes what is on this list, unless an agent\n"
      "or its guardian is running: that process resumes it. The next agent that starts\n"
      "does the same, and so does systemd when the service ends.\n"
      "Exit code 0: nothing is suspended, or everything runs again; 1: something could\n"
      "not be resumed; 2: invalid command line.");
  add_directory(*command, *files);
  return {command, [files] { return become_agent(*files); }};
}

}  // namespace sluice::cli
