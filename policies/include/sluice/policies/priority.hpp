#pragma once
/// \file
/// Strict levels: on each GPU the most important offline groups run, the others wait.

#include "sluice/policy_kind.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// The level of a group is its priority, 0 to 15 (AMD_QUEUE_PRIORITY, or the rules of the
/// configuration). Online work on a GPU stands above every level there.
///
/// Promises: a group runs exactly when, on each of its GPUs, no online work is in flight (nor ended
/// within `linger`) and no group of a higher level runs. So a gang that cannot run, because one of
/// its GPUs is taken, holds nobody back on its others. Groups of equal level run together, or with
/// `equal = "turns"` one after the other, each for `turn`, so that each runs equally long.
/// Does not promise: that a lower level ever runs, beyond what the limits (max_suspend and min_run,
/// offline_floor) give to every group; nor that somebody else's work waits while a group that runs
/// has none to do.
/// It holds for online work whether that pays or not: beside kernels much shorter than a suspend
/// and a resume, that costs online work more than it gives (adapters/lab/RESULTS.md); see slo.
/// Choose it when some offline jobs must not be slowed by others, and the others may take what is
/// left over. Where each is to get a share, take fair_share; where each must come in time,
/// deadline.
///
/// Parameters: `equal`, `turn`, `linger`.
[[nodiscard]] policy_kind priority_kind();

}  // namespace sluice
#pragma GCC visibility pop
