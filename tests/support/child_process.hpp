#pragma once
/// \file
/// A forked child that runs a function of the test, and a line to it.

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::test {

/// One end of a line between a test and its child. Messages keep their boundaries.
///
/// Threading: one thread per end.
class channel {
 public:
  explicit channel(int fd) : fd_{fd} {}
  channel(const channel&) = delete;
  channel& operator=(const channel&) = delete;
  ~channel();

  /// False when the other end is gone.
  bool send(std::string_view message) const;
  /// The next message; nothing when the deadline passes or the other end is gone.
  std::optional<std::string> receive(std::chrono::milliseconds deadline) const;

 private:
  int fd_;
};

/// Threading: one thread, and no other at the time of construction (it forks).
/// Lifetime:  kills and reaps the child at the end. A child does not outlive its test.
/// Errors:    the constructor throws std::system_error.
class child_process {
 public:
  /// Runs `body` in a child, whose exit status is what it returns; an exception is printed and
  /// makes it 97. The child never returns into the test's own code.
  explicit child_process(const std::function<int(channel&)>& body);
  child_process(const child_process&) = delete;
  child_process& operator=(const child_process&) = delete;
  ~child_process();

  pid_t pid() const noexcept { return pid_; }
  channel& line() noexcept { return line_; }

  /// Whether its next message before the deadline is `expected`.
  bool says(std::string_view expected, std::chrono::milliseconds deadline);

  void signal(int number) const noexcept;
  /// The wait status once it has ended, nothing when the deadline passes first.
  std::optional<int> wait(std::chrono::milliseconds deadline);
  /// Whether it ends before the deadline with exit status 0.
  bool succeeds(std::chrono::milliseconds deadline);

 private:
  struct started {
    pid_t pid;
    int fd;
  };
  static started start(const std::function<int(channel&)>& body);
  explicit child_process(started made) : pid_{made.pid}, line_{made.fd} {}

  pid_t pid_ = 0;
  std::optional<int> status_;
  channel line_;
};

}  // namespace sluice::test
