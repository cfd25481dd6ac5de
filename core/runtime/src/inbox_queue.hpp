#pragma once
/// \file
/// The receiving end of an inbox.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include <boost/lockfree/spsc_queue.hpp>

#include "sluice/inbox.hpp"
#include "sluice/observation.hpp"
#include "sluice/time.hpp"

namespace sluice {

/// One producer, one consumer (the reactor thread), bounded. An observation that does not fit is
/// dropped and leaves the resync bit behind, which makes the source say everything again.
class inbox {
 public:
  struct hooks {
    std::function<void()> wake;               ///< Any thread: the reactor shall drain().
    std::function<bool()> on_reactor_thread;  ///< Any thread.
    /// With the time, which is read once for all that a drain() hands over.
    std::function<void(const observation&, time_point now)> deliver;
    const time_source* time = nullptr;  ///< nullptr: the steady clock.
  };
  inbox(std::size_t capacity, hooks calls) : queue_(capacity), hooks_(std::move(calls)) {}

  inbox_producer& producer() noexcept { return producer_; }

  /// Reactor thread: hands over what is there now; what arrives meanwhile is for the next call.
  /// Their room is free again when all are handed over. Within `deliver` it does nothing.
  void drain() {
    if (draining_ || queue_.read_available() == 0) return;
    draining_ = true;
    const time_point now = hooks_.time != nullptr ? hooks_.time->now() : clock::now();
    queue_.consume_all([&](const observation& one) { hooks_.deliver(one, now); });
    draining_ = false;
  }
  /// Reactor thread. Whether something was dropped since the last call.
  bool take_overflow() noexcept { return overflow_.exchange(false, std::memory_order_acq_rel); }
  /// Reactor thread. How many were dropped since the last call.
  std::uint64_t take_dropped() noexcept { return dropped_.exchange(0, std::memory_order_relaxed); }
  bool has_news() noexcept {
    return queue_.read_available() != 0 || overflow_.load(std::memory_order_acquire);
  }

 private:
  friend class inbox_producer;
  boost::lockfree::spsc_queue<observation> queue_;
  std::atomic<bool> overflow_{false};
  std::atomic<std::uint64_t> dropped_{0};
  bool draining_ = false;
  hooks hooks_;
  inbox_producer producer_{*this};
};

}  // namespace sluice
