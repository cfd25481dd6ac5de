#include "attacher.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace sluice::core {
namespace {

/// Why a target cannot be managed may pass: strace lets go of it, its runtime comes up.
constexpr duration unmanaged_retry = std::chrono::minutes(1);

}  // namespace

bool attacher::wanted(const process& which) const noexcept {
  return which.what == role::offline && !which.own && !which.gone &&
         (which.compute_queues != 0 || which.was_attached);
}

/// How long it may wait for its GPUs to have no online work in flight.
duration attacher::patience_of(const process& which) const noexcept {
  return which.was_attached ? duration::zero() : config_.attach_at_latest - config_.attach_after;
}

void attacher::work(time_point now) {
  // Looking at one may make it, or another, a candidate again.
  for (auto& candidates = table_.attach_candidates(); !candidates.empty();) {
    looking_.clear();
    looking_.swap(candidates);
    for (const process_id id : looking_) {
      if (process* const one = table_.find(id)) consider(*one, now);
    }
  }
  for (std::uint32_t slot = 0; deadlines_.pop_due(now, slot);) {
    if (process* const one = table_.process_in(slot)) consider(*one, now);
  }
  if (std::exchange(recheck_, false)) {
    // In the order they came; consider() puts those back that still have to wait.
    looking_.clear();
    looking_.swap(waiting_);
    for (const process_id id : looking_) {
      if (process* const one = table_.find(id)) {
        one->attach_waiting = false;
        consider(*one, now);
      }
    }
  }
  if (returning_) report_returns(now);
}

auto attacher::judge(const process& which, time_point now, time_point& again) const noexcept
    -> verdict {
  again = never;
  if (!up_ || !wanted(which) || which.attach != attach_state::none) return verdict::never;
  if (now < which.attach_from) {
    again = which.attach_from;
    return verdict::later;
  }
  for (const queue* const one : which.queues) {
    if (one->type != queue_kind::compute) continue;
    if (one->on->lost) return verdict::never;
    if (one->on->attaching != 0) return verdict::later;
    if (has_online_work(table_.view_of(*one->on)) && now < which.attach_latest) {
      again = which.attach_latest;
    }
  }
  return again == never ? verdict::now : verdict::later;
}

void attacher::consider(process& which, time_point now) {
  if (which.attach == attach_state::attached && (which.what != role::offline || which.gone)) {
    // Given back, or gone: the session's end makes everything of it run.
    const auto asked = backend_.detach(which.id);
    if (asked) {
      journal_.put(entry_of(which, journal_kind::detach), now);
      actual_.set_attach(which, attach_state::detaching);
    } else if (asked.error() == errc::unknown_target || asked.error() == errc::lost) {
      detached(which, now);
    } else {
      deadlines_.set(table::slot_of(which), now + config_.failure_backoff);
    }
    return;
  }
  if (which.attach == attach_state::none && wanted(which) && which.attach_from == never) {
    which.attach_from = which.compute_since + config_.attach_after;
    which.attach_latest = which.compute_since + config_.attach_at_latest;
  }
  time_point again = never;
  const auto what = judge(which, now, again);
  deadlines_.set(table::slot_of(which), again);
  if (what == verdict::later && now >= which.attach_from &&
      !std::exchange(which.attach_waiting, true)) {
    waiting_.push_back(which.id);
  }
  if (what != verdict::now) return;
  which.attach_why.clear();
  const auto asked = backend_.attach(which.id, which.pid, which.start_time);
  if (asked) {
    journal_.put(entry_of(which, journal_kind::attach), now);
    actual_.set_attach(which, attach_state::attaching);
  } else {
    failed(which, journal_kind::attach, asked.error(), now);
  }
}

void attacher::attached(process& which, error_code error, time_point now) {
  if (which.attach != attach_state::attaching) return;
  recheck_ = true;
  if (error) {
    actual_.set_attach(which, attach_state::none);
    failed(which, journal_kind::attached, error, now);
    if (which.gone) members_.erase(which);
    return;
  }
  auto entry = entry_of(which, journal_kind::attached);
  entry.count = which.attach_failures;
  entry.number = which.session_ended ? 1 : 0;
  journal_.put(entry, now);
  which.session_ended = which.was_attached = false;
  which.attach_failures = 0;
  which.attach_refused = false;
  actual_.set_attach(which, attach_state::attached);
  table_.attach_candidates().push_back(which.id);  // It may have stopped being wanted meanwhile.
}

void attacher::failed(process& which, journal_kind asked, error_code error, time_point now) {
  constexpr std::uint8_t most_doublings = 6;
  const bool refused = error == errc::not_managed;
  const auto wait =
      refused ? unmanaged_retry : config_.failure_backoff * (1 << which.attach_failures);
  which.attach_failures =
      std::min(static_cast<std::uint8_t>(which.attach_failures + 1), most_doublings);
  which.attach_from = now + wait;
  which.attach_latest = which.attach_from + patience_of(which);
  deadlines_.set(table::slot_of(which), which.attach_from);
  auto entry = entry_of(which, asked);
  entry.length = wait;
  const bool again = refused && std::exchange(which.attach_refused, true);
  journal_.put(entry, now, {.error = error, .text = which.attach_why, .again = again});
}

void attacher::detached(process& which, time_point now) {
  journal_.put(entry_of(which, journal_kind::detached), now);
  which.session_ended = which.attach == attach_state::attached;
  actual_.release(which);
  recheck_ = true;
  actual_.set_attach(which, attach_state::none);
  if (which.gone) {
    deadlines_.set(table::slot_of(which), never);
    members_.erase(which);
    return;
  }
  which.attach_from = now + std::max(config_.attach_after, config_.failure_backoff);
  which.attach_latest = which.attach_from + patience_of(which);
  table_.attach_candidates().push_back(which.id);
}

void attacher::lost() {
  up_ = false;
  returning_.reset();
  table_.for_each_process([&](process& one) {
    actual_.release(one);
    // Queues or not: one that ends destroys its queues, and then waits for an answer to its
    // runtime's last call, which only a session gives.
    one.was_attached = one.what == role::offline && !one.own && !one.gone &&
                       (one.was_attached || one.attach == attach_state::attached ||
                        one.attach == attach_state::attaching);
    actual_.set_attach(one, attach_state::none);
    if (one.gone) {
      members_.erase(one);
      return;
    }
    if (one.was_attached) one.attach_from = one.attach_latest = table_.now();
  });
}

void attacher::restored() {
  up_ = true;
  returning_ = returns{};  // clang 14 finds no constructor for emplace()
  table_.for_each_process([&](process& one) {
    table_.attach_candidates().push_back(one.id);
    if (one.was_attached) returning_->awaited.push_back(one.id);
  });
  returning_->all = returning_->awaited.size();
}

void attacher::report_returns(time_point now) {
  std::erase_if(returning_->awaited, [&](process_id id) {
    const process* const one = table_.find(id);
    if (one == nullptr) return true;
    if (one->attach == attach_state::attaching) return false;
    if (one->attach == attach_state::attached) {
      ++returning_->attached;
      return true;
    }
    time_point again = never;
    return one->attach_failures != 0 || judge(*one, now, again) == verdict::never;
  });
  if (!returning_->awaited.empty()) return;
  const returns seen = *std::exchange(returning_, std::nullopt);
  journal_.put({.kind = journal_kind::reattached,
                .count = static_cast<std::uint32_t>(seen.attached),
                .number = seen.all},
               now);
}

}  // namespace sluice::core
