#pragma once
/// \file
/// A process with a parent of its own. What tracing does to a process shows in what its real parent
/// hears, and a parent in the tracer's process would compete with the tracer for it.

#include "eventually.hpp"
#include "proc_text.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "sluice/time.hpp"

namespace sluice::test {

/// The state of a process or thread as /proc shows it, such as 'S'; '?' once it is gone.
inline char state_of(pid_t id) {
  const std::string text = proc_text("/proc/" + std::to_string(id) + "/stat");
  const std::size_t name_end = text.rfind(')');
  return name_end + 2 < text.size() ? text[name_end + 2] : '?';
}

/// Runs `body` in a grandchild; its real parent, the child, reports every status that waitpid gives
/// it (stops and continuations too). Both end with the object.
class family {
 public:
  /// `body` gets a descriptor to write to, see heard(), and one to read from, see tell(); its value
  /// is the exit status.
  explicit family(const std::function<int(int said)>& body)
      : family([&body](int said, int) { return body(said); }) {}
  explicit family(const std::function<int(int said, int told)>& body) {
    int statuses[2];
    int words[2];
    int orders[2];
    int pids[2];
    if (::pipe2(statuses, O_CLOEXEC) != 0 || ::pipe2(words, O_CLOEXEC) != 0 ||
        ::pipe2(orders, O_CLOEXEC) != 0 || ::pipe2(pids, O_CLOEXEC) != 0)
      std::abort();
    parent_ = ::fork();
    if (parent_ == 0) {
      const pid_t parent = ::getpid();
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const pid_t child = ::fork();
      if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != parent) ::_exit(98);
        // A process group of its own: in an orphaned one the kernel ignores SIGTSTP and its like.
        ::setpgid(0, 0);
        ::close(statuses[0]);
        ::close(statuses[1]);
        ::_exit(body(words[1], orders[0]));
      }
      (void)!::write(pids[1], &child, sizeof(child));
      int status = 0;
      while (::waitpid(child, &status, WUNTRACED | WCONTINUED) == child) {
        (void)!::write(statuses[1], &status, sizeof(status));
        if (WIFEXITED(status) || WIFSIGNALED(status)) break;
      }
      ::_exit(0);
    }
    ::close(statuses[1]);
    ::close(words[1]);
    ::close(orders[0]);
    ::close(pids[1]);
    statuses_ = statuses[0];
    words_ = words[0];
    orders_ = orders[1];
    if (::read(pids[0], &child_, sizeof(child_)) != sizeof(child_)) std::abort();
    ::close(pids[0]);
    ended_ = static_cast<int>(::syscall(SYS_pidfd_open, child_, 0));
  }
  /// Returns when both have ended, and so have let go of their files and locks.
  ~family() {
    if (ended_ >= 0) {
      ::syscall(SYS_pidfd_send_signal, ended_, SIGKILL, nullptr, 0);
      (void)readable(ended_, std::chrono::seconds{30});
      ::close(ended_);
    }
    ::kill(parent_, SIGKILL);
    ::waitpid(parent_, nullptr, 0);
    ::close(statuses_);
    ::close(words_);
    ::close(orders_);
  }
  family(const family&) = delete;
  family& operator=(const family&) = delete;

  pid_t pid() const { return child_; }

  /// The next status that the real parent got, in waitpid's form.
  std::optional<int> status(duration limit = patience) const {
    int status = 0;
    if (!readable(statuses_, limit) || ::read(statuses_, &status, sizeof(status)) != sizeof(status))
      return {};
    return status;
  }
  void tell(char order) const { (void)!::write(orders_, &order, 1); }
  /// The next byte that the body wrote.
  std::optional<char> heard(duration limit = patience) const {
    char byte = 0;
    if (!readable(words_, limit) || ::read(words_, &byte, 1) != 1) return {};
    return byte;
  }

 private:
  static bool readable(int fd, duration limit) {
    pollfd waiting{fd, POLLIN, 0};
    return ::poll(&waiting, 1,
                  static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(limit).count())) >
           0;
  }

  pid_t parent_ = 0;
  pid_t child_ = 0;
  int ended_ = -1;  // the child's pidfd; none if it ended at once
  int statuses_ = -1;
  int words_ = -1;
  int orders_ = -1;
};

/// Until the new program can be looked at: the kernel gives it the name first, and the environment
/// some moments later.
inline void wait_for_exec(const family& target, const std::string& name) {
  const std::string directory = "/proc/" + std::to_string(target.pid());
  ASSERT_TRUE(eventually(patience, [&] {
    std::string found;
    std::getline(std::ifstream{directory + "/comm"}, found);
    return found == name && std::ifstream{directory + "/environ"}.get() != EOF;
  }));
}

}  // namespace sluice::test
