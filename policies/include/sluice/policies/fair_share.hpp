#pragma once
/// \file
/// Offline groups share each GPU by time, in proportion to weights.

#include "sluice/policy_kind.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// One group at a time runs on a GPU, for a `quantum`; next is the one that ran least, counted in
/// time divided by weight. A gang runs on all of its GPUs or on none: quanta end together on the
/// whole node, so that the next in order finds all of its GPUs free at once. While a gang waits for
/// one GPU others use the rest, until they are three quanta ahead of it: then they wait for it.
/// Online work on a GPU goes before all of them; the time for which it does is nobody's.
///
/// Promises: of two groups that share a GPU and could both run all along, each got its share: the
/// times for which they ran, divided by their weights, differ by at most one quantum divided by the
/// smaller weight; four quanta where a gang is among those on their GPUs. To that comes what the
/// limits forced, and the time a suspend and a resume take. Who comes, or comes back from waiting
/// for online work, starts level with the one behind: there is no credit for time away.
/// Does not promise: shares of work done: a group with nothing to do uses its quantum up. Nor
/// shares below what the limits give to each, min_run in every max_suspend.
/// It holds for online work whether that pays or not: beside kernels much shorter than a suspend
/// and a resume, that costs online work more than it gives (adapters/lab/RESULTS.md); see slo.
/// Choose it when several offline jobs are to progress together, and each runs fast alone (their
/// kernels fill the GPU). A quantum costs a suspend and a resume: take 20 times that or more. With
/// more groups than max_suspend ÷ quantum on one GPU, the limits make some run beside others.
///
/// Parameters: `quantum`, `weight.<0 to 15>` (the weight of groups of that priority), `linger`.
[[nodiscard]] policy_kind fair_share_kind();

}  // namespace sluice
#pragma GCC visibility pop
