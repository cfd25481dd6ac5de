#pragma once
/// \file
/// What the agent and its helpers take from themselves once they have what they need. SECURITY.md
/// in this folder says what the filter is worth.

#include <cstdint>
#include <string_view>
#include <vector>

#include "sluice/result.hpp"

#pragma GCC visibility push(default)
namespace sluice::agent {

/// Whose system calls are let through. What each of them needs in any case is there already.
enum class confined : std::uint8_t {
  agent,     ///< Threads, files to read, timers and epoll.
  guardian,  ///< Threads, files to read, and to kill the agent.
  helper,    ///< A driver's own: no threads, and hardly more than to read, to write and to end.
};

/// A system call that is let through.
struct allowed_call {
  struct condition {
    unsigned argument = 0;
    std::uint64_t mask = 0;   ///< These bits of it...
    std::uint64_t value = 0;  ///< ...are just these.
  };
  std::string_view name;          ///< The kernel's, such as "ptrace".
  std::vector<condition> when{};  ///< All hold.
};

/// What a driver needs beyond that.
struct confinement {
  confined who = confined::agent;
  std::vector<int> capabilities{};  ///< That stay, where they are there (linux/capability.h).
  std::vector<allowed_call> calls{};
  /// A descriptor that may not be closed, nor any with a higher number: what a condition names by
  /// its number shall not become another. RLIMIT_NOFILE keeps others from it. -1: none.
  int kept_fd = -1;
};

/// Any argument is just this value.
[[nodiscard]] constexpr allowed_call::condition argument_is(unsigned argument,
                                                            std::uint64_t value) noexcept {
  return {argument, ~std::uint64_t{0}, value};
}

[[nodiscard]] result<void> drop_capabilities(const confinement& how);
/// Of all threads, for good. A call that is not let through kills the process.
[[nodiscard]] result<void> filter_system_calls(const confinement& how);
[[nodiscard]] inline result<void> confine(const confinement& how) {
  if (const auto dropped = drop_capabilities(how); !dropped) return dropped;
  return filter_system_calls(how);
}

}  // namespace sluice::agent
#pragma GCC visibility pop
