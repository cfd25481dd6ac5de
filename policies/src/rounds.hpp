#pragma once
/// \file
/// What the policies that choose among offline groups have in common: who could run, in which order
/// they are asked, and that a group runs on all of its GPUs or on none.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/policy.hpp"
#include "sluice/time.hpp"
#include "sluice/world.hpp"

namespace sluice::rounds {

/// An offline group.
struct contender {
  group_id id{};
  const group_view* view = nullptr;  ///< During decide() only.
  bool pinned = false;               ///< It runs whatever is said: nothing of it can be held.
  bool able = false;     ///< It could run: not pinned, and no online work is in its way.
  bool runs = false;     ///< As decided.
  bool declare = true;   ///< Say it again, changed or not.
  bool charged = false;  ///< It ran when it was last looked at, at `seen`.
  time_point seen{};
  time_point last_ran{};  ///< Because it was let run, not forced; or came.
  /// Time that it ran, divided by its weight, while it was able to; above the least of those it is
  /// connected to by GPUs. Nanoseconds.
  double service = 0;
};

/// A GPU, as a choice is being made.
struct place {
  static constexpr int nobody = -1;
  gpu_id id{};
  const gpu_view* view = nullptr;
  time_point busy_until{};   ///< By online work.
  int rank = nobody;         ///< The highest of those that run there.
  std::uint32_t groups = 0;  ///< Chosen to run; without pinned ones.
  std::uint32_t queues = 0;  ///< Of groups that run.
  /// The least service of those that were asked before and wait.
  double waiting = std::numeric_limits<double>::infinity();
  std::size_t linked = 0;  ///< Towards the first place that some chain of groups connects with it;
  double least = 0;        ///< there: the least service of those groups.
};

struct settings {
  /// Who was chosen goes on until the end of the round, if others of its rank wait. All rounds end
  /// together, so that groups over several GPUs find them free at one moment.
  duration round{};
  /// Online work on a GPU goes before every offline group there, until this long after it ended;
  /// below zero: it makes no difference.
  duration linger{};
};

/// In each turn in which something changed, asks every group that could run, in the order of rank,
/// of who runs already in this round, of key, and of id: it runs if it fits beside those who were
/// asked before it. So the choice is a function of the groups and the time, no group waits for one
/// that waits for it, and the first in order always runs.
///
/// A subclass says what order is and what fits; see the policies. Its key of a group that waits
/// must come to be the least: then every group gets its turn.
///
/// Cost: a turn in which a group changed, online work came to a GPU or left it, or a round ended
/// sorts the offline groups and visits their GPUs; any other turn costs its events. No allocation
/// but for groups and GPUs that are new.
class policy_in_rounds : public policy {
 public:
  void decide(const snapshot& seen, decision_sink& out) final;

 protected:
  explicit policy_in_rounds(settings with) noexcept : settings_(with) {}

  /// Higher goes first; at least 0.
  virtual int rank(const contender&) const noexcept { return 0; }
  /// Less goes first.
  virtual double key(const contender& one) const noexcept { return one.service; }
  virtual double weight(const contender&) const noexcept { return 1; }
  virtual bool fits(const contender& one) const noexcept = 0;
  /// Before a choice, with `places()` up to date.
  virtual void prepare(decision_sink&) {}

  std::vector<place>& places() noexcept { return places_; }
  const std::vector<contender>& groups() const noexcept { return groups_; }
  /// Whether the predicate holds for all of the group's GPUs that can be scheduled, by place and
  /// number of the group's queues there.
  template <class Predicate>
  bool everywhere(const contender& one, Predicate&& holds) const {
    for (std::size_t i = 0; i < one.view->gpus.size(); ++i) {
      const place* const on = find(one.view->gpus[i]);
      if (on != nullptr && !on->view->lost && !holds(*on, one.view->queues_on[i])) return false;
    }
    return true;
  }

 private:
  const place* find(gpu_id id) const noexcept {
    const auto found = std::find_if(places_.begin(), places_.end(),
                                    [&](const place& one) { return one.id == id; });
    return found == places_.end() ? nullptr : &*found;
  }
  template <class Function>
  void for_each_place(const contender& one, Function&& call) {
    everywhere(one, [&](const place& on, std::uint32_t queues) {
      call(places_[static_cast<std::size_t>(&on - places_.data())], queues);
      return true;
    });
  }
  bool is_news(const snapshot& seen, const event& one) const noexcept;
  void look(const snapshot& seen);
  void charge(contender& one, time_point now);
  void level_service();
  time_point choose(time_point now);
  bool goes_before(const contender& one, const contender& other) const noexcept;

  const settings settings_;
  std::vector<contender> groups_;  // By id.
  std::vector<contender*> order_;
  std::vector<place> places_;
  bool new_round_ = false;
  time_point round_end_{};
  time_point wake_ = never;  // Asked for, and not yet met.
};

}  // namespace sluice::rounds
