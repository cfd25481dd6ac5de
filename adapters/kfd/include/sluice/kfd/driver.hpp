#pragma once
/// \file
/// AMD's KFD as a driver (sluice/driver.hpp).

#include <memory>

#include "sluice/acting.hpp"
#include "sluice/driver.hpp"
#include "sluice/kfd/roots.hpp"

#pragma GCC visibility push(default)
namespace sluice::kfd {

struct driver_options {
  roots where = roots::from_environment();
  /// Use the batch commands of a patched driver where it offers them (sluice/kfd/uapi_batch.hpp).
  bool batch_commands = true;
  /// Pause processes as a whole, on all of their GPUs, that use the driver without enabling the
  /// ROCm runtime's debug support; without this they are left alone (errc::not_managed). Only they
  /// are paused so, never a process whose debug session fails. Needs CAP_CHECKPOINT_RESTORE or
  /// CAP_SYS_ADMIN in the agent. See "Pausing whole processes" in adapters/kfd/README.md first: the
  /// driver does not undo such a pause when the agent dies, the agent's guardian does.
  bool criu_pause = false;
};

/// What an agent is told to act on such a device.
[[nodiscard]] acting_choice acting(const driver_options& how = {});

[[nodiscard]] std::unique_ptr<driver> make_driver(driver_options how = {});

}  // namespace sluice::kfd
#pragma GCC visibility pop
