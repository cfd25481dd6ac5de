#pragma once
/// \file
/// The patterns of classification.hpp.

#include <fnmatch.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

namespace sluice::roles {

inline bool matches(const std::string& pattern, const std::string& text) {
  return ::fnmatch(pattern.c_str(), text.c_str(), FNM_NOESCAPE) == 0;
}

/// \return the cgroup nearest to the root, `path` itself or one above it, that the pattern matches;
///         empty when there is none.
inline std::string_view matching_cgroup(const std::string& pattern, std::string_view path) {
  for (std::size_t end = 1;;) {
    // "/" first, then every path that ends before a slash, then the whole.
    const std::string_view upper = path.substr(0, end);
    if (matches(pattern, std::string{upper})) return upper;
    if (end >= path.size()) return {};
    end = std::min(path.find('/', end == 1 ? 1 : end + 1), path.size());
  }
}

inline bool matches_cgroup(const std::string& pattern, std::span<const std::string> paths) {
  return std::ranges::any_of(
      paths, [&](const std::string& path) { return !matching_cgroup(pattern, path).empty(); });
}

}  // namespace sluice::roles
