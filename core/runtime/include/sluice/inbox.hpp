#pragma once
/// \file
/// How observations reach the queue table: one bounded lock-free queue per producing thread.

#include <cstddef>
#include <functional>
#include <memory>

#include "sluice/observation.hpp"

#pragma GCC visibility push(default)
namespace sluice {

class inbox;

/// The sending end of one inbox.
///
/// Threading: one thread at a time, the same one or the reactor thread throughout.
/// Lifetime:  owned by the scheduler; valid until source::stop() returned.
/// Cost:      no lock, no allocation; one eventfd write when the reactor sleeps.
class inbox_producer {
 public:
  explicit inbox_producer(inbox& target) noexcept : inbox_(&target) {}
  inbox_producer(const inbox_producer&) = delete;
  inbox_producer& operator=(const inbox_producer&) = delete;

  /// \return false when the inbox is full: this observation is dropped and counted, and
  ///         source::resync() will be called. On the reactor thread it is never full, for it is
  ///         emptied into the table first; but in source::breaker_changed(), which may be called
  ///         while that goes on.
  bool push(const observation& seen) noexcept;

 private:
  inbox* inbox_;
};

}  // namespace sluice
#pragma GCC visibility pop
