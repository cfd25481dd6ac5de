#pragma once
/// \file
/// NVIDIA's driver, as the agent sees it.

#include <memory>

#include "sluice/agent/acting_driver.hpp"

#pragma GCC visibility push(default)
namespace sluice::nvidia {

/// Settings: `device` and `proc` (roots), `allow_untested_driver`.
[[nodiscard]] std::unique_ptr<agent::acting_driver> make_acting_driver();

}  // namespace sluice::nvidia
#pragma GCC visibility pop
