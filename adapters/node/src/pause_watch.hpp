#pragma once
/// \file
/// Tells a node when it is paused and when it is not any more, whoever owns it.

#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "sluice/node_files.hpp"
#include "sluice/os/file_watch.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"

namespace sluice {

/// A thread of its own, because reading a file may block and because what a change leads to (a
/// policy that is loaded, say) may take long.
///
/// Threading: start() and stop() from one thread.
class pause_watch {
 public:
  using listener = std::function<void(const std::optional<std::string>& why)>;

  /// \param tell paused_why(), whenever the file came, went or changed: once within start() where
  ///             it is there already, then on the watch's thread.
  pause_watch(node_files where, listener tell);
  ~pause_watch() { stop(); }
  pause_watch(const pause_watch&) = delete;
  pause_watch& operator=(const pause_watch&) = delete;

  [[nodiscard]] result<void> start();
  /// Nothing is told afterwards. Idempotent.
  void stop();

 private:
  void run();
  void look();

  const node_files where_;
  const listener tell_;
  file_watch file_;
  unique_fd ended_;  // an eventfd: written once
  std::thread thread_;
};

}  // namespace sluice
