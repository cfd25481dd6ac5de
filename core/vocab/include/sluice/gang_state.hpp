#pragma once
/// \file
/// What a scheduler says of its part of a gang that has processes on several nodes.

#include <cstdint>

#pragma GCC visibility push(default)
namespace sluice {

enum class gang_wish : std::uint8_t {
  gone,     ///< It has no processes here any more.
  refused,  ///< It cannot be held here: not offline, not attached, at a limit, refused by the
            ///< driver, on a lost GPU, without a policy, or the scheduler stops.
  run,      ///< Nothing here asks for a hold.
  hold,     ///< The policy here wants it held.
};

struct gang_state {
  std::uint64_t key = 0;    ///< observation::group_key.
  std::uint32_t nodes = 0;  ///< With processes of the gang, 2 or more.
  gang_wish wish = gang_wish::gone;

  friend bool operator==(const gang_state&, const gang_state&) = default;
};

}  // namespace sluice
#pragma GCC visibility pop
