#pragma once
/// \file
/// client_program, started and told what to do.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <system_error>

namespace sluice::test {

/// Threading: one thread. Lifetime: kills and reaps the process at the end.
class program {
 public:
  /// \param before runs in the child before the program does; async-signal-safe calls only.
  explicit program(const std::function<void()>& before = {}) {
    int to[2];
    int from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) {
      throw std::system_error(errno, std::generic_category(), "pipe");
    }
    pid_ = fork();
    if (pid_ == 0) {
      dup2(to[0], 0);
      dup2(from[1], 1);
      if (before) before();
      execl(SLUICE_CLIENT_PROGRAM, SLUICE_CLIENT_PROGRAM, nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    to_ = to[1];
    from_ = from[0];
  }
  ~program() {
    ::kill(pid_, SIGKILL);
    reap();
    close(to_);
    close(from_);
  }
  program(const program&) = delete;
  program& operator=(const program&) = delete;

  pid_t pid() const noexcept { return pid_; }
  void kill(int number) const noexcept { ::kill(pid_, number); }
  void reap() {
    if (!reaped_) waitpid(pid_, nullptr, 0);
    reaped_ = true;
  }
  void tell(const std::string& line) const {
    const std::string whole = line + "\n";
    (void)!write(to_, whole.data(), whole.size());
  }
  /// Its answer; empty when there is none in twenty seconds.
  std::string ask(const std::string& line) {
    tell(line);
    return hear();
  }
  std::string hear() {
    for (;;) {
      if (const auto end = heard_.find('\n'); end != heard_.npos) {
        std::string line = heard_.substr(0, end);
        heard_.erase(0, end + 1);
        return line;
      }
      pollfd one{from_, POLLIN, 0};
      char text[512];
      if (poll(&one, 1, 20'000) <= 0) return {};
      const ssize_t got = read(from_, text, sizeof text);
      if (got <= 0) return {};
      heard_.append(text, static_cast<std::size_t>(got));
    }
  }

 private:
  pid_t pid_ = 0;
  int to_ = -1;
  int from_ = -1;
  bool reaped_ = false;
  std::string heard_;
};

}  // namespace sluice::test
