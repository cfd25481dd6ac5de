// sluice resume: tells the `sluice suspend` that holds a process to let go.

#include "holder_link.hpp"
#include "output.hpp"
#include "subcommand.hpp"

#include <cerrno>
#include <fstream>
#include <memory>

#include <fmt/format.h>

namespace sluice::cli {

namespace {

struct options {
  pid_t pid = 0;
  std::vector<std::uint32_t> queues;
};

/// TracerPid of the process, a thread; nothing when there is no such process.
std::optional<pid_t> tracer_of(pid_t pid) {
  std::ifstream status{fmt::format("/proc/{}/status", pid)};
  for (std::string word; status >> word;) {
    pid_t tracer = 0;
    if (word == "TracerPid:" && status >> tracer) return tracer;
  }
  return {};
}

std::string command_of(pid_t pid) {
  std::ifstream file{fmt::format("/proc/{}/comm", pid)};
  std::string name;
  std::getline(file, name);
  return name.empty() ? "?" : printable(name);
}

int resume(const options& chosen) {
  const auto tracer = tracer_of(chosen.pid);
  if (!tracer) {
    complain(fmt::format("there is no process {}", chosen.pid));
    return exit_failed;
  }
  const pid_t holder = *tracer == 0 ? 0 : process_of_thread(*tracer);
  if (holder == 0) {
    complain(
        fmt::format("no 'sluice suspend' holds process {}: nobody traces it, so nothing of "
                    "ours is suspended there",
                    chosen.pid));
    return exit_failed;
  }
  std::string request = "resume";
  for (const auto id : chosen.queues) request += fmt::format(" {}", id);
  const auto answer = ask_holder(holder, request);
  if (!answer) {
    const std::string who = command_of(holder);
    complain(
        fmt::format("process {} is held by process {} ({}), which is no 'sluice suspend' of "
                    "this network namespace; {}",
                    chosen.pid, holder, who,
                    who == "sluice-agent" ? "it acts for a scheduler, which resumes by itself"
                                          : "end that one: then everything resumes"));
    return exit_failed;
  }
  if (*answer != "ok") {
    complain(fmt::format("process {}, which holds process {}, says: {}", holder, chosen.pid,
                         printable(answer->starts_with("error ") ? answer->substr(6) : *answer)));
    return exit_failed;
  }
  std::string what = "everything of it";
  if (!chosen.queues.empty()) what = "what was named";
  return print(fmt::format("process {} (held by {}): {} runs again\n", chosen.pid, holder, what))
             ? exit_done
             : exit_failed;
}

}  // namespace

subcommand add_resume(CLI::App& program) {
  const auto chosen = std::make_shared<options>();
  auto* const command =
      program.add_subcommand("resume", "Make a running 'sluice suspend' let go of a process");
  command->footer(
      "Finds the 'sluice suspend' that holds the process and asks it to resume the\n"
      "given queues, or everything; when nothing is left suspended it ends. Only its\n"
      "user and root are heard. Exit code 0: they run; 1: nobody holds it, or it\n"
      "failed; 2: usage.");
  command->add_option("PID", chosen->pid, "The suspended process")
      ->required()
      ->check(CLI::PositiveNumber)
      ->type_name("");
  command->add_option("QID", chosen->queues, "Only these queues; else everything")->type_name("");
  return {command, [chosen] { return resume(*chosen); }};
}

}  // namespace sluice::cli
