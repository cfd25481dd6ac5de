#pragma once
/// \file
/// `sluice analyze` without its command line: what logs say of hardware queues, one beside the
/// other.

#include "runtime_log.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <boost/json/value.hpp>

namespace sluice::cli {

struct analyzed_file {
  std::string name;
  log_usage usage;
};

/// "normal", "high, cooperative", "runtime's own"; "unknown" where the log does not say.
std::string kind_of(const hardware_queue& queue);

/// Addresses differ from run to run, so the n-th queue of a kind in one log is held against the
/// n-th of that kind in the other.
struct queue_pair {
  std::string kind;
  const hardware_queue* first = nullptr;   ///< nullptr: the first log has fewer of that kind.
  const hardware_queue* second = nullptr;  ///< The same of the second. Never both.
  std::vector<std::string> differs{};      ///< "number", "sharing", "dispatches", "backlog".
};
std::vector<queue_pair> compare(const log_usage& first, const log_usage& second);

/// Each file by itself, then all side by side, then the queues of two.
std::string analysis_text(const std::vector<analyzed_file>& files, std::size_t width);
boost::json::value analysis_json(const std::vector<analyzed_file>& files);

}  // namespace sluice::cli
