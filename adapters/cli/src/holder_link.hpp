#pragma once
/// \file
/// How other subcommands talk to a running `sluice suspend`: by an abstract Unix socket that is
/// named after the process it holds (and after itself, so that nobody can keep the name from it),
/// so nothing is left behind. One request line, one answer. Whether the driver wants the process
/// traced does not matter to that.
///
///   resume            resume everything, let go, end       "ok" or "error SENTENCE"
///   resume ID ID...   resume these queues                  the same
///   status            what is suspended                    "suspended ID ID..."

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/time.hpp"

namespace sluice::cli {

/// The holder's end.
///
/// Threading: one thread.
class holder_server {
 public:
  /// \return nothing when no socket can be had; the holder works without, but nobody can ask it.
  static std::optional<holder_server> open(pid_t target);

  int ready_fd() const noexcept { return listener_.get(); }
  /// Serves one request: `answer` gets it and gives the answer. Of other users only root is heard.
  /// Waits for nobody longer than 100 ms.
  void serve(const std::function<std::string(std::string_view)>& answer) const;

 private:
  explicit holder_server(unique_fd listener) : listener_(std::move(listener)) {}
  unique_fd listener_;
};

/// The process whose thread traces this one, 0: nobody does. \return nothing: there is none.
std::optional<pid_t> tracer_of(pid_t pid, const std::string& proc = "/proc");

/// By process held, the names of sockets in this network namespace that say so.
using holder_names = std::multimap<pid_t, std::string>;
holder_names list_holders(const std::string& proc = "/proc");

struct holder_answer {
  pid_t holder = 0;
  std::string text;  ///< Empty: it is there, but gave no answer in time.
};
/// Long enough for the holder's driver.
inline constexpr duration holder_patience = std::chrono::seconds{15};
/// Asks the `sluice suspend` that holds the process. Believed is who traces the process, and
/// otherwise root, our own user and the process's: anybody can take the name.
/// \return nothing when none holds it.
std::optional<holder_answer> ask_holder(const holder_names& names, pid_t target,
                                        const std::string& request,
                                        duration patience = holder_patience);

/// The numbers of "suspended 0 1 2"; nothing for another answer.
std::optional<std::vector<driver_queue_id>> suspended_queues(std::string_view answer);

/// Numbers between blanks. \return nothing when something else is among them.
std::optional<std::vector<driver_queue_id>> parse_ids(std::string_view text);

}  // namespace sluice::cli
