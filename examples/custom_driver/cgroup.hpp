#pragma once
// Files of cgroup v2 (https://docs.kernel.org/admin-guide/cgroup-v2.html), and what both sides of
// the driver agree on.

#include <sluice/ids.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace freezer {

inline constexpr const char* name = "freezer";
// The freezer knows no GPU, and suspends a cgroup as one.
inline constexpr sluice::gpu_id only_gpu{1};
inline constexpr sluice::driver_queue_id only_queue{1};

// Where cgroup v2 is mounted: in /proc/self/mountinfo the fifth word, where the type is cgroup2.
inline std::string mount_point() {
  std::ifstream mounts{"/proc/self/mountinfo"};
  std::string word;
  for (std::string line; std::getline(mounts, line);) {
    if (line.find(" - cgroup2 ") == line.npos) continue;
    std::istringstream words{line};
    for (int count = 0; count < 5; ++count) words >> word;
  }
  return word;
}

// The directory of a process's cgroup, where it lies below `root`; else empty.
inline std::string cgroup_of(pid_t pid, const std::string& root) {
  std::ifstream groups{"/proc/" + std::to_string(pid) + "/cgroup"};
  std::string found;
  for (std::string line; std::getline(groups, line);)
    if (line.starts_with("0::")) found = mount_point() + line.substr(3);
  return found.starts_with(root + "/") ? found : "";
}

// \return 0, also where the cgroup is gone and nothing is to be thawed; or the errno.
inline int freeze(const std::string& cgroup, bool so) {
  const int file = ::open((cgroup + "/cgroup.freeze").c_str(), O_WRONLY | O_CLOEXEC);
  const int error = file >= 0 && ::write(file, so ? "1" : "0", 1) == 1 ? 0 : errno;
  if (file >= 0) ::close(file);
  return !so && (error == ENOENT || error == ENODEV) ? 0 : error;
}

// \param events an open cgroup.events
inline bool is_frozen(int events) {
  char text[100]{};
  (void)!::pread(events, text, sizeof text - 1, 0);
  return std::strstr(text, "frozen 1") != nullptr;
}

}  // namespace freezer
