#pragma once
/// \file
/// What is shown is in seconds.

#include <chrono>

#include "sluice/time.hpp"

namespace sluice::observe {

inline double seconds(duration value) noexcept {
  return std::chrono::duration<double>(value).count();
}

}  // namespace sluice::observe
