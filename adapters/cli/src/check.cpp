// sluice check: whether a configuration is right, and what the daemon would do with it.

#include "sluice/check.hpp"

#include "daemon_choice.hpp"
#include "output.hpp"
#include "subcommand.hpp"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "sluice/agent/agent_backend.hpp"

namespace sluice::cli {

namespace {

/// What it needs beside what it names. Not errors: another machine, or another user, may run it.
std::vector<std::string> not_ready(const daemon_config& config) {
  std::vector<std::string> found;
  const std::string absent =
      config.node.driver ? config.node.driver->why_absent() : config.no_driver;
  machine here;
  std::string tried;
  here.agent = agent::find_agent(config.node.agent_path, tried);
  if (!absent.empty()) {
    found.push_back(absent + " (see 'sluice doctor')");
  } else if (config.node.mode == node_mode::enforce) {
    for (const check& each : config.node.driver->examine(here))
      if (each.what == verdict::blocked)
        found.push_back(fmt::format("{}: {}; {}", each.name, each.found, each.advice));
  }
  std::error_code error;
  if (!std::filesystem::is_directory(config.node.files.directory, error))
    found.push_back(fmt::format("directory {} {}; create it, or change directory of [daemon]",
                                config.node.files.directory,
                                error && error != std::errc::no_such_file_or_directory
                                    ? "cannot be found: " + error.message()
                                    : "does not exist"));
  else if (::access(config.node.files.directory.c_str(), W_OK) != 0)
    found.push_back(fmt::format("directory {} is not writable for this user: {}",
                                config.node.files.directory, error_text(errno)));
  if (config.node.mode == node_mode::enforce && here.agent.empty())
    found.push_back(
        fmt::format("program sluice-agent not found, or not executable for this user "
                    "(tried {}); set agent of [daemon], or SLUICE_AGENT, to its path",
                    tried));
  const auto& roles = config.node.settings.roles;
  const bool by_rule = !roles.by_environment.empty() || !roles.by_pid.empty() ||
                       !roles.by_cgroup.empty() || !roles.by_ring.empty() || roles.queue_priority;
  if (!by_rule && roles.role_store.empty() && roles.may_claim_offline == roles::claim_grant{})
    found.push_back(
        "no rule of [roles] can make a process offline, so sluice never suspends one; add a rule");
  if (config.node.mode == node_mode::observe &&
      roles.gangs.across_nodes != roles::gang_engine::none)
    found.push_back(
        "gang_across_nodes of [roles] has no effect in mode observe: gangs on several nodes run; "
        "set mode to \"enforce\", and run sluice-gangs");
  const auto& driver = config.node.driver;
  if (config.node.mode == node_mode::observe && config.node.settings.scheduler.see_unmarked &&
      driver && !driver->survey_sees_work())
    found.push_back(fmt::format(
        "see_unmarked of [scheduler] has no effect: with the driver {}, the work of programs "
        "without "
        "a client cannot be seen in mode observe; set mode to \"enforce\", or use clients",
        driver->name()));
  const auto& online = roles.may_claim_online;
  if (config.node.clients && config.node.socket_group && !online.everyone &&
      online.groups.empty() && online.cgroups.empty())
    found.push_back(
        fmt::format("socket_group of [daemon] lets gid {} connect, but "
                    "may_claim_online of [roles] names no group, so the daemon refuses online "
                    "clients of unlisted users; add the group to may_claim_online",
                    *config.node.socket_group));
  return found;
}

int check_file(const std::string& path, const driver_list& known) {
  const auto config = load_daemon(path, daemon_policies(), known);
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

subcommand add_check(CLI::App& program, const driver_list& known) {
  const auto path = std::make_shared<std::string>();
  auto* const command =
      program.add_subcommand("check", "Check a configuration file of 'sluice run'");
  command->footer(
      "Prints each error with its line, and each program or directory that the file\n"
      "names but that does not exist. If there are no errors, prints 'ok', the main\n"
      "settings, and each reason why the daemon would not work if this user started\n"
      "it now. Does not start the daemon.\n"
      "Exit code 0: no errors; 1: errors; 2: invalid command line.");
  command->add_option("FILE", *path, "Configuration file (TOML)")->required()->type_name("");
  return {command, [path, known] { return check_file(*path, known); }};
}

}  // namespace sluice::cli
