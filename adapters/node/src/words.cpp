#include "words.hpp"

#include <fstream>

#include <spdlog/fmt/fmt.h>

namespace sluice {

std::string printable(std::string_view text) {
  std::string made(text);
  for (char& each : made)
    if (each < 0x20 || each >= 0x7f) each = '?';
  return made;
}

std::string span_text(duration value) {
  using namespace std::chrono_literals;
  const double seconds = std::chrono::duration<double>(value).count();
  if (value < 1s) return fmt::format("{:.1f} ms", 1e3 * seconds);
  if (value < 100s) return fmt::format("{:.1f} s", seconds);
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(value).count();
  if (whole < 6000) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

std::string_view words_of_cause(breaker_cause cause) {
  switch (cause) {
    case breaker_cause::preemption_failed: return "a preemption failed";
    case breaker_cause::reset: return "the GPU was reset";
    case breaker_cause::stuck_call: break;
  }
  return "a driver call was stuck";
}

std::string command_of_process(pid_t pid) {
  std::string name;
  std::getline(std::ifstream{fmt::format("/proc/{}/comm", pid)}, name);
  return printable(name);
}

}  // namespace sluice
