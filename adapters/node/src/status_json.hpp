#pragma once
/// \file
/// A node's state and its reasons as JSON. Times are wall-clock milliseconds, spans milliseconds.

#include "history.hpp"

#include <optional>
#include <string>

#include <boost/json/object.hpp>

#include "sluice/kfd/node_view.hpp"
#include "sluice/picture.hpp"
#include "sluice/statistics.hpp"
#include "sluice/time.hpp"

namespace sluice {

/// One moment on both clocks.
struct wall_moment {
  time_point steady = clock::now();
  std::chrono::system_clock::time_point wall = std::chrono::system_clock::now();

  std::int64_t unix_ms(time_point at) const noexcept;
};

/// GPUs, groups, clients, statistics.
/// \param memory nullptr: not known.
[[nodiscard]] boost::json::object status_json(const picture& seen, const statistics& counted,
                                              const history& past, const kfd::node_view* memory,
                                              const wall_moment& now);

/// What is true of a group or a process at this moment.
struct state_now {
  /// "held", "would_be_held", "runs", "forced", "unmanaged", "online", "unmatched", "own", "ended",
  /// "unknown".
  std::string state;
  std::string sentence;
};
/// \param paused why the node is paused, if it is.
[[nodiscard]] state_now state_of_group(const picture& seen, const group_picture& group,
                                       const process_picture* process, const history& past,
                                       const std::optional<std::string>& paused,
                                       const wall_moment& now);

/// The last decisions about a group, the oldest first, and what happened to the node between them.
[[nodiscard]] boost::json::array decisions_json(const history::known_group& group,
                                                const history& past, const wall_moment& now);

}  // namespace sluice
