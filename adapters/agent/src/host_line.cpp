#include "host_line.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "sluice/os/standard_error.hpp"

namespace sluice::agent {

namespace {

/// Whether a descriptor is what its name in /proc says that it is, such as "anon_inode:[eventfd]".
bool is_named(int fd, std::string_view name) {
  std::array<char, 64> text;
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(link.c_str(), text.data(), text.size());
  return length > 0 &&
         std::string_view{text.data(), static_cast<std::size_t>(length)}.starts_with(name);
}

bool is_local_socket(int fd, int type) {
  const auto option = [fd](int which) {
    int value = -1;
    socklen_t size = sizeof(value);
    return ::getsockopt(fd, SOL_SOCKET, which, &value, &size) == 0 ? value : -1;
  };
  return option(SO_DOMAIN) == AF_UNIX && option(SO_TYPE) == type;
}

}  // namespace

bool are_as_agreed() {
  return is_local_socket(control_fd, SOCK_SEQPACKET) &&
         is_local_socket(host_doorbell_fd, SOCK_DGRAM) &&
         is_named(agent_doorbell_fd, "anon_inode:[eventfd]") &&
         (is_named(host_pidfd, "anon_inode:[pidfd]") || is_named(host_pidfd, "pidfd:")) &&
         ::shutdown(control_fd, SHUT_RD) == 0 && ::shutdown(host_doorbell_fd, SHUT_RD) == 0;
}

void send(const note& what, int pidfd) noexcept {
  iovec data{const_cast<note*>(&what), sizeof(what)};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
  if (pidfd >= 0) {
    message.msg_control = room.data();
    message.msg_controllen = room.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &pidfd, sizeof(int));
  }
  if (::sendmsg(control_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return;
  // Nobody listens, or too slowly: what was to be said goes where it may still be read. A host that
  // has gone needs no farewell.
  if (what.kind != note_kind::message && what.kind != note_kind::refused) return;
  // Never waiting for a reader: whoever stopped the host's terminal would stop the lease as well.
  log_to_standard_error("sluice-agent", "warning", what.get_text());
}

void say(note_kind kind, std::string_view words, const error_code& error) noexcept {
  note what;
  what.kind = kind;
  what.error = plain_error{error};
  what.set_text(words);
  send(what);
}

bool has_host() noexcept {
  struct stat control {};
  return ::fstat(control_fd, &control) == 0 && S_ISSOCK(control.st_mode);
}

shared_page* map_page() {
  struct stat file {};
  if (::fstat(memory_fd, &file) != 0 || file.st_size != off_t{sizeof(shared_page)}) return nullptr;
  // Without the seals a host that shrinks the file could kill the agent with SIGBUS at any time.
  constexpr int needed = F_SEAL_SHRINK | F_SEAL_GROW;
  if ((::fcntl(memory_fd, F_GET_SEALS) & needed) != needed) return nullptr;
  void* const memory =
      ::mmap(nullptr, sizeof(shared_page), PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* const page = static_cast<shared_page*>(memory);
  const bool same = page->magic == protocol_magic && page->version == protocol_version &&
                    page->size == sizeof(shared_page);
  return same ? page : nullptr;
}

pid_t host_pid() {
  std::ifstream info{"/proc/self/fdinfo/" + std::to_string(int{host_pidfd})};
  for (std::string line; std::getline(info, line);) {
    pid_t pid = 0;
    if (std::sscanf(line.c_str(), "Pid: %d", &pid) == 1) return std::max(pid, 0);
  }
  return 0;
}

void leave_the_host() {
  const pid_t child = ::fork();
  if (child < 0) {
    const error_code error = last_system_error();
    say(note_kind::refused, "cannot start the agent: fork failed: " + error.message(), error);
    ::_exit(1);
  }
  if (child > 0) ::_exit(0);
  ::setsid();
  if (::chdir("/") != 0)
    say(note_kind::message,
        "cannot change the agent's working directory to /: " + last_system_error().message());
  // A core dump would keep every target as it is for as long as the dump takes. Not 0, which says
  // nothing to a program that takes dumps by a pipe (core_pattern); of 1 the kernel makes neither.
  if (const rlimit none{1, 1}; ::setrlimit(RLIMIT_CORE, &none) != 0) {
    const rlimit no_file{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_file);
  }
  // Each target takes several descriptors.
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
}

}  // namespace sluice::agent
