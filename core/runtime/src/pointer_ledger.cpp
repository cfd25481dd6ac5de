#include "pointer_ledger.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

namespace sluice::core {
namespace {

/// How long an entry waits for its queue to be seen.
constexpr duration patience = std::chrono::seconds(10);

/// What counts when several processes share a GPU: the highest. "unknown" also when there is none.
constexpr std::array ranks{online_work::unknown,  online_work::finished, online_work::unknown,
                           online_work::consumed, online_work::running,  online_work::waiting};

constexpr int rank_of(online_work work) noexcept {
  switch (work) {
    case online_work::finished: return 1;
    case online_work::unknown: return 2;
    case online_work::consumed: return 3;
    case online_work::running: return 4;
    case online_work::waiting: break;
  }
  return 5;
}

}  // namespace

void pointer_ledger::observe(const observation& seen) {
  auto found = std::find_if(entries_.begin(), entries_.end(), [&](const entry& one) {
    return one.pid == seen.pid && one.start_time == seen.start_time && one.gpu == seen.gpu;
  });
  if (found == entries_.end()) {
    found =
        entries_.insert(found, {.pid = seen.pid, .start_time = seen.start_time, .gpu = seen.gpu});
  }
  if (found->work != seen.work) found->since = seen.at;
  found->work = seen.work;
  found->packets += seen.count;
  found->waiting = seen.waiting;
  found->at = seen.at;
  news_ = true;
}

void pointer_ledger::add(gpu_id where, const entry& one, const process& owner) {
  const gpu* const on = table_.find_gpu(where);
  if (on == nullptr) return;
  sum& here = sums_[on->index];
  if (const int rank = rank_of(one.work); rank > here.rank) {
    here.rank = rank;
    here.owner = &owner;
  }
  here.packets += one.packets;
  here.waiting += one.waiting;
  if (one.work == online_work::waiting)
    here.waiting_since = std::min(here.waiting_since, one.since);
  if (one.work == online_work::running)
    here.running_since = std::min(here.running_since, one.since);
  if (one.packets != 0) here.at = std::max(here.at, one.at);
}

/// The policy gets a turn, and sees every group that this is about as changed.
void pointer_ledger::look_who_shows() noexcept {
  for (std::size_t i = 0; i < table_.gpu_count(); ++i) {
    gpu& where = table_.gpu_number(i);
    const bool can = acting_shows_ || where.shown_by != 0;
    if (std::exchange(table_.view_of(where).can_see_work, can) == can) continue;
    for (const group_id id : where.offline) {
      if (group* const each = table_.find_group(id)) table_.mark_changed(*each);
    }
  }
}

void pointer_ledger::look(time_point now, std::vector<event>& events) {
  look_who_shows();
  if (!news_ && (entries_.empty() || shape_ == table_.shape())) return;
  news_ = false;
  shape_ = table_.shape();
  sums_.assign(table_.gpu_count(), {});
  std::erase_if(entries_, [&](entry& one) {
    const process* const owner = table_.find(one.pid, one.start_time);
    const auto is_there = [&](const queue* each) { return each->on->id == one.gpu; };
    if (owner == nullptr || std::none_of(owner->queues.begin(), owner->queues.end(), is_there)) {
      return one.at + patience < now;
    }
    if (owner->what == role::online) {
      add(one.gpu, one, *owner);
      const group& gang = *owner->in;
      if (gang.key != 0 && gang.view.what == role::online) {
        for (const gpu_id id : gang.gpus) {
          if (id != one.gpu) add(id, one, *owner);
        }
      }
    }
    one.packets = 0;
    return false;
  });
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    gpu& where = table_.gpu_number(i);
    gpu_view& view = table_.view_of(where);
    const sum& here = sums_[i];
    const online_work work = ranks[static_cast<std::size_t>(here.rank)];
    where.work_of = here.owner != nullptr ? here.owner->id : process_id{};
    where.online_waiting = here.waiting;
    where.online_waiting_since = here.waiting_since;
    where.online_running_since = here.running_since;
    if (work == view.work && here.packets == 0) continue;
    const time_point at = here.packets != 0 ? std::min(here.at, now) : now;
    if (here.packets != 0) {
      if (!has_online_work(view)) note_arrival(where, at);
      view.last_move = at;
    }
    view.work = work;
    events.push_back({event_kind::online_moved, view.id, {}, here.packets, at});
  }
}

void pointer_ledger::forget(pid_t pid) noexcept {
  news_ |= std::erase_if(entries_, [pid](const entry& one) { return one.pid == pid; }) != 0;
}

void pointer_ledger::forget() noexcept {
  if (entries_.empty()) return;
  entries_.clear();
  for (std::size_t i = 0; i < table_.gpu_count(); ++i) {
    gpu& where = table_.gpu_number(i);
    where.online_waiting = 0;
    where.online_waiting_since = where.online_running_since = never;
    table_.view_of(where).work = online_work::unknown;
  }
}

}  // namespace sluice::core
