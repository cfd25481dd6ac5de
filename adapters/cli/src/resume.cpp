// sluice resume: tells the `sluice suspend` that holds a process to let go.

#include "control_link.hpp"
#include "holder_link.hpp"
#include "orphans.hpp"
#include "output.hpp"
#include "subcommand.hpp"

#include <fstream>
#include <memory>
#include <string>

#include <fmt/format.h>

namespace sluice::cli {

namespace {

struct resume_options {
  pid_t pid = 0;
  std::vector<std::uint32_t> queues;
  node_files files;
};

/// Whether it was started as `sluice suspend`, as far as its command line tells.
bool is_suspend(pid_t pid) {
  std::ifstream line{fmt::format("/proc/{}/cmdline", pid)};
  std::string word;
  std::getline(line, word, '\0');
  return command_of(pid) == "sluice" && std::getline(line, word, '\0') && word == "suspend";
}

/// Why nobody could be asked to resume.
std::string refusal(pid_t pid, pid_t tracer) {
  if (tracer == 0)
    return fmt::format(
        "process {} is not held by a 'sluice suspend' in this network namespace, and is not "
        "traced; if a scheduler suspended its queues, run 'sluice release {}'",
        pid, pid);
  if (is_suspend(tracer))
    return fmt::format(
        "process {} is held by process {}, a 'sluice suspend' that cannot be reached: it runs in "
        "another network namespace, or is still attaching (a driver call may hang); wait, or end "
        "that process to resume everything",
        pid, tracer);
  const std::string who = command_of(tracer);
  return fmt::format(
      "process {} is traced by process {} ({}), which is not a 'sluice suspend' in this network "
      "namespace; {}",
      pid, tracer, who,
      who == "sluice-agent"
          ? fmt::format("the tracer acts for a scheduler: run 'sluice release {}'", pid)
          : fmt::format("if the tracer is a scheduler, run 'sluice release {}'; otherwise end the "
                        "tracer to resume everything",
                        pid));
}

int resume(const resume_options& chosen) {
  const auto tracer = tracer_of(chosen.pid);
  if (!tracer) {
    complain(fmt::format("there is no process {}", chosen.pid));
    return exit_failed;
  }
  // Such a hold would stay when a 'sluice suspend' ends its own.
  if (const auto left = why_orphaned(chosen.pid, chosen.files)) {
    complain(*left);
    return exit_failed;
  }
  std::string request = "resume";
  for (const auto id : chosen.queues) request += fmt::format(" {}", id);
  const auto answer = ask_holder(list_holders(), chosen.pid, request);
  if (!answer) {
    complain(refusal(chosen.pid, *tracer));
    return exit_failed;
  }
  if (answer->text.empty()) {
    complain(fmt::format(
        "process {}, the 'sluice suspend' that holds process {}, does not answer: a "
        "driver call may hang, or the command is stopped; wait, or run 'kill -KILL {}' to "
        "resume everything",
        answer->holder, chosen.pid, answer->holder));
    return exit_failed;
  }
  if (answer->text != "ok") {
    const std::string_view text = answer->text;
    complain(fmt::format("process {}, which holds process {}, refused: {}", answer->holder,
                         chosen.pid,
                         printable(text.starts_with("error ") ? text.substr(6) : text)));
    return exit_failed;
  }
  std::string what = "all of its queues";
  if (!chosen.queues.empty()) what = "the given queues";
  return print(fmt::format("process {} (held by {}): {} run again\n", chosen.pid, answer->holder,
                           what))
             ? exit_done
             : exit_failed;
}

}  // namespace

subcommand add_resume(CLI::App& program) {
  const auto chosen = std::make_shared<resume_options>();
  auto* const command =
      program.add_subcommand("resume", "Resume a process that 'sluice suspend' holds");
  command->footer(
      "Asks the 'sluice suspend' that holds the process to resume the given queues, or\n"
      "all queues. That 'sluice suspend' exits when it has resumed its last queue.\n"
      "Only root and the user of that 'sluice suspend' may do this.\n"
      "Exit code 0: the queues run; 1: no 'sluice suspend' holds the process, or the\n"
      "resume failed; 2: invalid command line.");
  command->add_option("PID", chosen->pid, "Suspended process")
      ->required()
      ->check(a_process_id())
      ->type_name("");
  command->add_option("QID", chosen->queues, "Resume only these queues [all queues]")
      ->check(queue_number())
      ->type_name("");
  add_directory(*command, chosen->files);
  return {command, [chosen] { return resume(*chosen); }};
}

}  // namespace sluice::cli
