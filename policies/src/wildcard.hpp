#pragma once
/// \file
/// Names by pattern.

#include <cstddef>
#include <string_view>

namespace sluice {

/// Whether the name is what the pattern says, in which * stands for any characters, or none.
constexpr bool matches_wildcard(std::string_view pattern, std::string_view name) noexcept {
  std::size_t at = 0;
  std::size_t in = 0;
  std::size_t star = std::string_view::npos;  // The last one seen...
  std::size_t covered = 0;                    // ...and the end of what it stands for.
  while (in < name.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      covered = in;
    } else if (at < pattern.size() && pattern[at] == name[in]) {
      ++at;
      ++in;
    } else if (star != std::string_view::npos) {
      at = star + 1;
      in = ++covered;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', at) == std::string_view::npos;
}

static_assert(matches_wildcard("a*c*", "abcbc") && matches_wildcard("*", ""));
static_assert(!matches_wildcard("a*c", "abcb") && !matches_wildcard("", "a"));

}  // namespace sluice
