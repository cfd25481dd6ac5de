#pragma once
/// \file
/// The driver's commands for CRIU, as far as they pause a process: PROCESS_INFO evicts every queue
/// of the process on all GPUs, UNPAUSE brings them back. Twice the first and once the second leaves
/// the process paused.

#include <sys/types.h>

#include <string>

#include "sluice/hold_book.hpp"
#include "sluice/kfd/tracee.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"

namespace sluice::kfd {

/// \param device the target's own descriptor; the calling thread traces the target.
/// \return 0 or the errno: EBADF when the descriptor's process is not traced by this thread, EACCES
///         without CAP_CHECKPOINT_RESTORE and CAP_SYS_ADMIN.
int criu_pause(int device) noexcept;
/// \return EINVAL when the process was not paused.
int criu_unpause(int device) noexcept;

struct device_of_target {
  unique_fd fd;
  bool was_paused = false;
};

/// A duplicate of the target's own descriptor of the device node at `path`, proved by an UNPAUSE:
/// so whatever an earlier scheduler left paused runs now. The calling thread traces the target.
/// \return errc::unknown_target when it is gone, errc::not_managed when it has no such descriptor
///         or the driver refuses ours; `say` gets the sentence.
result<device_of_target> take_device(const std::string& path, const tracee& target,
                                     const message_sink& say);

/// Undoes the pause of a process whose agent is gone, whatever had become of it: as
/// agent::acting_driver::release(). Traces the process for a moment, on a thread of its own, and
/// blocks until that has ended.
/// \param sysfs the driver's tree, which shows whether the driver knows the process: after an exec
///              it does not, and nothing is paused.
[[nodiscard]] result<void> release_pause(const std::string& path, const std::string& sysfs,
                                         const hold& what, const message_sink& say);

}  // namespace sluice::kfd
