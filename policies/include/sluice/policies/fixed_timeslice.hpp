#pragma once
/// \file
/// The plain policy: online work arrives, offline makes room for at least one slice. Good when
/// arrivals come in bursts and a suspend is cheap against the gaps between them.

#include <chrono>
#include <cstdint>
#include <memory>

#include "sluice/policy.hpp"
#include "sluice/policy_kind.hpp"
#include "sluice/time.hpp"

namespace sluice {

enum class release_on : std::uint8_t {
  client_done,  ///< When the slice is over and no online work is in flight.
  slice_end,    ///< When the slice is over, whatever clients say.
};

struct fixed_timeslice_options {
  /// Shortest hold after the last arrival. Default 20 ms; above zero.
  duration slice = std::chrono::milliseconds(20);
  release_on release = release_on::client_done;
};

/// On an online begin on a GPU, every offline group with compute queues there is held, until the
/// slice after the last arrival is over and, with client_done, none of the group's GPUs has online
/// work in flight. Groups that appear or change meanwhile are held as well.
///
/// Cost: a turn costs the changed groups and those of the GPUs with events, and never allocates.
[[nodiscard]] std::unique_ptr<policy> make_fixed_timeslice(fixed_timeslice_options options = {});

/// Parameters: `slice`, `release`.
[[nodiscard]] policy_kind fixed_timeslice_kind();

}  // namespace sluice
