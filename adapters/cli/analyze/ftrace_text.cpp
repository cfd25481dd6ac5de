#include "ftrace_text.hpp"

#include "log_words.hpp"

#include <algorithm>
#include <limits>

namespace sluice::cli {
namespace {

/// "NAME-PID" at the end of the text.
bool task_at_end(std::string_view text, trace_line& found) noexcept {
  const auto last = text.find_last_not_of(' ');
  if (last == std::string_view::npos) return false;
  text = text.substr(0, last + 1);
  const auto dash = text.rfind('-');
  if (dash == std::string_view::npos) return false;
  std::string_view digits = text.substr(dash + 1);
  unsigned pid = 0;
  if (!take_number(digits, pid) || !digits.empty() ||
      pid > unsigned{std::numeric_limits<pid_t>::max()})
    return false;
  found.pid = static_cast<pid_t>(pid);
  found.task = unindented(text.substr(0, dash));
  return true;
}

/// What stands before the CPU: "TASK-PID", and "(TGID)" or "(-----)" where option record-tgid is
/// on.
bool read_task(std::string_view before, trace_line& found) noexcept {
  const auto last = before.find_last_not_of(' ');
  if (last == std::string_view::npos) return false;
  before = before.substr(0, last + 1);
  if (before.back() != ')') return task_at_end(before, found);
  const auto open = before.rfind('(');
  if (open == std::string_view::npos || !task_at_end(before.substr(0, open), found)) return false;
  std::string_view inside = unindented(before.substr(open + 1));
  unsigned group = 0;
  if (take_number(inside, group) && group != 0 &&
      group <= unsigned{std::numeric_limits<pid_t>::max()})
    found.pid = static_cast<pid_t>(group);
  return true;
}

/// Takes "SECONDS.MICROS" and `end` behind it.
bool take_time(std::string_view& text, std::string_view end) noexcept {
  std::string_view rest = text;
  unsigned long long number = 0;
  if (!take_number(rest, number) || !take(rest, ".") || !take_number(rest, number)) return false;
  rest = end == ":" ? rest : unindented(rest);
  if (!take(rest, end)) return false;
  text = rest;
  return true;
}

/// Marks the line as a call when the function is one of the driver's.
void name_function(std::string_view text, trace_line& found) noexcept {
  const std::string_view name = text.substr(0, text.find_first_of(" ([+<;"));
  const auto* const at = std::find(driver_functions.begin(), driver_functions.end(), name);
  if (at == driver_functions.end()) return;
  found.what = trace_line::is::call;
  found.function = static_cast<std::size_t>(at - driver_functions.begin());
}

/// "FUNCTION <-CALLER" of the tracer `function`, or "EVENT: (FUNCTION+0x0/0x123) ..." of a kprobe;
/// where a return probe fired, the parenthesis says "CALLER <- FUNCTION".
void read_event(std::string_view event, trace_line& found) noexcept {
  const auto arrow = event.find("<-");
  const auto probe = event.find(": (");
  if (probe != std::string_view::npos) {
    const std::string_view inside = event.substr(probe + 3, event.find(')', probe) - probe - 3);
    if (inside.find("<-") == std::string_view::npos && inside.find("+0x") != std::string_view::npos)
      name_function(inside, found);
  } else if (arrow != std::string_view::npos) {
    name_function(event, found);
  }
}

/// TASK-PID (TGID) [CPU] FLAGS SECONDS.MICROS: EVENT. A task's name may hold anything, so the CPU
/// is what has a task before it and a time after it.
bool read_flat(std::string_view line, trace_line& found) noexcept {
  for (auto at = line.find(" ["); at != std::string_view::npos; at = line.find(" [", at + 1)) {
    std::string_view rest = line.substr(at + 2);
    unsigned cpu = 0;
    if (!take_number(rest, cpu) || !take(rest, "] ")) continue;
    rest = unindented(rest);
    if (!take_time(rest, ":")) {
      const auto flags = rest.find(' ');
      if (flags == std::string_view::npos) continue;
      rest = unindented(rest.substr(flags));
      if (!take_time(rest, ":")) continue;
    }
    trace_line read;
    if (!read_task(line.substr(0, at), read)) continue;
    read.what = trace_line::is::other;
    read_event(unindented(rest), read);
    found = read;
    return true;
  }
  return false;
}

/// function_graph: [SECONDS.MICROS |] CPU) [TASK-PID |] [DURATION] | FUNCTION [MODULE]() {
bool read_graph(std::string_view line, trace_line& found) noexcept {
  line = unindented(line);
  if (take_time(line, "|")) line = unindented(line);
  unsigned cpu = 0;
  if (!take_number(line, cpu) || !take(line, ")")) return false;
  const auto bar = line.rfind('|');
  if (bar == std::string_view::npos) return false;
  const std::string_view before = line.substr(0, bar);
  (void)task_at_end(before.substr(0, before.find('|')), found);
  found.what = trace_line::is::other;
  const std::string_view function = unindented(line.substr(bar + 1));
  if (function.find('(') != std::string_view::npos) name_function(function, found);
  return true;
}

}  // namespace

trace_line read_trace_line(std::string_view line) noexcept {
  trace_line found;
  // Where a CPU's part begins, and where its buffer ran over.
  if (line.starts_with("##### CPU ") ||
      (line.starts_with("CPU:") && line.find(" [LOST ") != std::string_view::npos)) {
    found.what = trace_line::is::other;
    return found;
  }
  if (read_flat(line, found) || read_graph(line, found)) return found;
  return {};
}

}  // namespace sluice::cli
