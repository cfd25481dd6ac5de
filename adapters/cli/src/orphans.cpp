#include "orphans.hpp"

#include "control_link.hpp"
#include "found_record.hpp"
#include "output.hpp"

#include <boost/json.hpp>
#include <fmt/format.h>

#include "sluice/os/proc.hpp"

namespace sluice::cli {

orphans find_orphans(const node_files& files) {
  orphans all;
  for (const auto& record : agent::find_records(files.owner()))
    if (record.is_orphaned || record.stopped_guardian != 0)
      for (const hold& each : record.holds)
        if (each.pid > 0 && start_time_of(each.pid) == each.start_time)
          all.emplace(each.pid, orphan{record.path, record.stopped_guardian});
  return all;
}

orphan_words words_of(const orphan& one, const node_files& files) {
  const std::string rescue = fmt::format("'sluice rescue{}' as root", directory_words(files));
  if (one.stopped_guardian == 0)
    return {"the agent was killed together with its guardian", "run " + rescue};
  return {fmt::format("the agent has ended, and its guardian, process {}, is stopped",
                      one.stopped_guardian),
          fmt::format("run 'kill -CONT {0}', or 'kill -KILL {0}' and then {1}",
                      one.stopped_guardian, rescue)};
}

std::string orphan_text(pid_t pid, const orphan& one, const node_files& files) {
  const orphan_words words = words_of(one, files);
  return fmt::format(
      "process {} ({}) may still be suspended, or have a shortened time slice: {} (record {}); {}",
      pid, command_of(pid), words.why, printable(one.record), words.advice);
}

std::optional<std::string> why_orphaned(pid_t pid, const node_files& files) {
  const orphans all = find_orphans(files);
  const auto found = all.find(pid);
  if (found == all.end()) return {};
  return orphan_text(pid, found->second, files);
}

std::string_view orphan_state(const orphan& one) {
  return one.stopped_guardian == 0 ? "orphaned" : "guardian-stopped";
}

orphans::const_iterator find_orphan(const boost::json::object& group, const orphans& all) {
  const auto* const members = group.if_contains("processes");
  if (members == nullptr || !members->is_array()) return all.end();
  for (const auto& each : members->get_array()) {
    const auto* const process = each.if_object();
    const auto* const pid = process != nullptr ? process->if_contains("pid") : nullptr;
    boost::system::error_code error;
    if (pid == nullptr || !pid->is_number()) continue;
    if (const auto found = all.find(pid->to_number<pid_t>(error)); !error && found != all.end())
      return found;
  }
  return all.end();
}

void mark_orphans(boost::json::object& status, const orphans& all) {
  auto* const groups = status.if_contains("groups");
  if (all.empty() || groups == nullptr || !groups->is_array()) return;
  for (auto& each : groups->get_array()) {
    auto* const group = each.if_object();
    if (group == nullptr) continue;
    const auto found = find_orphan(*group, all);
    if (found == all.end()) continue;
    (*group)["state"] = orphan_state(found->second);
    (*group)["state_since_unix_ms"] = nullptr;
  }
}

}  // namespace sluice::cli
