#include "sluice/kfd/tracee.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <utility>

#include "sluice/os/proc.hpp"

namespace sluice::kfd {

namespace {

using namespace std::chrono_literals;

/// How long a tracer thread or process may take to go away once it began to end.
constexpr duration tracer_end = 500ms;

bool stops_the_group(int signal) noexcept {
  return signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
}

/// ptrace(2) takes its data argument as a pointer, whatever it means.
void* as_data(std::uintptr_t value) noexcept {
  return reinterpret_cast<void*>(value);  // NOLINT(performance-no-int-to-ptr)
}

std::string name_of(pid_t pid) {
  return "process " + std::to_string(pid) + " (" + command_of(pid) + ")";
}

/// How to make the tracer of `pid` let go; its name is all that is known of it.
std::string way_out(const std::string& tracer, pid_t pid) {
  const std::string number = std::to_string(pid);
  if (tracer == "sluice") return "run 'sluice resume " + number + "' to detach it";
  if (tracer == "sluice-agent")
    return "this agent acts for a scheduler: run 'sluice release " + number +
           "' to detach it; all schedulers on a node must share one owner lock (directory in "
           "[daemon])";
  return "detach that program; if it is a scheduler, run 'sluice release " + number + "'";
}

}  // namespace

result<std::unique_ptr<tracee>> tracee::seize(pid_t pid, std::uint64_t start_time,
                                              const message_sink& say) {
  // The descriptor first: whatever it refers to, it keeps referring to; then ask who that is.
  unique_fd pidfd{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
  if (!pidfd || start_time_of(pid) != start_time) return errc::unknown_target;

  const auto give_up = clock::now() + tracer_end;
  bool untraced = false;
  // TRACEEXIT: a leader that ends keeps its memory until service(). The driver's ENABLE follows a
  // null pointer if the memory ends during the call (adapters/kfd/kernel/README.md). Not for our
  // own children: a wait for their end, on another thread of this process, would take the stop.
  const std::uintptr_t options =
      PTRACE_O_TRACEEXEC | (is_own_child(pid) ? 0u : std::uintptr_t{PTRACE_O_TRACEEXIT});
  while (::ptrace(PTRACE_SEIZE, pid, nullptr, as_data(options)) != 0) {
    const int error = errno;
    if (error == ESRCH) return errc::unknown_target;
    const pid_t tracer = tracer_of(pid).value_or(0);
    if (error == EPERM && tracer != 0 && clock::now() < give_up) {
      std::this_thread::sleep_for(2ms);
      continue;
    }
    // The tracer may have ended after the refusal. Only a second refusal is one of permission.
    if (error == EPERM && tracer == 0 && !std::exchange(untraced, true)) continue;
    if (error == EPERM && tracer == 0 && is_exiting(pid)) return errc::unknown_target;
    const pid_t process = tracer != 0 ? process_of(tracer).value_or(tracer) : 0;
    if (tracer != 0)
      say("cannot manage " + name_of(pid) + ": it is traced by pid " + std::to_string(process) +
          " (" + command_of(process) + "); " + way_out(command_of(process), pid));
    else
      say("cannot trace " + name_of(pid) + ": " + boost::system::system_category().message(error) +
          "; run as its user (with kernel.yama.ptrace_scope=0) or with CAP_SYS_PTRACE");
    return errc::not_managed;
  }
  std::unique_ptr<tracee> seized{new tracee{pid, std::move(pidfd)}};
  // The pid may have changed hands before the seizure: a dead descriptor or another start says so.
  // A stranger seized that way is let go when this thread ends. A leader that was ending already
  // does not stop any more.
  if (!seized->alive() || start_time_of(pid) != start_time || leader_is_exiting(pid)) {
    seized->service();
    return errc::unknown_target;
  }
  return seized;
}

result<std::unique_ptr<tracee>> tracee::watch(pid_t pid, std::uint64_t start_time) {
  unique_fd pidfd{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
  unique_fd memory{::open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDONLY | O_CLOEXEC)};
  const bool denied = !memory && (errno == EACCES || errno == EPERM);
  if (!pidfd || start_time_of(pid) != start_time) return errc::unknown_target;
  if (!memory) return denied ? errc::not_managed : errc::unknown_target;
  std::unique_ptr<tracee> watched{new tracee{pid, std::move(pidfd)}};
  watched->memory_ = std::move(memory);
  return watched;
}

tracee::change tracee::service() noexcept {
  if (!traced()) {
    if (!alive()) return change::exited;
    // Any address: of a living address space comes a byte, or EIO.
    char byte = 0;
    return ::pread(memory_.get(), &byte, 1, 0) == 0 ? change::lost : change::none;
  }
  change seen = change::none;
  for (;;) {
    int status = 0;
    // By pid, any kind of child, and only this thread's: other lanes' targets are not ours to take.
    const pid_t got = ::waitpid(pid_, &status, WNOHANG | __WALL | __WNOTHREAD);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return alive() ? change::lost : change::exited;
    if (got == 0) return seen;
    if (!WIFSTOPPED(status)) return change::exited;

    const int signal = WSTOPSIG(status);
    const int event = status >> 16;
    if (event == PTRACE_EVENT_STOP && stops_the_group(signal)) {
      // CONT would undo the stop; LISTEN keeps it and still hears of SIGCONT.
      ::ptrace(PTRACE_LISTEN, pid_, nullptr, nullptr);
    } else if (event != 0) {
      if (event == PTRACE_EVENT_EXEC) seen = change::exec;
      ::ptrace(PTRACE_CONT, pid_, nullptr, nullptr);
    } else {
      ::ptrace(PTRACE_CONT, pid_, nullptr, as_data(static_cast<std::uintptr_t>(signal)));
    }
    // ESRCH from these means that SIGKILL was faster: the next waitpid tells.
  }
}

bool tracee::alive() const noexcept { return !exits_within(duration{}); }

bool tracee::exits_within(duration limit) const noexcept {
  pollfd ended{pidfd_.get(), POLLIN, 0};
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
  return ::poll(&ended, 1, static_cast<int>(milliseconds)) > 0;
}

}  // namespace sluice::kfd
