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

#pragma GCC visibility push(default)
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
/// - **Patience.** Offline work runs beside an open span until the span would become late if it
///   were held for any later; then the GPU's offline groups are held. So what a target leaves is
///   spent on fewer suspends, and requests that wait are served together.
/// - **What patience is.** The target, less what 99 % of the spans needed from the moment from
///   which offline work was held, among those that began or were held for while about as many were
///   open (1, 2 to 3, 4 to 7, ...). So a burst uses up the patience as it comes, and is held for
///   early. It is zero until eight spans were seen. **Pressure** corrects it: every span that
///   exceeds its target halves the patience, down to an eighth, and 133 that do not double it; so
///   it comes to rest where 0.75 % of the spans miss, below the 1 % that a p99 allows.
/// - **No preemption that costs more than it saves.** While spans are open, offline work is
///   released when none of them is out of patience for 64 round trips (a suspend and a resume, as
///   measured). Between spans it is released when that loses the least offline time on average,
///   given the lengths of the gaps seen so far and the round trip (less the patience of what comes
///   next): shorter gaps are held through, the break after a burst is waited for. And where a hold
///   does not save a span that is alone more than a round trip, as far as is known, nothing is
///   held: if online work does not wait for offline kernels, a hold only adds a delay.
/// - **Trials.** What a hold saves is known from the time between the tokens of requests that are
///   alone on the GPU, held for and beside offline work (so mark tokens even without a target for
///   them); where there are none, from the lengths of spans that come while none is open, where
///   they differ by more than chance. While that leaves it open, spans are held for if others
///   missed lately. Where 99 % of the spans take less than half their target, nothing is tried.
///   Elsewhere, to know it, some of the spans that come while none is open are held for at once, or
///   not at all: every second one until enough of both are known, then one of 64, and one of 256
///   where it is clear. Where a hold does not help, a trial comes after 16 of them, then 32, and so
///   on, at last after 512: in the long run 0.2 % of the suspends that suspending at once takes.
/// - **A burst that is predicted.** When patience is zero and spans still miss, every miss doubles,
///   up to eight times, the offline time that it gives to save online work a suspend: it holds
///   before a span begins where the gaps say when that will be.
/// - **Holding at once.** When eight spans more than the 1 % have missed, and a hold saves requests
///   more than a round trip, as far as is known, offline work is held for as long as online work is
///   in flight, until the misses are made up for.
/// - **Giving up.** When that has lasted for ten minutes, and of the spans for which offline work
///   was suspended throughout (but for the suspend that they waited for) 64 more than 1 % have
///   missed, the target is out of reach: the log says so, and for ten minutes the aim is 1.1 times
///   what 99 % of those needed. Then it tries the stated target again. Where nothing is suspended,
///   as under shadow, nothing is given up.
/// - **The share of offline work** comes before the targets: when it has had less than `offline`,
///   it runs until it has not, for at least eight round trips. A group over several GPUs is held
///   for any of them, and that counts on all.
///
/// Work that no client marks has no target: nothing is suspended for it, and after a hundred begins
/// the log says so, once. Whoever knows it before refuses the policy (policy::needs_marks()).
///
/// adapters/lab/RESULTS.md has what that is worth. A target far above what requests need makes all
/// of them slow, not only one in a hundred: state what you want. Scheduler limits act on it as on
/// every policy: where bursts last longer than `max_suspend`, raise that.
///
/// Choose it when the server can mark its spans. For servers that cannot, see fixed_timeslice.
///
/// Cost: a turn costs the events, times the spans that are open, and a few hundred operations per
///       GPU; it allocates when more spans are open than ever before.
[[nodiscard]] std::unique_ptr<policy> make_slo(slo_options options);

/// Parameters: `request.p99`, `ttft.p99`, `itl.p99`, `offline`, `suspend_cost`, `resume_cost`, and
/// `profile`, a file in whose place a policy_registry puts the two costs that it says.
[[nodiscard]] policy_kind slo_kind();

}  // namespace sluice
#pragma GCC visibility pop
