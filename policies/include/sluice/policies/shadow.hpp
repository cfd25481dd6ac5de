#pragma once
/// \file
/// Tries a policy without letting it touch anything: it decides, and the log says what it would
/// have done and what that would have been worth.

#include <memory>

#include "sluice/policy.hpp"
#include "sluice/policy_kind.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// Runs `inner` on what really happens and keeps its decisions to itself. Every ten seconds in
/// which it would have held something, and at the first time, a line says, since the last one:
///  - how often it would have held offline groups, and for how much group time: what offline work
///    would have lost, with the round trips at the costs known
///    (5 ms for a suspend and 10 ms for a resume where none was measured yet);
///  - for how long online work was in flight on those groups' GPUs meanwhile, less one suspend for
///    each hold that began then: an upper bound of the waiting that online work would have been
///    spared, reached if it had waited for offline work all that time.
///
/// A declaration counts for the time it would have stood, without the configuration's limits. The
/// groups still run for all that `inner` sees, so one that learns (slo) learns how online work
/// fares without it, and is as eager as that makes it.
///
/// Choose it to see whether a policy is worth having on a node before it acts there.
///
/// Cost: that of `inner`, and of the groups it would hold; it allocates for a group that is new.
[[nodiscard]] std::unique_ptr<policy> make_shadow(std::unique_ptr<policy> inner);

/// Parameters: `of`, the name of the policy to try; all others are that one's.
[[nodiscard]] policy_kind shadow_kind();

}  // namespace sluice
#pragma GCC visibility pop
