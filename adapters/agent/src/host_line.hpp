#pragma once
/// \file
/// The agent's side of what its host passed to it: descriptors, shared memory, and words.

#include "protocol.hpp"

#include <sys/types.h>

#include <string_view>

#include "sluice/result.hpp"

namespace sluice::agent {

/// Any thread. Never waits: what nobody takes goes to standard error where it should still be read.
void send(const note& what, int pidfd = -1) noexcept;
void say(note_kind kind, std::string_view words, const error_code& error = {}) noexcept;

/// Whether descriptor control_fd is a socket, as it is for who was started by a host.
[[nodiscard]] bool has_host() noexcept;
/// What the host passed is waited for and written to without any more thought, so it is of kinds
/// that make nobody wait: not a file of a file system that answers when it likes, say. And nothing
/// is received from the host: a message may bring descriptors along whose closing takes as long as
/// it wants to.
[[nodiscard]] bool are_as_agreed();
/// The shared memory. \return null when it is not as agreed.
[[nodiscard]] shared_page* map_page();

/// The host's pid, which its pidfd knows and nobody can fake. \return 0 when it cannot be had (no
/// /proc) or the host is gone: the agent then names itself.
[[nodiscard]] pid_t host_pid();

/// Forks, and ends the parent: not a child of the host, so that the host's wait calls never meet
/// it; in a session of its own, so that neither Ctrl-C nor the terminal's end reaches it before the
/// host has decided.
void leave_the_host();

}  // namespace sluice::agent
