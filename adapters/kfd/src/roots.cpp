#include "sluice/kfd/roots.hpp"

#include <sys/stat.h>

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

std::string roots::other_tree() const { return sysfs == roots{}.sysfs ? std::string{} : sysfs; }

bool is_simulated(const roots& where) {
  struct stat about {};
  return ::stat(where.device.c_str(), &about) == 0 && !S_ISCHR(about.st_mode);
}

}  // namespace sluice::kfd
