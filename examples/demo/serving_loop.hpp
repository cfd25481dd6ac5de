#pragma once
/// \file
/// The online work: continuous batching as a language-model server does it. One loop admits what
/// has arrived, prefills it, then gives every active request one token per step, with a host gap
/// between steps.

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
/// \param client told about every request from admission to its last token, with the spans of it:
///        request and ttft from its arrival, itl from token to token.
checked<serving_result> serve(sluice::sim::gpu_queue& queue, std::uint32_t wave_slots,
                              const arrivals& work, const token_costs& costs,
                              const serving_options& options, sluice::online_client& client);

}  // namespace demo
