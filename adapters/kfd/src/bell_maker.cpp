#include "sluice/kfd/bell_maker.hpp"

#include "stop_bell.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace sluice::kfd {

namespace {

constexpr int patience_ms = 200;

struct answer {
  io_uring_params how{};
  int fd = -1;
};

/// Whoever is stopped here stops nobody else.
[[noreturn]] void serve(int line) {
  char asked = 0;
  while (::recv(line, &asked, 1, 0) == 1) {
    answer made;
    made.fd = make_restricted_ring(made.how);
    if (::send(line, &made, sizeof made, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof made)) break;
    // Once the other has it, or has given up.
    if (::recv(line, &asked, 1, 0) != 1) break;
    if (made.fd >= 0) ::close(made.fd);
  }
  ::_exit(0);
}

}  // namespace

result<std::unique_ptr<bell_maker>> bell_maker::start(const std::function<bool()>& confine) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return last_system_error();
  unique_fd ours{ends[0]};
  const unique_fd theirs{ends[1]};
  const pid_t parent = ::getpid();
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, &before);
  const pid_t child = ::fork();
  const error_code error = child < 0 ? last_system_error() : error_code{};
  if (child == 0) {
    const auto kept = static_cast<unsigned>(theirs.get());
    if (kept > 0) ::syscall(SYS_close_range, 0U, kept - 1, 0U);
    ::syscall(SYS_close_range, kept + 1, ~0U, 0U);
    ::prctl(PR_SET_NAME, "sluice-bells");
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    // So that its parent may take descriptors from it though it came from a file with capabilities.
    // It has nothing to hide, and no rights.
    if (::getppid() != parent || ::prctl(PR_SET_DUMPABLE, 1) != 0 || !confine()) ::_exit(1);
    serve(theirs.get());
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (error) return error;
  unique_fd pidfd{static_cast<int>(::syscall(SYS_pidfd_open, child, 0))};
  if (!pidfd) return last_system_error();
  return std::unique_ptr<bell_maker>{new bell_maker{std::move(ours), std::move(pidfd), child}};
}

bell_maker::~bell_maker() {
  line_.reset();
  pollfd ended{pidfd_.get(), POLLIN, 0};
  if (::poll(&ended, 1, patience_ms) == 1) (void)::waitpid(pid_, nullptr, 0);
  if (moved_) (void)pidfd_.release();  // A filter may forbid to close it.
}

result<void> bell_maker::move_pidfd(int least) {
  unique_fd moved{::fcntl(pidfd_.get(), F_DUPFD_CLOEXEC, least)};
  if (!moved) return last_system_error();
  pidfd_ = std::move(moved);
  moved_ = true;
  return {};
}

bool bell_maker::make(made_bell& into) noexcept {
  const std::lock_guard turn{mutex_};
  if (failed_) return false;
  answer made;
  pollfd line{line_.get(), POLLIN, 0};
  failed_ =
      ::send(line_.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1 ||
      ::poll(&line, 1, patience_ms) != 1 ||
      ::recv(line_.get(), &made, sizeof made, MSG_DONTWAIT) != static_cast<ssize_t>(sizeof made) ||
      made.fd < 0;
  if (failed_) return false;
  into.fd.reset(static_cast<int>(::syscall(SYS_pidfd_getfd, pidfd_.get(), made.fd, 0)));
  into.how = made.how;
  failed_ = !into.fd || ::send(line_.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1;
  return !failed_;
}

}  // namespace sluice::kfd
