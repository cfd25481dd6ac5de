#include "sluice/observe/accounts.hpp"

#include <algorithm>
#include <utility>

namespace sluice::observe {

namespace {

/// Who has had no queue by then may never have one.
constexpr int most_looks = 30;

}  // namespace

accounts::accounts(accounts_options options) : options_(std::move(options)) {
  if (!options_.wall)
    options_.wall = [] {
      return std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
    };
}

void accounts::hear(const journal_entry& entry) {
  if (entry.kind == journal_kind::process) {
    const auto [found, fresh] = open_.try_emplace(entry.process);
    account& which = found->second;
    if (fresh) {
      which.part_since = entry.at;
      next_part_ = std::min(next_part_, entry.at + options_.part_every);
      unknown_.insert(entry.process);
      which.part.pid = entry.pid;
      which.part.start = entry.start_time;
      process_words words = options_.read(entry.pid, entry.start_time);
      which.part.command = std::move(words.command);
      which.part.user = std::move(words.user);
      which.part.group = std::move(words.group);
    }
    which.part.what = entry.what;
    which.group = entry.group;
    return;
  }
  if (entry.kind == journal_kind::forced) {
    count_limit(entry);
    return;
  }
  const auto found = open_.find(entry.process);
  if (found == open_.end()) return;
  account& which = found->second;
  switch (entry.kind) {
    case journal_kind::process_off:
      which.off_since = which.off_began = entry.at;
      ++which.part.suspensions;
      break;
    case journal_kind::process_on:
      if (which.off_since != never) which.part.suspended += entry.at - which.off_since;
      which.part.longest = std::max(which.part.longest, entry.length);
      which.off_since = which.off_began = never;
      break;
    case journal_kind::batch:
      add_gpu(which, entry.gpu);
      unknown_.erase(found->first);
      break;
    case journal_kind::process_gone:
      which.part.what = entry.what;
      mend(which, entry);
      write(which, entry.at, job_end::ended);
      unknown_.erase(found->first);
      open_.erase(found);
      break;
    default: break;
  }
}

void accounts::count_limit(const journal_entry& entry) {
  for (auto& [id, which] : open_) {
    if (which.group != entry.group) continue;
    if (entry.why == journal_rule::max_suspend) ++which.part.by_max_suspend;
    if (entry.why == journal_rule::offline_floor) ++which.part.by_offline_floor;
  }
}

void accounts::mend(account& which, const journal_entry& gone) {
  job_record& part = which.part;
  if (which.off_since != never) {
    part.suspended += gone.at - which.off_since;
    part.longest = std::max(part.longest, gone.at - which.off_began);
    which.off_since = never;
  }
  part.suspended = std::max(part.suspended, gone.length - which.written);
  if (gone.count > which.written_count)
    part.suspensions = std::max(part.suspensions, gone.count - which.written_count);
  if (which.written_count == 0) part.longest = std::max(part.longest, gone.longest);
}

void accounts::mend(const picture& now) {
  std::map<process_id, std::pair<const process_picture*, group_id>> there;
  for (const group_picture& group : now.groups)
    for (const process_picture& each : group.processes) there[each.id] = {&each, group.id};
  for (auto next = open_.begin(); next != open_.end();) {
    const auto one = next++;
    if (there.contains(one->first)) continue;
    write(one->second, std::max(now.at, one->second.part_since), job_end::ended);
    unknown_.erase(one->first);
    open_.erase(one);
  }
  for (const auto& [id, one] : there) {
    const auto& [seen, group] = one;
    hear({.kind = journal_kind::process,
          .what = seen->what,
          .pid = seen->pid,
          .process = id,
          .group = group,
          .start_time = seen->start_time,
          .at = seen->seen_since});
    mend(open_.at(id), *seen, now.at);
  }
  see(now);
}

void accounts::mend(account& which, const process_picture& seen, time_point now) {
  job_record& part = which.part;
  part.suspended = std::max(seen.off_total - which.written, duration::zero());
  if (seen.off_count > which.written_count) part.suspensions = seen.off_count - which.written_count;
  if (which.written_count == 0) part.longest = std::max(part.longest, seen.off_longest);
  which.off_since = seen.off ? now : never;
  which.off_began = seen.off ? seen.off_since : never;
}

void accounts::see(const picture& now) {
  for (const group_picture& group : now.groups)
    for (const process_picture& each : group.processes)
      if (const auto found = open_.find(each.id); found != open_.end()) {
        ++found->second.looks;
        for (const queues_on_gpu& queues : each.queues) add_gpu(found->second, queues.gpu);
        if (!each.queues.empty() || found->second.looks == most_looks) unknown_.erase(each.id);
      }
}

void accounts::tick(time_point now) {
  if (now < next_part_) return;
  next_part_ = never;
  for (auto& [id, which] : open_) {
    if (now - which.part_since >= options_.part_every) write(which, now, job_end::runs);
    // One that is left out is so until then.
    const time_point due = which.part_since + options_.part_every;
    next_part_ = std::min(next_part_, due > now ? due : now + options_.part_every);
  }
}

void accounts::leave(time_point now) {
  for (auto& [id, which] : open_) write(which, now, job_end::left);
  open_.clear();
  unknown_.clear();
}

void accounts::add_gpu(account& to, gpu_id which) {
  const auto at = std::ranges::lower_bound(to.part.gpus, which);
  if (at == to.part.gpus.end() || *at != which) to.part.gpus.insert(at, which);
}

void accounts::write(account& which, time_point now, job_end why) {
  job_record& part = which.part;
  if (which.off_since != never) {
    part.suspended += now - which.off_since;
    part.longest = std::max(part.longest, now - which.off_began);
    which.off_since = now;
  }
  // Such as the daemon and its agent, a monitor, or who only asks what GPUs there are: they have
  // the driver open and no queue that anybody saw.
  if (part.what == role::unmatched && part.gpus.empty() && part.suspensions == 0 &&
      part.suspended == duration::zero())
    return;
  part.time = options_.wall();
  part.end = why;
  part.observed = options_.observed;
  part.wall = now - which.part_since;
  options_.write(part);
  which.part_since = now;
  which.written += part.suspended;
  which.written_count += part.suspensions;
  part.suspended = part.longest = {};
  part.suspensions = part.by_max_suspend = part.by_offline_floor = 0;
}

}  // namespace sluice::observe
