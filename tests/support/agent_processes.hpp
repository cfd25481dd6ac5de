#pragma once
/// \file
/// The agent's processes, as tests find them.

#include "eventually.hpp"
#include "proc_text.hpp"

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "sluice/os/proc.hpp"

namespace sluice::test {

/// The agent's pid, from the second line of the owner's file.
inline pid_t agent_of(const std::string& owner_lock) {
  std::ifstream file{owner_lock};
  std::string host;
  std::getline(file, host);
  pid_t pid = 0;
  file >> pid;
  return pid;
}

/// 0: it has none, or none that runs yet.
inline pid_t find_guardian_of(pid_t agent) {
  for (const auto& each : std::filesystem::directory_iterator{"/proc"}) {
    const auto pid = parse_number<pid_t>(each.path().filename().string());
    if (!pid || command_of(*pid) != "sluice-guardian") continue;
    const std::string status = proc_text(each.path() / "status");
    if (status_number(status, "PPid") == static_cast<std::uint64_t>(agent)) return *pid;
  }
  return 0;
}
/// It takes its name once it runs.
inline pid_t guardian_of(pid_t agent) {
  pid_t found = 0;
  eventually(patience, [&] { return (found = find_guardian_of(agent)) != 0; });
  return found;
}

inline bool is_gone(pid_t pid) {
  if (::kill(pid, 0) != 0) return true;
  const std::string stat = proc_text("/proc/" + std::to_string(pid) + "/stat");
  return stat.find(") Z ") != std::string::npos;  // Its new parent may not reap it.
}

/// Kills both, so that the guardian does not act. \return whether they are gone.
inline bool kill_agent_and_guardian(pid_t agent) {
  const pid_t guardian = guardian_of(agent);
  if (guardian == 0) return false;
  // The guardian cannot act while it is stopped, nor on the way from that to its death.
  ::kill(guardian, SIGSTOP);
  ::kill(agent, SIGKILL);
  if (!eventually(patience, [&] { return is_gone(agent); })) return false;
  ::kill(guardian, SIGKILL);
  return eventually(patience, [&] { return is_gone(guardian); });
}

}  // namespace sluice::test
