#pragma once
/// \file
/// Reads a file as a whole.

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>

#include "sluice/result.hpp"

namespace sluice {

/// The content of a file that is small enough to be held in memory. Streams are not asked for it:
/// of what can be opened but not read, such as a directory, theirs throw.
///
/// Threading: any. Errors: the system's, with the reason; EFBIG beyond 1 GiB (/dev/zero).
inline result<std::string> read_whole_file(const std::string& path) {
  constexpr std::size_t most = std::size_t{1} << 30U;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen(path.c_str(), "re"),
      [](std::FILE* f) { return f == nullptr ? 0 : std::fclose(f); });
  if (file == nullptr) return last_system_error();
  std::string text;
  std::array<char, 16384> some;
  while (const std::size_t size = std::fread(some.data(), 1, some.size(), file.get())) {
    text.append(some.data(), size);
    if (text.size() > most) return error_code{EFBIG, boost::system::system_category()};
  }
  if (std::ferror(file.get()) != 0) return last_system_error();
  return text;
}

}  // namespace sluice
