#pragma once
/// \file
/// The spans of one client that have begun and not ended.

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
///            (and once there are `many`, old ones that nobody ended go first: a request may wait
///            for minutes, and whoever forgets it takes it for one that still waits).
class open_spans {
 public:
  static constexpr std::size_t many = 4096;

  /// \return when the same span had begun, if it was open already; it begins anew then.
  /// \param stale whatever began before that will not be ended any more.
  std::optional<time_point> begin(span_kind kind, std::uint64_t request, time_point at,
                                  time_point stale) {
    if (2 * (open_ + 1) > entries_.size()) make_room(stale);
    entry& found = entries_[find(kind, request)];
    if (found.begun != never) return std::exchange(found.begun, at);
    found = {request, at, kind};
    ++open_;
    return std::nullopt;
  }
  /// \return when it had begun; nothing when it was not open.
  std::optional<time_point> end(span_kind kind, std::uint64_t request) noexcept {
    if (open_ == 0) return std::nullopt;
    std::size_t hole = find(kind, request);
    if (entries_[hole].begun == never) return std::nullopt;
    const time_point begun = std::exchange(entries_[hole].begun, never);
    --open_;
    // What was pushed past the hole moves back, so that probing needs no tombstones.
    const std::size_t mask = entries_.size() - 1;
    for (std::size_t i = (hole + 1) & mask; entries_[i].begun != never; i = (i + 1) & mask) {
      const std::size_t home = home_of(entries_[i].kind, entries_[i].request);
      if (((i - home) & mask) < ((i - hole) & mask)) continue;
      entries_[hole] = std::exchange(entries_[i], {});
      hole = i;
    }
    return begun;
  }
  std::size_t size() const noexcept { return open_; }

 private:
  struct entry {
    std::uint64_t request = 0;
    time_point begun = never;  ///< Never: free.
    span_kind kind{};
  };
  static constexpr std::size_t least = 256;

  std::size_t home_of(span_kind kind, std::uint64_t request) const noexcept {
    constexpr std::uint64_t golden_ratio = 0x9e3779b97f4a7c15;
    const std::uint64_t mixed =
        (request * span_kinds + static_cast<std::uint64_t>(kind)) * golden_ratio;
    return (mixed >> 32) & (entries_.size() - 1);
  }
  std::size_t find(span_kind kind, std::uint64_t request) const noexcept {
    std::size_t i = home_of(kind, request);
    while (entries_[i].begun != never &&
           (entries_[i].kind != kind || entries_[i].request != request)) {
      i = (i + 1) & (entries_.size() - 1);
    }
    return i;
  }
  void make_room(time_point stale) {
    std::vector<entry> before = std::move(entries_);
    const bool forget = open_ >= many;
    std::erase_if(before, [&](const entry& one) {
      return one.begun == never || (forget && one.begun < stale);
    });
    std::size_t size = least;
    while (size < 4 * (before.size() + 1)) size *= 2;
    entries_.assign(size, {});
    open_ = before.size();
    for (const entry& one : before) entries_[find(one.kind, one.request)] = one;
  }

  std::vector<entry> entries_;  // A power of two of them, at most half of them used.
  std::size_t open_ = 0;
};

}  // namespace sluice::core
