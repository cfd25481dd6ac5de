#pragma once
/// \file
/// What the batch commands hold and mark of one target, between the target's lane and the GPUs'
/// batch lanes.

#include <sys/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "sluice/kfd/uapi.hpp"

namespace sluice::kfd {

/// Queue ids of one process. Threading: any thread.
class queue_ids {
 public:
  void set(std::uint32_t queue) noexcept {
    if (queue < most) words_[queue / 64].fetch_or(bit(queue));
  }
  void clear(std::uint32_t queue) noexcept {
    if (queue < most) words_[queue / 64].fetch_and(~bit(queue));
  }
  void clear_all() noexcept {
    for (auto& each : words_) each.store(0);
  }
  bool test(std::uint32_t queue) const noexcept {
    return queue < most && (words_[queue / 64].load() & bit(queue)) != 0;
  }
  bool any() const noexcept {
    return std::any_of(words_.begin(), words_.end(),
                       [](const auto& each) { return each.load() != 0; });
  }
  /// Calls `visit(queue id)` for each.
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      for (auto left = words_[i].load(); left != 0; left &= left - 1)
        visit(static_cast<std::uint32_t>(i * 64) +
              static_cast<std::uint32_t>(std::countr_zero(left)));
    }
  }

 private:
  static constexpr std::size_t most = uapi::KFD_MAX_NUM_OF_QUEUES_PER_PROCESS;
  static constexpr std::uint64_t bit(std::uint32_t queue) noexcept {
    return std::uint64_t{1} << (queue % 64);
  }
  std::array<std::atomic<std::uint64_t>, most / 64> words_{};
};

/// Threading: batch lanes set and clear, the target's lane asks and ends. Who holds or marks sets
///            the bits after the driver call, then looks at `ended`; who ends sets `ended`, then
///            collects the bits. So one of the two sees what the other did, and takes it back. The
///            bits are set before the call as well, so that an end in mid-call need not wait for
///            its outcome.
struct target_holds {
  explicit target_holds(pid_t target) noexcept : pid(target) {}

  const pid_t pid;
  queue_ids held;    ///< Or in doubt.
  queue_ids marked;  ///< As offline, likewise.
  /// The target is let go of: nothing of it may stay held or marked.
  std::atomic<bool> ended{false};
};

}  // namespace sluice::kfd
