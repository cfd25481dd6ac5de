// sluice check: whether a configuration is right, and what the daemon would do with it.

#include "daemon_choice.hpp"
#include "output.hpp"
#include "subcommand.hpp"

#include <memory>
#include <string>

#include <fmt/format.h>

namespace sluice::cli {

namespace {

int check_file(const std::string& path) {
  const auto config = load_daemon(path, daemon_policies());
  if (!config) return exit_failed;
  if (const auto missing = config->missing_here(); !missing.empty()) {
    for (const std::string& each : missing) complain(printable(path + ": " + each));
    return exit_failed;
  }
  return print(fmt::format("{}: ok: {}\n", printable(path), printable(words_of(*config))))
             ? exit_done
             : exit_failed;
}

}  // namespace

subcommand add_check(CLI::App& program) {
  const auto path = std::make_shared<std::string>();
  auto* const command = program.add_subcommand("check", "Check a configuration of 'sluice run'");
  command->footer(
      "Prints every error with its line, or 'ok' and what would run; also what it names\n"
      "and this machine does not have. Starts nothing.\n"
      "Exit code 0: it is right; 1: it is not; 2: usage.");
  command->add_option("FILE", *path, "The configuration (TOML)")->required()->type_name("");
  return {command, [path] { return check_file(*path); }};
}

}  // namespace sluice::cli
