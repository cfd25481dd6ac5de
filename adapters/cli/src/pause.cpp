// sluice pause, sluice unpause: everything runs on this node, whichever scheduler owns it.

#include "output.hpp"
#include "subcommand.hpp"

#include <cerrno>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "sluice/node_files.hpp"

namespace sluice::cli {

namespace {

struct options {
  node_files where;
  std::string why;
};

void add_directory(CLI::App& to, node_files& where) {
  to.add_option("--directory", where.directory, "Where the node's files are")
      ->capture_default_str()
      ->type_name("DIR");
}

int do_pause(const options& chosen) {
  std::string message;
  if (!pause_node(chosen.where, chosen.why, message)) {
    complain(printable(message));
    return exit_failed;
  }
  return print(fmt::format("paused: everything runs while {} exists; 'sluice unpause' ends that\n",
                           printable(chosen.where.disabled())))
             ? exit_done
             : exit_failed;
}

int do_unpause(const options& chosen) {
  std::string message;
  const auto done = unpause_node(chosen.where, message);
  if (!done && done.error() != boost::system::errc::no_such_file_or_directory) {
    complain(printable(message));
    return exit_failed;
  }
  return print(done ? "not paused any more\n" : "it was not paused\n") ? exit_done : exit_failed;
}

}  // namespace

subcommand add_pause(CLI::App& program) {
  const auto chosen = std::make_shared<options>();
  auto* const command =
      program.add_subcommand("pause", "Let everything run on this node until 'sluice unpause'");
  command->footer(
      "Makes the file 'disabled' beside the owner lock. While it exists, 'sluice run'\n"
      "and programs with a sluice::node suspend nothing, nor do those that come later.\n" +
      std::string{exit_codes});
  command->add_option("--why", chosen->why, "For who finds it paused")->type_name("TEXT");
  add_directory(*command, chosen->where);
  return {command, [chosen] { return do_pause(*chosen); }};
}

subcommand add_unpause(CLI::App& program) {
  const auto chosen = std::make_shared<options>();
  auto* const command = program.add_subcommand("unpause", "End 'sluice pause'");
  command->footer(exit_codes);
  add_directory(*command, chosen->where);
  return {command, [chosen] { return do_unpause(*chosen); }};
}

}  // namespace sluice::cli
