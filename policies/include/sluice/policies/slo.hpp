#pragma once
/// \file
/// The policy to use when clients mark their requests: you say how slow online work may be, and
/// offline work gets whatever that leaves.

#include <array>
#include <chrono>
#include <memory>
#include <optional>

#include "sluice/policy.hpp"
#include "sluice/policy_kind.hpp"
#include "sluice/time.hpp"

namespace sluice {

struct slo_options {
  /// By span_kind: what 99 % of the spans must not exceed; zero: no target. At least one is needed.
  /// 100 us to 10 min.
  std::array<duration, span_kinds> p99{};
  /// Share of the time that offline work runs in any case, 0 to 0.9.
  double offline = 0;
  /// What a suspend and a resume cost until they were measured.
  duration suspend_cost = std::chrono::milliseconds(5);
  duration resume_cost = std::chrono::milliseconds(10);
};

/// How it works, for each GPU by itself:
///
/// - **Patience.** An open span lets offline work run beside it for a time, its patience. When that
///   is used up, the GPU's offline groups are held, until no open span is out of patience. Time for
///   which offline work was held anyway does not count against it.
/// - **What patience is.** The target, less what 99.5 % of the spans needed by themselves: their
///   length without the time, since the GPU's spans became busy, for which offline work ran beside
///   (no more of it than their patience). It is zero until 16 spans were seen, and at first no more
///   than 64 round trips (a suspend and a resume, as measured): where online work stands still
///   beside offline work, more saves next to nothing. **Pressure** corrects it: every span that
///   exceeds its target halves the patience, and 133 that do not double it; so it comes to rest
///   where 0.75 % of the spans miss, below the 1 % that a p99 allows, and a target that is met with
///   room gives offline work more, until nothing is suspended at all.
/// - **No preemption that costs more than it saves.** Between spans, offline work is released when
///   that loses the least offline time on average, given the lengths of the gaps seen so far and
///   the round trip (less the patience of what comes next): shorter gaps are held through, the
///   break after a burst is waited for. While younger spans are open, it is released only when at
///   least half their patience and two round trips are left. Where most suspends take effect only
///   when the spans are over, a span is not held for before it has outlasted a suspend.
/// - **A burst that is predicted.** When patience is zero and spans still miss, every miss doubles,
///   up to eight times, the offline time that it gives to save online work a suspend: it holds
///   through longer gaps, and before a span begins where the gaps say when that will be.
/// - **Giving up.** When for ten minutes, and for 64 spans, more than 1 % missed although the
/// target
///   left them no patience, it is out of reach: the log says so, and for ten minutes the aim is 1.1
///   times what 99 % of the spans needed by themselves. Then it tries the stated target again.
/// - **The share of offline work** comes before the targets: when it has had less than `offline`,
/// it
///   runs until it has not, for at least eight round trips.
///
/// Work that no client marks has no target: nothing is suspended for it, and after a hundred begins
/// the log says so, once.
///
/// Choose it when the server can mark its spans. For servers that cannot, see fixed_timeslice.
///
/// Cost: a turn costs the events and a few hundred operations per GPU; it allocates when more spans
///       are open than ever before.
[[nodiscard]] std::unique_ptr<policy> make_slo(slo_options options);

/// Parameters: `request.p99`, `ttft.p99`, `itl.p99`, `offline`, `suspend_cost`, `resume_cost`.
[[nodiscard]] policy_kind slo_kind();

}  // namespace sluice
