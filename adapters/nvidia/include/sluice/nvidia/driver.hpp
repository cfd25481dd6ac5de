#pragma once
/// \file
/// NVIDIA's driver as a driver (sluice/driver.hpp).

#include <memory>

#include "sluice/driver.hpp"
#include "sluice/nvidia/roots.hpp"

#pragma GCC visibility push(default)
namespace sluice::nvidia {

struct driver_options {
  roots where = roots::from_environment();
  /// Also act on releases of the driver that sluice was not tested with.
  bool allow_untested_driver = false;
};

[[nodiscard]] std::unique_ptr<driver> make_driver(driver_options how = {});

}  // namespace sluice::nvidia
#pragma GCC visibility pop
