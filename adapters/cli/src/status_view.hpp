#pragma once
/// \file
/// A daemon's answers as people read them: what `sluice status`, `sluice top` and `sluice why`
/// show. They are another program's, perhaps of another version: what is missing is shown as "-".

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <boost/json/object.hpp>

#include "sluice/ids.hpp"

namespace sluice::cli {

enum class group_order : std::uint8_t {
  role,   ///< Offline, online, the rest; then by number.
  lost,   ///< What was off most of the last minute comes first.
  state,  ///< What is held comes first.
  name,
};
inline constexpr group_order group_orders[] = {group_order::role, group_order::lost,
                                               group_order::state, group_order::name};
std::string_view to_string(group_order value);

/// For a column ROLE. \param bar as roles::role_bar is named: what keeps an offline one from being
/// it.
std::string_view role_words(std::string_view role, std::string_view bar);
/// What decides, where that is not simply what was asked for. \param name empty: nothing does.
std::string decider_words(const std::string& name, bool is_fallback, const std::string& asked_for);
/// A few lines: who owns the node, what it decides by, how long that takes, what failed.
std::vector<std::string> node_lines(const boost::json::object& status);
enum class gpu_columns : std::uint8_t { few, all };
std::string gpu_table(const boost::json::object& status, gpu_columns which, std::size_t width);
/// A line for each GPU whose breaker is open: why, until when, what to do.
std::vector<std::string> breaker_lines(const boost::json::object& status);
/// \param filter groups whose number (g7), name, role, state, a pid or a command of which holds the
///               text; empty: all.
std::string group_table(const boost::json::object& status, const std::string& filter,
                        group_order order, std::size_t width);
/// How many queues of a process on a GPU the owner of the node has suspended.
struct suspended_count {
  pid_t pid = 0;
  std::uint64_t start_time = 0;
  gpu_id gpu = gpu_id::none;
  std::uint64_t compute = 0;  ///< Its compute queues.
  std::uint64_t others = 0;
  std::uint64_t suspended = 0;  ///< Of both.
  std::uint64_t in_doubt = 0;
};
/// Of processes that it is attached to. Empty if it suspends nothing, as in mode observe.
std::vector<suspended_count> suspended_counts(const boost::json::object& status);
std::string clients_line(const boost::json::object& status);
/// All of it.
std::string status_text(const boost::json::object& status, std::size_t width);
/// A node of a fleet.
struct fleet_row {
  std::string node;
  std::string problem;  ///< Why there is no status; empty: there is one.
  boost::json::object status;
};
/// A line for each.
std::string fleet_table(const std::vector<fleet_row>& nodes, std::size_t width);
/// A sentence, and a line for each decision, the newest last.
/// \param last so many; 0: all.
std::string why_text(const boost::json::object& answer, std::size_t last);

}  // namespace sluice::cli
