#pragma once
/// \file
/// What is known of one kind of span on one GPU: which are open, what they need by themselves, how
/// many missed the target, and what patience that leaves.

#include "decaying_histogram.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <vector>

#include "sluice/policy.hpp"
#include "sluice/time.hpp"

namespace sluice {

class span_track {
 public:
  struct open_span {
    time_point begun{};
    duration beside{};  ///< gpu_state::beside at that time.
    bool ended = false;
  };

  void aim(duration target) noexcept { stated_ = target_ = target; }
  bool has_target() const noexcept { return target_ != duration::zero(); }
  /// Said before everything else in a turn.
  void set_round_trip(duration cost) noexcept { round_trip_ = cost; }
  /// What the target leaves of the slowest spans, but first no more than is worth while; halved by
  /// every miss.
  duration patience() const noexcept {
    if (own_.total() < few) return {};
    const auto times = [](duration value, double factor) {
      return std::chrono::duration_cast<duration>(value * factor);
    };
    const duration left = std::max(target_ - own_.quantile(0.995), duration::zero());
    const double factor = std::exp2(-pressure_);
    return std::min(times(left, std::min(factor, 1.0)), times(round_trip_, worthwhile * factor));
  }
  /// What a nanosecond of a round trip is worth in offline time; doubled by every miss.
  double price() const noexcept { return std::exp2(std::max(pressure_, 0.0)); }

  /// By their begin: the front is the first to be out of patience.
  const std::vector<open_span>& open() const noexcept { return open_; }
  void begin(time_point at, duration beside) {
    const auto place = std::upper_bound(open_.begin(), open_.end(), at, later);
    if (place < open_.begin() + static_cast<std::ptrdiff_t>(late_)) ++late_;
    open_.insert(place, {at, beside});
  }
  /// The span that begun then ends; another one that began at the same time would do as well.
  /// \param delay how much of its length may be offline work's doing.
  void end(time_point begun, duration length, duration delay, time_point now, span_kind kind,
           decision_sink& out) {
    bool known_late = false;
    for (auto i = std::upper_bound(open_.begin(), open_.end(), begun, later);
         i != open_.begin() && (--i)->begun == begun;) {
      if (i->ended) continue;
      i->ended = true;
      known_late = i < open_.begin() + static_cast<std::ptrdiff_t>(late_);
      break;
    }
    own_.add(length - std::min({delay, length, patience()}));
    if (!known_late) learn(length > target_, now, kind, out);
    drop([](const open_span& one) { return one.ended; });
  }
  /// What can be said of open spans: those that are late have missed already, however late they
  /// will end; and those that nobody ends must not hold offline work for ever. \return when to look
  /// again.
  time_point look(time_point now, span_kind kind, decision_sink& out) {
    drop([&](const open_span& one) {
      return one.ended || one.begun + std::max(8 * target_, forget_after) < now;
    });
    for (; late_ < open_.size() && open_[late_].begun + target_ < now; ++late_) {
      if (!open_[late_].ended) learn(true, now, kind, out);
    }
    return late_ < open_.size() ? open_[late_].begun + target_ + duration(1) : never;
  }

 private:
  static constexpr double few = 16;
  /// Where online work stands still beside offline work, patience is good for fewer round trips
  /// only, and beyond so many of them it saves next to nothing.
  static constexpr double worthwhile = 64;
  static constexpr double least_pressure = -6;
  static constexpr double most_pressure = 3;
  static constexpr double relief = 0.0075;
  static constexpr double most_excess = 64;
  static constexpr duration ten_minutes = std::chrono::minutes(10);
  static constexpr duration forget_after = std::chrono::minutes(1);
  static constexpr std::array<std::string_view, span_kinds> texts{
      "request.p99 = {} ms is out of reach: 99 % of requests need up to {} ms with offline work "
      "held; it aims at {} ms for the next ten minutes",
      "ttft.p99 = {} ms is out of reach: 99 % of first tokens need up to {} ms with offline work "
      "held; it aims at {} ms for the next ten minutes",
      "itl.p99 = {} ms is out of reach: 99 % of tokens need up to {} ms with offline work held; it "
      "aims at {} ms for the next ten minutes"};

  static bool later(time_point at, const open_span& one) noexcept { return at < one.begun; }
  template <class Predicate>
  void drop(Predicate&& over) noexcept {
    const auto first = std::find_if_not(open_.begin(), open_.end(), over);
    late_ -= std::min(late_, static_cast<std::size_t>(first - open_.begin()));
    open_.erase(open_.begin(), first);
  }

  void learn(bool miss, time_point now, span_kind kind, decision_sink& out) {
    pressure_ = std::clamp(pressure_ + (miss ? 1 : -relief), least_pressure, most_pressure);
    if (target_ != stated_ && now >= retry_) {
      target_ = stated_;
    }
    excess_ = std::max(0.0, excess_ + (miss && own_.quantile(0.995) > target_ ? 1 : -0.01));
    if (excess_ == 0) missing_since_ = now;
    if (!miss || excess_ < most_excess || now - missing_since_ < ten_minutes) return;
    excess_ = 0;
    pressure_ = 0;
    retry_ = now + ten_minutes;
    const auto ms = [](duration value) {
      return std::chrono::duration<double, std::milli>(value).count();
    };
    const duration own = std::max(own_.quantile(0.99), target_);
    target_ = own + own / 10;
    out.note(texts[static_cast<std::size_t>(kind)], std::array{ms(stated_), ms(own), ms(target_)});
  }

  duration stated_{};
  duration target_{};
  duration round_trip_{};
  decaying_histogram own_{8192};  ///< Lengths without what offline work may have added.
  double pressure_ = 0;           ///< One for each miss, less `relief` for each span that met.
  double excess_ = 0;             ///< Misses above 1 % while the target leaves nothing.
  time_point missing_since_{};    ///< When that began to be above zero.
  time_point retry_ = never;      ///< When the stated target is aimed at again.
  std::vector<open_span> open_;
  std::size_t late_ = 0;  ///< The first so many of them were counted as missed.
};

}  // namespace sluice
