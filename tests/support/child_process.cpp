#include "child_process.hpp"

#include "eventually.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <system_error>

namespace sluice::test {

channel::~channel() { close(fd_); }

bool channel::send(std::string_view message) const {
  return ::send(fd_, message.data(), message.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(message.size());
}

std::optional<std::string> channel::receive(std::chrono::milliseconds deadline) const {
  const auto end = std::chrono::steady_clock::now() + deadline;
  pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    const int got = poll(&ready, 1, static_cast<int>(std::max<long>(left.count(), 0)));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    break;
  }
  std::array<char, 4096> buffer{};
  const auto length = recv(fd_, buffer.data(), buffer.size(), 0);
  if (length <= 0) return std::nullopt;
  return std::string{buffer.data(), static_cast<std::size_t>(length)};
}

child_process::started child_process::start(const std::function<int(channel&)>& body) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw std::system_error(errno, std::system_category(), "socketpair");
  }
  std::fflush(nullptr);  // Or the child prints again what is still buffered here.
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw std::system_error(errno, std::system_category(), "fork");
  if (pid > 0) {
    close(ends[1]);
    return {pid, ends[0]};
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(98);
  close(ends[0]);
  int status = 97;
  try {
    channel line{ends[1]};
    status = body(line);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child process: %s\n", error.what());
  }
  std::fflush(nullptr);
  _exit(status);
}

child_process::child_process(const std::function<int(channel&)>& body)
    : child_process{start(body)} {}

child_process::~child_process() {
  if (status_) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

bool child_process::says(std::string_view expected, std::chrono::milliseconds deadline) {
  const auto got = line_.receive(deadline);
  if (got == expected) return true;
  std::fprintf(stderr, "child %d said '%s', not '%.*s'\n", static_cast<int>(pid_),
               got ? got->c_str() : "(nothing)", static_cast<int>(expected.size()),
               expected.data());
  return false;
}

void child_process::signal(int number) const noexcept { kill(pid_, number); }

std::optional<int> child_process::wait(std::chrono::milliseconds deadline) {
  eventually(deadline, [this] {
    int status = 0;
    if (!status_ && waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
    return status_.has_value();
  });
  return status_;
}

bool child_process::succeeds(std::chrono::milliseconds deadline) {
  const auto status = wait(deadline);
  return status && WIFEXITED(*status) && WEXITSTATUS(*status) == 0;
}

}  // namespace sluice::test
