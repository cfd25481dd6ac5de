#include "reservations.hpp"

#include <algorithm>
#include <cerrno>
#include <initializer_list>
#include <utility>

namespace sluice::core {
namespace {

bool is(const error_code& error, std::initializer_list<int> any_of) {
  return error.category() == boost::system::system_category() &&
         std::find(any_of.begin(), any_of.end(), error.value()) != any_of.end();
}

/// The driver, this GPU or our rights are not such that it could be otherwise later. Anything else
/// may be: another's reservation ends, a ring has room again.
bool is_lasting(const error_code& error) {
  return error == errc::not_supported || is(error, {EPERM, EINVAL, ENOTTY, ENOSYS, EOPNOTSUPP});
}

}  // namespace

void reservations::begin(bool offered) {
  offered_ = offered;
  next_ = never;
  for (entry& one : entries_) {
    set_can(one, false);
    one = {.wanted = one.wanted};
  }
}

void reservations::acts_by(const capabilities& what) { begin(what.has(capability::reserve_slots)); }

/// The policy gets a turn, and sees every group that this is about as changed.
void reservations::set_can(entry& one, bool can) {
  gpu& on = table_.gpu_number(index_of(one));
  if (std::exchange(table_.view_of(on).can_reserve, can) == can) return;
  for (const group_id id : on.offline) {
    if (group* const each = table_.find_group(id)) table_.mark_changed(*each);
  }
}

bool reservations::answered(gpu_id id, double share, error_code error, time_point now) {
  const gpu* const on = table_.find_gpu(id);
  if (!offered_ || on == nullptr || on->index >= entries_.size()) return false;
  entry& one = entries_[on->index];
  const bool asked = std::exchange(one.in_flight, false);
  const bool was_end = asked && share == 1 && one.stands < 1;
  journal_entry told{.kind = was_end ? journal_kind::reservation_ended : journal_kind::reserved,
                     .gpu = id,
                     .number = static_cast<std::uint64_t>(one.asked * 1000)};
  if (!error) {
    // One that was taken for ended meanwhile is asked to end. What is compared is what was asked,
    // not what the driver makes of it.
    one.known = asked;
    if (!asked) return false;
    one.stands = one.asked;
    one.failures = 0;
    told.count = share < 1 ? 1 : 0;
    journal_.put(told, now, {.again = !std::exchange(one.failed, false)});
    set_can(one, true);
    return false;
  }
  told.count = share < 1 || one.stands < 1 || one.known ? 1 : 0;
  const bool passes = !is_lasting(error);
  const bool hardware = is(error, {EIO, ETIME});
  one.stands = 1;
  one.known = !passes;
  set_can(one, false);
  if (passes) {
    constexpr std::uint8_t most_failures = 6;
    told.length = config_.failure_backoff * (1 << one.failures);
    one.again = now + told.length;
    one.failures = std::min(static_cast<std::uint8_t>(one.failures + 1), most_failures);
  }
  journal_.put(told, now, {.error = error, .again = std::exchange(one.failed, true)});
  return hardware;
}

void reservations::want(gpu_id id, double share) {
  const gpu* const on = table_.find_gpu(id);
  if (on == nullptr) return;
  if (entries_.size() < table_.gpu_count()) entries_.resize(table_.gpu_count());
  entries_[on->index].wanted = share < 1 ? std::max(share, 0.0) : 1.0;
}

void reservations::forget() {
  for (entry& one : entries_) one.wanted = 1;
}

void reservations::work(time_point now) {
  if (!offered_) return;
  if (entries_.size() < table_.gpu_count()) entries_.resize(table_.gpu_count());
  next_ = never;
  for (entry& one : entries_) {
    if (one.in_flight) continue;
    if (now < one.again) {
      next_ = std::min(next_, one.again);
      continue;
    }
    const gpu& on = table_.gpu_number(index_of(one));
    const bool may = table_.view_of(on).can_reserve && !on.lost;
    const double share = may ? one.wanted : 1;
    if (one.known && share == one.stands) continue;
    const auto asked = backend_.reserve(on.id, share);
    one.asked = share;
    if (asked) {
      one.in_flight = true;
    } else if (!is_lasting(asked.error())) {
      one.again = now + config_.failure_backoff;
      next_ = std::min(next_, one.again);
    } else {
      (void)answered(on.id, share, asked.error(), now);
    }
  }
}

bool reservations::none() const noexcept {
  return std::all_of(entries_.begin(), entries_.end(), [](const entry& one) {
    return one.stands == 1 && (!one.in_flight || one.asked == 1);
  });
}

}  // namespace sluice::core
