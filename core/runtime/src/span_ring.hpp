#pragma once
/// \file
/// How a client's threads hand their marks of spans to the reactor. Plain words without pointers,
/// so that it can lie in memory that two processes share.

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "sluice/policy.hpp"

namespace sluice::core {

struct span_mark {
  std::uint64_t request = 0;
  std::int64_t at = 0;  ///< On the scheduler's clock, nanoseconds.
  span_kind kind{};
  bool begins = false;
};

/// Bounded, many producers, one consumer.
///
/// A producer first takes a credit, which fails when all slots are taken, then a ticket, which
/// names its slot. There are never more credits out than slots, so the slot of a ticket is free.
/// Ordering: the consumer's release of `used_` (slot was read) pairs with the producers' acquire of
/// it; from the one that saw it the tickets' acq_rel carries it on to those with a later ticket.
/// A slot's `number` says that it was written: release there pairs with acquire in pop().
///
/// Threading: push() from any thread, wait-free; the rest from the reactor thread.
class span_ring {
 public:
  static constexpr std::uint64_t capacity = 1024;

  enum class pushed : std::uint8_t {
    done,
    half_full,  ///< Done, and it is time that somebody empties it.
    full,       ///< Not done, but counted.
  };
  pushed push(const span_mark& what) noexcept {
    const std::uint64_t used = used_.fetch_add(1, std::memory_order_acquire);
    if (used >= capacity) {
      used_.fetch_sub(1, std::memory_order_relaxed);
      lost_.fetch_add(1, std::memory_order_relaxed);
      return pushed::full;
    }
    const std::uint64_t ticket = next_.fetch_add(1, std::memory_order_acq_rel);
    slot& mine = slots_[ticket % capacity];
    mine.what = what;
    mine.number.store(ticket + 1, std::memory_order_release);
    return used == capacity / 2 ? pushed::half_full : pushed::done;
  }

  bool empty() const noexcept { return !is_written(slots_[read_ % capacity]); }
  std::optional<span_mark> pop() noexcept {
    const slot& next = slots_[read_ % capacity];
    if (!is_written(next)) return std::nullopt;
    const span_mark what = next.what;
    ++read_;
    used_.fetch_sub(1, std::memory_order_release);
    return what;
  }
  /// Marks that found it full, since the beginning.
  std::uint64_t lost() const noexcept { return lost_.load(std::memory_order_relaxed); }

 private:
  struct slot {
    std::atomic<std::uint64_t> number{0};  ///< Ticket + 1 of what was written last.
    span_mark what;
  };
  bool is_written(const slot& one) const noexcept {
    return one.number.load(std::memory_order_acquire) == read_ + 1;
  }

  alignas(64) std::atomic<std::uint64_t> used_{0};
  std::atomic<std::uint64_t> next_{0};
  std::atomic<std::uint64_t> lost_{0};
  alignas(64) std::uint64_t read_ = 0;  ///< The reactor's.
  alignas(64) std::array<slot, capacity> slots_;
};
static_assert(std::is_standard_layout_v<span_ring> && std::is_trivially_copyable_v<span_mark>);

}  // namespace sluice::core
