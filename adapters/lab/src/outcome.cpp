#include "outcome.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace sluice::lab {
namespace {

/// Keeps the books on what is off.
class outcome_books {
 public:
  outcome_summary of(const recording& what);

 private:
  struct member {
    identity whose;
    std::size_t group = 0;
    bool attached = false;
    std::set<driver_queue_id> off;
  };
  struct state {
    std::size_t attached = 0;  ///< Members.
    std::size_t off = 0;       ///< Queues.
    time_point attached_since{};
    time_point off_since{};
    bool counted = false;  ///< This time off is a preemption already.
  };
  member* find(process_id id);
  void set_attached(member& one, bool on, time_point at);
  void set_off(member& one, driver_queue_id queue, bool off, time_point at);
  void all_run(member& one, time_point at);
  std::size_t group_of(const identity& whose);

  outcome_summary made_;
  std::vector<state> groups_;  ///< As made_.groups.
  std::map<process_id, member> members_;
  std::map<identity, std::uint64_t> keys_;
  std::map<std::uint64_t, std::size_t> by_key_;
  std::map<identity, std::size_t> by_process_;
};

auto outcome_books::find(process_id id) -> member* {
  const auto found = members_.find(id);
  return found == members_.end() ? nullptr : &found->second;
}

std::size_t outcome_books::group_of(const identity& whose) {
  const std::uint64_t key = keys_[whose];
  const std::size_t next = groups_.size();
  const std::size_t at = key != 0 ? by_key_.try_emplace(key, next).first->second
                                  : by_process_.try_emplace(whose, next).first->second;
  if (at == next) {
    groups_.emplace_back();
    made_.groups.emplace_back().name =
        fmt::format("{}pid {}", key != 0 ? "gang of " : "", whose.pid);
  }
  return at;
}

void outcome_books::set_attached(member& one, bool on, time_point at) {
  if (std::exchange(one.attached, on) == on) return;
  state& group = groups_[one.group];
  if (on) {
    if (group.attached++ == 0) group.attached_since = at;
  } else if (--group.attached == 0) {
    made_.groups[one.group].managed += at - group.attached_since;
  }
}

void outcome_books::set_off(member& one, driver_queue_id queue, bool off, time_point at) {
  if (off ? !one.off.insert(queue).second : one.off.erase(queue) == 0) return;
  state& group = groups_[one.group];
  if (off) {
    if (group.off++ == 0) {
      group.off_since = at;
      group.counted = false;
    }
  } else if (--group.off == 0) {
    const duration held = std::max(at - group.off_since, duration::zero());
    made_.groups[one.group].held += held;
    made_.groups[one.group].longest_hold = std::max(made_.groups[one.group].longest_hold, held);
  }
}

void outcome_books::all_run(member& one, time_point at) {
  while (!one.off.empty()) set_off(one, *one.off.begin(), false, at);
}

outcome_summary outcome_books::of(const recording& what) {
  for (const recording::entry& each : what.entries) {
    const time_point at = each.at;
    if (const auto* const seen = std::get_if<rec::seen>(&each.what)) {
      if (seen->what.kind == observation_kind::process_seen) {
        keys_[{seen->what.pid, seen->what.start_time}] = seen->what.group_key;
      }
    } else if (const auto* const asked = std::get_if<rec::attach>(&each.what)) {
      const identity whose{asked->pid, asked->start};
      members_.try_emplace(asked->process, member{whose, 0, false, {}});
    } else if (const auto* const said = std::get_if<rec::attached>(&each.what)) {
      if (member* const one = find(said->process); one != nullptr && !said->error) {
        if (!one->attached) one->group = group_of(one->whose);
        set_attached(*one, true, at);
      }
    } else if (const auto* const left = std::get_if<rec::detached>(&each.what)) {
      if (member* const one = find(left->process)) {
        all_run(*one, at);
        set_attached(*one, false, at);
      }
    } else if (std::holds_alternative<rec::lost>(each.what)) {
      for (auto& [id, one] : members_) {
        all_run(one, at);
        set_attached(one, false, at);
      }
    } else if (const auto* const went = std::get_if<rec::queue_gone>(&each.what)) {
      if (member* const one = find(went->process)) set_off(*one, went->queue, false, at);
    } else if (const auto* const batch = std::get_if<rec::handed>(&each.what)) {
      member* const one = find(batch->process);
      if (batch->error) {
        ++made_.refused;
      } else if (one != nullptr && one->attached) {
        made_.decisions.push_back({at, one->whose.pid, batch->gpu, batch->kind, batch->queues});
        if (batch->kind == command_kind::resume) continue;
        for (const driver_queue_id queue : batch->queues) set_off(*one, queue, true, at);
      }
    } else if (const auto* const done = std::get_if<rec::done>(&each.what)) {
      ++made_.driver_calls;
      const bool suspend = done->kind == command_kind::suspend;
      member* const one = find(done->process);
      for (std::size_t i = 0; i < done->queues.size(); ++i) {
        const outcome got = done->outcomes.empty() ? outcome::done : done->outcomes[i];
        if (got == outcome::done) {
          ++(suspend ? made_.suspends : made_.resumes);
        } else {
          ++made_.failures;
        }
        if (one == nullptr || !one->attached) continue;
        state& group = groups_[one->group];
        if (suspend && got == outcome::done && group.off != 0 &&
            !std::exchange(group.counted, true)) {
          ++made_.preemptions;
          ++made_.groups[one->group].preemptions;
        }
        const bool runs = got == outcome::target_gone ||
                          (suspend ? got == outcome::invalid : got == outcome::done);
        if (runs) set_off(*one, done->queues[i], false, done->finished);
      }
    } else if (const auto* const off = std::get_if<rec::off>(&each.what)) {
      made_.to_off.push_back(off->after);
    } else if (const auto* const forced = std::get_if<rec::forced>(&each.what)) {
      made_.forced_resumes += forced->count;
    } else if (const auto* const next = std::get_if<rec::new_policy>(&each.what)) {
      ++(next->removed ? made_.removals : made_.replacements);
    }
  }
  for (auto& [id, one] : members_) {
    all_run(one, what.end);
    set_attached(one, false, what.end);
  }
  std::sort(made_.to_off.begin(), made_.to_off.end());
  return std::move(made_);
}

}  // namespace

outcome_summary summarize(const recording& of) { return outcome_books().of(of); }

duration outcome_summary::longest_hold() const {
  duration most{};
  for (const group& each : groups) most = std::max(most, each.longest_hold);
  return most;
}

duration outcome_summary::held() const {
  duration sum{};
  for (const group& each : groups) sum += each.held;
  return sum;
}

duration outcome_summary::managed() const {
  duration sum{};
  for (const group& each : groups) sum += each.managed;
  return sum;
}

}  // namespace sluice::lab
