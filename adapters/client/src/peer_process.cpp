#include "peer_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5
#endif

namespace sluice::client {
namespace {

std::string_view read_proc(pid_t pid, const char* name, std::array<char, 4096>& into) noexcept {
  std::array<char, 48> path;
  std::snprintf(path.data(), path.size(), "/proc/%d/%s", pid, name);
  const unique_fd from(::open(path.data(), O_RDONLY | O_CLOEXEC));
  if (!from) return {};
  const ssize_t got = ::read(from.get(), into.data(), into.size());
  return got <= 0 ? std::string_view() : std::string_view(into.data(), static_cast<size_t>(got));
}

/// Field 22; the name before it may hold anything, so from its last parenthesis on. 0: none.
std::uint64_t start_time_in(std::string_view stat) noexcept {
  const auto name_end = stat.rfind(')');
  if (name_end == stat.npos) return 0;
  stat.remove_prefix(name_end + 1);
  for (int field = 3; field <= 22; ++field) {
    const auto gap = stat.find_first_not_of(' ');
    if (gap == stat.npos) return 0;
    stat.remove_prefix(gap);
    if (field == 22) break;
    stat.remove_prefix(std::min(stat.find(' '), stat.size()));
  }
  std::uint64_t found = 0;
  std::from_chars(stat.data(), stat.data() + stat.size(), found);
  return found;
}

/// Before Linux 6.5 by number, and only then: a process that has ended may be another by it. There
/// the hello's credentials say that it was this process's when that was sent.
unique_fd pidfd_of(int socket, pid_t pid) noexcept {
  int fd = -1;
  socklen_t size = sizeof fd;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) return unique_fd(fd);
  if (errno != ENOPROTOOPT) return {};
  return unique_fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace

bool has_ended(int pidfd) noexcept {
  pollfd one{pidfd, POLLIN, 0};
  return ::poll(&one, 1, 0) > 0;
}

std::optional<identified> identify(int socket, std::string& why) {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 || who.pid <= 0) {
    why =
        "the process is not visible in the scheduler's PID namespace; run the scheduler in a "
        "namespace that contains it";
    return {};
  }
  identified found{{.pid = who.pid, .user = who.uid, .group = who.gid, .name = {}},
                   pidfd_of(socket, who.pid)};
  std::array<char, 4096> text;
  if (found.life) found.who.start_time = start_time_in(read_proc(who.pid, "stat", text));
  // It lived until after its start time was read, so that is its own.
  if (found.who.start_time == 0 || has_ended(found.life.get())) {
    why = "the process that connected has exited";
    return {};
  }
  return found;
}

bool says_core_dumping(std::string_view status) noexcept {
  constexpr std::string_view key = "\nCoreDumping:\t";
  const auto found = status.find(key);
  return found != status.npos && status.substr(found + key.size()).starts_with('1');
}

bool is_dumping_core(pid_t pid) noexcept {
  std::array<char, 4096> text;
  return says_core_dumping(read_proc(pid, "status", text));
}

}  // namespace sluice::client
