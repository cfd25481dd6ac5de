#pragma once
/// \file
/// What a hold gains online work, from lengths that were seen with offline work held and beside it.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "sluice/policy.hpp"
#include "sluice/time.hpp"

namespace sluice {

/// Two means, of the last 256 lengths of each, and how sure their difference is.
class held_and_beside {
 public:
  void add(bool was_held, duration length) noexcept {
    (was_held ? held_ : beside_).add(static_cast<double>(length.count()));
  }
  /// So many of both were seen.
  double count() const noexcept { return std::min(held_.count, beside_.count); }
  bool fewer_beside() const noexcept { return beside_.count <= held_.count; }
  bool twice_as_long_beside() const noexcept { return beside_.value > 2 * held_.value; }
  /// By how many nanoseconds they are shorter when held for, at least and at most: lengths differ
  /// by themselves, so that the means differ by chance, hardly by more than two standard errors.
  /// Three for the most: what is given up as vain is seldom tried again.
  double least_gain() const noexcept { return beside_.value - held_.value - 2 * error(); }
  double most_gain() const noexcept { return beside_.value - held_.value + 3 * error(); }

 private:
  struct mean {
    double count = 0, value = 0, variance = 0;
    void add(double length) noexcept {
      count = std::min(count + 1, 256.0);
      const double off = length - value;
      value += off / count;
      variance += (off * (length - value) - variance) / count;
    }
  };
  double error() const noexcept {
    return std::sqrt(held_.variance / std::max(held_.count, 1.0) +
                     beside_.variance / std::max(beside_.count, 1.0));
  }

  mean held_, beside_;
};

/// What a hold gains a request, from the time between its tokens while it is alone on the GPU. That
/// differs much less than requests do, and each request brings many: the first one that is held for
/// tells already.
class token_gain {
 public:
  /// A token came; `alone`: so was its request since the token before, and all the time held for,
  /// or not at all.
  void token(bool alone, bool was_held, duration length, time_point now) noexcept {
    ++tokens_;
    if (!alone) return;
    lengths_.add(was_held, length);
    last_ = now;
  }
  /// Whether anybody marks tokens.
  bool come() const noexcept { return tokens_ > 0; }
  void request() noexcept {
    if (++requests_ < 512) return;
    requests_ /= 2;
    tokens_ /= 2;
  }
  /// For a span of that kind: a first token waits for one step, a request and its tokens for as
  /// many as it has tokens. Nanoseconds; nothing while it is not known, or not any more because no
  /// request was alone for ten minutes.
  std::optional<double> of(span_kind kind, time_point now) const noexcept {
    if (lengths_.count() < 16 || requests_ == 0 || now - last_ > std::chrono::minutes(10)) {
      return std::nullopt;
    }
    return lengths_.least_gain() *
           (kind == span_kind::ttft ? 1 : std::max(tokens_ / requests_, 1.0));
  }

 private:
  held_and_beside lengths_;
  time_point last_{};
  double tokens_ = 0;
  double requests_ = 0;
};

}  // namespace sluice
