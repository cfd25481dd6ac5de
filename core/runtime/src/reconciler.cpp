#include "reconciler.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace sluice::core {
namespace {

using namespace std::chrono_literals;

/// How soon to try a lane again that said it was busy although nothing of ours is in flight.
constexpr duration busy_retry = 1ms;

constexpr std::uint8_t most_doublings = 6;

}  // namespace

duration reconciler::backoff(std::uint8_t failures) const noexcept {
  return config_.failure_backoff * (1 << std::min(failures, most_doublings));
}

auto reconciler::need(const queue& which, time_point now, time_point& retry) noexcept -> urgency {
  if (!which.managed || !table_.suspends(which.type)) return urgency::none;
  const process& owner = *which.owner;
  const bool wanted_off =
      owner.in->held && owner.what == role::offline && !owner.gone && !which.on->lost;
  switch (which.state) {
    case queue_state::running:
      if (!wanted_off) return urgency::none;
      if (now < which.hold_off) {
        retry = std::min(retry, which.hold_off);
        return urgency::none;
      }
      return has_online_work(table_.view_of(*which.on)) ? urgency::waiting_suspend
                                                        : urgency::later_suspend;
    case queue_state::suspended: return wanted_off ? urgency::none : urgency::resume;
    case queue_state::in_doubt:
      if (now < which.resume_off) {
        retry = std::min(retry, which.resume_off);
        return urgency::none;
      }
      return urgency::resume;
    case queue_state::suspending:
    case queue_state::resuming: break;
  }
  return urgency::none;
}

auto reconciler::choose(process& which, time_point now) -> choice {
  choice best;
  time_point retry = never;
  if (which.batch_in_flight == 0 && which.attach == attach_state::attached) {
    if (now < which.lane_off) {
      retry = which.lane_off;
    } else {
      for (const queue* const one : which.queues) {
        const urgency how = need(*one, now, retry);
        if (how <= best.how) continue;
        best = {how, one->on,
                how == urgency::resume ? command_kind::resume : command_kind::suspend};
      }
    }
  }
  deadlines_.set(table::slot_of(which), retry);
  return best;
}

bool reconciler::reconcile(time_point now) {
  for (std::uint32_t slot = 0; deadlines_.pop_due(now, slot);) {
    if (process* const due = table_.process_in(slot)) table_.mark_dirty(*due);
  }
  auto& dirty = table_.dirty();
  const auto pass = [&](bool urgent_only) {
    // By index: a refused submit may mark its process dirty again, which then waits for its turn.
    const auto count = dirty.size();
    for (std::size_t i = 0; i < count; ++i) {
      process* const one = table_.find(dirty[i]);
      if (one == nullptr) continue;
      if (!urgent_only) one->dirty = false;
      const choice what = choose(*one, now);
      if (what.how == urgency::none) continue;
      if (urgent_only && what.how != urgency::waiting_suspend) continue;
      send(*one, what, now);
    }
    return count;
  };
  pass(true);
  const auto done = pass(false);
  dirty.erase(dirty.begin(), dirty.begin() + static_cast<std::ptrdiff_t>(done));
  if (!std::exchange(unflushed_, false)) return false;
  backend_.flush();
  return true;
}

void reconciler::send(process& which, const choice& what, time_point now) {
  batch_.id = ++last_batch_;
  batch_.target = which.id;
  batch_.gpu = what.on->id;
  batch_.kind = what.kind;
  batch_.count = 0;
  const auto fits = [&](const queue& one) {
    time_point retry = never;
    const urgency how = need(one, now, retry);
    return one.on == what.on && how != urgency::none &&
           (how == urgency::resume) == (what.kind == command_kind::resume);
  };
  for (const queue* const one : which.queues) {
    if (batch_.count == max_batch_queues) break;
    if (fits(*one)) batch_.queues[batch_.count++] = one->driver_id;
  }
  const auto handed = backend_.submit(batch_);
  tell_handed(which, handed ? error_code{} : handed.error(), now);
  if (!handed) {
    const bool busy = handed.error() == errc::busy || handed.error() == errc::full;
    which.lane_off = now + (busy ? busy_retry : config_.failure_backoff);
    deadlines_.set(table::slot_of(which), which.lane_off);
    if (what.kind == command_kind::resume && !busy) {
      // It must run, and cannot be told to: ending the session makes it.
      if (backend_.detach(which.id)) {
        actual_.set_attach(which, attach_state::detaching);
        journal_.put(entry_of(which, journal_kind::detach), now);
      }
    }
    return;
  }
  unflushed_ = true;
  actual_.set_in_flight(which, batch_.id);
  const auto state =
      what.kind == command_kind::suspend ? queue_state::suspending : queue_state::resuming;
  for (std::uint16_t i = 0; i < batch_.count; ++i) {
    actual_.set_state(*which.find(batch_.queues[i]), state);
  }
  measure_submit(*what.on, what.kind);
}

void reconciler::measure_submit(gpu& on, command_kind kind) noexcept {
  if (kind == command_kind::resume) {
    on.arrival_open = on.decision_open = false;
  } else if (std::exchange(on.decision_open, false)) {
    stats_.decision.record(time_.now() - on.arrival);
  }
}

void reconciler::note_off(gpu& on, time_point at) noexcept {
  if (on.not_off != 0 || !std::exchange(on.arrival_open, false)) return;
  journal_.put({.kind = journal_kind::off,
                .gpu = on.id,
                .since = on.arrival,
                .until = at,
                .length = at - on.arrival},
               table_.now());
}

void reconciler::tell_handed(const process& which, error_code error, time_point now) noexcept {
  if (!error && !journal_.on()) return;
  // Busy lanes are asked again within a millisecond: no news.
  if (error == errc::busy || error == errc::full) return;
  auto entry = entry_of(which, journal_kind::batch);
  entry.number = batch_.id;
  entry.gpu = batch_.gpu;
  entry.command = batch_.kind;
  entry.count = batch_.count;
  journal_.put(entry, now, {.error = error});
}

void reconciler::tell_done(const process* which, const batch_result& result,
                           time_point now) noexcept {
  auto entry =
      which != nullptr ? entry_of(*which, journal_kind::done) : journal_entry{journal_kind::done};
  entry.process = result.target;
  entry.number = result.id;
  entry.gpu = result.gpu;
  entry.command = result.kind;
  entry.count = result.count;
  entry.since = result.started;
  entry.until = result.finished;
  entry.error = result.driver_errno;
  for (std::uint16_t i = 0; i < result.count; ++i) {
    switch (result.outcomes[i]) {
      [[likely]] case outcome::done : break;
      case outcome::invalid: ++entry.invalid; break;
      case outcome::failed: ++entry.failed; break;
      case outcome::target_gone: ++entry.gone; break;
    }
  }
  journal_.put(entry, now);
}

void reconciler::completed(const batch_result& result, time_point now) {
  const bool suspend = result.kind == command_kind::suspend;
  const duration cost = result.finished - result.started;
  if (gpu* const on = table_.find_gpu(result.gpu)) {
    (suspend ? on->suspend_cost : on->resume_cost).add(cost);
    auto& view = table_.view_of(*on);
    view.suspend_cost = on->suspend_cost.value();
    view.resume_cost = on->resume_cost.value();
  }

  process* which = table_.find(result.target);
  if (which != nullptr && which->batch_in_flight != result.id) which = nullptr;
  tell_done(which, result, now);
  if (which == nullptr) return;
  actual_.set_in_flight(*which, 0);
  table_.mark_dirty(*which);

  for (std::uint16_t i = 0; i < result.count; ++i) {
    const outcome got = result.outcomes[i];
    // By number, not by the queue it was sent for: had the number been used again meanwhile, then
    // the driver's answer is about the new queue.
    queue* const one = which->find(result.queues[i]);
    if (one == nullptr || !one->managed) continue;
    switch (got) {
      case outcome::done:
        if (suspend) {
          one->failures = 0;
          actual_.set_refused(*one, false);
        }
        actual_.set_state(*one, suspend ? queue_state::suspended : queue_state::running);
        break;
      case outcome::invalid:
        if (suspend) {
          // Nothing was done. Tried again when the backend announces the queue anew, or later.
          one->hold_off = now + backoff(one->failures++);
          actual_.set_refused(*one, true);
          actual_.set_state(*one, queue_state::running);
          break;
        }
        // The driver knows no such queue, or refused the call. The first is followed by the queue's
        // removal; until then it is not known to run.
        [[fallthrough]];
      case outcome::failed: {
        const auto wait = backoff(one->failures++);
        one->hold_off = now + wait;
        one->resume_off = suspend ? now : now + wait;
        // After a failed resume, a queue that did not suspend is asked again later.
        if (suspend || one->refused) actual_.set_refused(*one, true);
        actual_.set_state(*one, queue_state::in_doubt);
        break;
      }
      case outcome::target_gone: actual_.set_state(*one, queue_state::running); break;
    }
    one->failures = std::min(one->failures, most_doublings);
  }
  if (suspend) {
    if (gpu* const on = table_.find_gpu(result.gpu)) note_off(*on, result.finished);
  }
}

}  // namespace sluice::core
