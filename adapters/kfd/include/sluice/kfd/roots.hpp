#pragma once
/// \file
/// Where the driver's interfaces are, and whether a real or a simulated device is behind them.

#include <string>

#pragma GCC visibility push(default)
namespace sluice::kfd {

struct roots {
  std::string device = "/dev/kfd";
  std::string sysfs = "/sys/class/kfd/kfd";
  std::string debugfs = "/sys/kernel/debug/kfd";  ///< Need not exist or be readable.

  /// The defaults, each replaced by SLUICE_KFD_DEVICE, SLUICE_KFD_SYSFS, SLUICE_KFD_DEBUGFS where
  /// that is set and not empty. Reads the environment: not while another thread writes it.
  static roots from_environment();

  /// `sysfs` where it is not the kernel's own, else empty.
  [[nodiscard]] std::string other_tree() const;
};

/// Whether `device` is there and is a simulated one: the kernel's is one of characters, which no
/// user can make without being root.
[[nodiscard]] bool is_simulated(const roots& where);

}  // namespace sluice::kfd
#pragma GCC visibility pop
