#pragma once
/// \file
/// The rows of the queue table: what is known of one GPU, queue, group or process. They are plain
/// data; each part of the scheduler writes the fields that it decides about.
///
/// Threading: reactor thread.
/// Lifetime:  a row stays at its address until membership erases it. GPUs are never erased. Other
///            parts keep the id of a row from one turn to the next, and never its address.

#include "off_time.hpp"
#include "recent_median.hpp"

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/gang_state.hpp"
#include "sluice/ids.hpp"
#include "sluice/journal.hpp"
#include "sluice/role.hpp"
#include "sluice/time.hpp"
#include "sluice/world.hpp"

namespace sluice::core {

enum class queue_state : std::uint8_t {
  running,
  suspending,
  suspended,
  resuming,
  in_doubt,  ///< A command failed half-way: to be resumed.
};
inline constexpr std::size_t queue_states = 5;

enum class attach_state : std::uint8_t {
  none,
  attaching,
  attached,
  detaching,
};

struct process;

struct gpu {
  std::uint32_t index = 0;
  gpu_id id{};
  bool lost = false;               ///< Its breaker is open.
  std::uint64_t reset_domain = 0;  ///< GPUs that are reset together share a number; 0: alone.
  std::uint32_t hardware_failures = 0;
  time_point rearm_at = never;
  time_point rearmed{};         ///< When its breaker was last closed.
  std::uint32_t not_off = 0;    ///< Manageable offline queues that are not known to be suspended.
  std::uint32_t attaching = 0;  ///< Attaches under way that touch this GPU.
  std::vector<group_id> offline;
  recent_median suspend_cost;
  recent_median resume_cost;
  time_point arrival{};        ///< Of the online begin being measured.
  bool arrival_open = false;   ///< Until its last queue is off.
  bool decision_open = false;  ///< Until its first batch is handed over.
  bool begun_this_turn = false;
  bool told_busy = false;  ///< In the journal.
  time_point busy_since{};
  std::uint32_t shown_by = 0;        ///< Sources that show the work of online processes there.
  std::uint32_t online_waiting = 0;  ///< Submissions of online processes that have not begun.
  time_point online_waiting_since = never;  ///< As gpu_picture's.
  time_point online_running_since = never;  ///< As gpu_picture's.
  process_id work_of{};  ///< The process whose queue pointers show `work` of the view.
};

/// Online work came, at `at`: measured from now on, if it is not yet and something is to make room.
inline void note_arrival(gpu& where, time_point at) noexcept {
  where.begun_this_turn = true;
  if (where.arrival_open || where.not_off == 0) return;
  where.arrival_open = where.decision_open = true;
  where.arrival = at;
}

/// Whether online work is in flight: clients say so, or pointers do.
inline bool has_online_work(const gpu_view& where) noexcept {
  return where.online_in_flight != 0 ||
         (where.work != online_work::unknown && where.work != online_work::finished);
}

struct queue {
  queue_id id{};
  process* owner = nullptr;
  gpu* on = nullptr;
  driver_queue_id driver_id{};
  queue_kind type{};
  std::uint64_t incarnation = 0;
  std::uint32_t seen_by = 0;    ///< One bit per source.
  std::uint32_t marked_by = 0;  ///< Named since that source's resync_begin.
  bool managed = false;         ///< The backend holds a session that knows it.
  queue_state state = queue_state::running;
  time_point hold_off{};    ///< No suspend before.
  time_point resume_off{};  ///< In doubt: no resume before.
  std::uint8_t failures = 0;
  bool refused = false;  ///< Did not suspend when last asked to; see set_refused().
};

struct group {
  group_id id{};
  std::uint64_t number = 0;  ///< For people, from 1: g1; 0: nobody was told of it yet.
  std::uint64_t key = 0;
  group_view view;
  std::vector<process*> members;
  std::vector<gpu_id> gpus;
  std::vector<std::uint32_t> queues_on;              ///< As many as `gpus`.
  std::array<std::uint32_t, queue_states> counts{};  ///< Managed queues by state.
  std::uint32_t refusing = 0;                        ///< Managed queues with queue::refused.
  time_point refusing_until{};                       ///< When to ask them again.

  bool listed = false;    ///< In changed().
  bool touched = false;   ///< In touched(): its state or its wishes want a look.
  bool reshaped = false;  ///< In reshaped(): its members, queues or GPUs changed.

  bool manageable_here = false;  ///< Without regard to peers on other nodes.
  // Of a gang with processes on 2 or more nodes; see gang_state.hpp.
  std::uint32_t nodes = 0;
  time_point peers_until{};          ///< The peers answer, and can be held, until then.
  bool peers_hold = false;           ///< Until then, one of them wants it held.
  gang_wish told = gang_wish::gone;  ///< What sources were told last.
  std::uint32_t told_nodes = 0;      ///< ...
  bool for_peers = false;            ///< It is held for them alone.

  duration quantum{};  ///< What the policy wants; zero: the driver's default.

  // What the policy wants and the limits allow; see holds.hpp.
  time_point hold_until{};         ///< Epoch: no declaration.
  time_point must_run_at = never;  ///< By max_suspend; while off and not forced.
  bool held = false;  ///< The declaration, as far as limits and role let it take effect.
  bool off = false;   ///< Some queue is not known to run.
  time_point off_since{};
  time_point on_since{};
  duration debt{};  ///< As of the last change of `off`; see holds.hpp.
  bool forced = false;
  journal_rule forced_by{};  ///< Meaningful while forced.
  journal_rule ended_by{};   ///< Why there is no declaration any more.
  time_point held_since{};
  time_point forced_until = never;
  time_point costs_since = never;
  off_time history;
};

struct process {
  process_id id{};
  pid_t pid = 0;
  std::uint64_t start_time = 0;
  role what = role::unmatched;
  std::uint8_t priority = 0;
  std::uint32_t seen_by = 0;
  std::uint32_t marked_by = 0;
  std::uint32_t online_votes = 0;
  std::uint32_t offline_votes = 0;
  bool own = false;
  bool gone = false;  ///< Exited; kept until the backend has let go of it.
  group* in = nullptr;
  std::vector<queue*> queues;  ///< By driver id.
  std::uint32_t compute_queues = 0;
  time_point compute_since{};  ///< When it came to own its first.

  attach_state attach = attach_state::none;
  time_point attach_from = never;  ///< Never: it owns no compute queue.
  time_point attach_latest = never;
  std::uint8_t attach_failures = 0;
  bool attach_waiting = false;    ///< In the attacher's list.
  bool attach_refused = false;    ///< Said to be unmanaged, and not yet attached since.
  std::string attach_why{};       ///< The driver's reason, of the last attach; mostly empty.
  bool session_ended = false;     ///< Without our asking, and not attached since.
  bool was_attached = false;      ///< Or about to be, when the backend was lost, and not since.
  std::vector<gpu*> attach_gpus;  ///< Counted in gpu::attaching.

  std::uint64_t batch_in_flight = 0;  ///< Its number; 0 for none.
  time_point lane_off{};              ///< No batch before.
  bool dirty = false;                 ///< In dirty().

  // For who looks: decisions do not depend on it.
  time_point seen_since{};
  std::uint32_t not_running = 0;  ///< Managed queues that are suspended at times, and are not known
                                  ///< to run.
  time_point off_since{};         ///< Meaningful while not_running is not 0.
  std::uint64_t off_count = 0;    ///< Times off that have begun.
  duration off_total{};           ///< Of those that are over.
  duration off_longest{};
  role told_role = role::unmatched;  ///< In the journal.
  group_id told_group{};

  queue* find(driver_queue_id driver_id) const noexcept;
};

/// Of that process.
inline journal_entry entry_of(const process& which, journal_kind kind) noexcept {
  return {.kind = kind,
          .what = which.what,
          .pid = which.pid,
          .process = which.id,
          .group = which.in->id,
          .start_time = which.start_time};
}

}  // namespace sluice::core
