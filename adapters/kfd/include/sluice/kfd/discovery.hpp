#pragma once
/// \file
/// Finds the node's GPUs, the processes that use them, their queues and their roles, from outside:
/// sysfs and /proc, nothing that a process under observation could notice.

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "sluice/kfd/message_sink.hpp"
#include "sluice/kfd/roots.hpp"
#include "sluice/result.hpp"
#include "sluice/role.hpp"
#include "sluice/source.hpp"

namespace sluice::kfd {

/// One process and no other: its pid may be given to a stranger, its start time comes with that pid
/// only once.
struct process_identity {
  pid_t pid = 0;
  std::uint64_t start_time = 0;  ///< Clock ticks from boot; observation::start_time.

  friend auto operator<=>(const process_identity&, const process_identity&) = default;
};

/// Who has this pid now. Ask while the process cannot have been replaced: as its parent before
/// waitpid(), in the process itself, or holding a pidfd that is not readable afterwards.
///
/// Threading: any thread.
/// Errors:    errc::unknown_target when there is no such process.
/// Cost:      one read of /proc.
[[nodiscard]] result<process_identity> identity_of(pid_t pid);

/// How a process gets its role; the first that applies. What none applies to stays unmatched and is
/// never touched. This process itself may be online but is never offline.
struct classification_rules {
  std::vector<process_identity> never_touch{};  ///< Unmatched, whatever else would apply.
  /// Said explicitly; discovery::set_role() adds to it and takes from it later.
  std::map<process_identity, role> by_process{};
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
///
/// Threading: as any source's, but set_role() and withdraw_role(): those from any thread.
/// Lifetime:  a scheduler owns its sources, so keep a pointer to call those two by, and call them
///            no longer than the scheduler lives. Before start() and after stop() they are recorded
///            and take effect with the next start.
class discovery : public source {
 public:
  /// Says what the process is from now on, until it ends or withdraw_role(); an exec changes
  /// nothing. It need not use a GPU yet. role::unmatched says that it is not to be touched. The
  /// scheduler hears of it within milliseconds, or when the process first appears among those that
  /// use a GPU. Costs a mutex and a read of /proc for each process of which a role was said; those
  /// that have ended are forgotten here.
  /// \return errc::unknown_target when the process is gone, or the pid is another's by now.
  [[nodiscard]] virtual result<void> set_role(const process_identity& who, role what) = 0;
  /// Takes back what was said, here or in the rules: the rules' other parts decide again.
  /// \return errc::unknown_target when nothing was said of it, or it has ended.
  [[nodiscard]] virtual result<void> withdraw_role(const process_identity& who) = 0;
};

std::unique_ptr<discovery> make_discovery(roots where = roots::from_environment(),
                                          classification_rules rules = {},
                                          message_sink say = messages_to_stderr());

}  // namespace sluice::kfd
