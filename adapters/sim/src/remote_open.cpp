#include "remote_open.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <optional>
#include <utility>

namespace sluice::sim {

#if defined(__x86_64__)

namespace {

constexpr std::uint64_t kernel_no_call = ~std::uint64_t{0};  // orig_rax: nothing to restart.
constexpr std::size_t page = 4096;

void* pointer(std::uint64_t value) { return reinterpret_cast<void*>(value); }  // NOLINT

long trace(int request, pid_t tid, std::uint64_t address, const void* data) {
  return ptrace(static_cast<__ptrace_request>(request), tid, pointer(address),
                const_cast<void*>(data));  // NOLINT: the C library's type.
}

const void* signal_argument(int number) { return pointer(static_cast<std::uint64_t>(number)); }

bool traced_by_somebody(pid_t tid) {
  std::ifstream status{"/proc/" + std::to_string(tid) + "/status"};
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("TracerPid:")) return line != "TracerPid:\t0";
  }
  return false;
}

/// The next change of a tracee's state; nothing when it is gone or has kept us waiting, or (given
/// one) a stop is requested.
std::optional<int> next_stop(pid_t tid, const std::stop_token* stop = nullptr) {
  using std::chrono::microseconds;
  // Longer than any file of ours takes to open on a busy machine.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{30};
  for (auto pause = microseconds{20};; pause = std::min(pause * 2, microseconds{2000})) {
    int status = 0;
    const auto got = waitpid(tid, &status, __WALL | __WNOTHREAD | WNOHANG);
    if (got == tid) return WIFSTOPPED(status) ? std::optional{status} : std::nullopt;
    if (got < 0 && errno != EINTR) return std::nullopt;
    if ((stop != nullptr && stop->stop_requested()) || std::chrono::steady_clock::now() > deadline)
      return std::nullopt;
    const timespec nap{.tv_sec = 0, .tv_nsec = pause.count() * 1000};
    nanosleep(&nap, nullptr);
  }
}

/// A tracee that stands at the return of a system call.
class stopped_thread {
 public:
  stopped_thread(pid_t tid, const std::stop_token& stop) : tid_{tid}, stop_{stop} {}

  /// Waits until it stands there. \return 0, or an errno value.
  int arrive() {
    for (;;) {
      const auto status = next_stop(tid_, &stop_);
      if (!status) return ESRCH;
      if ((*status >> 16) == PTRACE_EVENT_STOP) break;
      // A signal came first: it is its own.
      trace(PTRACE_CONT, tid_, 0, signal_argument(WSTOPSIG(*status)));
    }
    if (trace(PTRACE_GETREGS, tid_, 0, &registers_) != 0) return ESRCH;
    // The answer we expect, given to an instruction that we can use again.
    std::array<unsigned char, 2> code{};
    return registers_.orig_rax == SYS_ioctl && registers_.rax == 0 &&
                   copy(registers_.rip - code.size(), code, false) && code[0] == 0x0f &&
                   code[1] == 0x05
               ? 0
               : ECANCELED;
  }

  std::uint64_t argument() const { return registers_.rdx; }

  /// What comes meanwhile waits until let_go().
  void block_signals() {
    trace(PTRACE_GETSIGMASK, tid_, sizeof signals_, &signals_);
    // One that a system call filter forces upon it must not find itself blocked: that would kill.
    const std::uint64_t all = ~(std::uint64_t{1} << (SIGSYS - 1));
    trace(PTRACE_SETSIGMASK, tid_, sizeof all, &all);
  }

  /// Makes it call. \return the call's value or -errno; nothing when the thread is gone.
  std::optional<std::int64_t> call(std::uint64_t number,
                                   const std::array<std::uint64_t, 6>& arguments) {
    auto changed = registers_;
    changed.rip -= 2;
    changed.orig_rax = kernel_no_call;
    changed.rax = number;
    changed.rdi = arguments[0];
    changed.rsi = arguments[1];
    changed.rdx = arguments[2];
    changed.r10 = arguments[3];
    changed.r8 = arguments[4];
    changed.r9 = arguments[5];
    if (trace(PTRACE_SETREGS, tid_, 0, &changed) != 0) return std::nullopt;
    bool refused = false;
    int deliver = 0;
    for (int edges = 0; edges < 2;) {  // Into the call, and out of it.
      if (trace(PTRACE_SYSCALL, tid_, 0, signal_argument(deliver)) != 0) return std::nullopt;
      // Not to be left half-way: no stop is heard here.
      const auto status = next_stop(tid_);
      if (!status) return std::nullopt;
      deliver = 0;
      if (WSTOPSIG(*status) == (SIGTRAP | 0x80)) {
        ++edges;
      } else if (WSTOPSIG(*status) == SIGSTOP && (*status >> 16) == 0) {
        // Cannot be blocked. Delivered, it stops the whole process; this thread still goes on, and
        // stops with the others once it is let go.
        deliver = SIGSTOP;
      } else if ((*status >> 16) != PTRACE_EVENT_STOP) {
        refused = true;  // SIGSYS of a filter; the stop is where it is taken away.
        break;
      }
    }
    if (refused) return -EPERM;
    if (trace(PTRACE_GETREGS, tid_, 0, &changed) != 0) return std::nullopt;
    return static_cast<std::int64_t>(changed.rax);
  }

  /// Copies into it or out of it, whole or not at all.
  template <class Bytes>
  bool copy(std::uint64_t address, Bytes& bytes, bool into) const {
    const iovec local{bytes.data(), bytes.size()};
    const iovec remote{pointer(address), bytes.size()};
    const auto copied = into ? process_vm_writev(tid_, &local, 1, &remote, 1, 0)
                             : process_vm_readv(tid_, &local, 1, &remote, 1, 0);
    return copied == static_cast<ssize_t>(bytes.size());
  }

  /// Back to its own code and signals, its call being over.
  void let_go(int error) {
    registers_.rax = static_cast<std::uint64_t>(-static_cast<std::int64_t>(error));
    registers_.orig_rax = kernel_no_call;
    trace(PTRACE_SETREGS, tid_, 0, &registers_);
    trace(PTRACE_SETSIGMASK, tid_, sizeof signals_, &signals_);
    trace(PTRACE_DETACH, tid_, 0, nullptr);
  }

  /// As it is.
  void let_go() { trace(PTRACE_DETACH, tid_, 0, nullptr); }

 private:
  const pid_t tid_;
  const std::stop_token& stop_;
  user_regs_struct registers_{};
  std::uint64_t signals_ = 0;
};

/// \return 0 or an errno value; nothing when the thread is gone.
std::optional<int> open_there(stopped_thread& thread, const std::string& path,
                              os::file_place where) {
  const auto failed = [](std::int64_t value) { return value < 0 && value >= -4095; };
  const auto room = thread.call(
      SYS_mmap, {0, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, kernel_no_call, 0});
  if (!room) return std::nullopt;
  if (failed(*room)) return static_cast<int>(-*room);
  const auto address = static_cast<std::uint64_t>(*room);
  auto text = path;
  text += '\0';
  std::optional<std::int64_t> opened = -ENAMETOOLONG;
  if (text.size() <= page) {
    opened = -EFAULT;
    if (thread.copy(address, text, true)) {
      const std::uint64_t how = O_RDWR | (where.close_on_exec ? O_CLOEXEC : 0);
      opened = thread.call(SYS_openat, {static_cast<std::uint64_t>(AT_FDCWD), address, how});
    }
  }
  if (!opened || !thread.call(SYS_munmap, {address, page})) return std::nullopt;
  if (failed(*opened)) return static_cast<int>(-*opened);
  const auto fd = static_cast<std::uint32_t>(*opened);
  std::array<unsigned char, sizeof fd> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes.at(i) = static_cast<unsigned char>(fd >> 8 * i);
  }
  if (thread.copy(thread.argument() + where.offset, bytes, true)) return 0;
  if (!thread.call(SYS_close, {fd})) return std::nullopt;
  return EFAULT;
}

}  // namespace

int remote_open::attach() noexcept {
  if (trace(PTRACE_SEIZE, tid_, 0, pointer(PTRACE_O_TRACESYSGOOD)) != 0) {
    const int error = errno;
    return error == EPERM && traced_by_somebody(tid_) ? EBUSY : error;
  }
  // It sleeps in the kernel until it has our answer, so this takes effect behind that.
  trace(PTRACE_INTERRUPT, tid_, 0, nullptr);
  return 0;
}

int remote_open::run(const std::string& path, os::file_place where,
                     const std::stop_token& stop) noexcept {
  stopped_thread thread{tid_, stop};
  if (const int error = thread.arrive()) {
    // Wherever it is, the kernel lets it go at the end of this thread, if not here.
    thread.let_go();
    return error;
  }
  thread.block_signals();
  const auto error = open_there(thread, path, where);
  if (!error) return ESRCH;
  thread.let_go(*error);
  return *error;
}

#else

int remote_open::attach() noexcept { return EOPNOTSUPP; }
int remote_open::run(const std::string&, os::file_place, const std::stop_token&) noexcept {
  return EOPNOTSUPP;
}

#endif

}  // namespace sluice::sim
