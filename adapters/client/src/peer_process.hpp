#pragma once
/// \file
/// Who is at the other end of a socket, and whether it still lives.

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "sluice/client_server.hpp"
#include "sluice/os/unique_fd.hpp"

namespace sluice::client {

struct identified {
  peer who;
  unique_fd life;  ///< A pidfd: readable once the process has ended.
};

/// \param why on failure, a sentence for the peer.
std::optional<identified> identify(int socket, std::string& why);
/// Whether the pidfd's process has ended.
bool has_ended(int pidfd) noexcept;
/// Whether the kernel is writing the process's core; false where the kernel does not tell.
bool is_dumping_core(pid_t pid) noexcept;
/// From the text of /proc/PID/status.
bool says_core_dumping(std::string_view status) noexcept;

}  // namespace sluice::client
