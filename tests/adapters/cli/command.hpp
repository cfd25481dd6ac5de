#pragma once
/// \file
/// Runs the command `sluice` as a user does.

#include "eventually.hpp"
#include "temporary_directory.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace sluice::test {

/// One run of a program, its output in files.
///
/// Threading: one thread. Lifetime: kills and reaps the program at the end.
class command {
 public:
  /// \param environment "NAME=value", put before this process's own.
  command(const std::string& program, std::vector<std::string> words,
          std::vector<std::string> environment) {
    words.insert(words.begin(), program);
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    std::vector<char*> settings;
    for (auto& entry : environment) settings.push_back(entry.data());
    for (char** inherited = environ; *inherited != nullptr; ++inherited)
      settings.push_back(*inherited);
    settings.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    constexpr int flags = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, (directory_ + "/out").c_str(), flags,
                                     0600);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, (directory_ + "/err").c_str(), flags,
                                     0600);
    const int error =
        posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments.data(), settings.data());
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) throw std::runtime_error{"cannot start " + program};
  }
  ~command() {
    if (!status_) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  command(const command&) = delete;
  command& operator=(const command&) = delete;

  pid_t pid() const { return pid_; }
  std::string out() const { return read(directory_ + "/out"); }
  /// \param from so many bytes are left out.
  std::string err(std::size_t from = 0) const { return read(directory_ + "/err", from); }
  void signal(int number) const { ::kill(pid_, number); }

  /// Its exit code, 128 + the signal that killed it, or nothing when it goes on.
  std::optional<int> ends(std::chrono::milliseconds deadline = std::chrono::seconds{30}) {
    eventually(deadline, [this] {
      int status = 0;
      if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_)
        status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      return status_.has_value();
    });
    return status_;
  }
  /// Waits until its standard output holds the text.
  bool says(const std::string& text,
            std::chrono::milliseconds deadline = std::chrono::seconds{30}) {
    return eventually(deadline,
                      [&] {
                        return out().find(text) != std::string::npos ||
                               ends(std::chrono::milliseconds{0});
                      }) &&
           out().find(text) != std::string::npos;
  }

 private:
  static std::string read(const std::string& path, std::size_t from = 0) {
    std::ifstream file{path};
    file.seekg(0, std::ios::end);
    const auto size = static_cast<std::size_t>(std::max<std::streamoff>(file.tellg(), 0));
    std::string text(size - std::min(from, size), '\0');
    file.seekg(static_cast<std::streamoff>(from));
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    return text;
  }

  const temporary_directory made_;
  const std::string directory_ = made_.path();
  pid_t pid_ = 0;
  std::optional<int> status_;
};

}  // namespace sluice::test
