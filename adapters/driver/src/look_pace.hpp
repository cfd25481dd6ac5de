#pragma once
/// \file
/// How long discovery waits between its looks.

#include <algorithm>
#include <chrono>
#include <utility>

#include "sluice/time.hpp"

namespace sluice {

/// A process that has opened the device creates queues soon, and nothing announces these. So looks
/// after an open come at doubling intervals, up to the usual one: a queue is found at the latest
/// when the time since the open has doubled.
///
/// Threading: one thread.
class look_pace {
 public:
  /// Triggers closer together than this are met by one look.
  static constexpr duration least = std::chrono::milliseconds{20};
  /// No event announces a queue of a process that is not traced, or a process that changes its
  /// cgroup.
  static constexpr duration usual = std::chrono::seconds{1};

  void device_opened() noexcept { interval_ = least; }
  /// From this look to the next one.
  duration next() noexcept { return std::exchange(interval_, std::min(2 * interval_, usual)); }

 private:
  duration interval_ = usual;
};

}  // namespace sluice
