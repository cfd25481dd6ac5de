#pragma once
/// \file
/// How long the spans of clients took lately.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "sluice/histogram.hpp"
#include "sluice/span_kind.hpp"
#include "sluice/time.hpp"

namespace sluice {

/// Of the period that goes on and of the one before it: the last five to ten minutes.
///
/// Threading: one thread at a time. Cost: 36 KiB for each kind that occurs.
class recent_spans {
 public:
  static constexpr duration period = std::chrono::minutes(5);

  void add(span_kind kind, duration length, time_point at) {
    if (static_cast<std::size_t>(kind) >= span_kinds) return;
    counted& of = kinds_[static_cast<std::size_t>(kind)];
    if (const std::int64_t number = number_of(at); number > of.number) {
      of.before = number == of.number + 1 ? std::move(of.newest) : nullptr;
      of.newest = nullptr;
      of.number = number;
    }
    if (!of.newest) of.newest = std::make_unique<histogram>();
    of.newest->record(length);
  }
  histogram of(span_kind kind, time_point now) const {
    const counted& from = kinds_[static_cast<std::size_t>(kind)];
    const std::int64_t passed = number_of(now) - from.number;
    histogram all;
    if (from.newest && passed <= 1) all.merge(*from.newest);
    if (from.before && passed <= 0) all.merge(*from.before);
    return all;
  }

 private:
  struct counted {
    std::unique_ptr<histogram> newest;
    std::unique_ptr<histogram> before;
    std::int64_t number = 0;  ///< Of the period of `newest`.
  };
  static std::int64_t number_of(time_point at) noexcept { return at.time_since_epoch() / period; }

  std::array<counted, span_kinds> kinds_;
};

}  // namespace sluice
