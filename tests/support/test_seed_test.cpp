#include "test_seed.hpp"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

namespace sluice::test::test_seed_test {
namespace {

/// Restores the environment variable, which may be set for the other tests.
class TestSeed : public ::testing::Test {
 protected:
  ~TestSeed() override { give(before_); }
  static void give(const std::string& text) { ::setenv("SLUICE_TEST_SEED", text.c_str(), 1); }

 private:
  static std::string given() {
    const char* const text = std::getenv("SLUICE_TEST_SEED");
    return text != nullptr ? text : "";
  }
  const std::string before_ = given();
};

TEST_F(TestSeed, IsTheOneGiven) {
  for (const char* const each : {"0", "3877413132", "18446744073709551615"}) {
    give(each);
    EXPECT_EQ(std::to_string(random_seed().value()), each);
  }
}

TEST_F(TestSeed, IsPrintedSoThatItCanBeGivenAgain) {
  give("");
  ::testing::internal::CaptureStdout();
  const random_seed drawn;
  EXPECT_EQ(::testing::internal::GetCapturedStdout(),
            "SLUICE_TEST_SEED=" + std::to_string(drawn.value()) + "\n");
}

TEST_F(TestSeed, IsRefusedWhereItIsNoNumber) {
  for (const char* const each : {"x", "12x", "-1", " 1", "1.5", "18446744073709551616"}) {
    give(each);
    EXPECT_THROW(random_seed(), std::invalid_argument) << each;
  }
}

}  // namespace
}  // namespace sluice::test::test_seed_test
