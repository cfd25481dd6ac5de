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
  const auto who = kfd::identity_of(chosen.pid);
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
        fmt::format("process {} is held by process {}, a 'sluice suspend' and no scheduler; "
                    "'sluice resume {}' makes that let go",
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
        fmt::format("process {} is released, but process {} ({}) goes on tracing it: that is no "
                    "scheduler which follows {}, or it does not answer",
                    chosen.pid, tracer, command_of(tracer), store->path()));
    return exit_failed;
  }
  return print(fmt::format("process {} is left alone for {}; 'sluice release {} --end' ends that\n",
                           chosen.pid, to_text(chosen.how_long), chosen.pid))
             ? exit_done
             : exit_failed;
}

}  // namespace

subcommand add_release(CLI::App& program) {
  const auto chosen = std::make_shared<release_options>();
  auto* const command =
      program.add_subcommand("release", "Make schedulers leave a process alone for some time");
  command->footer(
      "Schedulers that follow the role store resume the process, let go of it and do\n"
      "not touch it until the time is over, nor the other ranks of its gang: strace,\n"
      "gdb and py-spy can attach. Returns once nobody traces it. Outlives schedulers;\n"
      "ends with the process. Needs the right to write the role store. Exit code 0:\n"
      "done; 1: it could not be done, or is still traced; 2: usage.");
  command->add_option("PID", chosen->pid, "The process")
      ->required()
      ->check(a_process_id())
      ->type_name("");
  auto* const limit =
      command
          ->add_option_function<std::string>(
              "--for",
              [chosen](const std::string& text) {
                const auto value = parse_duration(text);
                if (!value || *value <= 0s || *value > kfd::role_store::longest_release)
                  throw CLI::ValidationError(
                      "--for", "'" + text + "' is no time up to 24h; e.g. 30s, 10min or 2h");
                chosen->how_long = *value;
              },
              "How long, up to 24h [10min]")
          ->type_name("TIME");
  command->add_flag("--end", chosen->end, "End an earlier release now")->excludes(limit);
  add_store(*command, chosen->where);
  return {command, [chosen] { return release(*chosen); }};
}

}  // namespace sluice::cli
