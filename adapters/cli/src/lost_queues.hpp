#pragma once
/// \file
/// Signs that queues which look alive are dead, for who suspends by hand. Drivers have few:
/// with KFD an exception in a debug session's list of queues, and an SMI event while somebody
/// listens, as its queue_holder does. Of a reset before that nothing is left to see (assumed: the
/// facts we have name no exception that a reset of the whole GPU raises), except by the open
/// breaker of who heard of it.

#include <sys/types.h>

#include <string>
#include <vector>

#include "sluice/driver.hpp"
#include "sluice/queue_holder.hpp"

namespace sluice::cli {

/// A sentence for each queue that is in an error state.
std::vector<std::string> error_states(const queue_holder& by, pid_t pid,
                                      const std::vector<held_queue>& queues);

/// A sentence for each GPU of the process with an open breaker.
std::vector<std::string> breakers_of(const driver& on, pid_t pid);

/// Opens the breakers of these GPUs and their hives in the store, for a scheduler's default time,
/// and says so, or why not.
void open_breakers_of(const driver& on, const std::vector<gpu_failure>& failed);

}  // namespace sluice::cli
