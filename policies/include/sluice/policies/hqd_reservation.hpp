#pragma once
/// \file
/// Keeps a share of each GPU's hardware queue slots free, so that online queues are mapped at once.

#include "sluice/policy_kind.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// A GPU runs as many queues at once as it has slots (HQDs); with more, the firmware switches
/// between them, and an online queue that is not mapped waits for its turn. This policy lets at
/// most floor(slots × offline_percent / 100) offline queues run on a GPU and suspends the others;
/// while they do not all fit, groups take turns: every `rotation` those that ran least go first,
/// then the others as they fit. A group runs on all of its GPUs or on none.
///
/// Where the driver takes a reservation (gpu_view::can_reserve), it is told the share and this
/// policy holds nothing there.
///
/// Promises: apart from what follows, the limit holds on every GPU at every time, whether online
/// work is in flight or not; so an arrival costs no suspend. Every group gets its turn, and groups
/// of equally many queues on the same GPUs run equally long.
/// Does not promise: the limit for a group that has more queues than it alone, which runs in its
/// turn beside nobody; for processes that are not attached (yet), whose queues count but run on;
/// and for the runs that max_suspend and offline_floor force. That online work is not slowed by
/// the offline queues that run beside it: this policy does not preempt. A suspend is not instant,
/// so a rotation exceeds the limit for as long as it takes. Slots are counted in queues that
/// exist: whether an idle queue occupies its slot is the firmware's choice.
/// Choose it when the GPU is oversubscribed with queues but not with work: many small offline jobs
/// beside a service that cannot wait for a runlist switch, where suspending at each arrival would
/// cost more than it saves.
///
/// Parameters: `offline_percent`, `slots` (of GPUs that do not say how many they have), `rotation`.
[[nodiscard]] policy_kind hqd_reservation_kind();

}  // namespace sluice
#pragma GCC visibility pop
