#pragma once
/// \file
/// Finds handles of RM clients in a process's memory. libcuda keeps the handle of its client beside
/// handles of that client's objects, at many places: two neighbouring 32-bit words. No other word
/// of a program has such a neighbour (measured with CUDA programs and PyTorch 2.11, driver 580).

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "sluice/nvidia/uapi.hpp"

namespace sluice::nvidia {

/// libcuda numbers its objects from this handle on, in the order of their creation.
inline constexpr uapi::NvHandle first_object = 0x5c000001;
/// The highest object handle that a look accepts.
inline constexpr uapi::NvHandle last_object = 0x5c0fffff;

[[nodiscard]] constexpr bool is_client_handle(std::uint32_t word) noexcept {
  return word - uapi::RS_CLIENT_HANDLE_BASE < uapi::RS_CLIENT_HANDLE_MAX;
}
[[nodiscard]] constexpr bool is_object_handle(std::uint32_t word) noexcept {
  return word >= first_object && word <= last_object;
}

class handle_scan {
 public:
  /// Different clients that it remembers.
  static constexpr std::size_t most_clients = 4096;
  static constexpr std::size_t most_candidates = 16;
  struct candidate {
    uapi::NvHandle client = 0;
    std::size_t places = 0;     ///< Pairs that were found.
    uapi::NvHandle newest = 0;  ///< The highest object handle among them.
  };

  /// Looks at memory that begins at a multiple of four. A pair that spans two calls is not found.
  void feed(std::span<const std::uint32_t> words);
  /// Returns what was found, the most frequent first: most_candidates at most, and none that is
  /// rarer than the first by a factor of more than 8. A question about a wrong client leaves lines
  /// in the kernel's log, and a true one has dozens of places.
  [[nodiscard]] std::vector<candidate> found() const;

 private:
  std::map<uapi::NvHandle, candidate> seen_;
};

}  // namespace sluice::nvidia
