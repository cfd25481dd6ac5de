#pragma once
/// \file
/// The checks of `sluice doctor` that concern NVIDIA's driver.

#include <vector>

#include "sluice/check.hpp"
#include "sluice/nvidia/driver.hpp"

namespace sluice::nvidia {

[[nodiscard]] std::vector<check> examine(const machine& here, const driver_options& how);

}  // namespace sluice::nvidia
