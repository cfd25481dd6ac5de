#pragma once
/// \file
/// Identifiers as the numbers that users see.

#include <cstdint>

#include "sluice/ids.hpp"

namespace sluice {

inline std::uint32_t number(gpu_id id) { return static_cast<std::uint32_t>(id); }
template <class Id>
std::uint64_t number(Id id) {
  return static_cast<std::uint64_t>(id);
}

}  // namespace sluice
