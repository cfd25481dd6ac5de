#pragma once
/// \file
/// A simulated GPU for one test: its own sluice-sim, directory and mount.

#include "child_process.hpp"
#include "eventually.hpp"

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sluice/kfd/roots.hpp"

namespace sluice::test {

struct device_settings {
  /// A profile's name or path; or, when it contains a line break, the text of one.
  std::string profile = "mi300x";
  std::uint32_t gpus = 0;  ///< Overrides the profile's number of GPUs unless 0.
};

/// A profile text like mi300x, with extra lines in its tables. A later value of a key replaces the
/// built-in one: `driver` and `gpu` are lines such as "cycle_cost = \"1ms\"\n".
std::string profile_text(const std::string& driver, const std::string& gpu);
/// The same with costs that do not make a test wait: a suspend and a resume of 1 ms each.
std::string fast_profile(const std::string& driver = "", const std::string& gpu = "");

/// Moves this process (the calling thread and those it starts from now on) into a mount namespace
/// of its own, once. Called by simulated_device; whoever mounts by himself calls it first.
void enter_private_mounts();

/// Threading: one thread.
/// Lifetime:  destruction stops the program and removes the directory.
/// Errors:    throws std::runtime_error (no root, no /dev/fuse, a bad profile...).
class simulated_device {
 public:
  explicit simulated_device(const device_settings& settings = {});
  simulated_device(const simulated_device&) = delete;
  simulated_device& operator=(const simulated_device&) = delete;
  ~simulated_device();

  /// The directory; a test may put files of its own there.
  const std::string& root() const noexcept { return root_; }
  kfd::roots roots() const;  ///< Of a profile of AMD's driver.
  /// Of a profile of NVIDIA's driver: the node nvidiactl, and what /proc/driver/nvidia is.
  std::string nvidia_device() const { return root_ + "/dev/nvidiactl"; }
  std::string nvidia_proc() const { return root_ + "/proc/driver/nvidia"; }
  /// All of these as environment settings, "NAME=value", for programs.
  std::vector<std::string> environment() const;

  pid_t pid() const noexcept { return pid_; }
  /// What the program printed so far.
  std::string output() const;
  std::string stats() const;  ///< sim/stats.json

  /// Ends the program. \return its wait status. Idempotent.
  int stop(int signal_number);
  /// The wait status once the program has ended by itself, nothing when the deadline passes first.
  std::optional<int> wait(std::chrono::milliseconds deadline);

 private:
  std::string directory_;  // Temporary; holds the root, the profile and the log.
  std::string root_;
  pid_t pid_ = 0;
  int status_ = 0;
};

/// The whole content of a file; empty when it cannot be read.
std::string read_file(const std::string& path);

}  // namespace sluice::test
