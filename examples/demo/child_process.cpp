#include "child_process.hpp"

#include "stop_request.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

namespace demo {

using namespace std::chrono_literals;

checked<child_process> child_process::start(const program& what) {
  const std::string& path = what.arguments.front();
  if (access(path.c_str(), X_OK) != 0) {
    return failure(path + ": cannot be run: " + std::strerror(errno));
  }
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return failure(std::string("socketpair: ") + std::strerror(errno));
  }
  control_channel ours(pair[0]);

  // All memory the child needs is made before fork.
  std::vector<char*> arguments;
  for (const std::string& each : what.arguments) {
    arguments.push_back(const_cast<char*>(each.c_str()));
  }
  arguments.push_back(nullptr);

  const pid_t parent = getpid();
  // A signal that ends us at once must not be lost on the child because it is not yet a program.
  std::optional<signals_for_main_only> blocked(std::in_place);
  const pid_t pid = fork();
  if (pid == 0) {
    stop_signals_as_before_exec();
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127);
    if (pair[1] == child_control_fd) {
      fcntl(child_control_fd, F_SETFD, 0);
    } else {
      dup2(pair[1], child_control_fd);
    }
    // What it has to say it says on the channel, or to the user on standard error.
    if (const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC); nowhere >= 0) {
      dup2(nowhere, STDOUT_FILENO);
    }
    for (const auto& [key, value] : what.environment) setenv(key.c_str(), value.c_str(), 1);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  const int error = errno;
  blocked.reset();
  close(pair[1]);
  if (pid < 0) return failure(std::string("fork: ") + std::strerror(error));
  return child_process(pid, path.substr(path.rfind('/') + 1), std::move(ours));
}

child_process::child_process(child_process&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      name_(std::move(other.name_)),
      control_(std::move(other.control_)) {}

child_process::~child_process() {
  if (pid_ == 0) return;
  terminate();
  if (wait(sluice::clock::now() + 5s).has_value()) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void child_process::terminate() {
  if (pid_ != 0) kill(pid_, SIGTERM);
}

checked<int> child_process::wait(sluice::time_point deadline) {
  for (;;) {
    int status = 0;
    const pid_t got = waitpid(pid_, &status, WNOHANG);
    if (got == pid_) {
      pid_ = 0;
      return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    if (got < 0 && errno != EINTR) {
      return failure(name_ + ": waitpid: " + std::strerror(errno));
    }
    if (sluice::clock::now() >= deadline) return failure(name_ + ": did not exit in time");
    std::this_thread::sleep_for(2ms);
  }
}

}  // namespace demo
