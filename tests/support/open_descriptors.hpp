#pragma once
/// \file
/// How many descriptors this process has open.

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace sluice::test {

inline std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all{"/proc/self/fd"};
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

}  // namespace sluice::test
