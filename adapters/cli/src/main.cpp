/// \file
/// sluice: looks at a node's GPU queues and acts on them by hand.

#include "output.hpp"
#include "subcommand.hpp"

#include <exception>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  using namespace sluice::cli;
  CLI::App program{
      "Shows what uses the AMD GPUs of this node, and suspends and resumes it by hand.\n"
      "SLUICE_KFD_DEVICE, SLUICE_KFD_SYSFS and SLUICE_KFD_DEBUGFS name another device.",
      "sluice"};
  program.get_formatter()->column_width(24);  // the subcommands', too
  program.require_subcommand(1);
  program.set_version_flag("--version", "sluice " SLUICE_VERSION);
  const std::vector<subcommand> all{
      add_doctor(program),  add_queues(program),  add_hqds(program),
      add_role(program),    add_suspend(program), add_resume(program),
      add_release(program), add_sim(program),     add_lab(program),
  };
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);  // --help, --version
    complain(std::string{error.what()} + " (see --help)");
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
