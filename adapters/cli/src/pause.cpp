// sluice pause, sluice unpause: everything runs on this node, whichever node's program owns it.

#include "control_link.hpp"
#include "output.hpp"
#include "subcommand.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/json/object.hpp>
#include <fmt/format.h>

#include "sluice/node_files.hpp"
#include "sluice/os/node_lock.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::cli {

namespace {

struct pause_options {
  node_files where;
  std::string why;
};

/// What the file can hold for who finds it.
CLI::Validator one_line() {
  return {[](std::string& given) -> std::string {
            if (given.size() <= longest_reason && given == printable(given)) return {};
            return fmt::format(
                "invalid reason: expected one line of at most {} printable ASCII characters",
                longest_reason);
          },
          ""};
}

/// "2026-02-03 04:05:06", as in the log; empty: it is not there.
std::string time_of(const std::string& path) {
  struct stat found {};
  std::tm parts{};
  if (::lstat(path.c_str(), &found) != 0 || ::localtime_r(&found.st_mtime, &parts) == nullptr)
    return {};
  std::string text(sizeof "2026-02-03 04:05:06", '\0');
  text.resize(std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts));
  return text;
}

/// Agents of this machine: somebody acts, by whatever lock. A zombie has no lock.
std::string agents_here() {
  std::string all;
  std::error_code error;
  for (const auto& each : std::filesystem::directory_iterator{"/proc", error}) {
    const auto pid = whole_number<pid_t>(each.path().filename().string());
    if (pid && command_of(*pid) == "sluice-agent" && !is_exiting(*pid))
      all += fmt::format("{}{}", all.empty() ? "" : ", ", *pid);
  }
  return all;
}

std::string unpause_words(const node_files& where) {
  return "'sluice unpause" + directory_words(where) + "'";
}

/// Whether whoever owns the node may be able to do what this user may not.
bool may_be_anothers(error_code error) {
  return error == boost::system::errc::permission_denied ||
         error == boost::system::errc::operation_not_permitted ||
         error == boost::system::errc::read_only_file_system;
}

/// Asks whoever owns the node, where the directory is not this user's to write: whoever hangs must
/// not keep anybody else from pausing it. \return nothing where nobody hears, or whoever does
/// cannot do it: then what became of the file stands.
std::optional<result<void>> ask_owner(const pause_options& chosen, boost::json::object request,
                                      bool& was_there, std::string& message) {
  control_failure failed;
  const auto answer = control_link{chosen.where}.ask(std::move(request), failed);
  if (answer) {
    const auto* const before = answer->if_contains("before");
    was_there = before != nullptr && before->is_bool() && before->as_bool();
    return result<void>{};
  }
  if (failed.what != control_problem::denied) return {};
  message = failed.sentence;
  return result<void>{error_code{EACCES, boost::system::system_category()}};
}

result<void> make_pause(const pause_options& chosen, std::string& message) {
  const auto made = pause_node(chosen.where, chosen.why, message);
  if (made || !may_be_anothers(made.error())) return made;
  bool was_there = false;
  const auto asked = ask_owner(chosen, {{"ask", "pause"}, {"why", chosen.why}}, was_there, message);
  return asked ? *asked : made;
}

/// \return ENOENT where it was not paused.
result<void> end_pause(const pause_options& chosen, std::string& message) {
  const auto ended = unpause_node(chosen.where, message);
  if (ended || !may_be_anothers(ended.error())) return ended;
  bool was_there = false;
  const auto asked = ask_owner(chosen, {{"ask", "unpause"}}, was_there, message);
  if (!asked) return ended;
  if (*asked && !was_there) return error_code{ENOENT, boost::system::system_category()};
  return *asked;
}

/// What the pause does to whoever owns the node. \return the exit code.
int say_who_obeys(const node_files& where) {
  using kind = node_lock::kind;
  const auto found = node_lock::look(where.owner());
  if (!found) {
    const bool denied = found.error() == boost::system::errc::permission_denied;
    complain(fmt::format("{}: cannot determine which program owns the node: {}{}",
                         printable(where.owner()), found.error().message(),
                         denied ? "; run as root or as the user of that program" : ""));
    return exit_failed;
  }
  if (!*found) {
    const std::string agents = agents_here();
    complain(fmt::format(
        "{}: no program with this directory owns the node; programs that start with this directory "
        "suspend nothing until {}{}",
        printable(where.owner()), unpause_words(where),
        agents.empty()
            ? ""
            : "; schedulers with other directories are not paused (sluice-agent, process " +
                  agents + "); pause each of them with --directory"));
    return exit_failed;
  }
  const std::string who = printable((*found)->words);
  switch ((*found)->what) {
    case kind::node:
      return print(who + " owns the node and obeys the pause\n") ? exit_done : exit_failed;
    case kind::observing:
      return print(who + " owns the node in observe mode: it suspends nothing\n") ? exit_done
                                                                                  : exit_failed;
    case kind::scheduler: break;
  }
  complain(
      who +
      " owns the node and ignores the pause, because it embeds a scheduler without a sluice::node; "
      "end that program to resume everything");
  return exit_failed;
}

int do_pause(const pause_options& chosen) {
  const std::string file = chosen.where.disabled();
  const auto before = paused_why(chosen.where);
  if (before && chosen.why.empty()) {
    const std::string since =
        fmt::format("already paused since {}{}{}; {} ends the pause\n", time_of(file),
                    before->empty() ? "" : ": ", *before, unpause_words(chosen.where));
    return print(since) ? say_who_obeys(chosen.where) : exit_failed;
  }
  std::string message;
  if (!make_pause(chosen, message)) {
    complain(printable(message));
    return exit_failed;
  }
  const bool said =
      print(fmt::format("paused: 'sluice run' and other programs with a sluice::node suspend "
                        "nothing while {} exists; {} ends the pause\n",
                        printable(file), unpause_words(chosen.where)));
  return said ? say_who_obeys(chosen.where) : exit_failed;
}

int do_unpause(const pause_options& chosen) {
  std::string message;
  const auto done = end_pause(chosen, message);
  if (!done && done.error() != boost::system::errc::no_such_file_or_directory) {
    complain(printable(message));
    return exit_failed;
  }
  std::error_code error;
  if (!done && !std::filesystem::is_directory(chosen.where.directory, error)) {
    complain(fmt::format("{}: no such directory; name the directory of the node with --directory",
                         printable(chosen.where.directory)));
    return exit_failed;
  }
  return print(std::string_view(done ? "the pause has ended\n" : "the node was not paused\n"))
             ? exit_done
             : exit_failed;
}

}  // namespace

subcommand add_pause(CLI::App& program) {
  const auto chosen = std::make_shared<pause_options>();
  auto* const command =
      program.add_subcommand("pause", "Resume everything on this node until 'sluice unpause'");
  command->footer(
      "Creates the file 'disabled' beside the owner lock. While it exists, 'sluice run'\n"
      "and all programs with a sluice::node suspend nothing, even those started later.\n"
      "Programs that embed a scheduler without a node ignore the file: end them.\n"
      "Exit code 0: the owner of the node obeys; 1: the file cannot be created, the\n"
      "owner ignores the file, or no program with this directory owns the node;\n"
      "2: invalid command line.");
  command->add_option("--why", chosen->why, "Reason shown to users [the previous reason]")
      ->type_name("TEXT")
      ->check(one_line());
  add_directory(*command, chosen->where);
  return {command, [chosen] { return do_pause(*chosen); }};
}

subcommand add_unpause(CLI::App& program) {
  const auto chosen = std::make_shared<pause_options>();
  auto* const command = program.add_subcommand("unpause", "End the pause of the node");
  command->footer(exit_codes);
  add_directory(*command, chosen->where);
  return {command, [chosen] { return do_unpause(*chosen); }};
}

}  // namespace sluice::cli
