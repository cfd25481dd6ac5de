#pragma once
/// \file
/// A scheduler's counters as one line for a log.

#include <string>

#include "sluice/node.hpp"
#include "sluice/statistics.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// What matters to who watches a node, as key=value by the names of the fields; counters that an
/// operator should be alarmed by only where they are not zero. Of a node that observes it says what
/// it would have done.
[[nodiscard]] std::string statistics_line(const statistics& seen, node_mode mode);

}  // namespace sluice
#pragma GCC visibility pop
