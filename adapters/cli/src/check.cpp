// sluice check: whether a configuration is right, and what the daemon would do with it.

#include "daemon_choice.hpp"
#include "output.hpp"
#include "subcommand.hpp"

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/kfd/roots.hpp"

namespace sluice::cli {

namespace {

/// What it needs beside what it names. Not errors: another machine, or another user, may run it.
std::vector<std::string> not_ready(const daemon_config& config) {
  std::vector<std::string> found;
  const auto where = kfd::roots::from_environment();
  std::error_code error;
  if (!std::filesystem::exists(where.device, error))
    found.push_back(fmt::format("there is no {}: is the amdgpu driver loaded? ('sluice doctor')",
                                where.device));
  if (!std::filesystem::is_directory(config.node.files.directory, error))
    found.push_back(fmt::format("there is no directory {} (directory of [daemon])",
                                config.node.files.directory));
  if (std::string tried; config.node.mode == node_mode::enforce &&
                         agent::find_agent(config.node.agent_path, tried).empty())
    found.push_back(
        fmt::format("there is no program sluice-agent that this user may start "
                    "(tried {}); name it with agent of [daemon], or SLUICE_AGENT",
                    tried));
  const auto& roles = config.node.settings.roles;
  const bool by_rule = !roles.by_environment.empty() || !roles.by_pid.empty() ||
                       !roles.by_cgroup.empty() || !roles.by_ring.empty() || roles.queue_priority;
  if (!by_rule && roles.role_store.empty() && roles.may_claim_offline == kfd::claim_grant{})
    found.push_back("no rule of [roles] can make a process offline, so nothing is ever held");
  const auto& online = roles.may_claim_online;
  if (config.node.clients && config.node.socket_group && !online.everyone &&
      online.groups.empty() && online.cgroups.empty())
    found.push_back(
        fmt::format("socket_group of [daemon] lets gid {} connect, but "
                    "may_claim_online of [roles] grants no group: clients that are no "
                    "user it names are refused",
                    *config.node.socket_group));
  return found;
}

int check_file(const std::string& path) {
  const auto config = load_daemon(path, daemon_policies());
  if (!config) return exit_failed;
  if (const auto missing = config->missing_here(); !missing.empty()) {
    for (const std::string& each : missing) complain(printable(path + ": " + each));
    return exit_failed;
  }
  std::string text = fmt::format("{}: ok: {}\n", printable(path), printable(words_of(*config)));
  for (const std::string& each : not_ready(*config))
    text += fmt::format("  not ready here: {}\n", printable(each));
  return print(text) ? exit_done : exit_failed;
}

}  // namespace

subcommand add_check(CLI::App& program) {
  const auto path = std::make_shared<std::string>();
  auto* const command = program.add_subcommand("check", "Check a configuration of 'sluice run'");
  command->footer(
      "Prints every error with its line, or 'ok' and what would run; also what it names\n"
      "and this machine does not have. After 'ok', what else keeps it from working\n"
      "here and now, for this user. Starts nothing.\n"
      "Exit code 0: it is right; 1: it is not; 2: usage.");
  command->add_option("FILE", *path, "The configuration (TOML)")->required()->type_name("");
  return {command, [path] { return check_file(*path); }};
}

}  // namespace sluice::cli
