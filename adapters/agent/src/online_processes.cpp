#include "online_processes.hpp"

#include <algorithm>
#include <utility>

#include "sluice/acting.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::agent {

void online_processes::observe(unsigned source, const observation& seen) {
  const std::uint32_t bit = std::uint32_t{1} << source;
  switch (seen.kind) {
    case observation_kind::process_seen: {
      const bool online = seen.what == role::online;
      process* const one =
          online ? &at(seen.pid, seen.start_time) : find(seen.pid, seen.start_time);
      if (one == nullptr) break;
      one->marked_by |= bit;
      vote(*one, bit, online);
      break;
    }
    case observation_kind::queue_seen:
      if (process* const one = find(seen.pid, seen.start_time)) one->marked_by |= bit;
      break;
    case observation_kind::process_gone:
      if (process* const one = find(seen.pid, seen.start_time)) vote(*one, bit, false);
      break;
    case observation_kind::resync_begin:
      for (process& each : processes_) each.marked_by &= ~bit;
      break;
    case observation_kind::resync_end:
      for (process& each : processes_)
        if ((each.marked_by & bit) == 0) vote(each, bit, false);
      break;
    case observation_kind::queue_gone:
    case observation_kind::gpu_seen:
    case observation_kind::pointers_seen:
    case observation_kind::gpu_lost:
    case observation_kind::breaker_kept:
    case observation_kind::breaker_rearmed:
    case observation_kind::gang_heard: break;
  }
}

void online_processes::pace(duration every) noexcept {
  every_ = std::max(every, duration::zero());
  changed_ = true;
}

void online_processes::marks_requests(pid_t pid, bool so) {
  for (process& each : processes_) {
    if (each.pid != pid) continue;
    each.marks = false;
    each.anew = each.told != duration::zero();
  }
  if (so)
    if (const auto start = start_time_of(pid)) at(pid, *start).marks = true;
  changed_ = true;
}

void online_processes::can_follow(bool can) noexcept {
  can_follow_ = can;
  changed_ = true;
}

void online_processes::lost() noexcept {
  can_follow_ = false;
  changed_ = true;
  followed_ = 0;
  for (process& each : processes_) {
    each.told = {};
    each.anew = false;
    each.told_online = false;
  }
}

bool online_processes::send_news(const std::function<bool(const order&)>& send) {
  if (!changed_) return false;
  for (process& each : processes_) {
    const bool online = each.is_online();
    if (each.told_online == online) continue;
    const auto what = online ? order::kind::online : order::kind::not_online;
    if (!send({what, each.pid, each.start_time, {}})) return false;
    each.told_online = online;
  }
  bool some_wait = false;
  for (const bool ends : {true, false}) {  // Ends first: they make room.
    for (process& each : processes_) {
      const duration every = wanted(each);
      if (each.told == every || (every == duration::zero()) != ends) continue;
      if (each.told == duration::zero() && followed_ == most_followed) {
        some_wait = true;
        continue;
      }
      if (!send({order::kind::follow, each.pid, each.start_time, every})) return false;
      if (each.told == duration::zero()) ++followed_;
      if (ends) --followed_;
      if (ends) each.anew = false;
      each.told = every;
    }
  }
  changed_ = false;
  std::erase_if(processes_, [](const process& each) { return !each.is_online(); });
  return some_wait && !std::exchange(told_of_rest_, true);
}

online_processes::process* online_processes::find(pid_t pid, std::uint64_t start_time) noexcept {
  const auto found = std::ranges::find_if(processes_, [&](const process& each) {
    return each.pid == pid && each.start_time == start_time;
  });
  return found == processes_.end() ? nullptr : &*found;
}

online_processes::process& online_processes::at(pid_t pid, std::uint64_t start_time) {
  process* const known = find(pid, start_time);
  if (known != nullptr) return *known;
  return processes_.emplace_back(process{.pid = pid, .start_time = start_time});
}

void online_processes::vote(process& which, std::uint32_t bit, bool online) noexcept {
  const std::uint32_t before = which.online_votes;
  which.online_votes = online ? before | bit : before & ~bit;
  changed_ |= (before != 0) != (which.online_votes != 0);
}

duration online_processes::wanted(const process& which) const noexcept {
  const bool so = can_follow_ && which.online_votes != 0 && !which.marks && !which.anew;
  return so ? every_ : duration::zero();
}

}  // namespace sluice::agent
