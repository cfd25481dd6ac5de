#pragma once
/// \file
/// The queue table: the one model of the world. It owns the rows (processes, GPUs, queues, groups,
/// clients), finds them by their ids, and lists those that a later step of the turn must look at.
/// It also is the `world` that the policy sees.
///
/// The table does not decide what a row says. intake.hpp takes in what the sources say,
/// actual_state.hpp what the backend says, and membership.hpp adds and erases rows for both and
/// keeps all that is counted from them.

#include "rows.hpp"
#include "slot_table.hpp"

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/role.hpp"
#include "sluice/statistics.hpp"
#include "sluice/time.hpp"
#include "sluice/world.hpp"

namespace sluice::core {

/// Threading: reactor thread.
/// Lifetime:  outlives all parts that refer to it. The address of a row: see rows.hpp.
/// Cost:      new rows allocate, and make room in each list that may come to hold them; everything
///            else is free of allocation.
class table final : public world {
 public:
  table(statistics& stats, pid_t own_pid, bool with_copies)
      : stats_(stats), own_pid_(own_pid), with_copies_(with_copies) {}

  /// Whether queues of that type are suspended at all.
  bool suspends(queue_kind type) const noexcept {
    return with_copies_ || type == queue_kind::compute;
  }

  /// The turn's time, for what happens until the next call.
  void set_now(time_point now) noexcept { now_ = now; }
  time_point now() const noexcept { return now_; }

  // Rows come and go. All but gpu_at() are for membership, which fills in what belongs together.
  process& insert_process(pid_t pid, std::uint64_t start_time);
  group& insert_group(std::uint64_t key);
  queue& insert_queue();
  void erase(process& which);
  void erase(group& which);
  void erase(queue& which);
  /// Its pid may belong to a successor at once: from now on only its id finds it.
  void mark_gone(process& which);
  gpu& gpu_at(gpu_id id);
  /// GPUs that were added since the last call.
  std::size_t take_new_gpus() noexcept { return std::exchange(new_gpus_, 0); }
  /// What the view refers to stays where it is until remove_client().
  void add_client(const client_view& one) { clients_.insert_or_assign(one.id, one); }
  void remove_client(client_id id) noexcept { clients_.erase(id); }

  gpu* find_gpu(gpu_id id) noexcept;
  gpu_view& view_of(const gpu& which) noexcept { return gpu_views_[which.index]; }
  /// The GPUs of the online gang that the process belongs to; none without one.
  std::span<const gpu_id> online_gang_of(pid_t pid) const noexcept;
  std::size_t gpu_count() const noexcept { return gpus_.size(); }
  gpu& gpu_number(std::size_t index) noexcept { return gpus_[index]; }
  const gpu& gpu_number(std::size_t index) const noexcept { return gpus_[index]; }

  process* find(process_id id) noexcept { return processes_.find(id); }
  /// One that a source sees; not the exited ones that the backend still holds.
  process* find(pid_t pid, std::uint64_t start_time) noexcept;
  process* process_in(std::uint32_t slot) noexcept { return processes_.at(slot); }
  static std::uint32_t slot_of(const process& one) noexcept {
    return slot_table<process_id, process>::index_of(one.id);
  }
  group* find_group(group_id id) noexcept { return groups_.find(id); }
  /// The gang of that key, which is not 0.
  group* find_gang(std::uint64_t key) noexcept;
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
  template <class Function>
  void for_each_group(Function&& call) const {
    groups_.for_each(call);
  }
  template <class Function>
  void for_each_queue(Function&& call) {
    queues_.for_each(call);
  }
  template <class Function>
  void for_each_client(Function&& call) const {
    for (const auto& [id, one] : clients_) call(one);
  }

  // What wants a look. Each list holds an object once; ids may have died meanwhile.
  void touch(group& which) noexcept {
    if (!std::exchange(which.touched, true)) touched_.push_back(which.id);
  }
  void mark_changed(group& which) noexcept {
    if (!std::exchange(which.listed, true)) changed_.push_back(which.id);
  }
  void mark_dirty(process& which) noexcept {
    if (!std::exchange(which.dirty, true)) dirty_.push_back(which.id);
  }
  void mark_reshaped(group& which) noexcept {
    ++shape_;
    if (!std::exchange(which.reshaped, true)) reshaped_.push_back(which.id);
  }
  /// Its fitness for attaching may have changed.
  void reconsider_attach(process& which);
  /// Another number after processes, roles, queues or gangs changed.
  std::uint64_t shape() const noexcept { return shape_; }
  std::span<const group_id> changed() const noexcept { return changed_; }
  void clear_changed() noexcept;
  std::vector<group_id>& touched() noexcept { return touched_; }
  /// For membership::reshape().
  std::vector<group_id>& reshaped() noexcept { return reshaped_; }
  std::vector<process_id>& dirty() noexcept { return dirty_; }
  /// Keys of gangs on several nodes that have ended here.
  std::vector<std::uint64_t>& gone_gangs() noexcept { return gone_gangs_; }
  std::vector<process_id>& attach_candidates() noexcept { return attach_candidates_; }

  // world
  std::span<const gpu_view> gpus() const noexcept override { return gpu_views_; }
  const gpu_view* find(gpu_id id) const noexcept override;
  const group_view* find(group_id id) const noexcept override;
  const client_view* find(client_id id) const noexcept override;

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

  statistics& stats_;
  pid_t own_pid_;
  bool with_copies_;
  time_point now_{};
  slot_table<process_id, process> processes_;
  slot_table<group_id, group> groups_;
  std::uint64_t groups_numbered_ = 0;
  slot_table<queue_id, queue> queues_;
  std::unordered_map<process_key, process_id, process_hash> by_pid_;
  std::unordered_map<pid_t, process_id> newest_;  ///< Of several with one pid.
  std::unordered_map<std::uint64_t, group_id> by_key_;
  std::unordered_map<gpu_id, std::uint32_t> by_gpu_;
  std::unordered_map<client_id, client_view> clients_;
  std::deque<gpu> gpus_;
  std::vector<gpu_view> gpu_views_;
  std::size_t new_gpus_ = 0;
  std::uint64_t shape_ = 0;

  std::vector<group_id> changed_;
  std::vector<group_id> touched_;
  std::vector<group_id> reshaped_;
  std::vector<process_id> dirty_;
  std::vector<process_id> attach_candidates_;
  std::vector<std::uint64_t> gone_gangs_;
};

}  // namespace sluice::core
