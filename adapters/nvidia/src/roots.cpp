#include "sluice/nvidia/roots.hpp"

#include <sys/stat.h>

#include <cstdlib>

namespace sluice::nvidia {

roots roots::from_environment() {
  roots where;
  const auto replace = [](std::string& value, const char* name) {
    const char* const found = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): see the header
    if (found != nullptr && *found != '\0') value = found;
  };
  replace(where.device, "SLUICE_NVIDIA_DEVICE");
  replace(where.proc, "SLUICE_NVIDIA_PROC");
  return where;
}

bool roots::are_own() const {
  const roots own;
  return device == own.device && proc == own.proc;
}

std::string roots::node(unsigned minor) const {
  return device.substr(0, device.rfind('/') + 1) + "nvidia" + std::to_string(minor);
}

bool is_simulated(const roots& where) {
  struct stat about {};
  return ::stat(where.device.c_str(), &about) == 0 && !S_ISCHR(about.st_mode);
}

}  // namespace sluice::nvidia
