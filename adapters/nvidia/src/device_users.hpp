#pragma once
/// \file
/// Processes that have the control device open, and their descriptors of it.

#include "stop_function.hpp"

#include <sys/stat.h>
#include <sys/types.h>

#include <atomic>
#include <compare>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice::nvidia {

/// Recognises open files of one device, also in processes that have it under another path.
///
/// Threading: any thread.
class device_file {
 public:
  /// \return the system's error if there is no such file.
  [[nodiscard]] static result<device_file> at(const std::string& path);

  /// Appends the numbers of a process's descriptors of this device. \return how many descriptors of
  /// any file it has, or the system's error if they cannot be listed: ECANCELED after a stop.
  [[nodiscard]] result<std::size_t> list(pid_t pid, std::vector<int>& into,
                                         const stop_function& stops = {}) const;

  /// Returns whether a descriptor of this process is one of this device.
  [[nodiscard]] bool is_open_at(int fd) const;

  friend bool operator==(const device_file&, const device_file&) = default;

 private:
  [[nodiscard]] bool matches(const struct ::statx& about) const;

  std::string name_;  ///< Without directories.
  bool is_device_ = false;
  dev_t device_ = 0;  ///< Its number; of a file of a simulated device, the file system's.
  ino_t inode_ = 0;   ///< 0 for a real device.
};

/// A descriptor in another process.
struct remote_fd {
  pid_t pid = 0;
  int fd = -1;
  pid_t thread = 0;  ///< As visible_thread_of(), if that is not the main thread.
  friend auto operator<=>(const remote_fd&, const remote_fd&) = default;
};

/// Returns the thread over which the kernel shows a process's descriptors and memory: the main
/// thread, or another one after that has ended. 0: all have ended.
[[nodiscard]] pid_t visible_thread_of(pid_t pid);
/// Opens a process by that thread. \return the system's error, also for another thread than the
/// main one before Linux 6.9.
[[nodiscard]] result<unique_fd> open_process(pid_t pid, pid_t thread);

/// Lists the descriptors of the device in all processes but this one, as far as this process may
/// look at them.
[[nodiscard]] std::vector<remote_fd> list_users(const device_file& of);

/// The same for several threads, and cheaper: it lists only processes anew whose number of
/// descriptors changed, and each once a second, or more rarely if that would take more than 0.5 %
/// of a core (5 % before Linux 6.2).
///
/// Threading: any thread.
/// Cost:      0.25 ms for 300 processes, less while no process begins; list_users() takes 14 ms if
///            each has 20 descriptors.
///            Before Linux 6.2 no number of descriptors is known.
class user_list {
 public:
  using list = std::shared_ptr<const std::vector<remote_fd>>;

  explicit user_list(device_file of) : of_(std::move(of)) {}
  [[nodiscard]] const device_file& of() const noexcept { return of_; }
  /// Returns a list that is at most this old. The same pointer as before: nothing changed. Null:
  /// for lack of descriptors or memory there is no such list, or it stopped; the next call goes on.
  [[nodiscard]] list now(duration age, const stop_function& stops = {});
  /// Returns how much processor time the last list took; 0 before the second one.
  [[nodiscard]] duration cost() const noexcept { return cost_; }

 private:
  struct process {
    ino_t inode = 0;        ///< Of its directory: another process with this pid has another one.
    off_t descriptors = 0;  ///< Number of them.
    bool is_of_kernel = false;
    time_point listed{};
    std::vector<remote_fd> of_device{};
  };

  std::optional<std::vector<remote_fd>> read(const stop_function& stops);

  const device_file of_;
  std::mutex reading_;  ///< Held during a read.
  std::map<pid_t, process> processes_;
  std::string newest_pid_;   ///< At the last read...
  bool was_changed_ = true;  ///< ...which found another one than the read before.
  time_point listed_{};      ///< When all processes were.
  time_point began_{};       ///< The last read.
  duration for_lists_{};     ///< Processor time for processes without a change...
  pid_t turn_of_ = 0;        ///< ...of which those with lower pids had their turn.
  std::atomic<duration> cost_{};
  std::mutex mutex_;  ///< Of the next two. Never held during a read.
  time_point read_ = time_point::min();
  list all_;
};

/// Returns whether the process is one of sluice's own programs beside this one: `sluice queues` and
/// other agents have duplicates for a moment.
[[nodiscard]] bool is_sluice(pid_t pid);
/// Returns whether a process has the user, the cgroups and the environment of another one, as after
/// fork(): then the rules for roles see no difference.
[[nodiscard]] bool has_traits_of(pid_t pid, pid_t other);

/// Identifies what fork() passes on, and what another container or user does not have: the user and
/// the cgroups. 0: they cannot be read.
/// \param thread a process, or as visible_thread_of().
[[nodiscard]] std::uint64_t kinship_of(pid_t thread);
/// Identifies the mount over which a descriptor was opened: two with different mounts have
/// different open files. 0: it cannot be read, or the kernel does not tell (before Linux 5.8).
[[nodiscard]] std::uint64_t mount_of(pid_t thread, int fd);

/// Duplicates a descriptor of another process (pidfd_getfd(2)). \return the system's error.
[[nodiscard]] result<unique_fd> duplicate(const unique_fd& pidfd, int fd);

/// Returns whether `own` and a descriptor of another process refer to one open file description
/// (kcmp(2)).
/// \param why the system's error if the kernel does not tell: ESRCH or EBADF if the process or the
///            descriptor is gone.
[[nodiscard]] bool is_same_file(int own, const remote_fd& other, error_code& why);
[[nodiscard]] inline bool is_same_file(int own, const remote_fd& other) {
  error_code ignored;
  return is_same_file(own, other, ignored);
}
/// Returns true also if the kernel does not tell, for lack of rights, and the process may have it.
[[nodiscard]] bool may_be_same_file(int own, const remote_fd& other);

}  // namespace sluice::nvidia
