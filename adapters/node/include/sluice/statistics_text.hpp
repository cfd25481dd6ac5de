#pragma once
/// \file
/// A scheduler's counters as one line for a log.

#include <string>

#include "sluice/node.hpp"
#include "sluice/statistics.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// All counters as key=value by the names of the fields; those that are usually zero only where
/// they are not. Of a node that observes it says what it would have done.
[[nodiscard]] std::string statistics_line(const statistics& seen, node_mode mode);

}  // namespace sluice
#pragma GCC visibility pop
