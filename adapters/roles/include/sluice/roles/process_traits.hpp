#pragma once
/// \file
/// What classification looks at in a process, and how to read it from /proc.

#include <sys/types.h>

#include <cerrno>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/os/process_identity.hpp"
#include "sluice/result.hpp"

namespace sluice::roles {

struct credentials {
  uid_t user = 0;               ///< Real: who started it and made its environment.
  std::vector<gid_t> groups{};  ///< The real one, then the supplementary ones.

  friend bool operator==(const credentials&, const credentials&) = default;
};

/// What it is that a process's owner can neither see nor change while it is being looked at.
struct process_traits {
  process_identity who{};
  std::optional<credentials> as{};     ///< Not readable: nothing is granted.
  std::vector<std::string> cgroups{};  ///< Paths, the unified hierarchy's first; no path twice.
  std::map<std::string, std::string, std::less<>> variables{};  ///< Of its environment: the wanted.
  /// Its environment may not be read, so what it claims there is not known.
  bool hidden_environment = false;
  std::uint64_t network = 0;  ///< Inode of its network namespace; 0: not readable.
};

/// Of what may change, what the kernel says in one call and without text. It does not say
/// supplementary groups, nor the cgroups of version 1.
struct standing {
  uid_t user = 0;
  gid_t group = 0;
  std::uint64_t cgroup = 0;  ///< In the unified hierarchy.

  friend bool operator==(const standing&, const standing&) = default;
};

struct queue_traits {
  std::uint64_t ring_base = 0;
  std::optional<std::uint32_t> priority{};
};

/// From the text of /proc/PID/status.
std::optional<credentials> parse_credentials(std::string_view status);
/// From the text of /proc/PID/cgroup.
std::vector<std::string> parse_cgroups(std::string_view text);
/// From an environment, NUL-separated: the first entry of each wanted name.
std::map<std::string, std::string, std::less<>> parse_environment(
    std::string_view environment, const std::set<std::string, std::less<>>& wanted);

/// Reads what may change in a process's life: credentials and cgroups.
/// \return false when no descriptor was left for one of them, which then stays as it was: half of a
///         picture would give the process another role.
bool read_changing_traits(process_traits& of);
/// Of an errno.
inline bool is_for_want_of_descriptors(int error) noexcept {
  return error == EMFILE || error == ENFILE;
}
/// Of its environment as it is now: what is wanted of it. Of another user's process that takes
/// CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH: the file is its owner's alone.
result<std::map<std::string, std::string, std::less<>>> read_variables(
    pid_t pid, const std::set<std::string, std::less<>>& wanted);
/// \return nothing when the process has ended, or the kernel cannot say (before Linux 6.13).
std::optional<standing> standing_of(int pidfd) noexcept;
/// Inode of the network namespace, 0 when it may not be read.
std::uint64_t network_of(pid_t pid) noexcept;

}  // namespace sluice::roles
