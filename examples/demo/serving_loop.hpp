#pragma once
/// \file
/// The online work: continuous batching as a language-model server does it. Requests are taken as
/// they come; one loop admits them to its batch, prefills them, then gives every active one a token
/// per step, with a host gap between steps.

#include "kernel_ledger.hpp"
#include "serving_options.hpp"
#include "workload.hpp"

#include <cstdint>
#include <vector>

#include "sluice/online_client.hpp"
#include "sluice/sim/client.hpp"

namespace demo {

struct serving_result {
  std::vector<duration> finished;    ///< Device end stamp of the last kernel − planned arrival.
  std::vector<duration> unfinished;  ///< Lower bounds.
  std::vector<duration> arrivals;    ///< Since the start: of `finished`, then of `unfinished`.
  std::vector<duration> wake_ups;    ///< Per step: seen by the host − device end stamp.
  /// Per step that followed another, no arrival waited for: its begin on the device − the other's
  /// end, less the host gap. Alone on the GPU that is what the host and the doorbell take.
  std::vector<duration> turnarounds;
  std::uint64_t steps = 0;
  verdict kernels;
};

/// Packets of the queue that serve() wants.
inline constexpr std::uint32_t serving_packets = 4096;

/// Serves `work` on `queue`, beginning now. Blocks until all is served, the drain limit has passed
/// or stop_signal() is set.
/// \param client told about every request: the spans request and ttft of it when it arrives,
///        itl from token to token, and that online work is in flight from its admission to its last
///        token.
checked<serving_result> serve(sluice::sim::gpu_queue& queue, std::uint32_t wave_slots,
                              const arrivals& work, const token_costs& costs,
                              const serving_options& options, sluice::online_client& client);

}  // namespace demo
