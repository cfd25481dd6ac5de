#pragma once
/// \file
/// Hears by inotify of entries of directories that come and go, and of opens of a node; also when
/// the directory or the node itself comes and goes, as a driver's does when it is loaded.
///
/// Only a hint to look: debugfs and device nodes raise such events, sysfs raises none, a directory
/// under a mount that appears later is found by refresh(), and an overflow loses events.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"

namespace sluice::kfd {

struct tree_event {
  enum class change : std::uint8_t {
    opened,    ///< The node was opened.
    appeared,  ///< An entry `name` of the directory; with no name: what is watched itself.
    vanished,  ///< The same, gone.
    missed,    ///< Too many at once: some were not heard.
  };
  change what{};
  std::string_view path{};  ///< As given to watch_*(); empty for missed. Valid during the call.
  std::string_view name{};
};

/// Threading: one thread at a time.
/// Cost:      refresh() is two system calls for each path; read() allocates nothing but what the
///            callback does.
class tree_watch {
 public:
  /// \return the system's error when there is no inotify descriptor left (fs.inotify limits).
  [[nodiscard]] static result<std::unique_ptr<tree_watch>> create();

  /// Entries of this directory. It need not exist, nor its parent.
  void watch_directory(std::string path);
  /// Opens of this file or device node. It need not exist.
  void watch_opens(std::string path);

  /// Readable when read() has something.
  [[nodiscard]] int fd() const noexcept { return inotify_.get(); }
  /// Takes all there is, then refreshes. \return whether there was anything of ours: a parent
  /// directory has entries that are nobody's business here.
  bool read(const std::function<void(const tree_event&)>& each);
  /// Watches what has appeared since, and no longer what has been replaced. For what inotify cannot
  /// tell: call it now and then. \return whether something is watched that was not: look, for what
  /// happened there before was not heard.
  bool refresh();
  /// Whether the path itself is watched, not only the directory that it would be in.
  [[nodiscard]] bool watching(std::string_view path) const noexcept;

 private:
  struct item {
    std::string path;    // as given
    std::string target;  // what is watched: the path, or its parent
    std::string name;    // empty, or the only entry of the parent that counts
    std::uint32_t mask = 0;
    int watch = -1;
  };
  explicit tree_watch(unique_fd inotify) : inotify_(std::move(inotify)) {}
  void add(std::string path, std::uint32_t mask);
  bool renew(item& each);
  void drop(int watch) noexcept;

  const unique_fd inotify_;
  std::vector<item> items_{};
};

}  // namespace sluice::kfd
