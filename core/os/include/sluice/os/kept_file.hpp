#pragma once
/// \file
/// What a run wrote is not lost to the next one.

#include <sys/stat.h>

#include <cstdio>
#include <string>

#pragma GCC visibility push(default)
namespace sluice {

/// Below that a file is of a run that hardly began, such as a start that failed and is tried again:
/// it does not displace what is kept.
inline constexpr std::size_t worth_keeping = 4096;

/// Makes PATH free for a new file: a regular file there becomes PATH.1, and the one that was PATH.1
/// goes. Whatever else is there stays, as does what is smaller than worth_keeping or cannot be
/// moved: it is for the caller to write over.
/// Threading: any. Blocks on the file system.
inline void keep_earlier_file(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return;
  if (static_cast<std::size_t>(found.st_size) < worth_keeping) return;
  (void)std::rename(path.c_str(), (path + ".1").c_str());
}

}  // namespace sluice
#pragma GCC visibility pop
