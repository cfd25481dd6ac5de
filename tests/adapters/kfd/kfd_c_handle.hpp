#pragma once
/// \file
/// A handle of the C API for one test.

#include <cstdint>
#include <memory>

#include <gtest/gtest.h>

#include "sluice/kfd.h"
#include "sluice/kfd/roots.hpp"

namespace sluice::test {

struct kfd_c_cleanup {
  void operator()(sluice_kfd* handle) const { EXPECT_EQ(sluice_kfd_cleanup(handle), 0); }
};
using kfd_c_handle = std::unique_ptr<sluice_kfd, kfd_c_cleanup>;

/// \return null, with a failure, if the API refuses.
inline kfd_c_handle open_kfd_c(const kfd::roots& where, std::uint32_t flags = 0) {
  sluice_kfd_options options{};
  options.size = sizeof options;
  options.flags = flags;
  options.device = where.device.c_str();
  options.sysfs = where.sysfs.c_str();
  options.debugfs = where.debugfs.c_str();
  sluice_kfd* handle = nullptr;
  EXPECT_EQ(sluice_kfd_init(&options, &handle), 0) << sluice_kfd_last_error();
  return kfd_c_handle{handle};
}

}  // namespace sluice::test
