#pragma once
/// \file
/// A copy of what the table holds, for commands and metrics to show.

#include "table.hpp"

#include "sluice/picture.hpp"

namespace sluice::core {

/// Threading: reactor thread; what it returns refers to nothing and may go to any other.
/// Cost:      allocates. O(processes and queues), so never as part of a turn.
picture picture_of(const table& world);

}  // namespace sluice::core
