#pragma once
/// \file
/// The queue table: the one model of the world. Processes, GPUs, queues and groups, what sources
/// and the backend said of them, and what changed since the last turn.

#include "journalist.hpp"
#include "off_time.hpp"
#include "recent_median.hpp"
#include "slot_table.hpp"

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/ids.hpp"
#include "sluice/journal.hpp"
#include "sluice/observation.hpp"
#include "sluice/picture.hpp"
#include "sluice/role.hpp"
#include "sluice/statistics.hpp"
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

  duration quantum{};  ///< What the policy wants; zero: the driver's default.

  // What the policy wants and the limits allow; see holds.hpp.
  time_point hold_until{};  ///< Epoch: no declaration.
  bool held = false;        ///< The declaration, as far as limits and role let it take effect.
  bool off = false;         ///< Some queue is not known to run.
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

/// Threading: reactor thread.
/// Cost:      observations allocate for what is new; everything else is free of allocation.
class table final : public world {
 public:
  table(statistics& stats, journalist& journal, pid_t own_pid, bool with_copies)
      : stats_(stats), journal_(journal), own_pid_(own_pid), with_copies_(with_copies) {}

  /// Whether queues of that type are suspended at all.
  bool suspends(queue_kind type) const noexcept {
    return with_copies_ || type == queue_kind::compute;
  }

  /// The turn's time, for what happens until the next call.
  void set_now(time_point now) noexcept { now_ = now; }
  time_point now() const noexcept { return now_; }

  // What sources say.
  void observe(unsigned source, const observation& seen);

  // What the backend says of an attached process.
  void queue_added(process& owner, const queue_info& info);
  void queue_removed(process& owner, driver_queue_id driver_id);
  /// The session is over: none of its queues is managed, all count as running.
  void release(process& owner);
  /// Nothing on the GPU is anyone's to suspend; and the way back.
  void lose(gpu& which);
  void find_again(gpu& which);
  void set_state(queue& which, queue_state state) noexcept;
  /// \param refused whether the driver did not suspend it; then it is asked again at its hold_off.
  void set_refused(queue& which, bool refused) noexcept;
  void set_attach(process& which, attach_state state);
  /// \param batch the one handed to the backend; 0: it came back, or never will.
  void set_in_flight(process& which, std::uint64_t batch) noexcept;
  std::size_t batches_in_flight() const noexcept { return batches_in_flight_; }
  /// Takes an exited process out, once the backend has let go of it.
  void erase(process& which);

  gpu& gpu_at(gpu_id id);
  gpu* find_gpu(gpu_id id) noexcept;
  gpu_view& view_of(const gpu& which) noexcept { return gpu_views_[which.index]; }
  gpu& gpu_of(const gpu_view& view) noexcept {
    return gpus_[static_cast<std::size_t>(&view - gpu_views_.data())];
  }
  /// The GPUs of the online gang that this program's own process belongs to; none without one.
  std::span<const gpu_id> own_gang() const noexcept;
  std::size_t gpu_count() const noexcept { return gpus_.size(); }
  gpu& gpu_number(std::size_t index) noexcept { return gpus_[index]; }

  process* find(process_id id) noexcept { return processes_.find(id); }
  /// One that a source sees; not the exited ones that the backend still holds.
  process* find(pid_t pid, std::uint64_t start_time) noexcept;
  process* process_in(std::uint32_t slot) noexcept { return processes_.at(slot); }
  static std::uint32_t slot_of(const process& one) noexcept {
    return slot_table<process_id, process>::index_of(one.id);
  }
  group* find_group(group_id id) noexcept { return groups_.find(id); }
  group* group_in(std::uint32_t slot) noexcept { return groups_.at(slot); }
  /// "g1" for 1, as whoever shows the scheduler names it.
  std::uint64_t number_of(group& one) noexcept {
    return one.number != 0 ? one.number : one.number = ++groups_numbered_;
  }
  static std::uint32_t slot_of(const group& one) noexcept {
    return slot_table<group_id, group>::index_of(one.id);
  }
  template <class Function>
  void for_each_process(Function&& call) {
    processes_.for_each(call);
  }
  template <class Function>
  void for_each_group(Function&& call) {
    groups_.for_each(call);
  }

  /// For scheduler_core::look().
  picture picture_of() const;

  // What wants a look. Each list holds an object once; ids may have died meanwhile.
  void touch(group& which) noexcept;
  void mark_changed(group& which) noexcept;
  void mark_dirty(process& which) noexcept;
  /// Brings the views of reshaped groups up to date; before the policy looks.
  void reshape();
  /// Brings the group's run state up to date. \return whether `off` changed.
  bool refresh_state(group& which) noexcept;
  /// Another number after processes, roles, queues or gangs changed.
  std::uint64_t shape() const noexcept { return shape_; }
  std::span<const group_id> changed() const noexcept { return changed_; }
  void clear_changed() noexcept;
  std::vector<group_id>& touched() noexcept { return touched_; }
  std::vector<process_id>& dirty() noexcept { return dirty_; }
  /// Processes whose fitness for attaching may have changed.
  std::vector<process_id>& attach_candidates() noexcept { return attach_candidates_; }
  /// GPUs that were added since the last call.
  std::size_t take_new_gpus() noexcept { return std::exchange(new_gpus_, 0); }

  // world
  std::span<const gpu_view> gpus() const noexcept override { return gpu_views_; }
  const gpu_view* find(gpu_id id) const noexcept override;
  const group_view* find(group_id id) const noexcept override;
  const client_view* find(client_id id) const noexcept override;

  /// What the view refers to stays where it is until remove_client().
  void add_client(const client_view& one) { clients_.insert_or_assign(one.id, one); }
  void remove_client(client_id id) noexcept { clients_.erase(id); }

 private:
  struct process_key {
    pid_t pid;
    std::uint64_t start_time;
    bool operator==(const process_key&) const = default;
  };
  struct process_hash {
    std::size_t operator()(const process_key& key) const noexcept {
      constexpr std::uint64_t golden_ratio = 0x9e3779b97f4a7c15;
      return key.start_time * golden_ratio ^ static_cast<std::uint64_t>(key.pid);
    }
  };

  process& process_at(const observation& seen);
  void vote(process& which, std::uint32_t bit, role what);
  void set_role(process& which, role what);
  void join(process& which, std::uint64_t key);
  void leave(process& which);
  /// \param another it is not the one that is known under that number.
  queue& queue_at(process& owner, driver_queue_id driver_id, gpu_id on, queue_kind type,
                  bool another = false);
  void erase(queue& which);
  void forget(process& which, std::uint32_t bit);
  void forget(queue& which, std::uint32_t bit);
  void sweep(std::uint32_t bit);
  void count(const queue& which, bool in) noexcept;
  void mark_reshaped(group& which) noexcept;
  void reconsider_attach(process& which);
  void update_offline(group& which, gpu_id where, bool listed);
  /// What the journal says of the process, where that is news.
  void tell(process& which);
  void tell_gone(process& which);
  /// \param was_off whether it was, before one of its queues changed.
  void keep_books(process& which, bool was_off) noexcept;

  statistics& stats_;
  journalist& journal_;
  pid_t own_pid_;
  process_id own_{};  ///< The table's process for own_pid_, as it was last seen.
  bool with_copies_;
  time_point now_{};
  slot_table<process_id, process> processes_;
  slot_table<group_id, group> groups_;
  std::uint64_t groups_numbered_ = 0;
  slot_table<queue_id, queue> queues_;
  std::unordered_map<process_key, process_id, process_hash> by_pid_;
  std::unordered_map<std::uint64_t, group_id> by_key_;
  std::unordered_map<gpu_id, std::uint32_t> by_gpu_;
  std::unordered_map<client_id, client_view> clients_;
  std::deque<gpu> gpus_;
  std::vector<gpu_view> gpu_views_;
  std::size_t new_gpus_ = 0;
  std::uint64_t shape_ = 0;
  std::size_t batches_in_flight_ = 0;

  std::vector<group_id> changed_;
  std::vector<group_id> touched_;
  std::vector<group_id> reshaped_;
  std::vector<process_id> dirty_;
  std::vector<process_id> attach_candidates_;
  std::vector<gpu_id> scratch_;
};

}  // namespace sluice::core
