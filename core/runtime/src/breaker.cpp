#include "breaker.hpp"

#include "log.hpp"

#include <algorithm>
#include <chrono>
#include <string>

#include "sluice/duration_text.hpp"

namespace sluice::core {
namespace {

std::string_view words_of(breaker_cause why) {
  switch (why) {
    case breaker_cause::preemption_failed: return "failed preemption";
    case breaker_cause::reset: return "reset";
    case breaker_cause::stuck_call: break;
  }
  return "stuck driver call";
}

std::string or_for(time_point until, time_point now) {
  if (until == never) return {};
  // As exact as somebody wants to read it.
  using namespace std::chrono;
  duration left = until - now;
  if (left > hours(1))
    left = ceil<minutes>(left);
  else if (left > seconds(1))
    left = ceil<seconds>(left);
  return ", for at most " + to_text(left);
}

}  // namespace

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
  lose(which, until, {});
  log_line(
      log_level::warning, log_part::breaker, {{"gpu", id}, {"open", 1}},
      "GPU {}: the breaker was already open when this scheduler started; no queue on this GPU is "
      "suspended until the breaker is re-armed{}",
      static_cast<std::uint32_t>(id), or_for(until, now));
}

time_point breaker::end(time_point now) const noexcept {
  return config_.breaker_rearm == duration::zero() ? never : now + config_.breaker_rearm;
}

void breaker::lose(gpu& which, time_point until, breaker_cause why) {
  next_ = std::min(next_, until);
  stats_.open_breakers.add();
  which.rearm_at = until;
  table_.lose(which);
  journal_.put({.kind = journal_kind::breaker_open, .cause = why, .gpu = which.id, .until = until},
               table_.now());
}

void breaker::open(gpu& which, time_point now, breaker_cause why) {
  const time_point until = end(now);
  for (std::size_t i = 0; i < table_.gpu_count(); ++i) {
    gpu& each = table_.gpu_number(i);
    if (each.lost ||
        (&each != &which && (which.reset_domain == 0 || each.reset_domain != which.reset_domain)))
      continue;
    stats_.gpus_lost.add();
    lose(each, until, why);
    log_line(log_level::error, log_part::breaker,
             {{"gpu", each.id}, {"open", 1}, {"why", words_of(why)}},
             "GPU {}: breaker opened after a {}{}; suspended queues are resumed (or lost, after a "
             "reset), and no queue on this GPU is suspended any more until the breaker is "
             "re-armed{}",
             static_cast<std::uint32_t>(each.id), words_of(why),
             &each == &which ? "" : " on another GPU of its reset domain", or_for(until, now));
    hear_({.gpu = each.id, .open = true, .why = why, .first = which.id, .until = until});
  }
}

void breaker::close(gpu& which, std::string_view why) {
  stats_.open_breakers.subtract(1);
  which.rearmed = table_.now();
  table_.find_again(which);
  journal_.put({.kind = journal_kind::breaker_closed, .gpu = which.id}, table_.now());
  hear_({.gpu = which.id, .open = false});
  log_line(log_level::warning, log_part::breaker, {{"gpu", which.id}, {"open", 0}},
           "GPU {}: breaker closed: {}", static_cast<std::uint32_t>(which.id), why);
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
