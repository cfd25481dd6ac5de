#include "sluice/kfd/roots.hpp"

#include <cstdlib>

namespace sluice::kfd {

roots roots::from_environment() {
  roots where;
  const auto replace = [](std::string& value, const char* name) {
    const char* const found = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): see the header
    if (found != nullptr && *found != '\0') value = found;
  };
  replace(where.device, "SLUICE_KFD_DEVICE");
  replace(where.sysfs, "SLUICE_KFD_SYSFS");
  replace(where.debugfs, "SLUICE_KFD_DEBUGFS");
  return where;
}

}  // namespace sluice::kfd
