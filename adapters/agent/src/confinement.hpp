#pragma once
/// \file
/// What the agent and its helpers take from themselves once they have what they need. SECURITY.md
/// beside it says why each capability stays, and what the filter is worth.

#include <cstdint>
#include <string_view>
#include <vector>

#include "sluice/result.hpp"

namespace sluice::agent {

/// Whose system calls are let through.
enum class confined : std::uint8_t {
  agent,
  guardian,   ///< kfd::pause_guard
  bell_maker  ///< kfd::bell_maker
};

struct confinement {
  confined who = confined::agent;
  /// Of the whole process, which goes on to use the driver's CRIU commands.
  bool criu_pause = false;
  /// The driver has batch commands, of which one wants an administrator.
  bool reservations = false;
  /// Of the agent: the one pidfd whose process's descriptors it may take (kfd::bell_maker), with a
  /// number that RLIMIT_NOFILE allows to no other; -1: of none. With criu_pause it takes those of
  /// its targets.
  int bells = -1;
};

/// The capabilities that stay, as far as this process has them (linux/capability.h).
[[nodiscard]] std::vector<int> kept_capabilities(const confinement& how);

/// Gives up all other capabilities, in every set, for good, and forbids this process to gain any.
///
/// Threading: while there is one thread; those to come inherit it.
[[nodiscard]] result<void> drop_capabilities(const confinement& how);

/// Has the kernel kill the process at any system call that is not listed for it: of an agent that
/// is made to do something else nothing is to be expected any more, and with its end everything
/// runs. Builds with a sanitizer make calls of their own, so in them this does nothing.
///
/// Threading: all threads that there are, and those to come.
[[nodiscard]] result<void> filter_system_calls(const confinement& how);

}  // namespace sluice::agent
