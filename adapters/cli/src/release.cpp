// sluice release: makes schedulers leave a process alone for some time.

#include "holder_link.hpp"
#include "output.hpp"
#include "store_choice.hpp"
#include "subcommand.hpp"

#include <chrono>
#include <memory>
#include <thread>

#include <fmt/format.h>

#include "sluice/duration_text.hpp"

namespace sluice::cli {

namespace {

using namespace std::chrono_literals;

/// A scheduler's own wait for a driver call in flight, and some more.
constexpr duration let_go_patience = 15s;
constexpr duration poll_interval = 20ms;

struct release_options {
  pid_t pid = 0;
  duration how_long = 10min;
  bool end = false;
  store_choice where;
};

/// Waits until nobody traces the process. \return who still does, 0: nobody, or it is gone.
pid_t wait_for_tracer(pid_t pid) {
  const time_point deadline = clock::now() + let_go_patience;
  for (;;) {
    const pid_t tracer = tracer_of(pid).value_or(0);
    if (tracer == 0 || clock::now() >= deadline) return tracer;
    std::this_thread::sleep_for(poll_interval);
  }
}

int release(const release_options& chosen) {
  const auto who = identity_of(chosen.pid);
  if (!who) {
    complain(fmt::format("there is no process {}", chosen.pid));
    return exit_failed;
  }
  auto store = find_store(chosen.where);
  if (!store) return exit_failed;
  std::string message;
  if (chosen.end) {
    if (store->end_release(*who, message))
      return print(fmt::format("schedulers manage process {} again\n", chosen.pid)) ? exit_done
                                                                                    : exit_failed;
    complain(message);
    return exit_failed;
  }
  if (const auto held = ask_holder(list_holders(), chosen.pid, "status")) {
    complain(
        fmt::format("process {} is held by 'sluice suspend' (process {}), not by a scheduler; run "
                    "'sluice resume {}' instead",
                    chosen.pid, held->holder, chosen.pid));
    return exit_failed;
  }
  const auto how_long = std::chrono::ceil<std::chrono::milliseconds>(chosen.how_long);
  if (!store->release(*who, how_long, message)) {
    complain(message);
    return exit_failed;
  }
  if (const pid_t tracer = wait_for_tracer(chosen.pid); tracer != 0) {
    complain(
        fmt::format("process {} is released, but process {} ({}) still traces it: the tracer does "
                    "not respond, or is not a scheduler with the role store {}; end the tracer, or "
                    "select its role store with --store",
                    chosen.pid, tracer, command_of(tracer), store->path()));
    return exit_failed;
  }
  return print(fmt::format(
             "process {} is released for {}; 'sluice release {} --end' ends the release\n",
             chosen.pid, to_text(chosen.how_long), chosen.pid))
             ? exit_done
             : exit_failed;
}

}  // namespace

subcommand add_release(CLI::App& program) {
  const auto chosen = std::make_shared<release_options>();
  auto* const command =
      program.add_subcommand("release", "Detach schedulers from a process for a limited time");
  command->footer(
      "Schedulers with this role store resume the process and detach from it, so that\n"
      "strace, gdb and py-spy can attach. Until the release ends, schedulers manage\n"
      "neither the process nor the other ranks of its gang. The command returns when no\n"
      "program traces the process. A release stays in effect when a scheduler restarts,\n"
      "and ends with the process. The command needs write access to the role store.\n"
      "Exit code 0: done; 1: failed, or still traced; 2: invalid command line.");
  command->add_option("PID", chosen->pid, "Process to release")
      ->required()
      ->check(a_process_id())
      ->type_name("");
  auto* const limit =
      command
          ->add_option_function<std::string>(
              "--for",
              [chosen](const std::string& text) {
                const auto value = parse_duration(text);
                if (!value || *value <= 0s || *value > roles::role_store::longest_release)
                  throw CLI::ValidationError(
                      "--for", "invalid duration '" + text +
                                   "': expected more than 0s, up to 24h, e.g. 30s, 10min or 2h");
                chosen->how_long = *value;
              },
              "Duration of the release, up to 24h [10min]")
          ->type_name("TIME");
  command->add_flag("--end", chosen->end, "End an earlier release now")->excludes(limit);
  add_store(*command, chosen->where);
  return {command, [chosen] { return release(*chosen); }};
}

}  // namespace sluice::cli
