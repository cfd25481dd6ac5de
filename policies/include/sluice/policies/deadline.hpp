#pragma once
/// \file
/// Earliest deadline first among offline groups.

#include "sluice/policy_kind.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// A group is due `budget` after it came, or was last let run. One group at a time runs on a GPU,
/// for a `turn`; next is the one that is due first, and of those due at the same time the one that
/// is known longest. A gang runs on all of its GPUs or on none: turns end together on the whole
/// node, and the first in order then gets all of its GPUs; the others fill what is left. Online
/// work on a GPU goes before all of them, and moves no deadline.
///
/// Promises: whoever waits keeps its place while everybody who runs goes behind: a group runs at
/// the latest when each of those that were due before it ran once more, if online work lets it. So
/// nobody starves, with whatever budgets: a deadline that came is before every one that is made
/// later. Where the turns fit (of groups that are connected by GPUs, one of each into the least
/// budget) it is met, but for online work.
/// Does not promise: shares. A group with half the budget of another runs twice as often only where
/// the budgets, not the number of groups, set the pace.
/// It holds for online work whether that pays or not: beside kernels much shorter than a suspend
/// and a resume, that costs online work more than it gives (adapters/lab/RESULTS.md); see slo.
/// Choose it when offline jobs must move at least every so often: those that answer heartbeats,
/// feed others, or are watched. Turns of equal budgets are plain rotation.
///
/// Parameters: `turn`, `budget.<0 to 15>` (of groups of that priority), `otherwise` (of the other
/// priorities), `linger`.
[[nodiscard]] policy_kind deadline_kind();

}  // namespace sluice
#pragma GCC visibility pop
