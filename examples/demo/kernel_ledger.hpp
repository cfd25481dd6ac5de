#pragma once
/// \file
/// The client's own books on one queue: every kernel that was submitted ran exactly once, in order,
/// and for as long as it had to. What a scheduler does must never show here.

#include <cstdint>
#include <deque>

#include "sluice/time.hpp"

namespace demo {

struct verdict {
  std::uint64_t completed = 0;     ///< Kernels that ran exactly once.
  std::uint64_t lost = 0;          ///< The completion signal was never decremented.
  std::uint64_t repeated = 0;      ///< It was decremented more than once.
  std::uint64_t out_of_order = 0;  ///< Began before its predecessor in the queue had ended.
  std::uint64_t too_short = 0;     ///< Ended earlier than its length after its start.

  bool clean() const { return lost == 0 && repeated == 0 && out_of_order == 0 && too_short == 0; }
  verdict& operator+=(const verdict& other) {
    completed += other.completed;
    lost += other.lost;
    repeated += other.repeated;
    out_of_order += other.out_of_order;
    too_short += other.too_short;
    return *this;
  }
};

/// `Queue` is sluice::sim::gpu_queue, or in tests anything with `finished(index)` and
/// `completion(index)` whose answer has `start`, `end` and `value`.
///
/// A completion is read twice: as soon as the kernel has finished, and again as late as the queue
/// still holds its signal, so that a kernel which runs a second time later does not go unnoticed.
///
/// Threading: one thread. Lifetime: the queue outlives the ledger. Cost: O(1) per kernel.
template <class Queue>
class kernel_ledger {
 public:
  /// \param held for how many submissions the queue keeps a completion: its packets.
  kernel_ledger(const Queue& queue, std::uint64_t held) : queue_(queue), held_(held) {}

  /// Looks a last time at what one more submission may make the queue forget: call before
  /// Queue::submit(), each time it is tried.
  void before_submit() {
    collect();
    while (open_.size() >= held_ && seen_ > 0) settle_oldest();
  }

  /// Books a submission that the queue took.
  void submitted(std::uint64_t index, sluice::duration length) {
    open_.push_back({index, length, false});
  }

  /// Checks what has finished since the last call.
  void collect() {
    while (seen_ < open_.size() && queue_.finished(open_[seen_].index)) {
      entry& kernel = open_[seen_];
      const auto done = queue_.completion(kernel.index);
      if (done.start < last_end_) ++sum_.out_of_order;
      if (done.end - done.start < kernel.length) ++sum_.too_short;
      last_end_ = done.end;
      kernel.seen = true;
      ++seen_;
    }
  }

  /// What was settled so far: the oldest, that the queue no longer holds.
  const verdict& settled() const { return sum_; }

  /// Closes the books: what has not finished by now is lost.
  verdict close() {
    collect();
    while (!open_.empty()) settle_oldest();
    return sum_;
  }

  /// Closes the books of a client that leaves with kernels in flight: those count as nothing.
  verdict abandon() {
    collect();
    open_.resize(seen_);
    return close();
  }

 private:
  struct entry {
    std::uint64_t index;
    sluice::duration length;
    bool seen;
  };

  void settle_oldest() {
    const entry kernel = open_.front();
    if (!kernel.seen) {
      ++sum_.lost;
    } else if (queue_.completion(kernel.index).value < 0) {
      ++sum_.repeated;
    } else {
      ++sum_.completed;
    }
    open_.pop_front();
    if (seen_ > 0) --seen_;
  }

  const Queue& queue_;
  std::uint64_t held_;
  std::deque<entry> open_;  // Oldest first; the first `seen_` have finished.
  std::size_t seen_ = 0;
  sluice::time_point last_end_{};
  verdict sum_;
};

}  // namespace demo
