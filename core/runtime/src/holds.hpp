#pragma once
/// \file
/// What groups are wanted to do: the policy's declarations, and the limits that hold for every
/// policy (max_suspend, min_run, offline_floor).

#include "deadline_heap.hpp"
#include "journalist.hpp"
#include "table.hpp"

#include <functional>

#include "sluice/config.hpp"
#include "sluice/gang_state.hpp"
#include "sluice/journal.hpp"
#include "sluice/statistics.hpp"
#include "sluice/time.hpp"

namespace sluice::core {

/// Turns declarations into group::held, once per turn and only for groups that were touched.
///
/// A group is off from when its first queue leaves "running" until all of them are back. Time off
/// is a debt that running pays back, max_suspend of it by a run of min_run. When the debt reaches
/// max_suspend, or the window's allowance is used up, the group is forced: its declaration ends, it
/// runs, and min_run counts from when it does run. So a run of no length between two suspensions
/// relieves nobody, and a group that runs often enough by itself is never forced.
///
/// Threading: reactor thread. Cost: O(touched groups), no allocation once a group was seen.
class holds {
 public:
  /// \param hears_gangs may be empty; outlives this.
  holds(const scheduler_config& config, table& world, statistics& stats, journalist& journal,
        const std::function<void(const gang_state&)>& hears_gangs) noexcept
      : config_(config),
        table_(world),
        stats_(stats),
        journal_(journal),
        hears_gangs_(hears_gangs) {}

  // The policy's words.
  void declare_hold(group& which, time_point until) noexcept;
  void declare_run(group& which) noexcept;

  /// Expires declarations and forces runs; lists what it did as changed.
  void before_policy(time_point now);
  /// Settles group::held; members of groups where it changed become dirty.
  void after_policy(time_point now);
  /// Takes in what the reconciler did in this turn.
  void after_batches(time_point now);
  /// Nothing is held from now on, whatever is declared.
  void release_all();
  /// There is another policy, or none: forgets every declaration.
  void policy_is(bool there);
  time_point next() const noexcept { return deadlines_.next(); }

 private:
  duration allowance(group& which, time_point now) noexcept;
  /// Brings the group's run state up to date, and keeps the books on `off`.
  void refresh(group& which) noexcept;
  /// When the debt of a group that is off will be max_suspend.
  time_point must_run_at(const group& which) const noexcept {
    return which.off_since + (config_.max_suspend - which.debt);
  }
  /// Peers on other nodes answer, and can be held; true of what is on this node alone.
  static bool has_peers(const group& which, time_point now) noexcept {
    return which.nodes < 2 || which.peers_until > now;
  }
  void forget_declarations();
  void settle_manageable(group& which, time_point now) noexcept;
  void tell_wish(group& which, gang_wish wish);
  void set_deadline(group& which, time_point now);
  void account_cost(group& which, time_point now) noexcept;
  journal_rule limit_of(const group& which, time_point now) const noexcept;
  /// Why a group that was held no longer is.
  journal_rule rule_of(const group& which, time_point now) const noexcept;
  void tell(group& which, journal_kind kind, journal_rule why, time_point now) noexcept;

  const scheduler_config& config_;
  table& table_;
  statistics& stats_;
  journalist& journal_;
  const std::function<void(const gang_state&)>& hears_gangs_;
  deadline_heap deadlines_;  // By group slot.
  bool released_ = false;
  bool has_policy_ = false;
};

}  // namespace sluice::core
