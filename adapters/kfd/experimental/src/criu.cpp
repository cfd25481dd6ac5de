#include "criu.hpp"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "sluice/kfd/uapi.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::kfd {

namespace {

/// Not repeated after an EINTR: a second PROCESS_INFO would evict a second time. (Lanes block all
/// signals.)
int criu_call(int device, uapi::kfd_criu_op operation) noexcept {
  uapi::kfd_ioctl_criu_args args{};
  args.op = operation;
  return ::ioctl(device, uapi::AMDKFD_IOC_CRIU_OP, &args) < 0 ? errno : 0;
}

bool same_node(const struct stat& one, const struct stat& other) noexcept {
  // A container's node has another inode, and the same device number.
  if (S_ISCHR(one.st_mode) && S_ISCHR(other.st_mode)) return one.st_rdev == other.st_rdev;
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

/// Whether the link of /proc/PID/fd is named like the device node: so that nothing is asked of
/// files that might be on a server that does not answer.
bool named_like(const std::string& link, std::string_view path) {
  std::array<char, 4096> text;
  const ssize_t length = ::readlink(link.c_str(), text.data(), text.size());
  if (length <= 0) return false;
  std::string_view name{text.data(), static_cast<std::size_t>(length)};
  constexpr std::string_view deleted = " (deleted)";
  if (name.ends_with(deleted)) name.remove_suffix(deleted.size());
  return name.substr(name.rfind('/') + 1) == path.substr(path.rfind('/') + 1);
}

/// Whether the driver has nothing of the process: it is not among those that the driver lists.
bool is_unknown(pid_t pid, const std::string& sysfs) {
  const std::string processes = sysfs + "/proc";
  struct stat ignored {};
  return ::stat((processes + "/" + std::to_string(pid)).c_str(), &ignored) != 0 &&
         errno == ENOENT && ::stat(processes.c_str(), &ignored) == 0;
}

}  // namespace

int criu_pause(int device) noexcept { return criu_call(device, uapi::KFD_CRIU_OP_PROCESS_INFO); }
int criu_unpause(int device) noexcept { return criu_call(device, uapi::KFD_CRIU_OP_UNPAUSE); }

result<device_of_target> take_device(const std::string& path, const tracee& target,
                                     const message_sink& say) {
  const pid_t pid = target.pid();
  const auto refuse = [&](const std::string& why) {
    say("cannot pause process " + std::to_string(pid) + " (" + command_of(pid) + "): " + why);
    return errc::not_managed;
  };
  struct stat node {};
  if (::stat(path.c_str(), &node) != 0) return last_system_error();
  const std::string directory = "/proc/" + std::to_string(pid) + "/fd";
  std::vector<int> numbers;
  for_each_numbered_entry<int>(directory, [&](int number) { numbers.push_back(number); });
  int refused = 0;
  for (const int number : numbers) {
    if (!named_like(directory + "/" + std::to_string(number), path)) continue;
    device_of_target found;
    found.fd.reset(static_cast<int>(::syscall(SYS_pidfd_getfd, target.pidfd(), number, 0)));
    struct stat file {};
    if (!found.fd) {
      refused = errno;
      continue;
    }
    if (::fstat(found.fd.get(), &file) != 0 || !same_node(file, node)) continue;
    switch (const int error = criu_unpause(found.fd.get())) {
      case 0: found.was_paused = true; return found;
      case EINVAL: return found;
      // Its parent's, inherited; or of the program that it was before an exec.
      case EBADF:
      case ESRCH: refused = error; continue;
      case EACCES: return refuse("this program needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN");
      default:
        return refuse("the driver refused the command UNPAUSE: " +
                      boost::system::system_category().message(error));
    }
  }
  if (!target.alive()) return errc::unknown_target;
  if (refused == 0) return refuse("it has no open file descriptor of " + path);
  return refuse("its file descriptors of " + path +
                " cannot be used: " + boost::system::system_category().message(refused));
}

result<void> release_pause(const std::string& path, const std::string& sysfs, const hold& what,
                           const message_sink& say) {
  result<void> answer = errc::unknown_target;
  const auto act = [&] {
    const auto seized = tracee::seize(what.pid, what.start_time, say);
    if (!seized) {
      // Somebody else traces it: the next scheduler, which unpauses what it attaches to, or gdb.
      answer = seized.error() == errc::unknown_target ? errc::unknown_target : errc::busy;
      return;
    }
    const auto taken = take_device(path, **seized, say);
    answer = taken ? result<void>{} : result<void>{taken.error()};
    // Its queues went with the program that it was before an exec.
    if (!taken && is_unknown(what.pid, sysfs)) answer = errc::unknown_target;
  };
  try {
    // With its end the kernel lets go of the process.
    std::thread{act}.join();
  } catch (const std::system_error& error) {
    return error_code{error.code().value(), boost::system::system_category()};
  }
  return answer;
}

}  // namespace sluice::kfd
