#pragma once
/// \file
/// The plain policy: online work arrives, offline makes room for at least one slice. Good when
/// arrivals come in bursts and a suspend is cheap against the gaps between them.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/policy.hpp"
#include "sluice/policy_kind.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

enum class release_on : std::uint8_t {
  client_done,  ///< When the slice is over and no online work is in flight.
  slice_end,    ///< When the slice is over, whatever clients say.
};

struct fixed_timeslice_options {
  /// Shortest hold after the last arrival. Default 20 ms; above zero.
  duration slice = std::chrono::milliseconds(20);
  release_on release = release_on::client_done;
  /// GPUs with a slice of their own.
  std::vector<std::pair<gpu_id, duration>> slice_of{};
  /// What the slice is multiplied by for the arrivals of a client, 0 to 1000; 1 where nothing is
  /// said. Clients by name, or by a pattern in which * stands for any characters: the name itself
  /// goes first, then the pattern with most characters, then the first of those.
  std::vector<std::pair<std::string, double>> weight_of{};
};

/// On an online begin on a GPU, every offline group with compute queues there is held, until the
/// slice that each of its GPUs has earned is over and, with client_done, none of them has online
/// work in flight. An arrival earns its GPU the time until `at + slice of the GPU × weight of the
/// client`; what was earned is never shortened. Groups that appear or change meanwhile are held as
/// well.
///
/// Promises: no offline group that can be held runs on a GPU with online work in flight
/// (client_done), or within a slice of an arrival, but for the scheduler's limits.
/// It holds for online work whether that pays or not: beside kernels much shorter than a suspend
/// and a resume, that costs online work more than it gives (adapters/lab/RESULTS.md); see slo.
/// Choose it when arrivals come in bursts, and nothing is known of them but that: the slice should
/// be longer than the gaps within a burst. Give a client that can wait (batch scoring) a weight
/// below 1, one whose bursts have long gaps a weight above. What of slice_of and weight_of has
/// fitted no GPU and no client is said once, after 100 arrivals.
/// Cost: a turn costs the changed groups, those of the GPUs with events and, for each begin, the
/// weights; it allocates only for a GPU that it has not seen.
[[nodiscard]] std::unique_ptr<policy> make_fixed_timeslice(fixed_timeslice_options options = {});

/// Parameters: `slice`, `release`, `slice_of.<gpu_id>`, `weight_of.<client>`.
[[nodiscard]] policy_kind fixed_timeslice_kind();

}  // namespace sluice
#pragma GCC visibility pop
