#pragma once
/// \file
/// The directory under which a simulated device appears: where the file system is mounted, and the
/// plain directories and links that give it the shape of a machine's /dev and /sys.

#include "loop.hpp"

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace sluice::sim {

struct profile;

/// Below the root: `fuse` (the mount) and `sim` (a link into it). KFD: `dev/kfd` and `sys/class`
/// (links into the mount), the render nodes `dev/dri/renderD*` (links to /dev/zero), and
/// `sys/kernel/debug/kfd`, plain directories as in debugfs, so that they raise inotify events.
/// NVIDIA: `dev/nvidiactl`, `dev/nvidia0` and so on, and `proc` (links into the mount).
///
/// What a killed device left behind (a dead mount included) is taken over. One device per root: a
/// lock on the directory says so.
///
/// Threading: one thread.
/// Lifetime:  destruction removes all that is listed above, and the root if this made it. Unmount
///            first.
/// Errors:    the constructor throws std::runtime_error with a sentence for the user, and leaves
///            nothing behind.
class root_directory {
 public:
  root_directory(const std::string& path, const profile& node);
  root_directory(const root_directory&) = delete;
  root_directory& operator=(const root_directory&) = delete;
  ~root_directory();

  const std::string& path() const noexcept { return path_; }
  std::string mountpoint() const { return path_ + "/fuse"; }

  struct process_pasid {
    std::uint32_t gpu_id;
    std::uint32_t pasid;
  };
  /// Where debugfs has proc/<pid>: makes it, with pasid_<gpu_id> for each of these. A file appears
  /// with its content in it, where the file system can do that (O_TMPFILE).
  void process_appeared(pid_t pid, std::span<const process_pasid> pasids);
  void process_disappeared(pid_t pid);

 private:
  void make_kfd(const profile& node);
  void make_nvidia(const profile& node);
  void make_directory(const std::string& name, mode_t mode = 0755);
  void make_link(const std::string& name, const std::string& target);
  void clear_dead_mount() const;
  static void remove_process(const std::string& folder);
  void remove_everything() noexcept;

  std::string path_;
  bool made_root_ = false;
  bool process_directories_ = false;
  unique_fd lock_;
  std::vector<std::string> made_;  // In order of creation.
  std::set<pid_t> processes_;
};

}  // namespace sluice::sim
