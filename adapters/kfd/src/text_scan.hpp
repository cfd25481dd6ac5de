#pragma once
/// \file
/// Takes a line apart from its front; every step that does not fit leaves the scan failed.

#include <charconv>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace sluice::kfd {

/// One number out of two words.
constexpr std::uint64_t wide(std::uint32_t low, std::uint32_t high) noexcept {
  return static_cast<std::uint64_t>(high) << 32U | low;
}

class text_scan {
 public:
  explicit text_scan(std::string_view text) noexcept : rest_(text) {}

  /// Takes exactly this text.
  text_scan& literal(std::string_view expected) noexcept {
    if (!rest_.starts_with(expected)) return fail();
    rest_.remove_prefix(expected.size());
    return *this;
  }
  /// Takes this text if it is there. \return whether it was.
  bool take(std::string_view wanted) noexcept {
    if (failed_ || !rest_.starts_with(wanted)) return false;
    rest_.remove_prefix(wanted.size());
    return true;
  }
  /// Takes as many blanks as there are.
  text_scan& blanks() noexcept {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
    return *this;
  }
  /// Takes as many digits as there are; at least one, and no sign but for signed types.
  template <std::integral Number>
  text_scan& number(Number& value, int base = 10) noexcept {
    if (failed_) return *this;
    const char* const begin = rest_.data();
    const auto [end, error] = std::from_chars(begin, begin + rest_.size(), value, base);
    if (error != std::errc{}) return fail();
    rest_.remove_prefix(static_cast<std::size_t>(end - begin));
    return *this;
  }
  /// Takes exactly eight hexadecimal digits, as "%08x" prints them.
  text_scan& word(std::uint32_t& value) noexcept {
    if (failed_ || rest_.size() < 8) return fail();
    const char* const begin = rest_.data();
    const auto [end, error] = std::from_chars(begin, begin + 8, value, 16);
    if (error != std::errc{} || end != begin + 8) return fail();
    rest_.remove_prefix(8);
    return *this;
  }
  /// Takes everything before `mark`, which must come, and leaves the mark.
  std::string_view until(std::string_view mark) noexcept {
    const std::size_t at = failed_ ? std::string_view::npos : rest_.find(mark);
    if (at == std::string_view::npos) {
      fail();
      return {};
    }
    const std::string_view before = rest_.substr(0, at);
    rest_.remove_prefix(at);
    return before;
  }
  /// Takes one character, whichever it is.
  text_scan& character(char& value) noexcept {
    if (rest_.empty()) return fail();
    value = rest_.front();
    rest_.remove_prefix(1);
    return *this;
  }
  /// Takes all there is.
  std::string_view take_rest() noexcept { return std::exchange(rest_, {}); }
  text_scan& fail() noexcept {
    failed_ = true;
    rest_ = {};
    return *this;
  }

  std::string_view rest() const noexcept { return rest_; }
  bool failed() const noexcept { return failed_; }
  /// Nothing is left over, and every step fitted.
  bool done() const noexcept { return !failed_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool failed_ = false;
};

}  // namespace sluice::kfd
