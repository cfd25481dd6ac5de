#pragma once
/// \file
/// A bounded queue between two processes of which neither believes what the other may write. Within
/// one process prefer boost::lockfree::spsc_queue: it keeps both indices in the shared memory and
/// uses them as they are, and a forged one sends its pushes and pops anywhere.

#include <array>
#include <atomic>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace sluice::agent {

inline constexpr std::size_t cache_line = 64;

/// The shared part. The counts run freely and wrap around; a slot is a count modulo the capacity.
/// Each is written by one side and read by the other; nobody goes by what his own says there.
template <class T, std::uint32_t Capacity>
struct ring_memory {
  static_assert(std::has_single_bit(Capacity) && Capacity <= 1U << 31U,
                "only a power of two keeps the slots in order when the counts wrap around");
  static_assert(std::is_trivially_copyable_v<T>);

  using count = std::atomic<std::uint32_t>;
  // Else there is a lock somewhere that the other process does not have.
  static_assert(count::is_always_lock_free && sizeof(count) == sizeof(std::uint32_t));

  alignas(cache_line) count written{0};  ///< Elements ever put in: the producer's.
  alignas(cache_line) count taken{0};    ///< Elements ever taken out: the consumer's.
  alignas(cache_line) std::array<T, Capacity> slots{};
};

/// Elements that say how much of them has to be copied: the rest means nothing.
template <class T>
concept partly_used = requires(const T& one) {
  { T::least_bytes() } -> std::same_as<std::size_t>;
  { one.used_bytes() } -> std::same_as<std::size_t>;
};

template <class T>
void copy_bytes(T& to, const T& from, std::size_t begin, std::size_t end) noexcept {
  std::memcpy(reinterpret_cast<std::byte*>(&to) + begin,
              reinterpret_cast<const std::byte*>(&from) + begin, end - begin);
}

enum class ring_status : std::uint8_t {
  done,
  would_wait,  ///< Full for a push, empty for a pop.
  broken,      ///< The other side's count cannot be. Nothing was touched; the ring is of no use.
};

/// The writing end.
///
/// Threading: one thread, and one such object at a time, for the count that it goes by is in here.
/// Lifetime:  the memory outlives it. It begins where its own published count stands; wherever that
///            is, the checks hold.
/// Cost:      no lock, no allocation, no system call; one copy of T, or of what is used of it.
template <class T, std::uint32_t Capacity>
class ring_writer {
 public:
  explicit ring_writer(ring_memory<T, Capacity>& shared) noexcept
      : shared_(&shared), written_(shared.written.load(std::memory_order_relaxed)) {}

  ring_status push(const T& what) noexcept {
    // Acquire: pairs with the release in pop(), after which the slot is ours to overwrite.
    const std::uint32_t waiting = written_ - shared_->taken.load(std::memory_order_acquire);
    if (waiting > Capacity) return ring_status::broken;
    if (waiting == Capacity) return ring_status::would_wait;
    T& slot = shared_->slots[written_ % Capacity];
    if constexpr (partly_used<T>)
      copy_bytes(slot, what, 0, what.used_bytes());
    else
      slot = what;
    ++written_;
    // Release: the element is there before the count says so.
    shared_->written.store(written_, std::memory_order_release);
    return ring_status::done;
  }

 private:
  ring_memory<T, Capacity>* shared_;
  std::uint32_t written_;
};

/// The reading end; see ring_writer.
template <class T, std::uint32_t Capacity>
class ring_reader {
 public:
  explicit ring_reader(ring_memory<T, Capacity>& shared) noexcept
      : shared_(&shared), taken_(shared.taken.load(std::memory_order_relaxed)) {}

  /// Copies the oldest element out. Whoever may write to the memory may do so at any time, so the
  /// copy is what to check and to use: nobody can change it any more, and it is the only one made.
  ring_status pop(T& into) noexcept {
    // Acquire: pairs with the release in push(), before which the element was written.
    const std::uint32_t waiting = shared_->written.load(std::memory_order_acquire) - taken_;
    if (waiting > Capacity) return ring_status::broken;
    if (waiting == 0) return ring_status::would_wait;
    const T& slot = shared_->slots[taken_ % Capacity];
    if constexpr (partly_used<T>) {
      copy_bytes(into, slot, 0, T::least_bytes());
      // The copy tells how much there is, not the slot, which may say something else by now.
      std::atomic_signal_fence(std::memory_order_seq_cst);
      copy_bytes(into, slot, T::least_bytes(), into.used_bytes());
    } else {
      into = slot;
    }
    ++taken_;
    // Release: the copy is complete before the slot is given back. It also keeps the compiler from
    // reading the slot again in place of the copy, for it may belong to the other side by then.
    shared_->taken.store(taken_, std::memory_order_release);
    return ring_status::done;
  }

 private:
  ring_memory<T, Capacity>* shared_;
  std::uint32_t taken_;
};

}  // namespace sluice::agent
