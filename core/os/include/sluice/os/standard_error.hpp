#pragma once
/// \file
/// Standard error for those who must not wait for whoever reads it.

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string_view>

#pragma GCC visibility push(default)
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

/// Writes a line of a log, in the one form that all of sluice's programs log in:
/// "2026-01-31 13:37:00.123 [sluice] [warning] <sentence>", in local time. For what a program says
/// while it runs; of its command line, and of the error that ends it, it says "sluice: <sentence>".
///
/// \param sentence without a newline; what a pipe does not take at once is cut off its end.
/// \return whether it was written. If not, the next line that is says how many were lost.
/// Threading: any; lines of several threads do not mix. Errors: none but the result.
inline bool log_to_standard_error(std::string_view program, std::string_view level,
                                  std::string_view sentence) noexcept {
  const auto write = [&](std::string_view grade, std::string_view text) {
    std::array<char, 4096> line;
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    std::tm local{};
    ::localtime_r(&now.tv_sec, &local);
    std::size_t size = std::strftime(line.data(), line.size(), "%Y-%m-%d %H:%M:%S", &local);
    const std::size_t room = line.size() - size;
    const int more = std::snprintf(
        line.data() + size, room, ".%03d [%.*s] [%.*s] %.*s",
        static_cast<int>(now.tv_nsec / 1'000'000), static_cast<int>(program.size()), program.data(),
        static_cast<int>(grade.size()), grade.data(), static_cast<int>(text.size()), text.data());
    if (more < 0) return false;
    size += std::min(static_cast<std::size_t>(more), room - 1);
    line[size++] = '\n';  // Where the zero was.
    return write_to_standard_error({line.data(), size});
  };
  static std::atomic<std::uint64_t> lost{0};
  if (const std::uint64_t count = lost.exchange(0); count != 0) {
    std::array<char, 80> said;
    const int size =
        std::snprintf(said.data(), said.size(), "%llu log line%s lost: standard error was blocked",
                      static_cast<unsigned long long>(count), count == 1 ? " was" : "s were");
    if (!write("warning", {said.data(), static_cast<std::size_t>(size)})) lost += count;
  }
  if (write(level, sentence)) return true;
  ++lost;
  return false;
}

}  // namespace sluice
#pragma GCC visibility pop
