#pragma once
/// \file
/// One run of the laboratory: what is simulated, under whose scheduling, and what came of it.

#include "offline.hpp"
#include "online.hpp"
#include "policy_watch.hpp"
#include "profile.hpp"
#include "router.hpp"
#include "virtual_backend.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sluice/config.hpp"
#include "sluice/lab/arrivals.hpp"
#include "sluice/policy.hpp"
#include "sluice/recording.hpp"

namespace sluice::lab {

/// What runs beside what, and who keeps them apart.
enum class arrangement : std::uint8_t {
  online_alone,
  offline_alone,
  unscheduled,   ///< Both, and nobody decides.
  scheduled,     ///< By a policy, through the real scheduler_core.
  stopped,       ///< Offline processes get SIGSTOP while online work is in flight.
  static_split,  ///< Each side has its own compute units for good.
  exclusive,     ///< Each side has its own nodes (fleets only), without a policy.
};

struct contender {
  std::string name;
  arrangement how = arrangement::unscheduled;
  std::function<std::unique_ptr<policy>()> make;  ///< scheduled only.
  double online_share = 0.5;  ///< static_split: of the compute units; exclusive: of the nodes.
  router_spec router = {};    ///< Fleets only.
};

/// Everything that all contenders of one comparison have in common.
struct scenario {
  sim::profile machine;          ///< One to eight GPUs.
  arrivals work;                 ///< Dealt to the servers in turn; of a fleet, by its router.
  std::uint32_t servers_on = 0;  ///< The first so many GPUs have a server; 0: each.
  /// More than one: a fleet of such nodes behind a router.
  std::uint32_t nodes = 1;
  /// Of a fleet: its nodes take these offline loads in turn; empty: each has `offline`.
  std::vector<offline_spec> mix;
  token_costs costs;
  service_kind service = service_kind::continuous;
  serving_shape serving;
  duration decode_step{};  ///< GPU time of a step beside its tokens' (continuous).
  offline_spec offline;
  std::uint64_t offline_seed = 1;
  scheduler_config limits;
  /// From the moment a client marks work, or a driver call ends, until the scheduler acts on it.
  duration reaction = std::chrono::microseconds(100);
  /// From a kernel's end until what its host submits next is on the GPU, host gaps aside: the
  /// host's wake-up and the doorbell. Such is it on the simulated device (adapters/sim) in real
  /// time.
  duration wake_up = std::chrono::microseconds(170);
  /// Offline work runs for so long before the first arrival, and is attached to meanwhile.
  duration warm_up = std::chrono::seconds(3);
  bool whole_kernels = true;  ///< online_server::options; not of who is looked at by pointers.
  /// The servers tell the scheduler of their work. Else only policies that ask for their queues'
  /// pointers know of it.
  bool clients = true;

  /// On each node.
  std::size_t servers() const { return servers_on != 0 ? servers_on : machine.gpus.size(); }
  capabilities by() const {
    capabilities made{"debug trap", {capability::preempt_kernels}};
    if (machine.batch_commands) {
      made = {"batch commands",
              {capability::preempt_kernels, capability::batch_targets, capability::reserve_slots}};
    }
    if (std::ranges::any_of(machine.gpus, &sim::gpu_profile::time_sliced))
      made.can |= static_cast<std::uint16_t>(capability::set_quantum);
    return made;
  }
};

/// Online requests, of one run, in order of arrival.
struct served {
  std::uint32_t server = 0;
  served_request what;
};

struct run_result {
  // --- Online -----------------------------------------------------------------------------------
  std::vector<served> requests;
  std::vector<duration> gaps;  ///< Inter-token latencies, sorted; continuous service only.
  std::uint64_t steps = 0;
  // --- Offline, in the measured stretch: from the arrivals' time zero until the last request is
  // done (or given up), as the demo measures; alone, where no request comes, and of a fleet: the
  // window ----------------------------------------------------------------------------------------
  duration stretch{};
  duration offline_work{};  ///< Over all kernels: time run, without collectives.
  std::uint64_t offline_kernels = 0;
  duration longest_starvation{};  ///< A process had work, and none of it ran for so long.
  // --- The scheduler, likewise -------------------------------------------------------------------
  std::uint64_t suspends = 0;  ///< Queues.
  std::uint64_t resumes = 0;
  std::uint64_t driver_calls = 0;
  std::uint64_t forced_resumes = 0;
  std::uint64_t turns = 0;
  policy_faults faults;
  duration switching{};  ///< Time in which our calls kept everything off a GPU, over all GPUs.
  duration disturbed{};  ///< The part of it while that GPU had unfinished online work.
  std::uint64_t disturbing_cycles = 0;
  std::vector<driver_decision> decisions;  ///< When asked for; times after the engine's start.
  time_point zero{};                       ///< When the arrivals' clock began.
  // --- What must hold ----------------------------------------------------------------------------
  std::uint64_t left_suspended = 0;  ///< Queues, after the scheduler has stopped.
  bool conserved = false;            ///< Each kernel was run exactly once, or is still queued.
  std::uint64_t events = 0;          ///< Of the simulation; for its speed.
};

struct run_options {
  bool keep_decisions = false;         ///< Not of fleets.
  record_sink* record_into = nullptr;  ///< scheduled only, not of fleets; nullptr: nothing.
};

/// Runs one contender through the scenario, in virtual time. The same input gives the same result
/// on every machine.
///
/// Threading: any thread; runs share nothing. Errors: none; a scenario that is_valid() runs.
run_result simulate(const scenario& what, const contender& who, const run_options& options = {});

/// Suspends offline work the moment online work arrives, and resumes it the moment that is done:
/// what every policy has to be better than.
std::unique_ptr<policy> make_at_once();

}  // namespace sluice::lab
