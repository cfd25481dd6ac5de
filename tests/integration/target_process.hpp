#pragma once
/// \file
/// Starts and talks to `integration_target`, an ordinary GPU process (target.cpp).

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace sluice::test {

/// Threading: one thread. Lifetime: kills and reaps the process at the end.
class target_process {
 public:
  /// \param environment entries added to (and replacing those of) this process's, "NAME=value".
  target_process(const std::string& program, const std::vector<std::string>& arguments,
                 const std::vector<std::string>& environment) {
    int to_child[2];
    int from_child[2];
    if (pipe2(to_child, O_CLOEXEC) != 0 || pipe2(from_child, O_CLOEXEC) != 0) {
      throw std::runtime_error("pipe2 failed");
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to_child[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, from_child[1], STDOUT_FILENO);
    std::vector<std::string> words{program};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    auto added = environment;
    std::vector<char*> envp;
    for (auto& entry : added) envp.push_back(entry.data());
    for (char** inherited = environ; *inherited != nullptr; ++inherited) {
      const std::string name = std::string(*inherited).substr(0, std::string(*inherited).find('='));
      bool replaced = false;
      for (const auto& entry : added) replaced |= entry.starts_with(name + "=");
      if (!replaced) envp.push_back(*inherited);
    }
    envp.push_back(nullptr);
    // A process group of its own: in an orphaned one the kernel ignores SIGTSTP.
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes, 0);
    const int error =
        posix_spawn(&pid_, program.c_str(), &actions, &attributes, argv.data(), envp.data());
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    close(to_child[0]);
    close(from_child[1]);
    in_ = to_child[1];
    out_ = from_child[0];
    if (error != 0) throw std::runtime_error("cannot start " + program);
  }

  target_process(const target_process&) = delete;
  target_process& operator=(const target_process&) = delete;

  ~target_process() {
    finish();
    close(out_);
    if (!reaped_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  pid_t pid() const { return pid_; }

  /// Tells it that nothing more is asked: it finishes what is in flight and ends.
  void finish() {
    if (in_ >= 0) close(in_);
    in_ = -1;
  }

  void send(const std::string& command) const {
    const std::string line = command + "\n";
    if (write(in_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
      throw std::runtime_error("the target does not read");
    }
  }

  /// The next line it says, or nothing when the deadline passes or it is gone.
  std::optional<std::string> hear(std::chrono::milliseconds deadline) {
    const auto end = std::chrono::steady_clock::now() + deadline;
    for (;;) {
      if (const auto stop = buffer_.find('\n'); stop != std::string::npos) {
        std::string line = buffer_.substr(0, stop);
        buffer_.erase(0, stop + 1);
        return line;
      }
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          end - std::chrono::steady_clock::now());
      pollfd ready{.fd = out_, .events = POLLIN, .revents = 0};
      if (left.count() <= 0 || poll(&ready, 1, static_cast<int>(left.count())) <= 0) return {};
      char chunk[256];
      const auto got = read(out_, chunk, sizeof chunk);
      if (got <= 0) return {};
      buffer_.append(chunk, static_cast<std::size_t>(got));
    }
  }

  std::string ask(const std::string& command, std::chrono::milliseconds deadline) {
    send(command);
    return hear(deadline).value_or("(no answer)");
  }

  /// The wait status of its next change, or nothing when the deadline passes.
  std::optional<int> wait_for(std::chrono::milliseconds deadline, int options = 0) {
    const auto end = std::chrono::steady_clock::now() + deadline;
    for (;;) {
      int status = 0;
      const pid_t got = waitpid(pid_, &status, options | WNOHANG);
      if (got == pid_) {
        reaped_ = WIFEXITED(status) || WIFSIGNALED(status);
        return status;
      }
      if (got < 0 || std::chrono::steady_clock::now() >= end) return {};
      usleep(500);
    }
  }

 private:
  pid_t pid_ = 0;
  int in_ = -1;
  int out_ = -1;
  bool reaped_ = false;
  std::string buffer_;
};

}  // namespace sluice::test
