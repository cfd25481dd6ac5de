#include "sluice/node_view.hpp"

#include "sluice/os/proc.hpp"

namespace sluice {

std::string words_of_tracer(pid_t thread) {
  const auto process = process_of(thread);
  if (!process) return {};
  return "pid " + std::to_string(*process) + " (" + command_of(*process) + ")";
}

}  // namespace sluice
