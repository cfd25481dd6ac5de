#pragma once
/// \file
/// The seed of a random test, and whether tests run their long forms.

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include <gtest/gtest.h>

namespace sluice::test {

/// Holds the seed of a random test: SLUICE_TEST_SEED from the environment, or a drawn number where
/// that variable is unset or empty. Prints it once as SLUICE_TEST_SEED=N, and with every failure
/// in this thread while the object exists.
///
/// Use it for what must hold for every seed. Whether the random steps covered enough is asserted
/// with fixed seeds only.
/// Errors: throws std::invalid_argument if the variable is malformed, which fails the test.
class random_seed {
 public:
  explicit random_seed(const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : trace_(file, line, assignment()) {
    std::cout << assignment() << std::endl;  // A test that crashes has printed it.
  }
  std::uint64_t value() const noexcept { return value_; }

 private:
  static std::uint64_t choose() {
    const char* const given = std::getenv("SLUICE_TEST_SEED");  // NOLINT: no thread sets it.
    if (given == nullptr || *given == '\0') return std::random_device{}();
    const std::string_view text = given;
    std::uint64_t seed = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
    if (error != std::errc{} || end != text.data() + text.size()) {
      throw std::invalid_argument("invalid SLUICE_TEST_SEED '" + std::string(text) +
                                  "': expected a decimal number from 0 to 2^64 - 1");
    }
    return seed;
  }
  std::string assignment() const { return "SLUICE_TEST_SEED=" + std::to_string(value_); }

  const std::uint64_t value_ = choose();
  const ::testing::ScopedTrace trace_;
};

/// Returns whether SLUICE_TEST_LONG in the environment requests the long forms of tests: it is
/// neither unset nor empty.
inline bool long_tests() {
  const char* const given = std::getenv("SLUICE_TEST_LONG");  // NOLINT: no thread sets it.
  return given != nullptr && *given != '\0';
}

}  // namespace sluice::test
