#pragma once
/// \file
/// The rules by which a process becomes online or offline, and how to read them from a TOML file
/// and from the environment.

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sluice/os/process_identity.hpp"
#include "sluice/result.hpp"
#include "sluice/role.hpp"

#pragma GCC visibility push(default)
namespace sluice::roles {

/// Patterns are those of fnmatch(3): `*` any characters, `/` included, `?` one, `[a-z]` one of
/// these. A backslash stands for itself, as in the names that systemd makes.
///
/// A pattern of cgroups begins with `/`, means the whole path as /proc/PID/cgroup shows it (of the
/// unified hierarchy or of any other), and holds for all cgroups below one that it matches. Where
/// cgroups are delegated to users, these choose the names below: begin a pattern with the path down
/// to there.

/// Whose word counts. A process is granted what any one of the three gives it. Credentials are the
/// real ones, with supplementary groups, as this process's user namespace shows them.
struct claim_grant {
  bool everyone = false;
  std::vector<uid_t> users{};
  std::vector<gid_t> groups{};
  std::vector<std::string> cgroups{};  ///< Patterns.

  /// The user this process runs as.
  static claim_grant own_user() { return {.users = {::getuid()}}; }

  friend bool operator==(const claim_grant&, const claim_grant&) = default;
};

/// Whether the process that has this pid now is granted something. For whoever decides about claims
/// that are made elsewhere, over a client's socket, say: hold a pidfd, and see afterwards that the
/// process has not ended meanwhile.
///
/// \param connected_as the user that made the claim, as SO_PEERCRED says. A process that is another
///        user's by now (it may have run a set-uid program) is granted nothing by user or group.
///
/// Threading: any thread.
/// Errors:    false where its credentials and cgroups cannot be read, but for `everyone`.
/// Cost:      two reads of /proc.
[[nodiscard]] bool grants(const claim_grant& grant, pid_t pid, uid_t connected_as);

/// A process whose environment has `variable` with a value that `value` (a pattern) matches claims
/// the role. As for getenv(), the first entry of that name counts.
struct environment_rule {
  std::string variable;
  std::string value;
  role what = role::unmatched;  ///< online or offline.

  friend bool operator==(const environment_rule&, const environment_rule&) = default;
};

struct cgroup_rule {
  std::string cgroup;  ///< Pattern.
  role what = role::unmatched;

  friend bool operator==(const cgroup_rule&, const cgroup_rule&) = default;
};

/// Queues whose ring begins at `first` to `last`, both included.
struct ring_rule {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  role what = role::unmatched;  ///< online or offline.

  friend bool operator==(const ring_rule&, const ring_rule&) = default;
};

/// Who starts jobs on several nodes, and says so in their environment.
enum class gang_engine : std::uint8_t { none, slurm };

/// What makes processes a gang: a group that is suspended as one, for the others of it would wait
/// (spinning, mostly) for the one that does not run. The first that a process fits:
///
/// 1. configuration: the same value of one of `variables`, or the same cgroup of those that a
///    pattern of `cgroups` matches (the one nearest to the root);
/// 2. ranks: RANK, WORLD_SIZE (2 or more) and MASTER_ADDR in the environment; the same address,
///    MASTER_PORT and size, and the same network where the address is this host's loopback;
/// 3. a Slurm job: SLURM_JOB_ID;
/// 4. a Kubernetes pod: its cgroup.
///
/// What the environment says joins processes of one user only. In gangs of 1 and 2 all members
/// count: one online makes the gang online, one unmatched keeps it from being touched. In those of
/// 3 and 4, which may hold unrelated processes, the offline members are one gang and the online
/// ones another.
struct gang_rules {
  std::vector<std::string> variables{};
  std::vector<std::string> cgroups{};  ///< Patterns.
  bool ranks = true;
  bool slurm = true;
  bool pods = true;
  /// Jobs of this engine on several nodes are gangs whose offline processes are held on all nodes
  /// or on none, while the nodes answer each other (sluice/gang_state.hpp). They come after 1
  /// above. Slurm: SLURM_JOB_ID, and SLURM_JOB_NUM_NODES (or SLURM_NNODES) of 2 or more; parts of
  /// heterogeneous jobs are not.
  gang_engine across_nodes = gang_engine::none;
  /// Whether another gang that reaches beyond this node may be offline. It does when not all ranks
  /// 0 to WORLD_SIZE - 1 are among the processes seen here (so no address need be resolved, and a
  /// gang is untouched until its last rank has opened the device), or, in other gangs, when
  /// SLURM_NNODES (or SLURM_JOB_NUM_NODES) is 2 or more. Off: its offline processes are unmatched.
  /// Since that is the environment's word, a process can so escape being offline: on where users
  /// would.
  bool allow_partial = false;

  friend bool operator==(const gang_rules&, const gang_rules&) = default;
};

/// How a process gets its role. The first that applies, in this order:
///
/// 1. never_touch;
/// 2. what was said of it: by_process with discovery::set_role(), then the role store's entries by
///    process (sluice/roles/role_store.hpp);
/// 3. its own claim, as far as it is granted: AMD_QUEUE_TAG=ONLINE_AI or OFFLINE_AI, then
///    AMD_QUEUE_PRIORITY=0..15 (online from online_priority on, offline below), then by_environment
///    in order, all as the environment was at its exec;
/// 4. by_pid, then cgroups: the role store's in order, then by_cgroup in order;
/// 5. its compute queues, as far as their role is granted to it, for it chooses both: each has the
///    role of the first of by_ring that holds its ring, else it is online where queue_priority is
///    set and its priority is online_priority or more. One online queue makes the process online;
///    otherwise one offline makes it offline, once all its queues are known.
///
/// Where its environment may not be read and its claim to be online would be granted, 4 and 5 make
/// it online or nothing: it may claim just that.
///
/// What none applies to stays unmatched and is never touched. This process itself may be online but
/// is never offline, nor is one while the role store says that it is released.
struct classification_rules {
  std::vector<process_identity> never_touch{};
  /// Said explicitly; discovery::set_role() adds to it and takes from it later.
  std::map<process_identity, role> by_process{};
  /// The role store's file, followed while running; empty: none.
  std::string role_store = default_role_store;
  /// Any process can set a variable, so grant nobody who would gain by lying.
  claim_grant may_claim_online = claim_grant::own_user();
  claim_grant may_claim_offline = claim_grant::own_user();
  std::vector<environment_rule> by_environment{};
  std::map<process_identity, role> by_pid{};
  std::vector<cgroup_rule> by_cgroup{};
  std::vector<ring_rule> by_ring{};
  unsigned online_priority = 10;  ///< 0 to 15.
  /// Needs debugfs to be readable, as by_ring does. Priorities are read when a queue comes or goes;
  /// a change in between goes unnoticed.
  bool queue_priority = false;
  gang_rules gangs{};

  static constexpr const char* default_role_store = "/var/lib/sluice/roles";

  /// \return one sentence that names the first bad setting by its key in the table [roles], its
  ///         value and what is allowed; empty when there is none.
  [[nodiscard]] std::string problem() const;

  friend bool operator==(const classification_rules&, const classification_rules&) = default;
};

/// Whether a process may have the role that it asks for, as a client does: it is granted that role,
/// or an administrator has given it that role already (role store, `by_pid`, `by_cgroup`).
///
/// \param who          hold a pidfd, and see afterwards that it has not ended meanwhile.
/// \param connected_as as for grants().
///
/// Threading: any thread.
/// Errors:    false where its cgroups cannot be read. A role store that cannot be read has no
///            roles.
/// Cost:      reads of /proc, and of the role store where the role is not granted.
[[nodiscard]] bool may_be(const classification_rules& rules, role what, const process_identity& who,
                          uid_t connected_as);

/// Reads the table [roles] of a TOML file, then the variable SLUICE_ROLES: TOML too, the table's
/// content ("online_priority = 12"), each key in place of the file's. README.md lists the keys with
/// their defaults. Names of users and groups are looked up here, and a pid means the process that
/// has it now.
///
/// \param path    empty: no file.
/// \param message on failure, one line that names file, line, key, value and what is allowed.
///
/// Threading: reads the environment: not while another thread writes it.
/// Errors:    errc::bad_config, or the system's error for a file that cannot be read.
[[nodiscard]] result<classification_rules> load_classification(const std::string& path,
                                                               std::string& message);
/// The same.
/// \param problems on failure, one such line for every error is added: the file's, or where it has
///                 none, the variable's.
[[nodiscard]] result<classification_rules> load_classification(const std::string& path,
                                                               std::vector<std::string>& problems);

}  // namespace sluice::roles
#pragma GCC visibility pop
