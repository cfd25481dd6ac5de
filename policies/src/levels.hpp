#pragma once
/// \file
/// Parameters that have a value for each priority.

#include <array>
#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <variant>

#include "sluice/parameters.hpp"

namespace sluice {

template <class T>
using per_level = std::array<T, 16>;

/// Reads `key.0` to `key.15`.
/// \param problem as of policy_kind::make, when one of them is no priority.
template <class T>
per_level<T> read_levels(const parameters& values, const std::string& key, T otherwise,
                         std::string& problem) {
  per_level<T> all;
  all.fill(otherwise);
  values.for_each_below(key, [&](std::string_view rest, const parameter_value& value) {
    std::size_t level = all.size();
    const auto end = rest.data() + rest.size();
    const auto read = std::from_chars(rest.data(), end, level);
    if (read.ptr != end || level >= all.size()) {
      problem = key + "." + std::string(rest) +
                " is not a priority; write a whole number from 0 to 15 after the dot";
    } else {
      all[level] = std::get<T>(value);
    }
  });
  return all;
}

}  // namespace sluice
