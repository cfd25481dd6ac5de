#pragma once
/// \file
/// What the fake hardware of tests/driver runs of a process: `executions` of each device in
/// debugfs.

#include <sys/types.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace sluice::test {

/// Whether tests are to act on this machine's driver instead of a simulated device.
inline bool on_driver() {
  return std::getenv("SLUICE_TEST_ON_DRIVER") != nullptr;  // NOLINT: no test sets it.
}

struct executions {
  std::uint64_t not_mapped = 0;  ///< Queues that have run and are not mapped now.
  std::uint64_t started = 0;     ///< Packets.
  std::uint64_t completed = 0;
};

/// All zero for a process that the driver does not know.
inline executions executions_of(pid_t pid) {
  executions found;
  std::uint32_t pasid = 0;
  if (!(std::ifstream{"/sys/class/kfd/kfd/proc/" + std::to_string(pid) + "/pasid"} >> pasid))
    return found;
  for (const auto& each : std::filesystem::directory_iterator{"/sys/kernel/debug"}) {
    if (!each.path().filename().string().starts_with("sluice")) continue;
    std::ifstream file{each.path() / "executions"};
    std::uint32_t of = 0;
    bool mapped = false;
    std::uint64_t started = 0;
    std::uint64_t completed = 0;
    for (std::string label;
         file >> label >> of >> label >> mapped >> label >> started >> label >> completed;) {
      if (of != pasid) continue;
      found.not_mapped += mapped ? 0 : 1;
      found.started += started;
      found.completed += completed;
    }
  }
  return found;
}

}  // namespace sluice::test
