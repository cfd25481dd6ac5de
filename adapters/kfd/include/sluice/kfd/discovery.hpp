#pragma once
/// \file
/// Finds the node's GPUs, the processes that use them, their queues and their roles, from outside:
/// sysfs and /proc, nothing that a process under observation could notice.

#include <memory>

#include "sluice/discovery.hpp"
#include "sluice/kfd/roots.hpp"
#include "sluice/kfd/smi_text.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/roles/classification.hpp"
#include "sluice/roles/role_reason.hpp"

#pragma GCC visibility push(default)
namespace sluice::kfd {

/// A source (see sluice/source.hpp) with a thread of its own, which does everything that may block:
/// attribute files may be slow to read. It looks when the device node is opened or comes and goes
/// (inotify), when debugfs shows a process, or the driver itself, come or go (where the kernel has
/// that), when the driver tells of a process or a fault (SMI, where it does), when a known process
/// exits (pidfd), when the role store changes (inotify) or a release in it ends, and every second.
/// A process is known by its pid and start time; its environment is read again when it has exec'd;
/// a queue by its id and the inode of its directory, for ids are used again. Members of a gang (see
/// classification.hpp) get the same group_key.
///
/// A look lists processes, and of each that is online its queues; reads files of what is new; and
/// reads what may have changed of a process, its roles::credentials and cgroups. Of the others it
/// only asks the kernel for the number of queues, the user, the group and the cgroup, and goes on
/// where one is another. What does not show in these (a queue in another's place, though the
/// session of an attached process tells of that; supplementary groups; cgroups of version 1) is
/// found when the process has its turn: at each look four have, or a sixteenth of all. So all that
/// can be seen is seen within a second on a node with up to four such processes, else within 16,
/// and at every look where rules go by queues, or the kernel (before Linux 6.13) does not say.
///
/// A GPU whose reset the driver tells becomes an observation_kind::gpu_lost, once, and again in
/// every resync. To hear of it this process opens the device for a moment for each GPU that
/// appears, if it may: it then shows in sysfs itself. Whoever may not is told by the acting side
/// alone.
///
/// start() fails with errc::not_supported where there is no KFD sysfs tree.
class discovery : public sluice::discovery {
 public:
  /// How many events of this kind the driver has told (resets, evictions, restores, faults,
  /// processes), of all GPUs, since this object exists. Any thread. 0 where the driver tells none,
  /// or not us: see smi_events.hpp.
  [[nodiscard]] virtual std::uint64_t heard(smi_kind what) const noexcept = 0;
};

std::unique_ptr<discovery> make_discovery(roots where = roots::from_environment(),
                                          roles::classification_rules rules = {},
                                          message_sink say = messages_to_stderr());

/// One look: the roles, with their reasons, that a scheduler with these rules would give now,
/// without what is only said inside it (set_role()). Starts no thread and follows nothing.
/// Threading: any thread. Cost: as a discovery's first look.
[[nodiscard]] roles::role_reasons roles_now(const roots& where,
                                            const roles::classification_rules& rules,
                                            const message_sink& say);

}  // namespace sluice::kfd
#pragma GCC visibility pop
