#pragma once
/// \file
/// Words of another process that it shares with a GPU.

#include <cstdint>
#include <functional>
#include <span>

#include "sluice/ids.hpp"

namespace sluice::nvidia {

inline constexpr std::uint64_t page_bytes = 4096;
inline constexpr std::size_t page_words = page_bytes / sizeof(std::uint32_t);

/// Fills `into` from an address. False: it cannot be read.
using words_reader = std::function<bool(std::uint64_t at, std::span<std::uint32_t> into)>;

/// A mapping of a file of the driver, readable and writable.
struct device_mapping {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  gpu_id gpu = gpu_id::none;  ///< Of a GPU's node; none: of the control device.

  friend bool operator==(const device_mapping&, const device_mapping&) = default;
};

}  // namespace sluice::nvidia
