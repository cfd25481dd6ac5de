#include "history.hpp"

#include "numbers.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include <spdlog/fmt/fmt.h>

namespace sluice {
namespace {

/// What came in one turn: the first so many are told.
constexpr std::size_t most_told = 3;
constexpr std::size_t most_kept = 64;

/// Whether it may be what a decision of the same turn answers to.
bool is_cause(journal_kind kind) {
  switch (kind) {
    case journal_kind::process:
    case journal_kind::process_gone:
    case journal_kind::attached:
    case journal_kind::detached:
    case journal_kind::client_gone:
    case journal_kind::begin:
    case journal_kind::end:
    case journal_kind::span_begin:
    case journal_kind::span_end:
    case journal_kind::span_abandoned:
    case journal_kind::busy:
    case journal_kind::idle:
    case journal_kind::policy:
    case journal_kind::breaker_open:
    case journal_kind::breaker_closed:
    case journal_kind::backend_lost:
    case journal_kind::backend_back:
    case journal_kind::stop: return true;
    default: return false;
  }
}

std::string printable(std::string_view text) {
  std::string made(text);
  for (char& each : made)
    if (each < 0x20 || each >= 0x7f) each = '?';
  return made;
}

std::string on_gpu(gpu_id id) {
  return id == gpu_id::none ? "every GPU" : fmt::format("GPU {}", number(id));
}

}  // namespace

std::string span_text(duration value) {
  using namespace std::chrono_literals;
  const double seconds = std::chrono::duration<double>(value).count();
  if (value < 1s) return fmt::format("{:.1f} ms", 1e3 * seconds);
  if (value < 100s) return fmt::format("{:.1f} s", seconds);
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(value).count();
  if (whole < 6000) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

std::string_view words_of_cause(breaker_cause cause) {
  switch (cause) {
    case breaker_cause::preemption_failed: return "a preemption failed";
    case breaker_cause::reset: return "the GPU was reset";
    case breaker_cause::stuck_call: break;
  }
  return "a driver call was stuck";
}

std::string command_of_process(pid_t pid) {
  std::string name;
  std::getline(std::ifstream{fmt::format("/proc/{}/comm", pid)}, name);
  return printable(name);
}

void history::hear(const journal_entry& entry) {
  ++heard_;
  if (entry.turn != turn_) {
    turn_ = entry.turn;
    came_.clear();
  }
  if (is_cause(entry.kind) && came_.size() < most_kept) came_.push_back(entry);
  switch (entry.kind) {
    case journal_kind::process: take_process(entry); break;
    case journal_kind::process_gone: take_end(entry.process, entry.at); break;
    case journal_kind::held:
    case journal_kind::let_go:
    case journal_kind::forced:
    case journal_kind::attach:
    case journal_kind::detach: take_decision(entry); break;
    case journal_kind::attached: take_attached(entry); break;
    case journal_kind::process_on:  // also where queues ended while they were suspended
    case journal_kind::detached: forget_place(entry.process, entry.at); break;
    case journal_kind::batch: take_batch(entry); break;
    case journal_kind::done: take_done(entry); break;
    case journal_kind::client:
      clients_[entry.client] = {.name = printable(entry.words()), .pid = entry.pid};
      break;
    case journal_kind::client_gone: forget_client(entry.client); break;
    case journal_kind::begin:
    case journal_kind::end: take_work(entry); break;
    case journal_kind::busy:
    case journal_kind::idle: {
      book& on = gpus_[entry.gpu];
      on.close(entry.at);
      on.busy = entry.kind == journal_kind::busy;
      on.busy_since = entry.at;
      if (!on.busy) on.in_flight.clear();
      break;
    }
    case journal_kind::policy:
    case journal_kind::breaker_open:
    case journal_kind::breaker_closed:
      gpus_[entry.gpu].breaker =
          entry.kind == journal_kind::breaker_open ? std::optional(entry.cause) : std::nullopt;
      take_node_event(entry);
      break;
    case journal_kind::acts_by:
    case journal_kind::backend_lost:
    case journal_kind::backend_back:
    case journal_kind::stop: take_node_event(entry); break;
    case journal_kind::process_off:
    case journal_kind::span_begin:
    case journal_kind::span_end:
    case journal_kind::span_abandoned:
    case journal_kind::off: break;
  }
}

void history::begin_anew() {
  history fresh{name_of_};
  fresh.missed_ = missed_;
  fresh.heard_ = heard_;
  *this = std::move(fresh);
}

void history::missed(std::uint64_t entries) {
  missed_ += entries;
  end_commands(outcome::unknown);
}

void history::mend(const picture& seen) {
  ++heard_;
  policy_ = printable(seen.policy);
  std::set<process_id> there;
  std::map<place, std::uint32_t> suspended;
  for (const group_picture& group : seen.groups) {
    for (const process_picture& each : group.processes) {
      there.insert(each.id);
      const known_process* const known = find(each.id);
      if (known == nullptr || known->group != group.id || known->what != each.what)
        take_process({.kind = journal_kind::process,
                      .what = each.what,
                      .pid = each.pid,
                      .process = each.id,
                      .group = group.id,
                      .start_time = each.start_time,
                      .number = group.number,
                      .at = seen.at});
      for (const queues_on_gpu& on : each.queues)
        if (on.suspended != 0) suspended[{each.id, on.gpu}] = on.suspended;
    }
  }
  std::vector<process_id> ended;
  for (const auto& [id, each] : processes_)
    if (each.ended == never && !there.contains(id)) ended.push_back(id);
  for (const process_id each : ended) take_end(each, seen.at);
  std::vector<place> resumed;
  for (const auto& [where, off] : suspended_)
    if (!suspended.contains(where)) resumed.push_back(where);
  for (const place& each : resumed) set_queues(each, 0, seen.at);
  for (const auto& [where, queues] : suspended) set_queues(where, queues, seen.at);

  std::map<client_id, known_client> clients;
  for (const client_picture& each : seen.clients) {
    const auto found = clients_.find(each.id);
    clients[each.id] = found != clients_.end() ? std::move(found->second)
                                               : known_client{.name = printable(each.name)};
  }
  clients_ = std::move(clients);
  for (const gpu_picture& each : seen.gpus) {
    book& on = gpus_[each.id];
    on.close(std::max(seen.at, on.mark));
    if (!each.breaker_open) on.breaker.reset();
    if (each.busy && !on.busy)
      on.busy_since = each.last_begin == time_point{} ? seen.at : each.last_begin;
    on.busy = each.busy;
    std::erase_if(on.in_flight, [&](const auto& of) { return !clients_.contains(of.first); });
    std::uint64_t sum = 0;
    for (const auto& [client, periods] : on.in_flight) sum += periods;
    // Whose the difference is, nothing says.
    if (sum != each.online_in_flight) on.in_flight.clear();
  }
}

void history::tick(time_point now) {
  while (!ended_.empty()) {
    const auto oldest = processes_.find(ended_.front());
    if (oldest != processes_.end()) {
      const bool keep = ended_.size() <= most_ended && now - oldest->second.ended < remember_ended;
      if (keep) break;
      drop_process(oldest);
    }
    ended_.pop_front();
  }
}

const history::known_process* history::find(pid_t pid) const {
  const auto id = by_pid_.find(pid);
  return id == by_pid_.end() ? nullptr : find(id->second);
}

const history::known_process* history::find(process_id id) const {
  const auto found = processes_.find(id);
  return found == processes_.end() ? nullptr : &found->second;
}

const history::known_group* history::find(group_id id) const {
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : &found->second;
}

const history::known_client* history::find(client_id id) const {
  const auto found = clients_.find(id);
  return found == clients_.end() ? nullptr : &found->second;
}

std::vector<client_id> history::clients_of(pid_t pid) const {
  std::vector<client_id> all;
  for (const auto& [id, each] : clients_)
    if (each.pid == pid) all.push_back(id);
  return all;
}

std::vector<gpu_id> history::busy_gpus(client_id id) const {
  std::vector<gpu_id> all;
  for (const auto& [gpu, on] : gpus_)
    if (on.in_flight.contains(id)) all.push_back(gpu);
  return all;
}

group_id history::group_numbered(std::uint64_t number) const {
  const auto found = std::find_if(groups_.begin(), groups_.end(),
                                  [&](const auto& each) { return each.second.number == number; });
  return found == groups_.end() ? group_id::none : found->first;
}

std::string history::online_work_on(const std::vector<gpu_id>& gpus, time_point now) const {
  std::string all;
  for (const gpu_id gpu : gpus) {
    const auto found = gpus_.find(gpu);
    if (found == gpus_.end() || !found->second.busy) continue;
    const book& on = found->second;
    std::string who;
    std::size_t told = 0;
    for (const auto& [client, periods] : on.in_flight) {
      if (told++ == most_told) break;
      who += (who.empty() ? "" : ", ") + client_words(client);
    }
    if (on.in_flight.size() > most_told)
      who += fmt::format(" and {} more", on.in_flight.size() - most_told);
    if (who.empty()) who = "online work";
    all += fmt::format("{}{} {} been busy on GPU {} for {}", all.empty() ? "" : ", ", who,
                       on.in_flight.size() > 1 ? "have" : "has", number(gpu),
                       span_text(now - on.busy_since));
  }
  return all;
}

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

std::optional<breaker_cause> history::breaker_cause_of(gpu_id id) const {
  const auto found = gpus_.find(id);
  return found == gpus_.end() ? std::nullopt : found->second.breaker;
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

void history::take_process(const journal_entry& entry) {
  const auto [found, fresh] = processes_.try_emplace(entry.process);
  known_process& one = found->second;
  if (fresh || one.group != entry.group) {
    if (!fresh) {
      const auto before = groups_.find(one.group);
      if (before != groups_.end() && --before->second.processes == 0) groups_.erase(before);
    }
    known_group& in = groups_[entry.group];
    in.number = entry.number;
    ++in.processes;
  }
  take_role(groups_[entry.group], entry);
  one.pid = entry.pid;
  one.start_time = entry.start_time;
  one.group = entry.group;
  one.what = entry.what;
  if (std::string name = name_of_(entry.pid); !name.empty()) one.command = std::move(name);
  by_pid_[entry.pid] = entry.process;
}

void history::take_role(known_group& group, const journal_entry& entry) {
  if (entry.what == role::online && group.what != role::online) {
    group.gained_before.clear();
    for (const auto& [gpu, on] : gpus_)
      group.gained_before[gpu] = times_of(gpu, std::max(entry.at, on.mark)).gained;
  }
  // One online member makes it online.
  if (entry.what == role::online || group.processes == 1) group.what = entry.what;
}

void history::take_end(process_id which, time_point at) {
  forget_place(which, at);
  const auto found = processes_.find(which);
  if (found == processes_.end() || found->second.ended != never) return;
  found->second.ended = at;
  ended_.push_back(which);
}

void history::take_work(const journal_entry& entry) {
  if (entry.gpu == gpu_id::none) return;
  auto& in_flight = gpus_[entry.gpu].in_flight;
  if (entry.kind == journal_kind::begin) {
    if (const auto client = clients_.find(entry.client);
        client != clients_.end() && busy_gpus(entry.client).empty())
      client->second.busy_since = entry.since == time_point{} ? entry.at : entry.since;
    in_flight[entry.client] += entry.count;
    return;
  }
  const auto found = in_flight.find(entry.client);
  if (found == in_flight.end()) return;
  found->second -= std::min<std::uint64_t>(found->second, entry.count);
  if (found->second == 0) in_flight.erase(found);
}

void history::forget_client(client_id which) {
  clients_.erase(which);
  for (auto& [gpu, on] : gpus_) on.in_flight.erase(which);
}

void history::drop_process(std::map<process_id, known_process>::iterator which) {
  const known_process& one = which->second;
  const auto group = groups_.find(one.group);
  if (group != groups_.end() && --group->second.processes == 0) groups_.erase(group);
  if (const auto named = by_pid_.find(one.pid);
      named != by_pid_.end() && named->second == which->first)
    by_pid_.erase(named);
  processes_.erase(which);
}

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

void history::end_commands(outcome how) {
  for (const auto& [number, where] : pending_) {
    decision* const because = find(where.first, where.second);
    if (because == nullptr) continue;
    for (command& each : because->commands)
      if (each.ended == outcome::pending) each.ended = how;
  }
  pending_.clear();
}

void history::take_node_event(const journal_entry& entry) {
  if (entry.kind == journal_kind::policy) policy_ = printable(entry.words());
  if (entry.kind == journal_kind::backend_lost) {
    end_commands(outcome::unknown);
    forget_all_places(entry.at);
  }
  if (node_events_.size() == most_node_events) node_events_.pop_front();
  node_events_.push_back({entry.at, words_of(entry)});
}

std::string history::what_came() const {
  // What says who comes before what says only where.
  std::string all;
  std::size_t told = 0;
  std::size_t more = 0;
  for (const journal_entry& each : came_) {
    const auto names_it = [&](journal_kind kind) {
      return std::any_of(came_.begin(), came_.end(), [&](const journal_entry& other) {
        return other.kind == kind && (other.gpu == each.gpu || other.gpu == gpu_id::none);
      });
    };
    // Of a client on many GPUs once.
    const auto alike = [&](const journal_entry& other) {
      return other.kind == each.kind && other.client == each.client;
    };
    std::size_t gpus = 1;
    if (each.kind == journal_kind::begin || each.kind == journal_kind::end) {
      if (&*std::find_if(came_.begin(), came_.end(), alike) != &each) continue;
      gpus = static_cast<std::size_t>(std::count_if(came_.begin(), came_.end(), alike));
    }
    if (each.kind == journal_kind::busy && names_it(journal_kind::begin)) continue;
    if (each.kind == journal_kind::idle && names_it(journal_kind::end)) continue;
    if (told == most_told) {
      ++more;
      continue;
    }
    all += (told++ == 0 ? "" : ", ") + words_of(each);
    if (gpus > 1) all += fmt::format(" and {} more", gpus - 1);
  }
  if (more != 0) all += fmt::format(", and {} more events", more);
  return all;
}

std::string history::client_words(client_id which) const {
  const auto found = clients_.find(which);
  if (found == clients_.end()) return fmt::format("client {}", static_cast<std::uint64_t>(which));
  return fmt::format("client '{}'", found->second.name);
}

std::string history::process_words(const journal_entry& entry) const {
  const known_process* const one = find(entry.process);
  if (one == nullptr || one->command.empty()) return fmt::format("process {}", entry.pid);
  return fmt::format("process {} ({})", entry.pid, one->command);
}

std::string history::words_of(const journal_entry& entry) const {
  switch (entry.kind) {
    case journal_kind::process:
      return fmt::format("{} is {}", process_words(entry), to_string(entry.what));
    case journal_kind::process_gone: return process_words(entry) + " ended";
    case journal_kind::attached:
      return process_words(entry) + (entry.error != 0 ? " could not be attached" : " was attached");
    case journal_kind::detached: return process_words(entry) + " was detached";
    case journal_kind::client_gone:
      return fmt::format("client {} disconnected", static_cast<std::uint64_t>(entry.client));
    case journal_kind::begin:
      return fmt::format("{} began work on {}", client_words(entry.client), on_gpu(entry.gpu));
    case journal_kind::end:
      return fmt::format("{} ended work on {}", client_words(entry.client), on_gpu(entry.gpu));
    case journal_kind::span_begin:
      return fmt::format("{} began a {}", client_words(entry.client), to_string(entry.span));
    case journal_kind::span_end:
      return fmt::format("{} ended a {}", client_words(entry.client), to_string(entry.span));
    case journal_kind::span_abandoned:
      return fmt::format("{} abandoned a {}", client_words(entry.client), to_string(entry.span));
    case journal_kind::busy:
      return fmt::format("online work{} arrived on {}",
                         entry.pid != 0 ? " of " + process_words(entry) : "", on_gpu(entry.gpu));
    case journal_kind::idle: return "online work ended on " + on_gpu(entry.gpu);
    case journal_kind::policy: {
      const std::string name = printable(entry.words());
      return (entry.count != 0 ? "the policy was removed; " : "") +
             (name.empty() ? "no policy" : "policy " + name) + " is active now";
    }
    case journal_kind::breaker_open:
      return fmt::format("the breaker of {} opened: {}", on_gpu(entry.gpu),
                         words_of_cause(entry.cause));
    case journal_kind::breaker_closed:
      return fmt::format("the breaker of {} closed", on_gpu(entry.gpu));
    case journal_kind::acts_by:
      return fmt::format("the suspend mechanism is {} now", printable(entry.words()));
    case journal_kind::backend_lost:
      return fmt::format("the agent was lost: {}", printable(entry.words()));
    case journal_kind::backend_back: return "the agent is available again";
    case journal_kind::stop: return "the scheduler is stopping";
    default: return {};
  }
}

}  // namespace sluice
