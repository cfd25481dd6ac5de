#pragma once
/// \file
/// What slo knows of one GPU, and whether offline work is held there.

#include "decaying_histogram.hpp"
#include "gap_plan.hpp"
#include "hold_gain.hpp"
#include "offline_share.hpp"
#include "span_track.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <utility>

#include "sluice/policies/slo.hpp"
#include "sluice/policy.hpp"
#include "sluice/time.hpp"

namespace sluice {

class slo_gpu {
 public:
  slo_gpu(const slo_options& options, time_point now) noexcept
      : suspend_(options.suspend_cost),
        resume_(options.resume_cost),
        held_since_(now),
        counted_(now),
        share_(options.offline) {
    for (std::size_t k = 0; k < span_kinds; ++k) tracks_[k].aim(options.p99[k]);
  }

  /// Whether the GPU's own work wants its offline groups held. A group is held for any of its GPUs.
  bool wants() const noexcept { return wants_; }
  /// Whether its offline groups run for their share, whatever another GPU of theirs wants.
  bool owes() const noexcept { return owes_; }
  /// What has come of that on all GPUs of its groups.
  void set_held(bool held, time_point now) noexcept {
    if (std::exchange(held_, held) == held) return;
    held_since_ = now;
    for (span_track& each : tracks_) each.set_held(held, now);
  }
  /// Whether it matters at once that tokens begin and end.
  bool hears_tokens() const noexcept {
    const span_track& tokens = track(span_kind::itl);
    return tokens.has_target() && (wants_ || !tokens.open());
  }

  /// In each turn first this, then its events, then decide().
  void begin_turn(const gpu_view& view, time_point now) noexcept {
    const duration passed = now - std::exchange(counted_, now);
    share_.count(passed, held_);
    if (view.suspend_cost > duration::zero()) suspend_ = view.suspend_cost;
    if (view.resume_cost > duration::zero()) resume_ = view.resume_cost;
    in_flight_ = view.online_in_flight;
  }

  void begin(const event& one, time_point now) {
    if (!track(one.span).has_target()) return;
    const bool fresh = std::exchange(idle_, false);
    if (fresh) {
      gaps_.add(one.at - idle_since_);
      trial_ = track(one.span).begins_trial();
    } else if (track(one.span).open()) {
      trial_ = false;  // It is alone no more.
    }
    track(one.span).begin(one.at, now, trial_);
  }

  /// \param suspended_since from when on every offline group there has been suspended; never: not
  /// so.
  void end(const event& one, time_point suspended_since, time_point now, decision_sink& out) {
    const time_point begun = one.at - one.length;
    if (one.span == span_kind::itl) {
      const bool alone = in_flight_ <= 1 && alone_from_ <= begun &&
                         held_since_ + (held_ ? suspend_ : resume_) <= begun;
      tokens_.token(alone, held_, one.length, now);
    } else if (one.span == span_kind::ttft) {
      tokens_.request();
    }
    span_track& its = track(one.span);
    if (!its.has_target()) return;
    // Who begins what is held for waits for the suspend.
    const bool suspended = suspended_since != never && suspended_since <= begun + 2 * suspend_;
    its.end(begun, one.length, suspended, now, one.span, out);
  }

  void abandon(const event& one) { track(one.span).abandon(one.at - one.length); }

  /// \param wake made earlier where it wants to be asked again. \return whether wants() or owes()
  /// changed.
  bool decide(const gpu_view& view, time_point now, time_point& wake, decision_sink& out) {
    alone_from_ = in_flight_ != 1 ? never : std::min(alone_from_, now);
    const bool owed = owes_;
    const bool wants = !view.offline.empty() && wants_hold(now, wake, out);
    return std::exchange(wants_, wants) != wants || owed != owes_;
  }

 private:
  /// Once released while spans are open, offline work runs for at least so many round trips.
  static constexpr int least_run = 64;

  span_track& track(span_kind kind) noexcept { return tracks_[static_cast<std::size_t>(kind)]; }
  const span_track& track(span_kind kind) const noexcept {
    return tracks_[static_cast<std::size_t>(kind)];
  }
  duration round_trip() const noexcept { return suspend_ + resume_; }

  /// What the open spans of all kinds ask for, and those that may come.
  struct demand {
    bool open = false;
    bool strict = false;
    time_point due = never;            ///< When what is open is out of patience.
    duration least = duration::max();  ///< Patience of what may come.
    double price = 1;
  };
  template <class Ask>
  demand look(time_point now, Ask at, decision_sink& out) {
    demand all;
    for (std::size_t k = 0; k < span_kinds; ++k) {
      span_track& each = tracks_[k];
      if (!each.has_target()) continue;
      const auto kind = static_cast<span_kind>(k);
      each.set_worth(round_trip(),
                     tokens_.of(each.for_requests() ? span_kind::request : kind, now));
      at(each.look(now, kind, out));
      all.least = std::min(all.least, each.helps() ? each.patience(1) : duration::max());
      all.price = std::max(all.price, each.price());
      all.strict |= each.strict();
      if (!each.open()) continue;
      all.open = true;
      all.due = std::min(all.due, each.hold_at(trial_));
    }
    return all;
  }

  void begin_gap(const demand& next, time_point now) noexcept {
    idle_ = true;
    idle_since_ = now;
    plan_ = {release_after(gaps_, round_trip() - next.least)};
    if (next.price > 1 && next.least < round_trip()) {
      hold_early(gaps_, plan_.release + round_trip(), suspend_, round_trip(), next.price, plan_);
    }
  }

  bool wants_hold(time_point now, time_point& wake, decision_sink& out) {
    const auto at = [&](time_point when) {
      wake = std::min(wake, std::max(when, now + std::chrono::microseconds(1)));
    };
    const demand all = look(now, at, out);
    if (!all.open && !idle_) begin_gap(all, now);
    duration changes = duration::max();  // Its share comes first.
    owes_ = share_.must_run(held_, round_trip(), changes);
    if (changes != duration::max()) at(now + changes);
    if (owes_) return false;
    if (all.strict && (all.open ? !trial_ : in_flight_ != 0)) return true;
    if (all.open) return holds_for(all.due, now, at);
    return holds_on_trial(now, at) || holds_in_gap(now, at);
  }
  template <class Ask>
  bool holds_for(time_point due, time_point now, Ask at) const {
    // What is released runs for long enough to make little of the round trip.
    const duration worth = wants_ ? least_run * round_trip() : duration::zero();
    if (due != never && due - worth <= now) return true;
    at(due);
    return false;
  }
  /// A trial goes on while its request is alone, so that its tokens tell.
  template <class Ask>
  bool holds_on_trial(time_point now, Ask at) const {
    const time_point end = idle_since_ + least_run * round_trip();
    if (!trial_ || !wants_ || in_flight_ != 1 || !tokens_.come() || now >= end) return false;
    at(end);
    return true;
  }
  template <class Ask>
  bool holds_in_gap(time_point now, Ask at) const {
    const duration idle = now - idle_since_;
    if (wants_ && idle < plan_.release) {
      at(idle_since_ + plan_.release);
      return true;
    }
    if (plan_.hold_from == duration::max() || idle >= plan_.hold_to) return false;
    const bool early = idle >= plan_.hold_from;
    at(idle_since_ + (early ? plan_.hold_to : plan_.hold_from));
    return early;
  }

  duration suspend_;
  duration resume_;
  std::array<span_track, span_kinds> tracks_;
  token_gain tokens_;
  bool wants_ = false;
  bool owes_ = false;
  bool held_ = false;      ///< For this GPU or another one.
  time_point held_since_;  ///< When `held_` changed.
  time_point counted_;     ///< Up to when `share_` is.
  offline_share share_;
  std::uint32_t in_flight_ = 0;
  time_point alone_from_ = never;  ///< One request has been in flight since then, and no other.
  bool trial_ = false;             ///< Holding for the span that is alone is put to the test.
  bool idle_ = false;              ///< No span is open...
  time_point idle_since_{};        ///< ...since then.
  decaying_histogram gaps_{512};   ///< From the last span's end to the next one's begin.
  gap_plan plan_;
};

}  // namespace sluice
