#pragma once
/// \file
/// Many runs, compared: policies and what always stands beside them, on profiles, arrivals and
/// loads, over several seeds.

#include "experiment.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sluice/lab/checked.hpp"
#include "sluice/lab/percentiles.hpp"
#include "sluice/policy.hpp"

namespace sluice::lab {

/// Arrivals for a seed.
struct arrival_source {
  std::string name;
  std::function<arrivals(std::uint64_t seed)> make;
};

/// "p99 of this span at most that": what counts as a miss.
struct targets {
  std::array<std::optional<duration>, span_kinds> limit;  ///< By span_kind.
};

struct study_spec {
  struct named_profile {
    std::string name;
    sim::profile what;
    /// Index of an earlier profile from which this one differs only in what suspends and resumes
    /// cost: runs without any are taken over from there.
    std::optional<std::size_t> same_but_for_suspends = {};
  };
  struct named_offline {
    std::string name;
    offline_spec what;
  };
  std::vector<named_profile> profiles;
  std::vector<arrival_source> sources;
  std::vector<double> loads;  ///< Share of each GPU's time that online work takes; > 0.
  std::vector<named_offline> offline;
  std::vector<contender> policies;
  std::vector<router_spec> routers;  ///< Of fleets: each with all that is compared.
  scenario common;                   ///< All but machine, work, costs, offline and offline_seed.
  /// Fixed costs instead of a load: then `loads` has one element, which is not looked at.
  std::optional<token_costs> costs;
  targets limits;
  std::uint64_t first_seed = 1;
  std::uint32_t seeds = 1;
  std::uint32_t threads = 1;
  /// Online's share of a static split, or of a fleet's nodes; empty: see split_for().
  std::optional<double> split;
  bool keep_requests = false;
  bool keep_decisions = false;
};

/// Online's compute units under a static split, or its nodes: its load, and half of what is left.
double split_for(double load);

/// One run's figures. Shares are 0 to 1. Without requests there are no latencies, slowdowns and
/// misses: what stands there says nothing.
struct figures {
  double requests = 0, unfinished = 0;
  percentiles latency, ttft, itl;
  double in_flight = 0;      ///< Requests, mean: their latencies over the length of the arrivals.
  double slowdown_mean = 1;  ///< Latency, request by request, over that of running alone.
  double slowdown_p99 = 1;
  std::array<double, span_kinds> misses{};  ///< Share of spans over their target, by span_kind.
  double offline_share = 0;                 ///< Of what offline work gets done alone.
  double offline_busy = 0;  ///< Kernel time done over the stretch, a second per second.
  /// The most offline share at this run's p99, proven (bound.hpp); empty where it says nothing:
  /// requests were not finished, one side ran alone, or a static split.
  std::optional<double> bound;
  double suspends = 0, driver_calls = 0;  ///< Per second.
  double switching = 0;                   ///< Share of the stretch, mean over the GPUs.
  double disturbed_ms = 0;                ///< Per second: online work stood still for our calls...
  double disturbing_cycles = 0;           ///< ...so many of them per second.
  double starvation_ms = 0;
  double forced_resumes = 0;  ///< Per second.
  double left_suspended = 0;
  bool conserved = true;
  /// Half of the requests that came in the second half waited longer than 99 % of those in the
  /// first: the queue grew throughout, so that latencies say how long the run was.
  bool growing = false;
};

/// A contender's runs in one setting. Of a policy that was removed in one of them there are no
/// figures and no rows: what came after was nobody's.
struct cell {
  std::size_t profile = 0, source = 0, load = 0, offline = 0;  ///< Indices into the spec.
  std::string contender;
  arrangement how = arrangement::unscheduled;
  std::vector<figures> by_seed;
  std::vector<run_result> runs;              ///< By seed; what was asked to be kept.
  std::vector<std::vector<duration>> alone;  ///< By seed: latencies of online_alone's requests.
  policy_faults faults;                      ///< Of all runs.
  bool removed() const noexcept { return !faults.removed_for.empty(); }
};

/// A point of the bound's curve.
struct bound_point {
  duration p99{};
  double offline_share = 0;
};

/// One setting: all that is compared with each other.
struct setting {
  std::size_t profile = 0, source = 0, load = 0, offline = 0;
  double share = 0;      ///< Of each GPU's time that online work takes; the first seed's.
  std::string arrivals;  ///< How many requests, of the first seed.
  std::vector<cell> cells;
  std::vector<bound_point> bound;  ///< Of the first seed, over any row's stretch; rising.
};

struct study {
  std::vector<setting> settings;
  std::uint64_t runs = 0;
};

/// A setting in one line: profile, arrivals, load, offline work.
std::string text_of(const study_spec& spec, const setting& where);

/// "text_of(setting), contender" of what the calling thread simulates at the moment; empty:
/// nothing. For what is logged meanwhile.
std::string_view run_in_progress() noexcept;

/// Settings in which online work without a scheduler got more than the GPUs could serve, so that
/// what is compared with it has no meaning; a sentence for each.
std::vector<std::string> overloaded_of(const study_spec& spec, const study& all);

/// Who was removed and why, a sentence for each.
std::vector<std::string> removed_of(const study& all);

/// Runs everything. The result does not depend on `threads`.
/// Errors: one sentence, when something that must never happen did: kernels lost or run twice, or
/// queues left suspended.
checked<study> run_study(const study_spec& spec);

/// Mean and half the width of its 95 % interval (Student's t); one value: 0.
struct estimate {
  double mean = 0;
  double half_width = 0;
};
estimate estimate_of(const std::vector<double>& values);

}  // namespace sluice::lab
