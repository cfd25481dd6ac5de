#pragma once
/// \file
/// Holds processes by hand with a driver that acts in an agent alone.

#include <memory>
#include <string>

#include "sluice/driver.hpp"
#include "sluice/node_files.hpp"
#include "sluice/queue_holder.hpp"

namespace sluice::cli {

/// Its first attach() starts an agent, which has a lock of its own beside the node's
/// (hand_lock()), so that it does not own the node. It holds nothing that the scheduler of the
/// node's owner manages. When this process ends, its agent resumes everything; when the agent ends,
/// the agent's guardian does; when both end, `sluice rescue` does.
///
/// Threading: as queue_holder; one thread of its own keeps the agent's lease.
///
/// \param agent its path; empty: as find_agent() finds it.
std::unique_ptr<queue_holder> make_agent_holder(std::shared_ptr<const driver> on, node_files files,
                                                std::string agent);

}  // namespace sluice::cli
