#pragma once
/// \file
/// What the parsers of the driver's texts share: lines out of pieces, and an account of what could
/// not be read.

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace sluice::kfd {

/// What a parser could not read. It leaves such things out of its result: it never guesses.
struct unread {
  std::uint64_t count = 0;       ///< Lines that fit no grammar, and blocks that lacked something.
  std::uint64_t first_line = 0;  ///< Line number, from 1, of the first of them; 0: none.
  std::string first_text{};  ///< How it begins, 60 bytes at most, '.' for what is not printable.

  explicit operator bool() const noexcept { return count != 0; }
  void note(std::uint64_t line, std::string_view text);
};

/// One line without its line end.
struct text_line {
  std::string_view text{};   ///< Valid during the call only; the first `longest` bytes of it.
  std::uint64_t number = 0;  ///< From 1.
  /// Ended by a line end, and not cut: only then do its last characters mean what they say.
  bool whole = false;
};

/// Cuts text that comes in pieces, split anywhere, into lines. What a line has beyond `longest` is
/// dropped, so that memory stays bounded whatever comes.
///
/// Threading: one thread. Cost: O(bytes), no allocation.
class line_splitter {
 public:
  static constexpr std::size_t longest = 256;  ///< The driver's longest line has 96 bytes.

  /// Calls `each(const text_line&)` for every line that ends in this piece.
  template <class Each>
  void feed(std::string_view piece, Each each) {
    while (!piece.empty()) {
      const void* const found = std::memchr(piece.data(), '\n', piece.size());
      if (found == nullptr) {
        keep(piece);
        return;
      }
      const auto length = static_cast<std::size_t>(static_cast<const char*>(found) - piece.data());
      const std::string_view rest = piece.substr(0, length);
      piece.remove_prefix(length + 1);
      if (seen_ == 0) {
        each(text_line{rest.substr(0, longest), ++number_, length <= longest});
        continue;
      }
      keep(rest);
      give(each, true);
    }
  }
  /// Whether a line has begun, and not ended.
  bool within_line() const noexcept { return seen_ != 0; }
  /// Counts a whole line that its caller took itself.
  void pass_line() noexcept { ++number_; }
  std::uint64_t number() const noexcept { return number_; }
  /// The text ends here: what is left is a line without an end.
  template <class Each>
  void finish(Each each) {
    if (seen_ != 0) give(each, false);
  }

 private:
  void keep(std::string_view piece) noexcept {
    if (seen_ < longest) {
      const std::string_view fitting = piece.substr(0, longest - seen_);
      std::memcpy(kept_.data() + seen_, fitting.data(), fitting.size());
    }
    seen_ += piece.size();
  }
  template <class Each>
  void give(Each each, bool ended) {
    const std::size_t length = seen_;
    seen_ = 0;
    each(text_line{std::string_view{kept_.data(), length < longest ? length : longest}, ++number_,
                   ended && length <= longest});
  }

  std::array<char, longest> kept_{};
  std::size_t seen_ = 0;  // bytes of the line so far, kept or not
  std::uint64_t number_ = 0;
};

}  // namespace sluice::kfd
