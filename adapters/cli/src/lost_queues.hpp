#pragma once
/// \file
/// Signs that queues which look alive are dead, for who suspends by hand. The driver has few: an
/// exception in a debug session's list of queues, and an SMI event while somebody listens, as a
/// queue_holder does. Of a
/// reset before that nothing is left to see (assumed: the facts we have name no exception that a
/// reset of the whole GPU raises), except by the open breaker of who heard of it.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/kfd/queue_holder.hpp"

namespace sluice::cli {

/// "QUEUE_PREEMPTION_ERROR, exception 40": the driver's names of the bits.
std::string exception_names(std::uint64_t exceptions);

/// A sentence for each queue that is in an error state.
std::vector<std::string> error_states(pid_t pid, const std::vector<kfd::held_queue>& queues);

/// A sentence for each GPU of the process with an open breaker.
std::vector<std::string> breakers_of(pid_t pid);

/// Opens the breakers of these GPUs and their hives in the store, for a scheduler's default time,
/// and says so, or why not.
void open_breakers_of(const std::vector<kfd::gpu_failure>& failed);

}  // namespace sluice::cli
