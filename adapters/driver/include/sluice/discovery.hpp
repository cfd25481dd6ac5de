#pragma once
/// \file
/// The source that tells a scheduler of a node's GPUs, the processes that use them, their queues
/// and their roles, from outside: by the driver's survey and /proc, nothing that a process under
/// observation could notice.

#include <memory>
#include <string>

#include "sluice/os/message_sink.hpp"
#include "sluice/os/process_identity.hpp"
#include "sluice/result.hpp"
#include "sluice/role.hpp"
#include "sluice/roles/classification.hpp"
#include "sluice/roles/role_reason.hpp"
#include "sluice/source.hpp"
#include "sluice/survey.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// A source (see sluice/source.hpp) with a thread of its own, which does everything that may block.
/// It looks when the driver's events suggest it (see survey.hpp), when a known process exits
/// (pidfd), when the role store changes (inotify) or a release in it ends, and every second. A
/// process is known by its pid and start time; its environment is read again when it has exec'd.
/// Members of a gang (see classification.hpp) get the same group_key.
///
/// A look lists processes, and of each that is online its queues; reads what is new; and reads what
/// may have changed of a process, its roles::credentials and cgroups. Of the others it only asks
/// whether the queues are as before (surveyed_process::unchanged()), and the kernel for the
/// user, the group and the cgroup, and goes on where one is another. What does not show in these (a
/// queue in another's place, though the session of an attached process tells of that; supplementary
/// groups; cgroups of version 1) is found when the process has its turn: at each look four have, or
/// a sixteenth of all. So all that can be seen is seen within a second on a node with up to four
/// such processes, else within 16, and at every look where rules go by queues, or the kernel
/// (before Linux 6.13) does not say.
///
/// A GPU whose reset the driver tells becomes an observation_kind::gpu_lost, once, and again in
/// every resync.
///
/// start() fails with errc::not_supported when the driver is not there, and with errc::bad_config
/// when the rules have a problem or the role store is refused, so that nothing is suspended that
/// the store says is online. A store that is refused later leaves what it said before in force.
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

  /// Whether the last look found the driver, which was there at the start, unreadable or gone:
  /// nothing is known then of what uses a GPU. The message sink hears of it once, and once when it
  /// is back. Any thread; false while it is not started.
  [[nodiscard]] virtual bool driver_gone() const noexcept = 0;
};

/// \param say hears what goes wrong, on any thread.
[[nodiscard]] std::unique_ptr<discovery> make_discovery(std::unique_ptr<survey> of,
                                                        roles::classification_rules rules = {},
                                                        message_sink say = messages_to_stderr());

/// One look: the roles, with their reasons, that a scheduler with these rules would give now,
/// without what is only said inside it (set_role()). Starts no thread and follows nothing.
/// Threading: any thread, one survey by one. Cost: as a discovery's first look.
[[nodiscard]] roles::role_reasons roles_now(survey& of, const roles::classification_rules& rules,
                                            const message_sink& say);

/// Whether a discovery can follow these rules. Any thread. Blocks on file operations where the role
/// store is another one.
/// \param before whose role store is followed already: that one is not read again.
/// \param message on failure, one sentence.
/// \return errc::bad_config when the rules have a problem or their store is refused, the system's
///         error when it cannot be read.
[[nodiscard]] result<void> check_rules(const roles::classification_rules& rules,
                                       const roles::classification_rules& before,
                                       std::string& message);

}  // namespace sluice
#pragma GCC visibility pop
