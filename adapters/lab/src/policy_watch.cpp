#include "policy_watch.hpp"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "sluice/duration_text.hpp"

namespace sluice::lab {

void policy_faults::add(const policy_faults& other) {
  unknown_groups += other.unknown_groups;
  not_offline += other.not_offline;
  unknown_gpus += other.unknown_gpus;
  bad_numbers += other.bad_numbers;
  past_holds += other.past_holds;
  if (removed_for.empty()) removed_for = other.removed_for;
}

std::string policy_faults::ignored_text() const {
  std::string text;
  const auto add = [&](std::uint64_t number, std::string_view one, std::string_view rest) {
    if (number == 0) return;
    text += fmt::format("{}{} {}{} {}", text.empty() ? "" : ", ", number, one,
                        number == 1 ? "" : "s", rest);
  };
  add(unknown_groups, "declaration", "for unknown groups");
  add(not_offline, "hold", "of groups that are not offline");
  add(unknown_gpus, "reservation", "on unknown GPUs");
  add(bad_numbers, "number", "out of range");
  add(past_holds, "hold", "that had already expired");
  return text;
}

void policy_watch::decide(const snapshot& seen, decision_sink& out) {
  seen_ = &seen;
  out_ = &out;
  try {
    count_wake_up(seen.now);
    inner_->decide(seen, *this);
  } catch (const std::exception& thrown) {
    faults_.removed_for = thrown.what();
    throw;
  } catch (...) {
    faults_.removed_for = "it threw an object that is not a std::exception";
    throw;
  }
}

void policy_watch::count_wake_up(time_point now) {
  if (wake_ > now) return;
  wake_ = never;
  if (now - counted_since_ > wake_up_window) {
    counted_since_ = now;
    wake_ups_ = 0;
  }
  if (++wake_ups_ <= most_wake_ups) return;
  throw std::runtime_error(
      fmt::format("it requested {} turns within {}, which would occupy a whole processor; call "
                  "wake_at() with a later time",
                  most_wake_ups, to_text(wake_up_window)));
}

void policy_watch::hold(group_id id, time_point until) {
  const group_view* const group = seen_->table.find(id);
  if (group == nullptr) {
    ++faults_.unknown_groups;
  } else if (group->what != role::offline) {
    ++faults_.not_offline;
  }
  if (until <= seen_->now) ++faults_.past_holds;
  out_->hold(id, until);
}

void policy_watch::run(group_id id) {
  if (seen_->table.find(id) == nullptr) ++faults_.unknown_groups;
  out_->run(id);
}

void policy_watch::wake_at(time_point when) {
  wake_ = std::min(wake_, when);
  out_->wake_at(when);
}

void policy_watch::poll_pointers(duration every) {
  if (every < duration::zero()) ++faults_.bad_numbers;
  out_->poll_pointers(every);
}

void policy_watch::reserve(gpu_id gpu, double offline_share) {
  if (seen_->table.find(gpu) == nullptr) ++faults_.unknown_gpus;
  // Written so that NaN is out of range.
  if (!(offline_share >= 0 && offline_share <= 1)) ++faults_.bad_numbers;
  out_->reserve(gpu, offline_share);
}

void policy_watch::set_quantum(group_id group, duration length) {
  if (seen_->table.find(group) == nullptr) ++faults_.unknown_groups;
  if (length < duration::zero()) ++faults_.bad_numbers;
  out_->set_quantum(group, length);
}

}  // namespace sluice::lab
