#include "breaker.hpp"

#include "log.hpp"

#include <algorithm>
#include <string>

#include "sluice/duration_text.hpp"

namespace sluice::core {

void breaker::completed(const batch_result& result, time_point now) {
  // A call that was refused as a whole (driver_errno) says nothing of the hardware.
  if (result.driver_errno != 0) return;
  const auto end = result.outcomes.begin() + result.count;
  if (std::find(result.outcomes.begin(), end, outcome::failed) == end) return;
  gpu& which = table_.gpu_at(result.gpu);
  if (which.lost) return;
  if (++which.hardware_failures < config_.breaker_after) return;
  open(which, now, "the hardware failed to preempt");
}

void breaker::lost(gpu_id id, time_point now) {
  gpu& which = table_.gpu_at(id);
  if (!which.lost) open(which, now, "a driver call is stuck, or the GPU was reset");
}

void breaker::reset(gpu_id id, time_point at, time_point now) {
  if (at >= table_.gpu_at(id).rearmed) lost(id, now);
}

void breaker::open(gpu& which, time_point now, std::string_view why) {
  const time_point until =
      config_.breaker_rearm == duration::zero() ? never : now + config_.breaker_rearm;
  next_ = std::min(next_, until);
  for (std::size_t i = 0; i < table_.gpu_count(); ++i) {
    gpu& each = table_.gpu_number(i);
    if (each.lost || (&each != &which && (which.hive == 0 || each.hive != which.hive))) continue;
    stats_.gpus_lost.add();
    stats_.open_breakers.add();
    each.rearm_at = until;
    table_.lose(each);
    log_line(log_level::error,
             "GPU {}: {}{}; nothing on it is suspended any more, and what was is resumed (after a "
             "reset its queues are lost to their owners), until scheduler::rearm(){}",
             static_cast<std::uint32_t>(each.id), why, &each == &which ? "" : " (in its hive)",
             until == never ? "" : " or for " + to_text(config_.breaker_rearm));
  }
}

void breaker::close(gpu& which, std::string_view why) {
  stats_.open_breakers.subtract(1);
  which.rearmed = table_.now();
  table_.find_again(which);
  log_line(log_level::warning, "GPU {}: in use again ({})", static_cast<std::uint32_t>(which.id),
           why);
}

bool breaker::rearm(gpu_id id) {
  gpu* const which = table_.find_gpu(id);
  if (which == nullptr || !which->lost) return false;
  close(*which, "an operator re-armed it");
  return true;
}

void breaker::work(time_point now) {
  if (now < next_) return;
  next_ = never;
  for (std::size_t i = 0; i < table_.gpu_count(); ++i) {
    gpu& each = table_.gpu_number(i);
    if (!each.lost) continue;
    if (each.rearm_at <= now)
      close(each, "breaker_rearm has passed");
    else
      next_ = std::min(next_, each.rearm_at);
  }
}

}  // namespace sluice::core
