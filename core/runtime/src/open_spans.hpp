#pragma once
/// \file
/// The spans of one client that have begun and not ended. Those of which the policy was told that
/// nobody will end them are kept all the same: one that does end has a length to count.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "sluice/policy.hpp"
#include "sluice/time.hpp"

namespace sluice::core {

/// A hash table with linear probing.
///
/// Threading: reactor thread. Cost: constant; it allocates only when more are open than ever before
///            (and once there are `many`, abandoned ones go first).
class open_spans {
 public:
  static constexpr std::size_t many = 4096;

  struct span {
    std::uint64_t request = 0;
    time_point begun = never;  ///< Never: none.
    span_kind kind{};
    bool abandoned = false;
  };

  /// \return the same span as it was, if it was open already; it begins anew then.
  std::optional<span> begin(span_kind kind, std::uint64_t request, time_point at) {
    if (2 * (open_ + 1) > entries_.size()) make_room();
    oldest_ = std::min(oldest_, std::max(at, swept_));
    span& found = entries_[find(kind, request)];
    const span before = std::exchange(found, {request, at, kind, false});
    if (before.begun != never) return before;
    ++open_;
    return std::nullopt;
  }
  /// \return as it was; nothing when it was not open.
  std::optional<span> end(span_kind kind, std::uint64_t request) noexcept {
    if (open_ == 0) return std::nullopt;
    std::size_t hole = find(kind, request);
    if (entries_[hole].begun == never) return std::nullopt;
    const span found = std::exchange(entries_[hole], {});
    --open_;
    // What was pushed past the hole moves back, so that probing needs no tombstones.
    const std::size_t mask = entries_.size() - 1;
    for (std::size_t i = (hole + 1) & mask; entries_[i].begun != never; i = (i + 1) & mask) {
      const std::size_t home = home_of(entries_[i].kind, entries_[i].request);
      if (((i - home) & mask) < ((i - hole) & mask)) continue;
      entries_[hole] = std::exchange(entries_[i], {});
      hole = i;
    }
    return found;
  }
  /// Abandons those that have begun by then, and says each of them. Cost: nothing while oldest() is
  /// later, else as many as were ever open at once.
  /// \param grain those that began so much later at most wait for each other, to go at once.
  template <class Say>
  void abandon(time_point begun_by, duration grain, Say&& say) {
    if (oldest_ > begun_by) return;
    swept_ = begun_by + grain;
    oldest_ = never;
    for (span& one : entries_) {
      if (one.begun == never || one.abandoned) continue;
      if (one.begun <= begun_by) {
        one.abandoned = true;
        say(std::as_const(one));
      } else {
        oldest_ = std::min(oldest_, std::max(one.begun, swept_));
      }
    }
  }
  /// When abandon() has something to do: once that has begun_by reached. Never: nothing is open.
  time_point oldest() const noexcept { return oldest_; }
  std::size_t size() const noexcept { return open_; }

 private:
  static constexpr std::size_t least = 256;

  /// Where the numbers of another process's requests lead is this process's secret: who could
  /// choose ones that collide would make the scheduler's thread probe for him.
  std::size_t home_of(span_kind kind, std::uint64_t request) const noexcept {
    static const std::uint64_t seed = secret();
    std::uint64_t mixed = (request * span_kinds + static_cast<std::uint64_t>(kind)) ^ seed;
    // The finaliser of splitmix64 (Steele, Lea, Flood 2014; constants by Stafford).
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return (mixed ^ (mixed >> 31)) & (entries_.size() - 1);
  }
  static std::uint64_t secret() noexcept;
  std::size_t find(span_kind kind, std::uint64_t request) const noexcept {
    std::size_t i = home_of(kind, request);
    while (entries_[i].begun != never &&
           (entries_[i].kind != kind || entries_[i].request != request)) {
      i = (i + 1) & (entries_.size() - 1);
    }
    return i;
  }
  void make_room() {
    std::vector<span> before = std::move(entries_);
    const bool forget = open_ >= many;
    std::erase_if(before,
                  [&](const span& one) { return one.begun == never || (forget && one.abandoned); });
    std::size_t size = least;
    while (size < 4 * (before.size() + 1)) size *= 2;
    entries_.assign(size, {});
    open_ = before.size();
    for (const span& one : before) entries_[find(one.kind, one.request)] = one;
  }

  std::vector<span> entries_;  // A power of two of them, at most half of them used.
  std::size_t open_ = 0;
  time_point oldest_ = never;
  time_point swept_ = time_point::min();  // oldest_ is no earlier.
};

}  // namespace sluice::core
