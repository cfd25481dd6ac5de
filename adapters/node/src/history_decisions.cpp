#include "history.hpp"
#include "words.hpp"

#include <algorithm>

namespace sluice {

history::decision& history::add(group_id group, const journal_entry& entry) {
  auto& of_group = groups_[group].decisions;
  if (of_group.size() == most_of_a_group) of_group.pop_front();
  order_.emplace_back(group, next_sequence_);
  while (order_.size() > most_decisions) {
    const auto [oldest, sequence] = order_.front();
    order_.pop_front();
    const auto found = groups_.find(oldest);
    if (found == groups_.end() || found->second.decisions.empty() ||
        found->second.decisions.front().sequence != sequence)
      continue;
    found->second.decisions.pop_front();
  }
  of_group.push_back({.sequence = next_sequence_++,
                      .what = entry.kind,
                      .rule = entry.why,
                      .pid = entry.pid,
                      .at = entry.at,
                      .since = entry.since,
                      .until = entry.until,
                      .policy = policy_,
                      .event = what_came()});
  return of_group.back();
}

history::decision* history::find(group_id group, std::uint64_t sequence) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return nullptr;
  auto& all = found->second.decisions;
  const auto one = std::lower_bound(
      all.begin(), all.end(), sequence,
      [](const decision& each, std::uint64_t wanted) { return each.sequence < wanted; });
  return one != all.end() && one->sequence == sequence ? &*one : nullptr;
}

void history::take_decision(const journal_entry& entry) {
  if (!groups_.contains(entry.group)) return;  // of one that was never seen, or is forgotten
  decision& made = add(entry.group, entry);
  if (entry.kind != journal_kind::attach) return;
  made.ended = entry.error != 0 ? outcome::refused : outcome::pending;
  made.text = printable(entry.words());
  if (const auto one = processes_.find(entry.process); one != processes_.end())
    one->second.attach_failure = made.text;
}

void history::take_attached(const journal_entry& entry) {
  const std::string why = entry.error != 0 ? printable(entry.words()) : std::string();
  if (const auto one = processes_.find(entry.process); one != processes_.end())
    one->second.attach_failure = why;
  const auto group = groups_.find(entry.group);
  if (group == groups_.end()) return;
  auto& all = group->second.decisions;
  const auto asked = std::find_if(all.rbegin(), all.rend(), [&](const decision& each) {
    return each.what == journal_kind::attach && each.pid == entry.pid &&
           each.ended == outcome::pending;
  });
  if (asked == all.rend()) return;
  asked->ended = entry.error != 0 ? outcome::failed : outcome::done;
  asked->text = why;
}

void history::take_batch(const journal_entry& entry) {
  const auto group = groups_.find(entry.group);
  if (group == groups_.end()) return;
  auto& all = group->second.decisions;
  const auto last = std::find_if(all.rbegin(), all.rend(), [](const decision& each) {
    return each.what != journal_kind::attach && each.what != journal_kind::detach;
  });
  decision& because = last != all.rend() ? *last : add(entry.group, entry);
  if (because.commands.size() == most_commands) {
    ++because.more_commands;
    return;
  }
  const bool refused = entry.error != 0;
  because.commands.push_back({.number = entry.number,
                              .pid = entry.pid,
                              .gpu = entry.gpu,
                              .kind = entry.command,
                              .queues = entry.count,
                              .ended = refused ? outcome::refused : outcome::pending,
                              .error = entry.error,
                              .text = printable(entry.words())});
  if (!refused) pending_[entry.number] = {entry.group, because.sequence};
}

void history::take_done(const journal_entry& entry) {
  count_queues(entry);
  const auto found = pending_.find(entry.number);
  if (found == pending_.end()) return;
  decision* const because = find(found->second.first, found->second.second);
  pending_.erase(found);
  if (because == nullptr) return;
  for (command& each : because->commands) {
    if (each.number != entry.number || each.ended != outcome::pending) continue;
    each.length = entry.until - entry.since;
    each.error = entry.error;
    each.failed = entry.failed;
    each.invalid = entry.invalid;
    each.gone = entry.gone;
    each.ended = entry.error != 0                                        ? outcome::failed
                 : entry.failed != 0 || entry.invalid != 0 || entry.gone ? outcome::partly
                                                                         : outcome::done;
    return;
  }
}

void history::end_commands(outcome how) {
  for (const auto& [number, where] : pending_) {
    decision* const because = find(where.first, where.second);
    if (because == nullptr) continue;
    for (command& each : because->commands)
      if (each.ended == outcome::pending) each.ended = how;
  }
  pending_.clear();
}

}  // namespace sluice
