#pragma once
/// \file
/// What a source saw of the world: the items that travel through the inbox to the queue table.
/// Level-triggered: an observation says what is, so a lost one is mended by a resync.

#include <sys/types.h>

#include <cstdint>
#include <type_traits>

#include "sluice/ids.hpp"
#include "sluice/online_work.hpp"
#include "sluice/role.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

enum class observation_kind : std::uint8_t {
  process_seen,  ///< pid, start_time, what, group_key, priority, count: nodes with processes of its
                 ///< gang, as far as they are more than one.
  process_gone,  ///< pid, start_time.
  queue_seen,    ///< pid, start_time, queue, gpu, type.
  queue_gone,    ///< pid, start_time, queue.
  gpu_seen,      ///< gpu, group_key, count: its hardware slots for compute queues, 0: not known;
                 ///< shows_work.
  pointers_seen,  ///< pid, start_time, gpu, work, waiting, count: packets that the process's
                  ///< queues there got since the last one. Only when work changed or packets came,
                  ///< and only while source::poll_pointers() or backend::poll_work() asks for it.
  gpu_lost,  ///< gpu: it was reset, or is about to be, at `at`. As backend_listener::gpu_lost().
  breaker_kept,  ///< gpu: its breaker was open before this scheduler began, and is so until `at`.
  breaker_rearmed,  ///< gpu: an operator said that it works again. As scheduler::rearm().
  resync_begin,     ///< All that follows up to resync_end is the whole truth of this source...
  resync_end,       ///< ...and what was not named in between is gone.
  gang_heard,       ///< group_key: of a gang on several nodes. Its peers there answer, and can be
                    ///< held, until `at`. count: 1 if one of them wants the gang held until then.
};

struct observation {
  observation_kind kind{};
  role what = role::unmatched;
  queue_kind type{};          ///< queue_seen only.
  online_work work{};         ///< pointers_seen only.
  std::uint8_t priority = 0;  ///< process_seen: 0 to 15; 0: nothing was said.
  bool shows_work = false;    ///< gpu_seen: the source answers source::poll_pointers() there.
  pid_t pid = 0;              ///< Thread-group leader.
  gpu_id gpu{};  ///< queue_seen, pointers_seen, and all that begin with gpu_ or breaker_.
  driver_queue_id queue{};       ///< queue_seen, queue_gone.
  std::uint64_t start_time = 0;  ///< /proc/PID/stat field 22, clock ticks since boot: with the pid,
                                 ///< the identity of a process.
  std::uint64_t group_key = 0;   ///< Processes with the same non-zero key form one group (a gang),
                                 ///< GPUs with the same non-zero key are reset
                                 ///< together.
  std::uint32_t count = 0;       ///< process_seen, gpu_seen, pointers_seen, gang_heard.
  std::uint32_t waiting = 0;     ///< pointers_seen: submissions that have not begun, if known.
  time_point at{};               ///< When it was seen, but for breaker_kept and gang_heard.
};
static_assert(std::is_trivially_copyable_v<observation>);

}  // namespace sluice
#pragma GCC visibility pop
