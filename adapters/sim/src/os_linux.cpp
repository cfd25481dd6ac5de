#include "os_linux.hpp"

#include "loop.hpp"
#include "remote_open.hpp"

#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace sluice::sim {

namespace {

// glibc 2.36 declares these without C linkage in C++.
int pidfd_open(pid_t pid, unsigned flags = 0) {
  return static_cast<int>(syscall(SYS_pidfd_open, pid, flags));
}
constexpr unsigned pidfd_thread = O_EXCL;  // PIDFD_THREAD, Linux 6.9.
int pidfd_getfd(int process, int fd) {
  return static_cast<int>(syscall(SYS_pidfd_getfd, process, fd, 0));
}

/// What the kernel knows of a file without a request to its file system, which can be our own and
/// wait for this thread. Zeros: nothing.
struct statx known_status(int fd) {
  struct statx out {};
  (void)statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &out);
  return out;
}

error_code system_error(int value) { return {value, boost::system::system_category()}; }

/// The beginning of /proc/<tid>/<name>; empty when the thread is gone.
std::string proc_text(pid_t tid, const char* name) {
  const unique_fd file{
      open(("/proc/" + std::to_string(tid) + "/" + name).c_str(), O_RDONLY | O_CLOEXEC)};
  if (!file) return {};
  std::string text(4096, '\0');
  const auto got = read(file.get(), text.data(), text.size());
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

std::string status_of(pid_t tid) { return proc_text(tid, "status"); }

/// The `Count` numbers behind `line` ("\nName:\t") in a status text; missing ones are 0.
template <class Number, std::size_t Count>
std::array<Number, Count> numbers_of(std::string_view status, std::string_view line,
                                     int base = 10) {
  std::array<Number, Count> out{};
  // The first line is the process's own name, where newlines are escaped: this finds a field.
  const auto found = status.find(line);
  if (found == std::string_view::npos) return out;
  const char* at = status.data() + found + line.size();
  const char* const end = status.data() + status.size();
  for (auto& value : out) {
    while (at != end && (*at == '\t' || *at == ' ')) ++at;
    at = std::from_chars(at, end, value, base).ptr;
  }
  return out;
}

/// One such number of a thread, 0 when it is gone.
pid_t status_field(pid_t tid, std::string_view line) {
  return numbers_of<pid_t, 1>(status_of(tid), line)[0];
}

bool effective(std::string_view status, int capability) {
  return (numbers_of<std::uint64_t, 1>(status, "\nCapEff:\t", 16)[0] >> capability & 1U) != 0;
}

/// Is thread `tid` in the thread group `leader` right now? EPERM says yes as well.
bool in_group(pid_t leader, pid_t tid) { return tgkill(leader, tid, 0) == 0 || errno == EPERM; }

/// The threads of a process, ended ones included, in no order.
std::vector<pid_t> threads_of(pid_t leader) {
  std::vector<pid_t> out;
  std::error_code error;
  const std::filesystem::path folder{"/proc/" + std::to_string(leader) + "/task"};
  for (std::filesystem::directory_iterator it{folder, error}, end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename();
    pid_t tid = 0;
    std::from_chars(name.data(), name.data() + name.size(), tid);
    if (tid > 0) out.push_back(tid);
  }
  return out;
}

/// An address space, held by an fd on /proc/PID/mem, which stays bound to the mm that the process
/// had when it was opened.
class address_space_linux final : public address_space {
 public:
  address_space_linux(realtime_loop& loop, pid_t pid, unique_fd memory, unique_fd process)
      : loop_{loop},
        pid_{pid},
        thread_{pid},
        memory_{std::move(memory)},
        process_{std::move(process)} {}
  address_space_linux(const address_space_linux&) = delete;
  address_space_linux& operator=(const address_space_linux&) = delete;
  ~address_space_linux() override { loop_.unwatch(process_.get()); }

  int pidfd() const noexcept { return process_.get(); }
  pid_t pid() const noexcept override { return pid_; }

  bool alive() const noexcept override {
    // Reading any address of a released mm gives 0 bytes; of a living one the byte, or EIO.
    char byte = 0;
    return pread(memory_.get(), &byte, 1, 0) != 0;
  }

  result<void> read(std::uint64_t address, std::span<std::byte> into) override {
    if (into.empty()) return {};
    const iovec local{into.data(), into.size()};
    const iovec remote{pointer(address), into.size()};
    return whole(copy([&](pid_t tid) { return process_vm_readv(tid, &local, 1, &remote, 1, 0); }),
                 into.size());
  }

  result<void> write(std::uint64_t address, std::span<const std::byte> from) override {
    if (from.empty()) return {};
    const iovec local{const_cast<std::byte*>(from.data()), from.size()};
    const iovec remote{pointer(address), from.size()};
    return whole(copy([&](pid_t tid) { return process_vm_writev(tid, &local, 1, &remote, 1, 0); }),
                 from.size());
  }

  result<void> write_words(std::span<const patch> patches) override {
    while (!patches.empty()) {
      const auto count = std::min<std::size_t>(patches.size(), IOV_MAX);
      values_.clear();
      targets_.clear();
      for (const auto& each : patches.first(count)) {
        values_.push_back(each.value);
        targets_.push_back({pointer(each.address), sizeof each.value});
      }
      const iovec local{values_.data(), count * sizeof(std::uint64_t)};
      const auto written =
          whole(copy([&](pid_t tid) {
                  return process_vm_writev(tid, &local, 1, targets_.data(), targets_.size(), 0);
                }),
                local.iov_len);
      if (!written) return written;
      patches = patches.subspan(count);
    }
    return {};
  }

 private:
  static void* pointer(std::uint64_t address) { return reinterpret_cast<void*>(address); }

  /// Runs a copy by thread id; -1 and errno when it fails.
  template <class Copy>
  ssize_t copy(Copy&& by_thread) {
    // These calls go by id, and after an exec would reach the new program.
    if (alive()) {
      if (thread_ == pid_ || in_group(pid_, thread_)) {
        const auto copied = by_thread(thread_);
        if (copied >= 0 || errno != ESRCH) return copied;
      }
      // That thread has ended, and with it its claim on the memory that the others still share: a
      // main thread may call pthread_exit() long before its process ends. (/proc/PID/mem would
      // serve as well, but writes to pages that are read-only.)
      for (const pid_t tid : threads_of(pid_)) {
        const auto copied = by_thread(tid);
        if (copied < 0 && errno == ESRCH) continue;
        thread_ = tid;
        return copied;
      }
    }
    errno = ESRCH;
    return -1;
  }

  static result<void> whole(ssize_t copied, std::size_t wanted) {
    if (copied < 0) return last_system_error();
    if (static_cast<std::size_t>(copied) != wanted) return system_error(EFAULT);
    return {};
  }

  realtime_loop& loop_;
  const pid_t pid_;
  pid_t thread_;  // Through which memory was reached last.
  unique_fd memory_;
  unique_fd process_;
  std::vector<std::uint64_t> values_;  // Kept between calls: write_words() is the hot path.
  std::vector<iovec> targets_;
};

}  // namespace

os_linux::os_linux(realtime_loop& loop, std::function<void()> exited)
    : loop_{loop}, exited_{std::move(exited)} {}

pid_t os_linux::leader_of(pid_t tid) {
  if (tid <= 0) return 0;
  if (in_group(tid, tid)) return tid;
  if (const auto known = leaders_.find(tid); known != leaders_.end()) {
    if (in_group(known->second, tid)) return known->second;
  }
  const auto leader = status_field(tid, "\nTgid:\t");
  constexpr std::size_t most_hints = 4096;
  if (leaders_.size() >= most_hints) leaders_.clear();
  if (leader != 0) leaders_.insert_or_assign(tid, leader);
  return leader;
}

bool os_linux::has_memory(pid_t tid) {
  // Reading nothing's address tells it for one system call: EFAULT where there is memory.
  char byte = 0;
  const iovec local{&byte, 1};
  const iovec remote{nullptr, 1};
  return process_vm_readv(tid, &local, 1, &remote, 1, 0) >= 0 || errno != ESRCH;
}

pid_t os_linux::tracer_of(pid_t pid) { return status_field(pid, "\nTracerPid:\t"); }

bool os_linux::has_capability(pid_t tid, int capability) {
  return effective(status_of(tid), capability);
}

/// __ptrace_may_access with real credentials, and Yama where it is: in its scopes 1 and 2 only a
/// capable tracer passes here (descendants and PR_SET_PTRACER are not followed). User namespaces
/// and other security modules are not asked.
bool os_linux::may_attach(pid_t tid, pid_t pid) {
  if (leader_of(tid) == pid) return true;
  const auto tracer = status_of(tid);
  const auto target = status_of(pid);
  if (tracer.empty() || target.empty()) return false;
  int yama = 0;
  if (const unique_fd scope{open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC)}) {
    char digit = '0';
    if (::read(scope.get(), &digit, 1) == 1) yama = digit - '0';
  }
  if (yama >= 3) return false;
  if (effective(tracer, CAP_SYS_PTRACE)) return true;
  if (yama > 0) return false;
  // Real ids of the tracer, and real, effective and saved ones of the target.
  for (const char* line : {"\nUid:\t", "\nGid:\t"}) {
    const auto own = numbers_of<unsigned, 1>(tracer, line)[0];
    const auto theirs = numbers_of<unsigned, 3>(target, line);
    if (std::any_of(theirs.begin(), theirs.end(), [own](unsigned id) { return id != own; }))
      return false;
  }
  // What is not dumpable belongs to root in /proc.
  struct stat entry {};
  if (stat(("/proc/" + std::to_string(pid)).c_str(), &entry) != 0) return false;
  return entry.st_uid == numbers_of<unsigned, 2>(target, "\nUid:\t")[1];
}

result<std::unique_ptr<address_space>> os_linux::open_address_space(pid_t pid) {
  unique_fd memory{open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDONLY | O_CLOEXEC)};
  if (!memory) return errno == ENOENT ? system_error(ESRCH) : last_system_error();
  unique_fd process{pidfd_open(pid)};
  if (!process) return last_system_error();
  auto space =
      std::make_unique<address_space_linux>(loop_, pid, std::move(memory), std::move(process));
  // Also settles that the pid did not change hands between the two opens.
  if (!space->alive()) return system_error(ESRCH);
  try {
    loop_.watch(space->pidfd(), [this] { exited_(); });
  } catch (const std::system_error& error) {
    return system_error(error.code().value());
  }
  return std::unique_ptr<address_space>{std::move(space)};
}

bool os_linux::same_address_space(pid_t pid, const address_space& space) {
  if (!space.alive()) return false;
  if (pid == space.pid()) return true;
  return syscall(SYS_kcmp, pid, space.pid(), KCMP_VM, 0, 0) == 0;
}

void os_linux::kill_process(pid_t pid) { kill(pid, SIGKILL); }

result<int> os_linux::take_fd(pid_t tid, int fd) {
  // By the thread itself, for an ended leader has no descriptors; kernels before 6.9 know leaders
  // only.
  unique_fd process{pidfd_open(tid, pidfd_thread)};
  if (!process && errno == EINVAL) {
    const auto leader = leader_of(tid);
    if (leader == 0) return system_error(ESRCH);
    process = unique_fd{pidfd_open(leader)};
  }
  if (!process) return last_system_error();
  const int taken = pidfd_getfd(process.get(), fd);
  if (taken < 0) return last_system_error();
  return taken;
}

void os_linux::close_fd(int fd) { close(fd); }

bool os_linux::same_file(int one, int other) {
  constexpr int kcmp_file = 0;
  return syscall(SYS_kcmp, getpid(), getpid(), kcmp_file, one, other) == 0;
}

// The nodes in the device's directory are links to it (root_directory.cpp).
bool os_linux::is_render_node(int fd) {
  const auto found = known_status(fd);
  return S_ISCHR(found.stx_mode) && found.stx_rdev_major == 1 && found.stx_rdev_minor == 5;
}

void os_linux::write_byte(int fd, char byte) {
  // The open file is shared with its owner, so its flags are not ours to change: RWF_NOWAIT keeps
  // the write from blocking. Kinds of file without it are asked first.
  const iovec one{&byte, 1};
  if (pwritev2(fd, &one, 1, -1, RWF_NOWAIT) >= 0 || errno != EOPNOTSUPP) return;
  pollfd ready{.fd = fd, .events = POLLOUT, .revents = 0};
  if (poll(&ready, 1, 0) == 1 && (ready.revents & POLLOUT) != 0) {
    [[maybe_unused]] const auto ignored = write(fd, &byte, 1);
  }
}

void os_linux::watch_doorbell(int fd, std::function<void()> rung) {
  // Every eventfd_write is an edge, so the counter needs no draining; and a read could block on a
  // descriptor whose other end another process holds.
  try {
    loop_.watch(fd, std::move(rung));
  } catch (const std::system_error&) {
    // Not a descriptor that can ring (a regular file): it stays silent.
  }
}

void os_linux::unwatch_doorbell(int fd) { loop_.unwatch(fd); }

std::string os_linux::name_of(pid_t tid) {
  auto name = proc_text(tid, "comm");
  if (name.ends_with('\n')) name.pop_back();
  return name;
}

void os_linux::hand_over_file(pid_t tid, std::uint64_t file, file_place where, file_handover told) {
  // A tracer is a thread, and it must wait for its tracee: not the loop's business.
  const auto number = ++last_handover_;
  handovers_.emplace(number, std::jthread{[this, number, tid, where, told = std::move(told),
                                           path = file_folder_ + "/" +
                                                  std::to_string(file)](std::stop_token stop) {
                       remote_open opener{tid};
                       const int refused = opener.attach();
                       loop_.post([ready = told.ready, refused] { ready(refused); });
                       const int error = refused != 0 ? 0 : opener.run(path, where, stop);
                       loop_.post([this, number, refused, error, done = told.done] {
                         handovers_.erase(number);
                         if (refused == 0) done(error);
                       });
                     }});
}

void os_linux::set_file_folder(
    const std::string& mountpoint, const std::string& name,
    std::function<std::optional<std::uint64_t>(std::uint64_t)> number_of) {
  file_folder_ = mountpoint + "/" + name;
  number_of_ = std::move(number_of);
  const unique_fd top{open(mountpoint.c_str(), O_PATH | O_CLOEXEC)};
  const auto found = known_status(top.get());
  file_system_ = {found.stx_dev_major, found.stx_dev_minor};
}

result<std::uint64_t> os_linux::handed_file(pid_t tid, int fd) {
  const auto taken = take_fd(tid, fd);
  if (!taken) return taken.error();
  const unique_fd file{*taken};
  const auto found = known_status(file.get());
  if (std::pair{found.stx_dev_major, found.stx_dev_minor} != file_system_)
    return system_error(EINVAL);
  const auto number = number_of_(found.stx_ino);
  if (!number) return system_error(EINVAL);
  return *number;
}

}  // namespace sluice::sim
