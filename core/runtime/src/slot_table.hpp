#pragma once
/// \file
/// Objects by id: stable addresses, constant time, ids that never come back.

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace sluice::core {

/// An id is a slot's number and how often the slot was used, so find() is an index and a
/// comparison, and an id of a dead object finds nothing.
template <class Id, class T>
class slot_table {
 public:
  /// \return a new object whose field `id` is set. Allocates, so that no list of ids reserved with
  ///         capacity() ever has to.
  T& insert() {
    std::uint32_t index = 0;
    if (free_.empty()) {
      index = static_cast<std::uint32_t>(slots_.size());
      slots_.emplace_back();
      free_.reserve(slots_.size());
    } else {
      index = free_.back();
      free_.pop_back();
    }
    auto& place = slots_[index];
    ++place.uses;
    place.value.emplace();
    place.value->id = Id{(place.uses << index_bits) | index};
    ++size_;
    return *place.value;
  }
  void erase(Id id) {
    auto& place = slots_[index_of(id)];
    place.value.reset();
    free_.push_back(index_of(id));
    --size_;
  }
  T* find(Id id) noexcept {
    const auto index = index_of(id);
    if (index >= slots_.size()) return nullptr;
    auto& place = slots_[index];
    return place.value && place.value->id == id ? &*place.value : nullptr;
  }
  const T* find(Id id) const noexcept { return const_cast<slot_table*>(this)->find(id); }
  T* at(std::uint32_t index) noexcept {
    return slots_[index].value ? &*slots_[index].value : nullptr;
  }
  static std::uint32_t index_of(Id id) noexcept {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(id) & index_mask);
  }
  /// Erasing the object at hand is fine.
  template <class Function>
  void for_each(Function&& call) {
    for (auto& place : slots_) {
      if (place.value) call(*place.value);
    }
  }
  template <class Function>
  void for_each(Function&& call) const {
    for (const auto& place : slots_) {
      if (place.value) call(*place.value);
    }
  }
  std::size_t size() const noexcept { return size_; }
  std::size_t capacity() const noexcept { return slots_.size(); }

 private:
  static constexpr unsigned index_bits = 24;
  static constexpr std::uint64_t index_mask = (std::uint64_t{1} << index_bits) - 1;
  struct slot {
    std::uint64_t uses = 0;
    std::optional<T> value;
  };
  std::deque<slot> slots_;
  std::vector<std::uint32_t> free_;
  std::size_t size_ = 0;
};

}  // namespace sluice::core
