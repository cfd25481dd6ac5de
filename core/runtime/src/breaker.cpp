#include "breaker.hpp"

#include <algorithm>

namespace sluice::core {

void breaker::completed(const batch_result& result, time_point now) {
  // A call that was refused as a whole (driver_errno) says nothing of the hardware.
  if (result.driver_errno != 0) return;
  const auto end = result.outcomes.begin() + result.count;
  if (std::find(result.outcomes.begin(), end, outcome::failed) == end) return;
  failed(result.gpu, now);
}

void breaker::failed(gpu_id id, time_point now) {
  gpu& which = table_.gpu_at(id);
  if (which.lost) return;
  if (++which.hardware_failures < config_.breaker_after) return;
  open(which, now, breaker_cause::preemption_failed);
}

void breaker::lost(gpu_id id, time_point now) {
  gpu& which = table_.gpu_at(id);
  if (!which.lost) open(which, now, breaker_cause::stuck_call);
}

void breaker::reset(gpu_id id, time_point at, time_point now) {
  gpu& which = table_.gpu_at(id);
  if (at >= which.rearmed && !which.lost) open(which, now, breaker_cause::reset);
}

void breaker::keep(gpu_id id, time_point until, time_point now) {
  gpu& which = table_.gpu_at(id);
  until = std::min(until, end(now));
  if (which.lost || until <= now) return;
  lose(which, until, {}, nullptr);
}

time_point breaker::end(time_point now) const noexcept {
  return config_.breaker_rearm == duration::zero() ? never : now + config_.breaker_rearm;
}

void breaker::lose(gpu& which, time_point until, breaker_cause why, const gpu* first) {
  next_ = std::min(next_, until);
  which.rearm_at = until;
  actual_.lose(which);
  journal_entry entry{
      .kind = journal_kind::breaker_open, .cause = why, .gpu = which.id, .until = until};
  if (first != nullptr) {
    entry.count = 1;
    entry.number = static_cast<std::uint32_t>(first->id);
  }
  journal_.put(entry, table_.now());
}

void breaker::open(gpu& which, time_point now, breaker_cause why) {
  const time_point until = end(now);
  for (std::size_t i = 0; i < table_.gpu_count(); ++i) {
    gpu& each = table_.gpu_number(i);
    if (each.lost ||
        (&each != &which && (which.reset_domain == 0 || each.reset_domain != which.reset_domain)))
      continue;
    lose(each, until, why, &which);
    hear_({.gpu = each.id, .open = true, .why = why, .first = which.id, .until = until});
  }
}

void breaker::close(gpu& which, std::string_view why) {
  which.rearmed = table_.now();
  actual_.find_again(which);
  journal_.put({.kind = journal_kind::breaker_closed, .gpu = which.id}, table_.now(),
               {.text = why});
  hear_({.gpu = which.id, .open = false});
}

bool breaker::rearm(gpu_id id) {
  gpu* const which = table_.find_gpu(id);
  if (which == nullptr || !which->lost) return false;
  close(*which, "re-armed by an operator");
  return true;
}

void breaker::work(time_point now) {
  if (now < next_) return;
  next_ = never;
  for (std::size_t i = 0; i < table_.gpu_count(); ++i) {
    gpu& each = table_.gpu_number(i);
    if (!each.lost) continue;
    if (each.rearm_at <= now)
      close(each, "breaker_rearm expired");
    else
      next_ = std::min(next_, each.rearm_at);
  }
}

}  // namespace sluice::core
