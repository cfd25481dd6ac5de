#include "sluice/kfd/roots.hpp"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace sluice::kfd::roots_test {
namespace {

// The kernel's device is one of characters, as /dev/null is; the simulated one a file.
TEST(Roots, KnowASimulatedDeviceByItsKind) {
  EXPECT_FALSE(is_simulated({.device = "/dev/null"}));
  const std::string path = testing::TempDir() + "roots_test_" + std::to_string(::getpid());
  EXPECT_FALSE(is_simulated({.device = path})) << "nothing is there";
  std::ofstream{path} << "x";
  EXPECT_TRUE(is_simulated({.device = path}));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace sluice::kfd::roots_test
