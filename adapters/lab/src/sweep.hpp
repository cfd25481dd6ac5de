#pragma once
/// \file
/// A study over a grid: what suspending costs times how long offline kernels are. From where on is
/// it worth it, now that nobody has measured the real costs yet?

#include "study.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sluice/lab/checked.hpp"
#include "sluice/time.hpp"

namespace sluice::lab {

struct sweep_axes {
  /// Times what the profile says of suspend, resume, batch unmap and batch remap; rising, > 0.
  std::vector<double> cost_factors{0.1, 0.3, 1, 3, 10};
  /// Length of every offline kernel, with the load's other parameters as they are; rising, > 0.
  std::vector<duration> kernels{std::chrono::microseconds(50), std::chrono::microseconds(200),
                                std::chrono::milliseconds(1),  std::chrono::milliseconds(5),
                                std::chrono::milliseconds(20), std::chrono::milliseconds(50)};
};

/// One contender at one point of the grid; means over the seeds. Of a policy that was removed there
/// all are NaN, and the ratio is empty.
struct sweep_point {
  double p99_ms = 0;  ///< As the ratio, of the seeds with requests; NaN where none has any.
  /// Online p99 over that without a scheduler, at the same point and seed. Empty where either has
  /// requests that were not finished: their latencies are lower bounds.
  std::optional<double> p99_ratio;
  double offline_share = 0;  ///< Of what it gets done alone, 0 to 1.
  double suspends = 0;       ///< Queues suspended per second.
  /// What online work gains and offline work loses against no scheduler: latency of requests,
  /// summed, and kernel time done; each in seconds per second, negative the other way round.
  double online_saved = 0;
  double offline_lost = 0;
};

/// A contender over the grid.
struct sweep_row {
  std::string contender;
  arrangement how = arrangement::unscheduled;
  std::vector<sweep_point> points;  ///< By sweep_grid::at().
  /// The most suspends per second of all points beyond the break-even line, where preempting does
  /// not pay: a policy that knows what suspending costs leaves offline work alone there. Empty
  /// where no point is beyond it.
  std::optional<double> suspends_beyond;
};

/// Where on one line of the grid preempting begins to pay.
enum class pays : std::uint8_t {
  unknown,  ///< Requests were left unfinished at every length.
  from,     ///< From a length within the grid on.
  always,   ///< Already beside the shortest kernels.
  never,    ///< Not even beside the longest.
};
struct break_even {
  pays where = pays::unknown;
  duration kernel{};  ///< pays::from only.
  bool pays_beside(duration length) const {
    return where == pays::always || (where == pays::from && length > kernel);
  }
};

/// One grid: of one profile, arrivals, load and offline load as they were asked for.
struct sweep_grid {
  std::string profile, arrivals, offline;
  double load = 0;
  duration suspend_cost{},
      resume_cost{};  ///< At factor 1: of one call, by the profile's mechanism.
  std::vector<double> cost_factors;
  std::vector<duration> kernels;
  std::vector<std::size_t> settings;  ///< Indices into study::settings, by at().
  /// All but "online alone", as in study: no scheduler, SIGSTOP, static split, suspend at once,
  /// then the policies.
  std::vector<sweep_row> rows;
  std::vector<break_even> line;  ///< For each cost factor.

  std::size_t at(std::size_t cost, std::size_t kernel) const {
    return cost * kernels.size() + kernel;
  }
};

/// `asked` with its profiles and offline loads replaced by their points on the grid.
/// Errors: one sentence, when a scaled cost is more than a profile may have.
checked<study_spec> spread(const study_spec& asked, const sweep_axes& axes);

/// Reads what run_study() made of spread(asked, axes): a grid for each of the profiles, arrivals,
/// offline loads and loads that were asked for, in this order.
std::vector<sweep_grid> grids_of(const study_spec& asked, const sweep_axes& axes, const study& all);

/// Preempting pays where it makes online p99 less than this of what it is without a scheduler. What
/// suspending costs online work is part of that p99: where it is not shorter, offline work is given
/// up for nothing, whatever that work is worth. Not 1, since beside kernels for which nobody waits
/// the two differ by chance.
inline constexpr double pays_below = 0.99;

/// Where preempting begins to pay, given online p99 over that without a scheduler beside kernels of
/// each length: where it pays for all longer ones, too. Between two lengths the logarithm of the
/// ratio is taken as linear in that of the length. Lengths without a ratio are left out.
break_even begins_to_pay(const std::vector<duration>& kernels,
                         const std::vector<std::optional<double>>& ratios);

}  // namespace sluice::lab
