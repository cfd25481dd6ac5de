#pragma once
/// \file
/// What is known of one kind of span on one GPU: which are open, how long they take when so many
/// are, held for or not, how many missed the target, and until when offline work may run on.

#include "decaying_histogram.hpp"
#include "hold_gain.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory_resource>
#include <optional>
#include <string_view>
#include <utility>

#include "sluice/policy.hpp"
#include "sluice/time.hpp"

namespace sluice {

class span_track {
 public:
  void aim(duration target) noexcept { stated_ = target_ = target; }
  bool has_target() const noexcept { return target_ != duration::zero(); }
  bool open() const noexcept { return !open_.empty(); }

  /// Said before everything else in a turn: what a suspend and a resume cost, and what a hold gains
  /// a span as far as tokens tell.
  void set_worth(duration round_trip, std::optional<double> by_tokens) noexcept {
    round_trip_ = static_cast<double>(round_trip.count());
    by_tokens_ = by_tokens;
  }
  /// Whether a hold gains a span that is alone more time than a round trip takes, or that is not
  /// known. Where lengths alone tell, and leave it open, it may well be while spans are late, or
  /// others were lately: work that piles up beside offline work is never alone.
  bool helps() const noexcept {
    if (by_tokens_) return surely_helps();
    if (alone_.count() < few || surely_helps()) return true;
    const bool some_late = !open_.empty() && open_.begin()->second.late;
    return (some_late || held_ || pressure_ > 0) && alone_.most_gain() > round_trip_;
  }
  /// A span has come while none was open: whether holding is put to the test with it. Every second
  /// time until something is known, rarely where it is clear; and where holding does not help, each
  /// time after twice as many.
  bool begins_trial() noexcept {
    const bool known = by_tokens_.has_value() || alone_.count() >= few;
    if (!near() || (known && strict() && surely_helps())) return false;
    const bool in_vain = known && !helps();
    if (!in_vain) backed_off_ = first_back_off;
    const std::uint64_t every = in_vain                         ? backed_off_
                                : !known                        ? 2
                                : alone_.twice_as_long_beside() ? 256
                                                                : 64;
    if (++untried_ < every) return false;
    untried_ = 0;
    if (in_vain) backed_off_ = std::min(2 * backed_off_, most_back_off);
    return true;
  }
  /// How long a span may be open before offline work is held, while `count` are; zero: hold at
  /// once. What the target leaves of the time that spans need then, halved by every miss.
  duration patience(std::size_t count) const noexcept {
    if (strict_) return {};
    const duration left = std::max(target_ - need(count), duration::zero());
    return std::chrono::duration_cast<duration>(left * std::exp2(-pressure_));
  }
  /// When to hold for the open spans: when the first of them is out of patience, if that helps.
  /// \param trial one that is alone is held for at once, or not at all: what less is known of.
  /// \pre open()
  time_point hold_at(bool trial) const noexcept {
    const time_point first = open_.begin()->first;
    if (trial && open_.size() == 1) return spares() ? never : first;
    if (!helps()) return never;
    return first + patience(open_.size());
  }
  /// The target has been missed for long, and a hold helps: offline work is held whenever online
  /// work is in flight, until the misses are made up for.
  bool strict() const noexcept { return strict_ && helps(); }
  /// A hold of that kind lasts for whole requests, and gains what they gain.
  bool for_requests() const noexcept { return strict_; }
  /// What a nanosecond of a round trip is worth in offline time; doubled by every miss.
  double price() const noexcept { return std::exp2(pressure_); }

  /// \param trial it is the first of those for which holding is put to the test.
  void begin(time_point at, time_point now, bool trial) {
    const auto after = open_.upper_bound(at);
    const bool late = after != open_.end() && after->second.late;
    const open_span fresh{now, open_.size() + 1, changes_, open_.empty(), trial && spares(), late};
    const auto one = open_.emplace_hint(after, at, fresh);
    if (after == punctual_) punctual_ = one;
  }
  /// Offline work is held from now on, or not any more.
  void set_held(bool held, time_point now) noexcept {
    held_ = held;
    changed_ = now;
    among_ = open_.size();
    ++changes_;
  }
  /// The span that begun then ends; another one that began at the same time would do as well.
  /// \param suspended offline work was, all the while.
  void end(time_point begun, duration length, bool suspended, time_point now, span_kind kind,
           decision_sink& out) {
    bool known_late = false;
    if (const auto found = find(begun); found != open_.end()) {
      const open_span one = found->second;
      const bool always = one.told >= changed_;
      const std::size_t among = one.changes == changes_ ? one.among : among_;
      if (held_) needs_[level(among)].add(begun + length - (always ? begun : changed_));
      if (one.first && (always || one.trial)) alone_.add(held_ && always, length);
      if (strict_ && suspended && always && held_) count_suspended(length);
      known_late = one.late;
      erase(found);
    }
    lengths_.add(length);
    if (!known_late) learn(length > target_, now, kind, out);
  }
  /// Nobody will end the span that begun then: its length tells nothing.
  void abandon(time_point begun) {
    if (const auto found = find(begun); found != open_.end()) erase(found);
  }
  /// What can be said of open spans: those that are late have missed already, however late they
  /// will end. \return when to look again.
  time_point look(time_point now, span_kind kind, decision_sink& out) {
    for (; punctual_ != open_.end() && punctual_->first + target_ < now; ++punctual_) {
      punctual_->second.late = true;
      learn(true, now, kind, out);
    }
    return punctual_ != open_.end() ? punctual_->first + target_ + duration(1) : never;
  }

 private:
  struct open_span {
    time_point told{};          ///< The turn in which its begin was seen.
    std::size_t among = 0;      ///< So many were open then.
    std::uint64_t changes = 0;  ///< `changes_` then.
    bool first = false;         ///< None was open when it began.
    bool trial = false;  ///< It was not held for while it was alone, whatever else would have been.
    bool late = false;   ///< It was counted as missed, or one that began later was.
  };
  using open_spans = std::pmr::multimap<time_point, open_span>;
  static constexpr std::size_t levels = 10;
  static constexpr double few = 8;
  static constexpr std::uint64_t first_back_off = 16;
  static constexpr std::uint64_t most_back_off = 512;
  static constexpr double most_pressure = 3;
  static constexpr double relief = 0.0075;
  static constexpr double first_excess = 8;
  static constexpr double most_excess = 64;
  static constexpr duration ten_minutes = std::chrono::minutes(10);
  static constexpr std::array<std::string_view, span_kinds> texts{
      "request.p99 = {} ms is out of reach: 99 % of requests need up to {} ms with offline work "
      "held; the target is {} ms for the next ten minutes",
      "ttft.p99 = {} ms is out of reach: 99 % of first tokens need up to {} ms with offline work "
      "held; the target is {} ms for the next ten minutes",
      "itl.p99 = {} ms is out of reach: 99 % of tokens need up to {} ms with offline work held; "
      "the target is {} ms for the next ten minutes"};

  static std::size_t level(std::size_t count) noexcept {
    return std::min(static_cast<std::size_t>(std::bit_width(count)), levels) - 1;
  }
  bool surely_helps() const noexcept {
    return (by_tokens_ ? *by_tokens_ : alone_.least_gain()) > round_trip_;
  }
  /// Of trials.
  bool spares() const noexcept { return alone_.fewer_beside(); }
  /// Where nothing is known of so many: in proportion to what is known of fewer.
  duration need(std::size_t count) const noexcept {
    const std::size_t here = level(count);
    for (std::size_t i = here + 1; i-- > 0;) {
      if (needs_[i].total() >= few) return needs_[i].quantile(0.99) * (1 << (here - i));
    }
    return target_;
  }
  open_spans::iterator find(time_point begun) {
    const auto after = open_.upper_bound(begun);
    if (after == open_.begin() || std::prev(after)->first != begun) return open_.end();
    return std::prev(after);
  }
  void erase(open_spans::iterator one) noexcept {
    if (one == punctual_) ++punctual_;
    open_.erase(one);
  }

  /// Whether spans come near the target at all: only then it matters what a hold saves.
  bool near() const noexcept {
    return pressure_ > 0 || lengths_.total() < few || lengths_.quantile(0.99) > target_ / 2;
  }
  void count_suspended(duration length) noexcept {
    suspended_.add(length);
    ++suspended_count_;
    if (length > target_) ++suspended_misses_;
  }
  /// More than 1 % of those that were held for throughout have missed, by more than one burst does.
  bool out_of_reach() const noexcept {
    return suspended_misses_ >= suspended_count_ / 100 + most_excess;
  }
  void set_strict(bool on, time_point now) noexcept {
    if (std::exchange(strict_, on) == on || !on) return;
    strict_since_ = now;
    suspended_ = decaying_histogram(8192);
    suspended_count_ = suspended_misses_ = 0;
  }

  void learn(bool miss, time_point now, span_kind kind, decision_sink& out) {
    pressure_ = std::clamp(pressure_ + (miss ? 1 : -relief), 0.0, most_pressure);
    if (target_ != stated_ && now >= retry_) target_ = stated_;
    excess_ = std::clamp(excess_ + (miss ? 0.99 : -0.01), 0.0, most_excess);
    if (excess_ == 0 || excess_ >= first_excess) set_strict(excess_ > 0, now);
    if (!strict() || now - strict_since_ < ten_minutes || !out_of_reach()) return;
    excess_ = 0;
    set_strict(false, now);
    pressure_ = 0;
    retry_ = now + ten_minutes;
    const auto ms = [](duration value) {
      return std::chrono::duration<double, std::milli>(value).count();
    };
    const duration own = suspended_.quantile(0.99);
    target_ = own + own / 10;
    out.note(texts[static_cast<std::size_t>(kind)], std::array{ms(stated_), ms(own), ms(target_)});
  }

  duration stated_{};
  duration target_{};
  double round_trip_ = 0;            ///< Nanoseconds, as the next.
  std::optional<double> by_tokens_;  ///< What a hold gains.
  decaying_histogram lengths_;       ///< Of all spans.
  /// How long spans take from when offline work is held on, by how many are open then: 1, 2 to 3,
  /// 4 to 7, and so on.
  std::array<decaying_histogram, levels> needs_;
  bool held_ = false;                       ///< Offline work is...
  time_point changed_ = time_point::min();  ///< ...or not, since this turn's end...
  std::size_t among_ = 0;                   ///< ...when so many were open.
  std::uint64_t changes_ = 0;               ///< So often that changed.
  held_and_beside alone_;      ///< First spans that were held for from their begin, or not at all.
  std::uint64_t untried_ = 0;  ///< So many came since the last trial.
  std::uint64_t backed_off_ = first_back_off;
  double pressure_ = 0;  ///< One for each miss, less `relief` for each span that met.
  double excess_ = 0;    ///< Misses above 1 %.
  bool strict_ = false;  ///< They became too many, and are not made up for.
  time_point strict_since_{};
  decaying_histogram suspended_{8192};  ///< Lengths of spans held for throughout, since then.
  double suspended_count_ = 0;
  double suspended_misses_ = 0;
  time_point retry_ = never;                      ///< When the stated target is aimed at again.
  std::pmr::unsynchronized_pool_resource nodes_;  ///< Keeps what it has had: no allocation later.
  open_spans open_{&nodes_};                      ///< By their begin.
  open_spans::iterator punctual_ = open_.end();   ///< The first that is not late.
};

}  // namespace sluice
