#include "authority.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <latch>
#include <system_error>
#include <thread>

#include "sluice/kfd/uapi.hpp"
#include "sluice/os/unique_fd.hpp"

namespace sluice::kfd {

namespace {

/// A process that sleeps until it is killed, or this thread ends.
class sleeper {
 public:
  sleeper() noexcept {
    const pid_t parent = ::getpid();
    pid_ = static_cast<pid_t>(::syscall(SYS_clone, 0UL, 0, 0, 0, 0));
    if (pid_ != 0) return;
    // The copy of a process with threads: system calls only.
    ::syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (::syscall(SYS_getppid) != parent) ::syscall(SYS_exit_group, 1);
    for (;;) ::syscall(SYS_pause);
  }
  ~sleeper() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, __WALL) < 0 && errno == EINTR) {
    }
  }
  sleeper(const sleeper&) = delete;
  sleeper& operator=(const sleeper&) = delete;
  pid_t pid() const noexcept { return pid_; }

 private:
  pid_t pid_ = 0;
};

bool trap(const device& node, pid_t target, std::uint32_t operation,
          uapi::kfd_ioctl_dbg_trap_args args = {}) {
  args.pid = static_cast<std::uint32_t>(target);
  args.op = operation;
  return node.call(uapi::AMDKFD_IOC_DBG_TRAP, &args).has_value();
}

bool enable(const device& node, pid_t target, int event_fd) {
  uapi::kfd_runtime_info info{};
  uapi::kfd_ioctl_dbg_trap_args args{};
  args.enable.rinfo_ptr = reinterpret_cast<std::uintptr_t>(&info);
  args.enable.rinfo_size = sizeof(info);
  args.enable.dbg_fd = static_cast<std::uint32_t>(event_fd);
  return trap(node, target, uapi::KFD_IOC_DBG_TRAP_ENABLE, args);
}

}  // namespace

bool has_session(const device& node, pid_t target) {
  // How many queues it has: the least that only whoever may use a session hears.
  uapi::kfd_ioctl_dbg_trap_args args{};
  args.queue_snapshot.entry_size = sizeof(uapi::kfd_queue_snapshot_entry);
  return trap(node, target, uapi::KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT, args);
}

bool authorises_process(const device& node) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  const unique_fd reading{ends[0]};
  const unique_fd writing{ends[1]};
  const sleeper child;
  if (child.pid() <= 0) return false;
  bool enabled = false;
  std::latch opened{1};
  std::latch asked{1};
  try {
    std::thread tracer{[&] {
      enabled = ::ptrace(PTRACE_SEIZE, child.pid(), nullptr, nullptr) == 0 &&
                enable(node, child.pid(), writing.get());
      opened.count_down();
      asked.wait();
      if (enabled) trap(node, child.pid(), uapi::KFD_IOC_DBG_TRAP_DISABLE);
    }};
    opened.wait();
    // This thread traces nobody.
    const bool allowed = enabled && has_session(node, child.pid());
    asked.count_down();
    tracer.join();
    return allowed;
  } catch (const std::system_error&) {
    return false;
  }
}

}  // namespace sluice::kfd
