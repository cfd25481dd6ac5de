#pragma once
/// \file
/// The driver's operating system port on Linux: /proc, pidfds and cross-memory copies.

#include "os.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

namespace sluice::sim {

class realtime_loop;

/// Needs the right to trace the processes that use the device (root has it).
///
/// Threading: the loop's thread.
/// Lifetime:  the loop outlives it, and it outlives every address space it opened.
class os_linux final : public os {
 public:
  /// \param exited called on the loop's thread after a process with an open address space exited.
  ///        An exec announces itself to nobody: the owner looks at address_space::alive() often.
  os_linux(realtime_loop& loop, std::function<void()> exited);

  pid_t leader_of(pid_t tid) override;
  bool has_memory(pid_t tid) override;
  pid_t tracer_of(pid_t pid) override;
  bool has_capability(pid_t tid, int capability) override;
  bool may_attach(pid_t tid, pid_t pid) override;
  result<std::unique_ptr<address_space>> open_address_space(pid_t pid) override;
  bool same_address_space(pid_t pid, const address_space& space) override;
  void kill_process(pid_t pid) override;
  result<int> take_fd(pid_t tid, int fd) override;
  void close_fd(int fd) override;
  bool same_file(int one, int other) override;
  bool is_render_node(int fd) override;
  void write_byte(int fd, char byte) override;
  void watch_doorbell(int fd, std::function<void()> rung) override;
  void unwatch_doorbell(int fd) override;
  std::string name_of(pid_t tid) override;
  /// The thread is made to do it by ptrace (x86-64 only): its call's return is where it is stopped,
  /// made to open the file, and let go; other threads go on. Refuses with
  ///   EBUSY       somebody else traces that thread, a debugger or a scheduler,
  ///   EPERM       we may not trace it,
  ///   EOPNOTSUPP  another architecture,
  /// and fails the call with what the thread's own open(2) fails with: ENOENT where it does not see
  /// the folder (another root or mount namespace), EMFILE, and so on.
  void hand_over_file(pid_t tid, std::uint64_t file, file_place where, file_handover told) override;
  result<std::uint64_t> handed_file(pid_t tid, int fd) override;
  /// Where the files are that hand_over_file() opens: a folder of our own file system.
  /// \param number_of tells their `file` from the inode; nothing: it is another inode there.
  void set_file_folder(const std::string& mountpoint, const std::string& name,
                       std::function<std::optional<std::uint64_t>(std::uint64_t)> number_of);

 private:
  realtime_loop& loop_;
  std::function<void()> exited_;
  std::string file_folder_;
  std::function<std::optional<std::uint64_t>(std::uint64_t)> number_of_;
  std::pair<std::uint32_t, std::uint32_t> file_system_;  // Its device number.
  std::uint64_t last_handover_ = 0;
  std::unordered_map<std::uint64_t, std::jthread> handovers_;  // Joined by their last message.
  std::unordered_map<pid_t, pid_t> leaders_;                   // Hints; checked before use.
};

}  // namespace sluice::sim
