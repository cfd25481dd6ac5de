#pragma once
/// \file
/// A process of a benchmark's own.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <stdexcept>

namespace sluice::bench {

/// Forked from this process, and killed with it. It runs `body`, which is not expected to return.
class child {
 public:
  template <class Body>
  explicit child(Body body) : pid_(::fork()) {
    if (pid_ < 0) throw std::runtime_error{"fork failed"};
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      body();
    } catch (const std::exception& problem) {
      std::fprintf(stderr, "a benchmark's child: %s\n", problem.what());
    }
    ::_exit(1);
  }
  ~child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  child(const child&) = delete;
  child& operator=(const child&) = delete;
  pid_t pid() const noexcept { return pid_; }

 private:
  pid_t pid_;
};

}  // namespace sluice::bench
