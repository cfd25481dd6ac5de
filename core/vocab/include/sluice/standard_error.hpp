#pragma once
/// \file
/// Standard error for those who must not wait for whoever reads it.

#include <poll.h>
#include <unistd.h>

#include <cstddef>
#include <string_view>

namespace sluice {

/// Writes a line if standard error takes it at once: a full pipe or a stopped terminal costs the
/// line, not the caller's time.
///
/// \param line with its newline. At most PIPE_BUF (4096) bytes of it are written: that much goes
///             into a pipe that is ready, whole.
/// \return whether it was written.
/// Threading: any; lines of several threads do not mix. Errors: none but the result.
inline bool write_to_standard_error(std::string_view line) noexcept {
  constexpr std::size_t whole = 4096;
  pollfd ready{STDERR_FILENO, POLLOUT, 0};
  // POLLERR: nobody reads the pipe any more, and a write would raise SIGPIPE.
  if (::poll(&ready, 1, 0) != 1 || ready.revents != POLLOUT) return false;
  return ::write(STDERR_FILENO, line.data(), line.size() < whole ? line.size() : whole) > 0;
}

}  // namespace sluice
