#include "history.hpp"

#include "words.hpp"

#include <algorithm>
#include <set>

namespace sluice {
namespace {

/// Of what came in one turn.
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

}  // namespace

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
    case journal_kind::span_end: spans_.add(entry.span, entry.length, entry.at); break;
    case journal_kind::process_off:
    case journal_kind::span_begin:
    case journal_kind::span_abandoned:
    case journal_kind::off:
    case journal_kind::reserved:
    case journal_kind::reservation_ended:
    case journal_kind::quantum:
    case journal_kind::no_quantum:
    case journal_kind::client_thrown_out:  // client_gone follows
    case journal_kind::begins_expired:     // and so does end
    case journal_kind::spans_expired:
    case journal_kind::spans_left:
    case journal_kind::marks_dropped:
    case journal_kind::reattached:
    case journal_kind::overflow:
    case journal_kind::resync: break;
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

std::optional<breaker_cause> history::breaker_cause_of(gpu_id id) const {
  const auto found = gpus_.find(id);
  return found == gpus_.end() ? std::nullopt : found->second.breaker;
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

void history::take_node_event(const journal_entry& entry) {
  if (entry.kind == journal_kind::policy) policy_ = printable(entry.words());
  if (entry.kind == journal_kind::backend_lost) {
    end_commands(outcome::unknown);
    forget_all_places(entry.at);
  }
  if (node_events_.size() == most_node_events) node_events_.pop_front();
  node_events_.push_back({entry.at, words_of(entry)});
}

}  // namespace sluice
