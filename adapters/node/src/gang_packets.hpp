#pragma once
/// \file
/// What a daemon and the program that speaks for it with other nodes (sluice-gangs) send each
/// other, over a socket of type SOCK_SEQPACKET in the node's directory. Both are of one release.

#include <cstdint>
#include <type_traits>

#include "sluice/gang_state.hpp"

namespace sluice {

/// As messages begin; another number for each change of what follows.
inline constexpr std::uint32_t gang_packets_version = 1;

/// From the daemon: `state`, of each gang once a connection begins, and when one changes; `alive`,
/// the answer to each `ask`, from the thread that decides.
/// To the daemon: `ask`, and `heard`.
enum class gang_packet_kind : std::uint32_t { state, alive, ask, heard };

struct gang_packet {
  std::uint32_t version = gang_packets_version;
  gang_packet_kind kind{};
  std::uint64_t key = 0;      ///< state, heard: gang_state::key.
  std::uint64_t number = 0;   ///< ask: any; alive: that of the `ask`.
  std::int64_t until_ns = 0;  ///< heard: as observation_kind::gang_heard, on the steady clock; 0:
                              ///< the peers do not answer.
  std::uint32_t nodes = 0;    ///< state.
  gang_wish wish{};           ///< state.
  bool hold = false;          ///< heard: a peer wants the gang held until then.
  std::uint8_t unused[2]{};
};
static_assert(std::is_trivially_copyable_v<gang_packet> && sizeof(gang_packet) == 40);

}  // namespace sluice
