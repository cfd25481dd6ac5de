#pragma once
/// \file
/// A cgroup of the test's own, where one can be made.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace sluice::test {

/// Below this process's own cgroup, of the first hierarchy that takes it. Removed at the end: its
/// processes must be gone by then.
class cgroup {
 public:
  explicit cgroup(const std::string& name) {
    std::ifstream own("/proc/self/cgroup");
    for (std::string line; std::getline(own, line);) {
      // "<hierarchy>:<controllers>:<path>"
      const auto first = line.find(':');
      const auto second = line.find(':', first + 1);
      if (second == line.npos) continue;
      const std::string controllers = line.substr(first + 1, second - first - 1);
      const std::string parent = line.substr(second + 1);
      const std::string path =
          (parent == "/" ? "" : parent) + "/sluice-test-" + std::to_string(getpid()) + "-" + name;
      for (const std::string& mount :
           {"/sys/fs/cgroup/" + controllers, std::string("/sys/fs/cgroup/unified")}) {
        directory_ = mount + path;
        if (::mkdir(directory_.c_str(), 0755) != 0) {
          if (errno != ENOENT) why_not_ = directory_ + ": " + std::strerror(errno);
          continue;
        }
        // A directory of the mount point itself is no cgroup.
        procs_ = ::open((directory_ + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC);
        path_ = path;
        if (procs_ >= 0 && can_enter()) return;
        can_be_made_ = can_be_made_ || procs_ >= 0;
        leave();
      }
    }
  }
  ~cgroup() { leave(); }
  cgroup(const cgroup&) = delete;
  cgroup& operator=(const cgroup&) = delete;

  explicit operator bool() const noexcept { return procs_ >= 0; }
  /// Whether the system lets this process have one, though none may have become of it.
  bool can_be_made() const noexcept { return procs_ >= 0 || can_be_made_; }
  /// What the system said else; empty where no hierarchy is mounted.
  const std::string& why_not() const noexcept { return why_not_; }
  /// As /proc/PID/cgroup shows it.
  const std::string& path() const noexcept { return path_; }
  /// Moves the calling process. Async-signal-safe.
  bool enter() const noexcept { return ::write(procs_, "0", 1) == 1; }

 private:
  bool can_enter() const {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(enter() ? 0 : 1);
    int status = 1;
    ::waitpid(child, &status, 0);
    return status == 0;
  }
  void leave() {
    if (procs_ >= 0) ::close(procs_);
    procs_ = -1;
    if (!directory_.empty()) ::rmdir(directory_.c_str());
    directory_.clear();
  }

  std::string directory_;
  std::string path_;
  std::string why_not_;
  bool can_be_made_ = false;
  int procs_ = -1;
};

}  // namespace sluice::test
