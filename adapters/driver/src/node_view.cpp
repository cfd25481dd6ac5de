#include "sluice/node_view.hpp"

#include "sluice/os/proc.hpp"

namespace sluice {

std::string words_of_tracer(pid_t thread) {
  const auto process = process_of(thread);
  if (!process) return {};
  return "pid " + std::to_string(*process) + " (" + command_of(*process) + ")";
}

std::string why_not_listed(pid_t pid, std::string_view driver) {
  const std::string name = "process " + std::to_string(pid);
  const auto leader = process_of(pid);
  if (!leader) return "there is no " + name;
  if (*leader != pid)
    return std::to_string(pid) + " is a thread, not a process; use its process " +
           std::to_string(*leader);
  return name + " does not use " + std::string{driver};
}

}  // namespace sluice
