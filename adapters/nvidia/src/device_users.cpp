#include "device_users.hpp"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <string_view>
#include <thread>

#include "sluice/os/proc.hpp"
#include "sluice/os/whole_file.hpp"

namespace sluice::nvidia {

using namespace std::chrono_literals;

result<device_file> device_file::at(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return last_system_error();
  device_file made;
  made.name_ = path.substr(path.rfind('/') + 1);
  made.is_device_ = S_ISCHR(about.st_mode);
  made.device_ = made.is_device_ ? about.st_rdev : about.st_dev;
  made.inode_ = made.is_device_ ? 0 : about.st_ino;
  return made;
}

result<std::size_t> device_file::list(pid_t pid, std::vector<int>& into,
                                      const stop_function& stops) const {
  const std::string all = "/proc/" + std::to_string(pid) + "/fd";
  const unique_fd directory = open_directory(all);
  if (!directory) return last_system_error();
  error_code denied;
  std::size_t count = 0;
  bool stopped = false;
  const bool listed = for_each_numbered_entry<int>(directory, [&](int fd) {
    ++count;
    stopped = stopped || (stops && stops());
    if (stopped) return;
    // By its name first: to ask for the attributes of any file may block.
    const std::string path = all + "/" + std::to_string(fd);
    std::array<char, 512> target;
    const ssize_t size = ::readlink(path.c_str(), target.data(), target.size());
    if (size < 0 && errno != ENOENT) denied = last_system_error();
    if (size <= 0) return;
    const std::string_view name{target.data(), static_cast<std::size_t>(size)};
    if (!name.ends_with("/" + name_)) return;
    // Another file may have that name, in a file system that does not answer.
    struct statx about {};
    constexpr unsigned wanted = STATX_TYPE | STATX_INO;
    if (::statx(AT_FDCWD, path.c_str(), AT_STATX_DONT_SYNC, wanted, &about) == 0 && matches(about))
      into.push_back(fd);
  });
  if (!listed) return last_system_error();
  if (stopped) return error_code{ECANCELED, boost::system::system_category()};
  if (denied) return denied;
  return count;
}

bool device_file::matches(const struct ::statx& about) const {
  if (S_ISCHR(about.stx_mode) != is_device_) return false;
  if (is_device_) return makedev(about.stx_rdev_major, about.stx_rdev_minor) == device_;
  return makedev(about.stx_dev_major, about.stx_dev_minor) == device_ && about.stx_ino == inode_;
}

bool device_file::is_open_at(int fd) const {
  struct statx about {};
  constexpr unsigned wanted = STATX_TYPE | STATX_INO;
  return ::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, wanted, &about) == 0 && matches(about);
}

pid_t visible_thread_of(pid_t pid) { return leader_is_exiting(pid) ? living_thread_of(pid) : pid; }

result<unique_fd> open_process(pid_t pid, pid_t thread) {
  constexpr unsigned kernels_pidfd_thread = O_EXCL;  // include/uapi/linux/pidfd.h
  unique_fd made{static_cast<int>(
      ::syscall(SYS_pidfd_open, thread, thread == pid ? 0U : kernels_pidfd_thread))};
  if (!made) return last_system_error();
  return made;
}

namespace {

bool is_incomplete(const error_code& error) {
  return error.value() == EMFILE || error.value() == ENFILE || error.value() == ENOMEM ||
         error.value() == ECANCELED;
}

/// \return nothing if this process lacks the descriptors or the memory to list them, or stopped.
std::optional<std::vector<remote_fd>> descriptors_of(pid_t pid, const device_file& of,
                                                     const stop_function& stops = {}) {
  std::vector<int> fds;
  pid_t thread = 0;
  auto listed = of.list(pid, fds, stops);
  if (!listed && is_incomplete(listed.error())) return {};
  if (!listed || *listed == 0) {
    thread = visible_thread_of(pid);
    if (thread == pid || thread == 0) return std::vector<remote_fd>{};
    listed = of.list(thread, fds, stops);
    if (!listed && is_incomplete(listed.error())) return {};
  }
  std::vector<remote_fd> all;
  if (listed)
    for (const int fd : fds) all.push_back({.pid = pid, .fd = fd, .thread = thread});
  return all;
}

}  // namespace

std::vector<remote_fd> list_users(const device_file& of) {
  std::vector<remote_fd> all;
  const pid_t self = ::getpid();
  (void)for_each_numbered_entry<pid_t>("/proc", [&](pid_t pid) {
    if (pid == self) return;
    if (const auto its = descriptors_of(pid, of)) all.insert(all.end(), its->begin(), its->end());
  });
  return all;
}

namespace {

/// Of the time, for lists of the descriptors of processes that show no change: one part in so many.
/// Before Linux 6.2, no process shows that the number of its descriptors changed.
int share_of_lists() {
  static const int share = [] {
    struct stat own {};
    return ::stat("/proc/self/fd", &own) == 0 && own.st_size != 0 ? 200 : 20;
  }();
  return share;
}
/// The most that is saved up for them.
constexpr duration most_for_lists = 10ms;

duration processor_time() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds{now.tv_sec} + std::chrono::nanoseconds{now.tv_nsec};
}

/// The pid that the kernel gave out last, to a process or a thread. Empty: it cannot be read.
std::string newest_pid() {
  const auto text = read_whole_file("/proc/loadavg");
  return text ? text->substr(text->rfind(' ') + 1) : std::string{};
}

}  // namespace

std::optional<std::vector<remote_fd>> user_list::read(const stop_function& stops) {
  std::vector<remote_fd> all;
  std::map<pid_t, process> now;
  const pid_t self = ::getpid();
  const time_point time = clock::now();
  const duration before = processor_time();
  for_lists_ = std::min(for_lists_ + (time - std::exchange(began_, time)) / share_of_lists(),
                        most_for_lists);
  const unique_fd proc = open_directory("/proc");
  bool failed = !proc;
  bool stopped = false;
  bool is_postponed = false;
  const auto has_turn = [&](pid_t pid) {
    if (pid < turn_of_) return false;
    if (for_lists_ > duration::zero()) return true;
    if (!std::exchange(is_postponed, true)) turn_of_ = pid;
    return false;
  };
  const auto see = [&](pid_t pid) {
    stopped = stopped || stops();
    if (stopped || pid == self) return;
    process one;
    if (const auto known = processes_.find(pid); known != processes_.end()) one = known->second;
    // Not all of them are due in one read.
    const bool is_due =
        one.inode != 0 && time - one.listed >= 500ms + 50ms * (pid % 10) && has_turn(pid);
    if (is_due || !one.is_of_kernel) {
      // The size of that directory is the number of descriptors, and its inode differs if the pid
      // is another process's.
      struct stat about {};
      if (::fstatat(proc.get(), (std::to_string(pid) + "/fd").c_str(), &about, 0) != 0) return;
      const bool is_other = one.inode != about.st_ino || one.descriptors != about.st_size;
      if (is_due || is_other) {
        const duration begun = processor_time();
        one.inode = about.st_ino;
        one.descriptors = about.st_size;
        one.listed = time;
        // It can still execute a program.
        one.is_of_kernel = about.st_size == 0 && is_kernel_thread(pid);
        one.of_device.clear();
        if (!one.is_of_kernel) {
          auto its = descriptors_of(pid, of_, stops);
          if (!its) {
            (stops() ? stopped : failed) = true;
            return;
          }
          one.of_device = std::move(*its);
        }
        if (!is_other) for_lists_ -= processor_time() - begun;
      }
    }
    all.insert(all.end(), one.of_device.begin(), one.of_device.end());
    now.emplace(pid, std::move(one));
  };
  // To list all processes costs most. A process shows up there a moment after its pid was given
  // out, so the next read lists them again; and CRIU gives out pids of its own choice.
  const std::string newest = newest_pid();
  const bool is_changed = newest.empty() || newest != newest_pid_;
  if (is_changed || was_changed_ || time - listed_ >= 500ms) {
    failed |= !for_each_numbered_entry<pid_t>(proc, see);
    listed_ = time;
  } else {
    for (const auto& [pid, known] : processes_) see(pid);
  }
  if (stopped) {
    // The next read need not list these.
    for (auto& [pid, one] : now) processes_.insert_or_assign(pid, std::move(one));
    was_changed_ = true;
    return {};
  }
  if (failed) return {};
  if (!is_postponed) turn_of_ = 0;
  // The first list says nothing about the following ones.
  if (!processes_.empty()) cost_ = processor_time() - before;
  was_changed_ = is_changed;
  newest_pid_ = newest;
  processes_ = std::move(now);
  return all;
}

user_list::list user_list::now(duration age, const stop_function& stops) {
  const auto is_new_enough = [&] {
    return read_ != time_point::min() && clock::now() - read_ <= age;
  };
  {
    const std::scoped_lock held{mutex_};
    if (is_new_enough()) return all_;
  }
  const time_point wanted = clock::now();
  std::unique_lock alone{reading_, std::try_to_lock};
  if (!stops && !alone) alone.lock();
  for (; !alone; (void)alone.try_lock()) {
    if (stops()) return {};
    std::this_thread::sleep_for(50us);
  }
  {
    // Another thread may have read it meanwhile.
    const std::scoped_lock held{mutex_};
    if (is_new_enough() || read_ >= wanted) return all_;
  }
  const time_point begun = clock::now();
  bool stopped = false;
  std::optional<std::vector<remote_fd>> seen =
      read([&] { return stopped = stopped || (stops && stops()); });
  if (!seen && stopped) return {};
  const std::scoped_lock held{mutex_};
  if (!seen) {
    read_ = time_point::min();
    return {};
  }
  read_ = begun;
  if (all_ == nullptr || *all_ != *seen)
    all_ = std::make_shared<const std::vector<remote_fd>>(std::move(*seen));
  return all_;
}

bool is_sluice(pid_t pid) {
  const auto program = [](const std::string& process) {
    std::array<char, 4096> path;
    const ssize_t size =
        ::readlink(("/proc/" + process + "/exe").c_str(), path.data(), path.size());
    return std::string{path.data(), size > 0 ? static_cast<std::size_t>(size) : 0};
  };
  const std::string own = program("self");
  const std::string its = program(std::to_string(pid));
  const std::string folder = own.substr(0, own.rfind('/') + 1);
  return !folder.empty() && (its == own || its == folder + "sluice" ||
                             its == folder + "sluice-epoll" || its == folder + "sluice-agent");
}

bool has_traits_of(pid_t pid, pid_t other) {
  constexpr std::size_t most_environment = 4U << 20U;
  if (user_of(pid) != user_of(other)) return false;
  for (const char* const name : {"/cgroup", "/environ"}) {
    const auto its = read_whole_file("/proc/" + std::to_string(pid) + name, most_environment);
    const auto others = read_whole_file("/proc/" + std::to_string(other) + name, most_environment);
    if (!its || !others || *its != *others) return false;
  }
  return true;
}

std::uint64_t kinship_of(pid_t thread) {
  constexpr std::size_t most_text = 1U << 20U;
  const auto user = user_of(thread);
  const auto groups = read_whole_file("/proc/" + std::to_string(thread) + "/cgroup", most_text);
  if (!user || !groups) return 0;
  // FNV-1a: another build of sluice may read it.
  std::uint64_t sum = 0xcbf2'9ce4'8422'2325;
  for (const char each : std::to_string(*user) + '\n' + *groups)
    sum = (sum ^ static_cast<unsigned char>(each)) * 0x100'0000'01b3;
  return sum;
}

std::uint64_t mount_of(pid_t thread, int fd) {
  const std::string path = "/proc/" + std::to_string(thread) + "/fd/" + std::to_string(fd);
  struct statx about {};
  if (::statx(AT_FDCWD, path.c_str(), AT_STATX_DONT_SYNC, STATX_MNT_ID, &about) != 0) return 0;
  return (about.stx_mask & STATX_MNT_ID) != 0 ? about.stx_mnt_id : 0;
}

result<unique_fd> duplicate(const unique_fd& pidfd, int fd) {
  unique_fd made{static_cast<int>(::syscall(SYS_pidfd_getfd, pidfd.get(), fd, 0))};
  if (!made) return last_system_error();
  return made;
}

bool is_same_file(int own, const remote_fd& other, error_code& why) {
  const pid_t thread = other.thread != 0 ? other.thread : other.pid;
  const long order = ::syscall(SYS_kcmp, ::getpid(), thread, KCMP_FILE, own, other.fd);
  if (order < 0) why = last_system_error();
  return order == 0;
}

bool may_be_same_file(int own, const remote_fd& other) {
  error_code why;
  return is_same_file(own, other, why) || (why && why.value() != EBADF && why.value() != ESRCH);
}

}  // namespace sluice::nvidia
