#include "quanta.hpp"

#include <algorithm>
#include <cerrno>
#include <tuple>
#include <utility>

namespace sluice::core {
namespace {

bool is_system(const error_code& error, int number) {
  return error == error_code(number, boost::system::system_category());
}

bool is_not_supported(const error_code& error) {
  return error == errc::not_supported || is_system(error, EOPNOTSUPP) || is_system(error, ENOTTY) ||
         is_system(error, ENOSYS);
}

/// A retry seldom changes it, so a retry that fails the same way is not counted again.
bool is_forbidden(const error_code& error) {
  return is_system(error, EPERM) || is_system(error, EINVAL);
}

/// Its end is on the way to us.
bool is_target_gone(const error_code& error) {
  return error == errc::unknown_target || is_system(error, ESRCH);
}

}  // namespace

void quanta::acts_by(const capabilities& what) {
  stale_ = true;
  offered_ = what.has(capability::set_quantum);
  for (std::uint32_t gpu = 0; gpu < places_.size(); ++gpu) {
    if (offered_ == (places_[gpu].offered != support::no)) continue;
    set_offered(gpu, offered_ ? support::unknown : support::no);
    places_[gpu].said = false;
  }
}

void quanta::lost() {
  stale_ = true;
  entries_.clear();
  for (std::uint32_t gpu = 0; gpu < places_.size(); ++gpu) {
    set_offered(gpu, offered_ ? support::unknown : support::no);
    places_[gpu].said = false;
  }
}

auto quanta::find(process_id target, std::uint32_t gpu) -> entry* {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const entry& one) {
    return one.target == target && one.gpu == gpu;
  });
  return found == entries_.end() ? nullptr : &*found;
}

/// The policy gets a turn, and sees every group that this is about as changed.
void quanta::set_offered(std::uint32_t gpu, support offered) {
  places_[gpu].offered = offered;
  core::gpu& on = table_.gpu_number(gpu);
  const bool can = offered == support::yes;
  if (std::exchange(table_.view_of(on).can_set_quantum, can) == can) return;
  for (const group_id id : on.offline) {
    if (group* const each = table_.find_group(id)) table_.mark_changed(*each);
  }
}

void quanta::answered(process_id target, gpu_id id, duration length, error_code error,
                      time_point now) {
  const gpu* const on = table_.find_gpu(id);
  const process* const whose = table_.find(target);
  entry* const found = on == nullptr || whose == nullptr ? nullptr : find(target, on->index);
  if (found == nullptr) return;  // Its session has ended meanwhile, and the quantum with it.
  entry& one = *found;
  const bool asked = std::exchange(one.in_flight, false);
  stale_ = true;
  if (error) {
    fail(one, *whose, error, now);
    return;
  }
  if (!asked) return;
  // What is compared is what was asked, not what the driver makes of it.
  one.stands = one.asked;
  one.failures = 0;
  one.refused.reset();
  journal_.put({.kind = journal_kind::quantum,
                .pid = whose->pid,
                .gpu = id,
                .process = target,
                .group = whose->in->view.id,
                .length = length},
               now, {.again = !std::exchange(one.failed, false)});
  // It may answer late: not after it said that it cannot.
  if (places_[one.gpu].offered != support::no) set_offered(one.gpu, support::yes);
}

void quanta::fail(entry& one, const process& whose, error_code error, time_point now) {
  const bool was_wanted = one.asked > duration::zero() || one.stands > duration::zero();
  one.stands = {};
  if (is_not_supported(error)) {
    refuse(one.gpu, was_wanted, now);
    return;
  }
  constexpr std::uint8_t most_failures = 6;
  one.again = now + config_.failure_backoff * (1 << one.failures);
  one.failures = std::min(static_cast<std::uint8_t>(one.failures + 1), most_failures);
  if (!was_wanted || is_target_gone(error)) return;
  const bool is_news = !is_forbidden(error) || one.refused != one.asked;
  if (is_forbidden(error)) one.refused = one.asked;
  journal_.put({.kind = journal_kind::quantum,
                .pid = whose.pid,
                .gpu = table_.gpu_number(one.gpu).id,
                .count = is_news ? 1U : 0U,
                .process = whose.id,
                .group = whose.in->view.id,
                .length = one.asked},
               now, {.error = error, .again = std::exchange(one.failed, true)});
}

void quanta::refuse(std::uint32_t gpu, bool wanted, time_point now) {
  set_offered(gpu, support::no);
  if (!wanted || std::exchange(places_[gpu].said, true)) return;
  journal_.put({.kind = journal_kind::no_quantum, .gpu = table_.gpu_number(gpu).id}, now);
}

void quanta::want(group& which, duration length) {
  length = std::max(length, duration::zero());
  if (std::exchange(which.quantum, length) != length) stale_ = true;
}

void quanta::forget() {
  table_.for_each_group([&](group& one) { want(one, {}); });
}

duration quanta::wanted_of(const entry& one) {
  const process& whose = *table_.find(one.target);
  const bool may = whose.what == role::offline && whose.in->view.what == role::offline &&
                   !whose.own && !table_.gpu_number(one.gpu).lost;
  return may ? whose.in->quantum : duration::zero();
}

/// An entry for each GPU of each attached process, for as long as the session lasts: the driver
/// keeps a quantum for what the process comes to have there.
void quanta::take_stock() {
  if (places_.size() < table_.gpu_count())
    places_.resize(table_.gpu_count(), {.offered = offered_ ? support::unknown : support::no});
  std::erase_if(entries_, [&](const entry& one) {
    const process* const whose = table_.find(one.target);
    return whose == nullptr || whose->attach != attach_state::attached;
  });
  table_.for_each_process([&](const process& one) {
    if (one.attach != attach_state::attached) return;
    for (const queue* const each : one.queues) {
      const bool in_vain =
          places_[each->on->index].offered == support::no && one.in->quantum == duration::zero();
      if (!each->managed || !table_.suspends(each->type) || in_vain) continue;
      entries_.push_back({.target = one.id, .gpu = each->on->index, .is_new = true});
    }
  });
  // Of the same ones the oldest stays. std::sort() does not allocate.
  std::sort(entries_.begin(), entries_.end(), [](const entry& left, const entry& right) {
    return std::tie(left.target, left.gpu, left.is_new) <
           std::tie(right.target, right.gpu, right.is_new);
  });
  const auto end =
      std::unique(entries_.begin(), entries_.end(), [](const entry& left, const entry& right) {
        return left.target == right.target && left.gpu == right.gpu;
      });
  entries_.erase(end, entries_.end());
  for (entry& one : entries_) one.is_new = false;
}

void quanta::work(time_point now) {
  if (!stale_ && table_.shape() == shape_ && now < next_) return;
  stale_ = false;
  shape_ = table_.shape();
  next_ = never;
  take_stock();
  for (place& one : places_) one.asking = false;
  for (const entry& one : entries_) {
    if (one.in_flight) places_[one.gpu].asking = true;
  }
  for (entry& one : entries_) send(one, now);
}

void quanta::send(entry& one, time_point now) {
  place& on = places_[one.gpu];
  duration wanted = wanted_of(one);
  if (on.offered == support::no) {
    if (wanted > duration::zero()) refuse(one.gpu, true, now);
    // One that stands from before is still taken back.
    if (one.stands == duration::zero()) return;
    wanted = {};
  }
  if (one.in_flight || (on.offered == support::yes && wanted == one.stands)) return;
  // Whether it can is asked once.
  if (on.offered == support::unknown && on.asking) return;
  if (now < one.again) {
    next_ = std::min(next_, one.again);
    return;
  }
  const auto handed = backend_.set_quantum(one.target, table_.gpu_number(one.gpu).id, wanted);
  one.asked = wanted;
  if (handed) {
    one.in_flight = on.asking = true;
  } else if (is_not_supported(handed.error())) {
    fail(one, *table_.find(one.target), handed.error(), now);
  } else {
    one.again = now + config_.failure_backoff;
    next_ = std::min(next_, one.again);
  }
}

bool quanta::none() const noexcept {
  return std::all_of(entries_.begin(), entries_.end(), [](const entry& one) {
    return one.stands == duration::zero() && (!one.in_flight || one.asked == duration::zero());
  });
}

}  // namespace sluice::core
