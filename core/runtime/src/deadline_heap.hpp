#pragma once
/// \file
/// The earliest of many deadlines, one per table slot, each of which may be moved at any time.

#include <cstdint>
#include <utility>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::core {

/// An indexed binary heap: set() costs O(log n) and allocates only for slots it has not seen.
class deadline_heap {
 public:
  /// Replaces the slot's deadline; `never` removes it.
  void set(std::uint32_t slot, time_point at) {
    if (slot >= place_.size()) {
      if (at == never) return;
      place_.resize(slot + std::size_t{1}, none);
      heap_.reserve(place_.size());
    }
    const auto place = place_[slot];
    if (at == never) {
      if (place != none) remove(place);
      return;
    }
    if (place == none) {
      heap_.push_back({at, slot});
      place_[slot] = static_cast<std::uint32_t>(heap_.size() - 1);
      up(heap_.size() - 1);
      return;
    }
    const bool later = at > heap_[place].at;
    heap_[place].at = at;
    later ? down(place) : up(place);
  }
  time_point next() const noexcept { return heap_.empty() ? never : heap_.front().at; }
  /// Takes out one slot that is due.
  /// \return whether there was one.
  bool pop_due(time_point now, std::uint32_t& slot) {
    if (heap_.empty() || heap_.front().at > now) return false;
    slot = heap_.front().slot;
    remove(0);
    return true;
  }

 private:
  static constexpr std::uint32_t none = UINT32_MAX;
  struct entry {
    time_point at;
    std::uint32_t slot;
  };
  void swap(std::size_t a, std::size_t b) noexcept {
    std::swap(heap_[a], heap_[b]);
    place_[heap_[a].slot] = static_cast<std::uint32_t>(a);
    place_[heap_[b].slot] = static_cast<std::uint32_t>(b);
  }
  void up(std::size_t at) noexcept {
    for (; at != 0 && heap_[at].at < heap_[(at - 1) / 2].at; at = (at - 1) / 2) {
      swap(at, (at - 1) / 2);
    }
  }
  void down(std::size_t at) noexcept {
    for (;;) {
      auto least = at;
      for (auto child = 2 * at + 1; child <= 2 * at + 2 && child < heap_.size(); ++child) {
        if (heap_[child].at < heap_[least].at) least = child;
      }
      if (least == at) return;
      swap(at, least);
      at = least;
    }
  }
  void remove(std::size_t at) noexcept {
    const auto last = heap_.size() - 1;
    if (at != last) swap(at, last);
    place_[heap_[last].slot] = none;
    heap_.pop_back();
    if (at < heap_.size()) {
      up(at);
      down(at);
    }
  }
  std::vector<entry> heap_;
  std::vector<std::uint32_t> place_;  // By slot.
};

}  // namespace sluice::core
