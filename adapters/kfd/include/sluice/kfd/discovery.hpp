#pragma once
/// \file
/// Finds the node's GPUs, the processes that use them, their queues and their roles, from outside:
/// sysfs and /proc, nothing that a process under observation could notice.

#include <memory>

#include "sluice/kfd/roots.hpp"
#include "sluice/kfd/smi_text.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/os/process_identity.hpp"
#include "sluice/result.hpp"
#include "sluice/role.hpp"
#include "sluice/roles/classification.hpp"
#include "sluice/roles/role_reason.hpp"
#include "sluice/source.hpp"

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
/// start() fails with errc::not_supported when there is no KFD sysfs tree, and with
/// errc::bad_config when the rules have a problem or the role store is refused, so that nothing is
/// suspended that the store says is online. A store that is refused later leaves what it said
/// before in force.
///
/// Threading: as any source's, but set_role(), withdraw_role() and set_rules(): those from any
///            thread.
/// Lifetime:  a scheduler owns its sources, so keep a pointer to call those by, and call them no
///            longer than the scheduler lives. Before start() and after stop() they are recorded
///            and take effect with the next start.
class discovery : public source {
 public:
  /// Takes the first look now, on a thread of its own, so that start() finds most of it done: for
  /// who is about to be started. Without the store, which start() reads. Once, before start().
  virtual void look_ahead() = 0;

  /// Says what the process is from now on, until it ends or withdraw_role(); an exec changes
  /// nothing. It need not use a GPU yet. role::unmatched says that it is not to be touched. The
  /// scheduler hears of it within milliseconds, or when the process first appears among those that
  /// use a GPU. Costs a mutex and a read of /proc for each process of which a role was said; those
  /// that have ended are forgotten here.
  /// What the role store says of the process comes after this.
  /// \return errc::unknown_target when the process is gone, or the pid is another's by now.
  [[nodiscard]] virtual result<void> set_role(const process_identity& who, role what) = 0;
  /// Takes back what was said, here or in the rules: the rules' other parts decide again.
  /// \return errc::unknown_target when nothing was said of it, or it has ended.
  [[nodiscard]] virtual result<void> withdraw_role(const process_identity& who) = 0;
  /// Other rules, from the next look on (milliseconds). Processes and queues stay known, gangs that
  /// fit both keep together, and what set_role() said stays: rules.by_process counts only at the
  /// start. Costs a mutex and a copy.
  /// \param rules check_rules() has nothing against them.
  virtual void set_rules(roles::classification_rules rules) = 0;

  /// Why each process that uses a GPU has its role, as of the last look that changed any; who
  /// has ended since may be in it. Any thread. Costs a mutex.
  [[nodiscard]] virtual std::shared_ptr<const roles::role_reasons> reasons() const = 0;

  /// How many events of this kind the driver has told (resets, evictions, restores, faults,
  /// processes), of all GPUs, since this object exists. Any thread. 0 where the driver tells none,
  /// or not us: see smi_events.hpp.
  [[nodiscard]] virtual std::uint64_t heard(smi_kind what) const noexcept = 0;
  /// Whether the last look found the driver's tree or its device, which were there at the start,
  /// unreadable or gone: nothing is known then of what uses a GPU. The message sink hears of it
  /// once, and once when they are back. Any thread; false while it is not started.
  [[nodiscard]] virtual bool driver_gone() const noexcept = 0;
};

std::unique_ptr<discovery> make_discovery(roots where = roots::from_environment(),
                                          roles::classification_rules rules = {},
                                          message_sink say = messages_to_stderr());

/// Whether a discovery can follow these rules. Any thread. Blocks on file operations where the role
/// store is another one.
/// \param before whose role store is followed already: that one is not read again.
/// \param message on failure, one sentence.
/// \return errc::bad_config when the rules have a problem or their store is refused, the system's
///         error when it cannot be read.
[[nodiscard]] result<void> check_rules(const roles::classification_rules& rules,
                                       const roles::classification_rules& before,
                                       std::string& message);

/// One look: the roles, with their reasons, that a scheduler with these rules would give now,
/// without what is only said inside it (set_role()). Starts no thread and follows nothing.
/// Threading: any thread. Cost: as a discovery's first look.
[[nodiscard]] roles::role_reasons roles_now(const roots& where,
                                            const roles::classification_rules& rules,
                                            const message_sink& say);

}  // namespace sluice::kfd
#pragma GCC visibility pop
