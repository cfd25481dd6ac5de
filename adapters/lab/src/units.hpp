#pragma once
/// \file
/// Durations as numbers, for reports.

#include <chrono>

#include "sluice/time.hpp"

namespace sluice::lab {

inline double ms(duration value) {
  return std::chrono::duration<double, std::milli>(value).count();
}
inline double seconds(duration value) { return std::chrono::duration<double>(value).count(); }

}  // namespace sluice::lab
