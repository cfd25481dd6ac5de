#pragma once
/// \file
/// Which process belongs to which group, which queue to which process and GPU, and all that follows
/// from it: the counts of queues by state, the groups' views, the lists of offline groups of each
/// GPU.

#include "journalist.hpp"
#include "table.hpp"

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/role.hpp"
#include "sluice/statistics.hpp"

namespace sluice::core {

/// Counts are right at once. Views of groups, and what is listed of them, are right after
/// reshape().
///
/// Threading: reactor thread.
/// Lifetime:  as the table's.
/// Cost:      what adds a row allocates, the rest does not. reshape(): O(queues of groups in which
///            something changed).
class membership {
 public:
  membership(table& world, statistics& stats, journalist& journal) noexcept
      : table_(world), stats_(stats), journal_(journal) {}

  /// \return the process, which is new if it was not known: then it joins the gang of that key, or
  ///         for key 0 a group of its own.
  process& process_at(pid_t pid, std::uint64_t start_time, std::uint64_t key);
  /// To the gang of that key, or for 0 to a group of its own.
  void move(process& which, std::uint64_t key);
  void set_role(process& which, role what);
  /// With its queues. Its process has exited, and the backend has let go of it.
  void erase(process& which);

  /// \param another it is not the one that is known under that number.
  queue& queue_at(process& owner, driver_queue_id driver_id, gpu_id on, queue_kind type,
                  bool another = false);
  void erase(queue& which);
  /// Changes a queue's `managed`, `state` or `refused`, on which the counts depend.
  template <class Change>
  void change(queue& which, Change&& make) {
    const bool was_off = which.owner->not_running != 0;
    count(which, false);
    make();
    count(which, true);
    keep_books(*which.owner, was_off);
  }

  /// Brings the views of reshaped groups up to date; before the policy looks.
  void reshape();

 private:
  void join(process& which, std::uint64_t key);
  void leave(process& which);
  void count(const queue& which, bool in) noexcept;
  void update_offline(group& which, gpu_id where, bool listed);
  /// Counts the times off, for pictures and the journal.
  /// \param was_off whether the process was off before one of its queues changed.
  void keep_books(process& which, bool was_off) noexcept;

  table& table_;
  statistics& stats_;
  journalist& journal_;
  std::vector<gpu_id> scratch_;  // Kept for its memory.
};

}  // namespace sluice::core
