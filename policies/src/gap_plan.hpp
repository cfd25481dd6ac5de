#pragma once
/// \file
/// What to do with a gap between online spans of which it is not known how long it will last.

#include "decaying_histogram.hpp"

#include "sluice/time.hpp"

namespace sluice {

/// All counted from the gap's begin.
struct gap_plan {
  duration release{};                    ///< Hold at least until then.
  duration hold_from = duration::max();  ///< Hold again then, before anything came...
  duration hold_to = duration::max();    ///< ...and for so long; never, when max().
};

/// When to let go, so that the offline time that is lost is least on average: what is held through
/// is lost, and a release that is followed by an arrival costs `round_trip`. That is the ski-rental
/// problem with the gaps that were seen as the distribution. One gap that never ends is added to
/// them: without it a gap longer than all others would be held through for ever. While few are
/// known: as long as a round trip costs, which is at most twice the best.
/// \param round_trip zero or less: a release pays in any case.
[[nodiscard]] inline duration release_after(const decaying_histogram& gaps,
                                            duration round_trip) noexcept {
  constexpr double few = 8;
  if (round_trip <= duration::zero()) return {};
  if (gaps.total() < few) return round_trip;
  const auto cost = static_cast<double>(round_trip.count());
  double longer = gaps.total() + 1;
  double lost = 0;  // Over the gaps that have ended by then.
  double least = longer * cost;
  duration best{};
  for (std::size_t i = 0; i < decaying_histogram::buckets; ++i) {
    if (gaps.weight(i) == 0) continue;
    const auto end = static_cast<double>(decaying_histogram::upper(i).count());
    lost += gaps.weight(i) * end;
    longer -= gaps.weight(i);
    if (const double all = lost + longer * (end + cost); all < least) {
      least = all;
      best = decaying_histogram::upper(i);
    }
  }
  return best;
}

/// When to hold although nothing has come yet: a moment, not before `from`, at which a span is so
/// likely to begin within one or two buckets that the wait it is spared (`suspend` each, of which
/// every nanosecond is worth `price` of offline time) outweighs what offline work loses.
inline void hold_early(const decaying_histogram& gaps, duration from, duration suspend,
                       duration round_trip, double price, gap_plan& plan) noexcept {
  const auto count = [](duration value) { return static_cast<double>(value.count()); };
  double longer = gaps.total() + 1;
  for (std::size_t i = 0; i + 1 < decaying_histogram::buckets; ++i) {
    const double near = gaps.weight(i) + gaps.weight(i + 1);
    const duration start = decaying_histogram::lower(i) - suspend;
    const duration end = decaying_histogram::upper(i + 1);
    if (near >= 4 && start >= from) {
      const double hit = near / longer;
      const double spared = hit * count(suspend) * price;
      const double lost = count(end - start) * (1 - hit / 2) + (1 - hit) * count(round_trip);
      if (spared >= lost) {
        plan.hold_from = start;
        plan.hold_to = end;
        return;
      }
    }
    longer -= gaps.weight(i);
  }
}

}  // namespace sluice
