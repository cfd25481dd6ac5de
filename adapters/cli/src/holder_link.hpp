#pragma once
/// \file
/// How `sluice resume` and `sluice queues` talk to a running `sluice suspend`: by an abstract Unix
/// socket that is named after its pid, so nothing is left behind. One request line, one answer.
///
///   resume            resume everything, let go, end       "ok" or "error SENTENCE"
///   resume ID ID...   resume these queues                  the same
///   status            what is suspended                    "suspended ID ID..."

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/kfd/unique_fd.hpp"

namespace sluice::cli {

/// The holder's end.
///
/// Threading: one thread.
class holder_server {
 public:
  /// \return nothing when no socket can be had; the holder works without, but nobody can ask it.
  static std::optional<holder_server> open();

  int ready_fd() const noexcept { return listener_.get(); }
  /// Serves one request: `answer` gets it and gives the answer. Of other users only root is heard.
  /// Waits for nobody longer than 100 ms.
  void serve(const std::function<std::string(std::string_view)>& answer) const;

 private:
  explicit holder_server(kfd::unique_fd listener) : listener_(std::move(listener)) {}
  kfd::unique_fd listener_;
};

/// The process of a thread, e.g. of one that traces; 0: it is gone.
pid_t process_of_thread(pid_t thread, const std::string& proc = "/proc");

/// Asks the `sluice suspend` that runs as process `holder`. Waits up to 15 s for its driver.
/// \return nothing when that is no `sluice suspend`, or does not answer us.
std::optional<std::string> ask_holder(pid_t holder, const std::string& request);

/// The numbers of "suspended 0 1 2"; nothing for another answer.
std::optional<std::vector<driver_queue_id>> suspended_queues(std::string_view answer);

/// Numbers between blanks. \return nothing when something else is among them.
std::optional<std::vector<driver_queue_id>> parse_ids(std::string_view text);

}  // namespace sluice::cli
