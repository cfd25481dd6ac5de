#pragma once
/// \file
/// What KFD tells a discovery (sluice/discovery.hpp): sysfs and debugfs, and the driver's events.

#include <memory>

#include "sluice/kfd/roots.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/survey.hpp"

#pragma GCC visibility push(default)
namespace sluice::kfd {

/// Attribute files may be slow to read. Events that suggest a look: the device node is opened or
/// comes and goes (inotify); debugfs shows a process, or the driver itself, come or go (where the
/// kernel has that); the driver tells of a process or a fault (SMI, where it does). A queue is
/// known by its id and the inode of its directory, for ids are used again; a cheap look asks the
/// kernel for the number of queues.
///
/// To hear of resets this process opens the device for a moment for each GPU that appears, if it
/// may: it then shows in sysfs itself. Whoever may not is told by the acting side alone.
[[nodiscard]] std::unique_ptr<survey> make_survey(roots where = roots::from_environment(),
                                                  message_sink say = messages_to_stderr());

}  // namespace sluice::kfd
#pragma GCC visibility pop
