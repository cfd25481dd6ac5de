#pragma once
/// \file
/// Finds a process that waits for its debugger's answer.

#include <sys/types.h>

namespace sluice::kfd {

/// Whether a thread of the process sits in RUNTIME_ENABLE. The kernel shows it to a tracer, and to
/// the process itself.
bool waits_in_runtime_enable(pid_t pid);

}  // namespace sluice::kfd
