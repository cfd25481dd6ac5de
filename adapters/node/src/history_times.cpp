#include "history.hpp"

#include <algorithm>

namespace sluice {

std::map<group_id, history::loss> history::losses(time_point now) const {
  struct sums {
    duration all{};
    last_minute lately{};
  };
  std::map<group_id, sums> of;
  for (const auto& [id, group] : groups_) of[id] = {group.lost, group.lost_lately};
  for (const auto& [where, off] : suspended_) {
    const known_process* const one = find(where.first);
    const auto group = one != nullptr ? of.find(one->group) : of.end();
    if (group == of.end()) continue;
    group->second.all += now - off.since;
    group->second.lately.add(off.since, now);
  }
  std::map<group_id, loss> made;
  for (auto& [id, each] : of) made[id] = {each.all, each.lately.total(now)};
  return made;
}

history::gpu_times history::times_of(gpu_id id, time_point now) const {
  const auto found = gpus_.find(id);
  if (found == gpus_.end()) return {};
  book until_now = found->second;
  until_now.close(now);
  return {.gained = until_now.gained,
          .gained_lately = until_now.gained_lately.total(now),
          .busy_lately = until_now.busy_lately.total(now),
          .suspended_lately = until_now.suspended_lately.total(now)};
}

history::loss history::gained_by(const known_group& group, gpu_id id, time_point now) const {
  const gpu_times all = times_of(id, now);
  const auto before = group.gained_before.find(id);
  const duration gained =
      all.gained - (before == group.gained_before.end() ? duration{} : before->second);
  return {.all = gained, .lately = std::min(all.gained_lately, gained)};
}

void history::book::close(time_point now) {
  if (busy) busy_lately.add(mark, now);
  if (suspended != 0) suspended_lately.add(mark, now);
  if (busy && suspended != 0) {
    gained += now - mark;
    gained_lately.add(mark, now);
  }
  mark = now;
}

void history::count_queues(const journal_entry& entry) {
  const std::uint32_t others = std::uint32_t{entry.failed} + entry.invalid + entry.gone;
  const std::uint32_t done = entry.count - std::min(entry.count, others);
  if (entry.error != 0 || done == 0 || find(entry.process) == nullptr) return;
  const place where{entry.process, entry.gpu};
  const auto found = suspended_.find(where);
  const std::uint32_t before = found == suspended_.end() ? 0 : found->second.queues;
  set_queues(
      where,
      entry.command == command_kind::suspend ? before + done : before - std::min(before, done),
      entry.until);
}

void history::set_queues(place where, std::uint32_t queues, time_point at) {
  book& on = gpus_[where.second];
  on.close(std::max(at, on.mark));
  const auto found = suspended_.find(where);
  if (queues != 0) {
    if (found != suspended_.end()) {
      found->second.queues = queues;
    } else {
      suspended_[where] = {queues, at};
      ++on.suspended;
    }
    return;
  }
  if (found == suspended_.end()) return;
  --on.suspended;
  const known_process* const one = find(where.first);
  const auto group = one != nullptr ? groups_.find(one->group) : groups_.end();
  if (group != groups_.end() && at > found->second.since) {
    group->second.lost += at - found->second.since;
    group->second.lost_lately.add(found->second.since, at);
  }
  suspended_.erase(found);
}

void history::forget_place(process_id which, time_point at) {
  auto next = suspended_.lower_bound({which, gpu_id::none});
  while (next != suspended_.end() && next->first.first == which) {
    const place where = next->first;
    ++next;
    set_queues(where, 0, at);
  }
}

void history::forget_all_places(time_point at) {
  while (!suspended_.empty()) set_queues(suspended_.begin()->first, 0, at);
}

}  // namespace sluice
