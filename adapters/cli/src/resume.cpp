// sluice resume: tells the `sluice suspend` that holds a process to let go.

#include "holder_link.hpp"
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
        "no 'sluice suspend' of this network namespace holds process {}, and nobody traces it; "
        "what a scheduler suspended 'sluice release {}' resumes",
        pid, pid);
  if (is_suspend(tracer))
    return fmt::format(
        "process {} is held by process {}, a 'sluice suspend' that cannot be asked: it is in "
        "another "
        "network namespace, or still attaches (a driver call may hang); wait, or end it, and "
        "everything resumes",
        pid, tracer);
  const std::string who = command_of(tracer);
  return fmt::format(
      "process {} is held by process {} ({}), which is no 'sluice suspend' of this network "
      "namespace; {}",
      pid, tracer, who,
      who == "sluice-agent"
          ? fmt::format("it acts for a scheduler, which 'sluice release {}' makes let go", pid)
          : fmt::format("where that is a scheduler, 'sluice release {}' makes it let go; else end "
                        "it, and everything resumes",
                        pid));
}

int resume(const resume_options& chosen) {
  const auto tracer = tracer_of(chosen.pid);
  if (!tracer) {
    complain(fmt::format("there is no process {}", chosen.pid));
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
    complain(
        fmt::format("process {}, which holds process {}, is a 'sluice suspend' that does not "
                    "answer (a driver call may hang, or it is stopped); wait, or 'kill -KILL {}', "
                    "which resumes everything",
                    answer->holder, chosen.pid, answer->holder));
    return exit_failed;
  }
  if (answer->text != "ok") {
    const std::string_view text = answer->text;
    complain(fmt::format("process {}, which holds process {}, says: {}", answer->holder, chosen.pid,
                         printable(text.starts_with("error ") ? text.substr(6) : text)));
    return exit_failed;
  }
  std::string what = "everything of it";
  if (!chosen.queues.empty()) what = "what was named";
  return print(fmt::format("process {} (held by {}): {} runs again\n", chosen.pid, answer->holder,
                           what))
             ? exit_done
             : exit_failed;
}

}  // namespace

subcommand add_resume(CLI::App& program) {
  const auto chosen = std::make_shared<resume_options>();
  auto* const command =
      program.add_subcommand("resume", "Make a running 'sluice suspend' let go of a process");
  command->footer(
      "Finds the 'sluice suspend' that holds the process and asks it to resume the\n"
      "given queues, or everything; when nothing is left suspended it ends. Only its\n"
      "user and root are heard. Exit code 0: they run; 1: nobody holds it, or it\n"
      "failed; 2: usage.");
  command->add_option("PID", chosen->pid, "The suspended process")
      ->required()
      ->check(a_process_id())
      ->type_name("");
  command->add_option("QID", chosen->queues, "Only these queues; else everything")
      ->check(queue_number())
      ->type_name("");
  return {command, [chosen] { return resume(*chosen); }};
}

}  // namespace sluice::cli
