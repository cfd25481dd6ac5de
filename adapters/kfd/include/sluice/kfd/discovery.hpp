#pragma once
/// \file
/// Finds the node's GPUs, the processes that use them, their queues and their roles, from outside:
/// sysfs and /proc, nothing that a process under observation could notice.

#include <sys/types.h>

#include <map>
#include <memory>
#include <vector>

#include "sluice/kfd/message_sink.hpp"
#include "sluice/kfd/roots.hpp"
#include "sluice/role.hpp"
#include "sluice/source.hpp"

namespace sluice::kfd {

/// How a process gets its role; the first that applies. What none applies to stays unmatched and is
/// never touched. This process itself may be online but is never offline.
struct classification_rules {
  std::vector<pid_t> never_touch{};  ///< Unmatched, whatever else would apply.
  std::map<pid_t, role> by_pid{};    ///< Said explicitly.
  /// Users whose processes may say it themselves, by AMD_QUEUE_TAG=ONLINE_AI or OFFLINE_AI in their
  /// environment. Empty: only the user this process runs as. Any process can set the variable, so
  /// list nobody who would gain by lying.
  std::vector<uid_t> tag_users{};
};

/// A source (see sluice/source.hpp) with a thread of its own, which does everything that may block:
/// attribute files may be slow to read. It looks when the device node is opened (inotify), when
/// debugfs shows a process come or go (where the kernel has that), when a known process exits
/// (pidfd), every second for 10 s after any change, and otherwise every 10 s. A look lists
/// directories and reads files only of what is new. A process is known by its pid and start time;
/// its environment is read again when it has exec'd.
///
/// start() fails with errc::not_supported when there is no KFD sysfs tree.
std::unique_ptr<source> make_discovery(roots where = roots::from_environment(),
                                       classification_rules rules = {},
                                       message_sink say = messages_to_stderr());

}  // namespace sluice::kfd
