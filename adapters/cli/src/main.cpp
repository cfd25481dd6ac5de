/// \file
/// sluice: looks at a node's GPU queues, acts on them by hand, and is the daemon that does so by
/// itself.

#include "output.hpp"
#include "subcommand.hpp"

#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "sluice/kfd/driver.hpp"
#include "sluice/nvidia/driver.hpp"

namespace {

/// What is wrong where a subcommand should be, with a list of those there are; nothing else is.
std::optional<std::string> wrong_subcommand(const CLI::App& program) {
  const CLI::App* at = &program;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  std::string all;
  for (const auto* each : at->get_subcommands({}))
    if (!each->get_name().empty() && !each->get_group().empty())
      all += (all.empty() ? "" : ", ") + each->get_name();
  if (all.empty()) return {};
  const auto rest = at->remaining();
  if (rest.empty()) return "missing subcommand; available: " + all;
  if (rest.front().starts_with("-"))
    return "unknown option '" + sluice::cli::printable(rest.front()) + "'";
  return "unknown subcommand '" + sluice::cli::printable(rest.front()) + "'; available: " + all;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace sluice::cli;
  CLI::App program{
      "Show and suspend the GPU queues of processes on this node (AMD, NVIDIA).\n"
      "For another device, set SLUICE_KFD_DEVICE, SLUICE_KFD_SYSFS and\n"
      "SLUICE_KFD_DEBUGFS, or SLUICE_NVIDIA_DEVICE and SLUICE_NVIDIA_PROC.",
      "sluice"};
  program.get_formatter()->column_width(24);  // the subcommands', too
  program.require_subcommand(1);
  program.footer(exit_codes);  // of those that have no other, too
  program.set_version_flag("--version", "sluice " SLUICE_VERSION);
  const sluice::driver_list known{
      [] { return sluice::kfd::make_driver(); },
      [] { return sluice::nvidia::make_driver(); },
  };
  const std::vector<subcommand> all{
      add_doctor(program, known), add_queues(program, known),  add_hqds(program, known),
      add_role(program),          add_suspend(program, known), add_resume(program),
      add_release(program),       add_rescue(program, known),  add_breaker(program, known),
      add_run(program, known),    add_check(program, known),   add_status(program),
      add_top(program),           add_fleet(program),          add_why(program),
      add_pause(program),         add_unpause(program),        add_jobs(program),
      add_sim(program),           add_policy(program),         add_lab(program, known),
      add_replay(program),        add_analyze(program),        add_accept(program, known),
      add_manual(program),
  };
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);  // --help, --version
    complain(wrong_subcommand(program).value_or(error.what()) + " (see --help)");
    return exit_usage;
  }
  try {
    for (const auto& each : all)
      if (each.parsed->parsed()) return each.run();
  } catch (const std::exception& error) {
    complain(error.what());
  }
  return exit_failed;
}
