#pragma once
/// \file
/// What the simulated driver asks of the operating system about the processes that call it: the
/// port between the driver's state machine and the real machine (os_linux.hpp) or a test's fake.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sluice/result.hpp"

namespace sluice::sim {

/// One address space: the identity of a kfd_process (the driver keys it by mm_struct).
class address_space {
 public:
  virtual ~address_space() = default;
  /// The thread-group leader's pid when it was opened.
  virtual pid_t pid() const noexcept = 0;
  /// False once the process exited or exec'd (the mm is released).
  virtual bool alive() const noexcept = 0;
  /// Whole-or-nothing copies from and to the process. EFAULT, ESRCH.
  virtual result<void> read(std::uint64_t address, std::span<std::byte> into) = 0;
  virtual result<void> write(std::uint64_t address, std::span<const std::byte> from) = 0;
  struct patch {
    std::uint64_t address;
    std::uint64_t value;
  };
  /// Many 8-byte stores, none across pages, in order, in as few system calls as possible.
  virtual result<void> write_words(std::span<const patch> patches) = 0;
};

/// Threading: every call comes on the engine's thread, and callbacks run there.
class os {
 public:
  virtual ~os() = default;
  /// Thread-group leader of a thread, 0 when there is none (ESRCH).
  virtual pid_t leader_of(pid_t tid) = 0;
  /// Does thread `tid` have memory? Not a zombie, and so not a main thread that ended before the
  /// others of its process; no kernel thread either.
  virtual bool has_memory(pid_t tid) = 0;
  /// The *thread* that traces the process's leader, 0 when none (`TracerPid`).
  virtual pid_t tracer_of(pid_t pid) = 0;
  /// Is CAP_... (linux/capability.h) in effect for the thread?
  virtual bool has_capability(pid_t tid, int capability) = 0;
  /// May thread `tid` attach to the process (PTRACE_MODE_ATTACH_REALCREDS)?
  virtual bool may_attach(pid_t tid, pid_t pid) = 0;
  /// Fails with ESRCH for zombies, kernel threads and unknown pids.
  virtual result<std::unique_ptr<address_space>> open_address_space(pid_t pid) = 0;
  /// Identity test: is `space` still the address space of `pid`?
  virtual bool same_address_space(pid_t pid, const address_space& space) = 0;
  /// Sends SIGKILL.
  virtual void kill_process(pid_t pid) = 0;
  /// Takes a duplicate of a descriptor of thread `tid`: a descriptor of ours, or EBADF.
  virtual result<int> take_fd(pid_t tid, int fd) = 0;
  virtual void close_fd(int fd) = 0;
  /// Are these two descriptors of ours one open file?
  virtual bool same_file(int one, int other) = 0;
  /// Is this descriptor of ours one of a GPU's render node?
  virtual bool is_render_node(int fd) = 0;
  /// Writes one byte without blocking; errors are ignored (a full pipe loses the byte).
  virtual void write_byte(int fd, char byte) = 0;
  /// Calls `rung` on the engine's thread whenever the eventfd becomes readable (and drains it).
  /// `fd` stays owned by the caller; unwatch before closing it.
  virtual void watch_doorbell(int fd, std::function<void()> rung) = 0;
  virtual void unwatch_doorbell(int fd) = 0;
  /// The thread's name as the kernel has it (`comm`), "" when it is gone.
  virtual std::string name_of(pid_t tid) = 0;

  struct file_handover {
    /// Called once, soon. 0: the call may be answered with success, and `done` follows. Else: what
    /// to refuse the call with; nothing was done to the thread, and `done` does not follow.
    std::function<void(int error)> ready;
    /// Called once, after the answer. 0: the thread has the descriptor. Else it has none, and its
    /// call has failed with that error, whatever the answer was.
    std::function<void(int error)> done;
  };
  struct file_place {
    std::size_t offset = 0;  ///< In the call's argument: where the number of the descriptor goes.
    bool close_on_exec = false;
  };
  /// Gives thread `tid`, which waits in ioctl(2) for our answer, an open descriptor of its own, as
  /// drivers do it by anon_inode_getfd(): before its call returns it has opened the file called
  /// `file` (the owner knows where), and the number stands in the call's argument.
  virtual void hand_over_file(pid_t tid, std::uint64_t file, file_place where,
                              file_handover told) = 0;
  /// The `file` of hand_over_file() that a descriptor of thread `tid` refers to. EBADF; EINVAL: it
  /// is another file.
  virtual result<std::uint64_t> handed_file(pid_t tid, int fd) = 0;
};

}  // namespace sluice::sim
