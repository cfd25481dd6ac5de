#pragma once
/// \file
/// For online programs that know nothing of a scheduler: their queues' pointers say when they have
/// work. Where they can be changed, a client is better: it says it at once, and costs nothing while
/// nothing happens.

#include <chrono>
#include <memory>

#include "sluice/policy.hpp"
#include "sluice/policy_kind.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

struct pointer_polling_options {
  /// How often pointers are looked at while online work runs or is likely: an arrival is noticed
  /// that much later at most. Default 200 us; 20 us to 1 s.
  duration fast = std::chrono::microseconds(200);
  /// And else. Default 2 ms; `fast` to 10 s.
  duration slow = std::chrono::milliseconds(2);
  /// How long after online work more of it is likely. Default 1 s; 0 to 1 h.
  duration recent = std::chrono::seconds(1);
  /// How long offline work stays held after online work ended: longer than the host's gaps between
  /// two kernels, or each gap costs a resume and a suspend. Default 10 ms; 0 to 10 s.
  duration linger = std::chrono::milliseconds(10);
  /// Where all packets are consumed and nothing says whether the last kernel ended, it counts as
  /// ended after twice the longest kernel or gap seen in the last one to two `remember`; at least
  /// and at most this long, and as long as `settle_max` before anything was seen. Defaults 2 ms and
  /// 1 s; 0 to 60 s.
  duration settle_min = std::chrono::milliseconds(2);
  duration settle_max = std::chrono::seconds(1);
  duration remember = std::chrono::seconds(30);  ///< 1 ms to 24 h.
  /// A packet that waits or runs for so long while no other comes no longer counts as work: it
  /// waits for something else than this GPU. Default 60 s; 10 ms to 24 h.
  duration give_up = std::chrono::seconds(60);
};

/// Holds a GPU's offline groups from the moment its online queues get a packet until their work has
/// ended; a group over several GPUs while any of them has work. Ended is what is `finished` (see
/// online_work.hpp), or `consumed` and settled. What clients begin and end counts as well. Pointers
/// are looked at only while some GPU has an offline group and its driver shows work
/// (gpu_view::can_see_work); where none does, it notes so once.
///
/// Promises: no resume while an online kernel runs whose end can be seen. Where ends cannot be
/// seen, none in a kernel that is at most twice as long as the longest before it, or as long as
/// settle_max while nothing was seen. Without readable pointers (`sluice doctor` says so) only what
/// clients report counts.
/// It holds for online work whether that pays or not: beside kernels much shorter than a suspend
/// and a resume, that costs online work more than it gives (adapters/lab/RESULTS.md); see slo.
///
/// Cost: a turn costs the changed groups, those of the GPUs with events, and a look at each GPU;
/// allocates only for a new GPU.
[[nodiscard]] std::unique_ptr<policy> make_pointer_polling(pointer_polling_options options = {});

/// Parameters: the fields of pointer_polling_options.
[[nodiscard]] policy_kind pointer_polling_kind();

}  // namespace sluice
#pragma GCC visibility pop
