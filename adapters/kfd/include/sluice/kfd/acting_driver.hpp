#pragma once
/// \file
/// KFD as the agent sees it (sluice/agent/acting_driver.hpp).

#include <memory>

#include "sluice/agent/acting_driver.hpp"
#include "sluice/agent/confinement.hpp"

namespace sluice::kfd {

[[nodiscard]] std::unique_ptr<agent::acting_driver> make_acting_driver();

/// What depends on how it is used, of what an agent needs to act.
struct agent_needs {
  bool criu_pause = false;
  bool reservations =
      false;  ///< The driver has batch commands, of which one wants an administrator.
  /// The one pidfd whose process's descriptors it may take (bell_maker), with a number that
  /// RLIMIT_NOFILE allows to no other; -1: of none. With criu_pause it takes those of its targets.
  int bells = -1;
};

[[nodiscard]] agent::confinement agent_confinement(const agent_needs& how);
[[nodiscard]] agent::confinement bell_maker_confinement();

}  // namespace sluice::kfd
