#pragma once
/// \file
/// The words in which a GPU tells libcuda which kernels run.

#include "process_words.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace sluice::nvidia {

/// The state words of one mapping of the control device. Each belongs to a stream or to a part of a
/// graph, and the GPU writes n << 2 | 1 when kernels of it start and n << 2 | 2 when they have
/// ended; n increases from one to the next. (Measured with CUDA 13 on driver 580.159.04. Where they
/// lie is libcuda's own affair: they are found by what they do.)
///
/// Threading: one thread. Cost: a look reads one to three pages per page of words, and while it
/// searches 16 more.
class kernel_states {
 public:
  explicit kernel_states(const device_mapping& in) : in_(in) {}
  [[nodiscard]] const device_mapping& in() const noexcept { return in_; }

  /// This page has words of another kind.
  void leave_out(std::uint64_t page);
  /// Reads what is known, and searches on while a search is wanted.
  /// \param share of a search that this look makes, in the least ones that there are.
  /// \return false where the mapping cannot be read.
  bool look(const words_reader& read, std::size_t share);
  /// Reads again whether all is as the last look saw it.
  [[nodiscard]] bool unchanged(const words_reader& read) const;
  /// Nothing can have changed since the last look.
  void skip() noexcept { moved_ = false; }
  /// Searches the whole mapping for words that have changed since the last search.
  void search() noexcept { wanted_ = true; }
  [[nodiscard]] bool searches() const noexcept { return wanted_ || next_ != none; }
  /// The last complete search found words that were not followed yet.
  [[nodiscard]] bool found() const noexcept { return found_; }

  /// Some kernel started or ended between the last two looks.
  [[nodiscard]] bool moved() const noexcept { return moved_; }
  /// At the last look.
  [[nodiscard]] bool kernels_run() const noexcept { return run_; }
  /// So many words have behaved so often as described that it is no chance.
  [[nodiscard]] bool known() const noexcept { return proven_ >= enough_words && !broken_; }
  /// A word that had behaved as described does not any more: nothing of it can be relied on.
  [[nodiscard]] bool broken() const noexcept { return broken_; }

 private:
  static constexpr std::size_t none = ~std::size_t{0};
  static constexpr unsigned enough_words = 4;

  struct page {
    std::uint64_t at = 0;
    bool has_words = false;                          ///< Else it is beside one that has.
    std::array<std::uint32_t, page_words> words{};   ///< At the last look.
    std::array<std::uint8_t, page_words> behaved{};  ///< How often, each; or `not_one`.
    std::vector<std::uint16_t> ones{};               ///< Those that have behaved.
  };
  bool search_on(const words_reader& read, std::size_t share);
  void add(std::uint64_t at);
  void follow(page& which, const std::array<std::uint32_t, page_words>& now);

  device_mapping in_;
  std::deque<page> pages_;
  std::vector<std::uint64_t> others_;  ///< Pages that are left out.
  std::vector<std::uint32_t> before_;  ///< The whole mapping, at the last search.
  std::size_t next_ = none;            ///< Word at which the search goes on.
  bool wanted_ = true;
  bool found_ = false;
  bool moved_ = false;
  bool run_ = false;
  bool broken_ = false;
  unsigned proven_ = 0;
};

}  // namespace sluice::nvidia
