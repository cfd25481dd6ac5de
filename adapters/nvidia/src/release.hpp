#pragma once
/// \file
/// Makes everything of a process run, without the agent that held it.

#include "device_users.hpp"
#include "hold_text.hpp"

#include <sys/types.h>

#include "sluice/result.hpp"

namespace sluice::nvidia {

/// Enables every channel of the process once more than `held` counts, and restores the slices: also
/// in other processes that have an open file of it, though it ended.
/// \param pid 0: it ended.
/// \return errc::lost if the driver refuses, the system's error if a running process cannot be
/// read.
[[nodiscard]] result<void> release_process(pid_t pid, const device_file& device,
                                           const held_process& held);

/// The same without a record: any channel, as often as a scheduler may have disabled it.
[[nodiscard]] result<void> release_everything_of(pid_t pid, const device_file& device);

}  // namespace sluice::nvidia
