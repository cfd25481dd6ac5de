#pragma once
/// \file
/// A program that sluice-demo started: its control channel, its end, and the promise that it does
/// not outlive its parent.

#include "control_channel.hpp"
#include "workload.hpp"

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "sluice/time.hpp"

namespace demo {

/// Its standard output goes nowhere; standard error is the parent's.
struct program {
  std::vector<std::string> arguments;                            ///< [0] is the path.
  std::vector<std::pair<std::string, std::string>> environment;  ///< Added to the parent's.
};

/// The descriptor number under which a child finds its end of the control channel.
inline constexpr int child_control_fd = 3;

/// Threading: the thread that started it (the child dies with that thread).
/// Lifetime:  destruction ends the child: SIGTERM, 5 s, SIGKILL.
class child_process {
 public:
  /// In a process group of its own, so that Ctrl-C reaches it through the parent and in order.
  static checked<child_process> start(const program& what);
  ~child_process();
  child_process(child_process&& other) noexcept;
  child_process& operator=(child_process&&) = delete;

  pid_t pid() const { return pid_; }
  control_channel& control() { return control_; }

  void terminate();
  /// Waits for the end. \return the exit code, 128 + signal when a signal ended it.
  checked<int> wait(sluice::time_point deadline);

 private:
  child_process(pid_t pid, std::string name, control_channel control)
      : pid_(pid), name_(std::move(name)), control_(std::move(control)) {}

  pid_t pid_;  // 0 once reaped
  std::string name_;
  control_channel control_;
};

}  // namespace demo
