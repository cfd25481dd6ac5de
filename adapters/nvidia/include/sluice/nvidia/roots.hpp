#pragma once
/// \file
/// Paths of the driver's files, which belong to a real or to a simulated device.

#include <string>

#pragma GCC visibility push(default)
namespace sluice::nvidia {

struct roots {
  /// The control device. The nodes of GPUs (nvidia0, nvidia1, ...) are in the same directory.
  std::string device = "/dev/nvidiactl";
  std::string proc = "/proc/driver/nvidia";

  /// Returns the defaults, each replaced by SLUICE_NVIDIA_DEVICE or SLUICE_NVIDIA_PROC if that
  /// variable is set and not empty. Reads the environment: call it before other threads change it.
  [[nodiscard]] static roots from_environment();

  /// Returns whether these are the paths of the machine's own driver.
  [[nodiscard]] bool are_own() const;
  /// Returns the path of a GPU's node.
  [[nodiscard]] std::string node(unsigned minor) const;
};

/// Returns whether `device` exists and is simulated: the real one is a character device, which only
/// root can create.
[[nodiscard]] bool is_simulated(const roots& where);

}  // namespace sluice::nvidia
#pragma GCC visibility pop
