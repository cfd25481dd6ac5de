#pragma once
/// \file
/// A node's state and its reasons as JSON. Times are wall-clock milliseconds, spans milliseconds.

#include "history.hpp"

#include <optional>
#include <string>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "sluice/node_view.hpp"
#include "sluice/observe/span_targets.hpp"
#include "sluice/picture.hpp"
#include "sluice/roles/role_reason.hpp"
#include "sluice/statistics.hpp"
#include "sluice/time.hpp"

namespace sluice {

/// One moment on both clocks.
struct wall_moment {
  time_point steady = clock::now();
  std::chrono::system_clock::time_point wall = std::chrono::system_clock::now();

  std::int64_t unix_ms(time_point at) const noexcept;
};

/// What the scheduler's picture does not hold. nullptr: not known.
struct beside_picture {
  const node_view* node = nullptr;
  const roles::role_reasons* roles = nullptr;
  bool without_gangs = false;  ///< As node_facts::without_gangs.
};

/// What is seen of online programs without a client: `ignored`, `hidden` (on no GPU can it be
/// seen), `unwatched` (nothing is offline), `ends_hidden` (of some work the end is not seen now),
/// `seen`.
[[nodiscard]] std::string_view unmarked_work(const picture& seen) noexcept;

/// GPUs, groups, clients, statistics.
[[nodiscard]] boost::json::object status_json(const picture& seen, const statistics& counted,
                                              const history& past, const beside_picture& beside,
                                              const wall_moment& now);

/// The spans that ended lately, and whether they kept their targets: of each kind that has a target
/// or occurred.
[[nodiscard]] boost::json::array spans_json(const history& past,
                                            const observe::span_targets& targets,
                                            const wall_moment& now);

/// What is true of a group or a process at this moment.
struct state_now {
  /// "held", "would_be_held", "runs", "forced", "unmanaged", "online", "unmatched", "own",
  /// "client", "ended".
  std::string state;
  std::string sentence;
  std::string role_why{};  ///< Where the sentence does not say it.
};
/// \param paused why the node is paused, if it is.
[[nodiscard]] state_now state_of_group(const picture& seen, const group_picture& group,
                                       const process_picture* process, const history& past,
                                       const beside_picture& beside,
                                       const std::optional<std::string>& paused,
                                       const wall_moment& now);

/// What is true of a process that uses no GPU but has clients. \return empty: it has none.
[[nodiscard]] std::string client_sentence(const history& past, pid_t pid, const wall_moment& now);

/// The last decisions about a group, the oldest first, and what happened to the node between them.
[[nodiscard]] boost::json::array decisions_json(const history::known_group& group,
                                                const history& past, const wall_moment& now);

}  // namespace sluice
