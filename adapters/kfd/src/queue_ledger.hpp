#pragma once
/// \file
/// The queues of one target as last seen, and what changed since: the driver tells which GPU lost a
/// queue, not which queue, and gives a freed id to the next one at once.

#include <algorithm>
#include <span>
#include <vector>

#include "sluice/kfd/uapi.hpp"

namespace sluice::kfd {

/// Cost: O(n log n) per update; allocates only for a longer list than any before.
class queue_ledger {
 public:
  using entry = uapi::kfd_queue_snapshot_entry;

  /// Compares a complete snapshot with the previous one, calling `removed(entry)` for every queue
  /// that is gone, then `added(entry)` for every one that is new. A queue id whose queue is another
  /// one than before (other ring, other pointers, or QUEUE_NEW once more) is first removed, then
  /// added. One of which the driver says that something else went wrong with it is added again.
  template <class Removed, class Added>
  void update(std::span<const entry> snapshot, Removed removed, Added added) {
    seen_.assign(snapshot.begin(), snapshot.end());
    std::ranges::sort(seen_, {}, &entry::queue_id);
    for (const entry& old : known_) {
      const entry* now = find(seen_, old.queue_id);
      if (now == nullptr || !same_queue(old, *now)) removed(old);
    }
    known_.swap(seen_);  // seen_ is the old list now
    for (const entry& now : known_) {
      const entry* old = find(seen_, now.queue_id);
      if (old == nullptr || !same_queue(*old, now) || exceptions_of(*old) != exceptions_of(now))
        added(now);
    }
  }

  /// Forgets everything, calling `removed(entry)` for each.
  template <class Removed>
  void clear(Removed removed) {
    update({}, removed, [](const entry&) {});
  }

  /// Forgets one queue if it is known, calling `removed(entry)`.
  template <class Removed>
  void forget(std::uint32_t queue_id, Removed removed) {
    const auto found = std::ranges::lower_bound(known_, queue_id, {}, &entry::queue_id);
    if (found == known_.end() || found->queue_id != queue_id) return;
    const entry old = *found;
    known_.erase(found);
    removed(old);
  }

  std::span<const entry> known() const noexcept { return known_; }

  /// What went wrong with it.
  static std::uint64_t exceptions_of(const entry& queue) noexcept {
    return queue.exception_status & ~uapi::KFD_EC_MASK(uapi::EC_QUEUE_NEW);
  }

 private:
  static bool same_queue(const entry& old, const entry& now) noexcept {
    // The snapshot before cleared QUEUE_NEW, so whoever shows it again was created since.
    return (now.exception_status & uapi::KFD_EC_MASK(uapi::EC_QUEUE_NEW)) == 0 &&
           old.ring_base_address == now.ring_base_address &&
           old.read_pointer_address == now.read_pointer_address &&
           old.write_pointer_address == now.write_pointer_address && old.gpu_id == now.gpu_id &&
           old.queue_type == now.queue_type;
  }

  static const entry* find(const std::vector<entry>& sorted, std::uint32_t queue_id) noexcept {
    const auto found = std::ranges::lower_bound(sorted, queue_id, {}, &entry::queue_id);
    return found == sorted.end() || found->queue_id != queue_id ? nullptr : &*found;
  }

  std::vector<entry> known_;  // sorted by queue_id
  std::vector<entry> seen_;   // scratch
};

}  // namespace sluice::kfd
