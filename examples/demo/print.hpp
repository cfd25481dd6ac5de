#pragma once
/// \file
/// fmt::print for programs that must also end in good order when nobody reads any more.

#include <cstdio>
#include <utility>

#include <fmt/format.h>

namespace demo {

/// What cannot be written is dropped: fmt::print throws when the terminal was closed, and what had
/// to be cleaned up then stayed.
template <class... Values>
void print(std::FILE* to, fmt::format_string<Values...> format, Values&&... values) {
  std::fputs(fmt::format(format, std::forward<Values>(values)...).c_str(), to);
}

template <class... Values>
void print(fmt::format_string<Values...> format, Values&&... values) {
  std::fputs(fmt::format(format, std::forward<Values>(values)...).c_str(), stdout);
}

}  // namespace demo
