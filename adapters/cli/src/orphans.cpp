#include "orphans.hpp"

#include "control_link.hpp"
#include "found_record.hpp"
#include "output.hpp"

#include <fmt/format.h>

#include "sluice/os/proc.hpp"

namespace sluice::cli {

orphans find_orphans(const node_files& files) {
  orphans all;
  for (const auto& record : agent::find_records(files.owner()))
    if (record.is_orphaned)
      for (const hold& each : record.holds)
        if (each.pid > 0 && start_time_of(each.pid) == each.start_time)
          all.emplace(each.pid, record.path);
  return all;
}

std::string orphan_text(pid_t pid, const std::string& record, const node_files& files) {
  return fmt::format(
      "process {} ({}) is still held by an agent that was killed together with its guardian "
      "(record {}); run 'sluice rescue{}' as root",
      pid, command_of(pid), printable(record), directory_words(files));
}

std::optional<std::string> why_orphaned(pid_t pid, const node_files& files) {
  const orphans all = find_orphans(files);
  const auto found = all.find(pid);
  if (found == all.end()) return {};
  return orphan_text(pid, found->second, files);
}

}  // namespace sluice::cli
