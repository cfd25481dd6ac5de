#pragma once
/// \file
/// Tells when a file that is replaced by renaming may have changed, also before it exists.

#include <string>
#include <vector>

#include "sluice/os/unique_fd.hpp"

namespace sluice {

/// Watches the file's directory and all above it by inotify, so that a directory that is made,
/// moved or removed later is noticed too.
///
/// Threading: one thread.
/// Errors:    without inotify it never tells anything: ask changed() now and then.
class file_watch {
 public:
  /// `path` empty: watches nothing.
  explicit file_watch(const std::string& path);

  /// Readable when changed() has something to tell; -1 when it cannot watch.
  int fd() const noexcept { return inotify_.get(); }
  /// Whether the file is another than at the last call; the first call says true where there is a
  /// file. Drains fd().
  bool changed();

 private:
  void watch();

  const std::string path_;
  std::vector<std::string> directories_;  // from the root down
  std::string last_;                      // what identified the file then; empty: none
  unique_fd inotify_;
};

}  // namespace sluice
