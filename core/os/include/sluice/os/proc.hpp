#pragma once
/// \file
/// Small readers of /proc and of attribute files: plain reads, no seeking, no state.

#include <dirent.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "sluice/os/unique_fd.hpp"

namespace sluice {

/// Reads up to `into.size()` bytes of an attribute file, or of one of /proc that is one record:
/// what their first read leaves free shows that it was all. A relative path is one below
/// `directory`. \return the text read, nothing when the file cannot be read.
std::optional<std::string_view> read_small_file(const char* path, std::span<char> into,
                                                int directory = AT_FDCWD) noexcept;

/// Field 22 of /proc/PID/stat: clock ticks from boot to the process's start; with the pid, its
/// identity. An exec keeps it.
std::optional<std::uint64_t> start_time_of(pid_t pid) noexcept;
/// Field 22 of a stat line; the command in field 2 may hold spaces and parentheses.
std::optional<std::uint64_t> parse_start_time(std::string_view stat_line) noexcept;

/// Whether all threads of the process are on their way out: it has no memory any more, though it
/// may be seconds until it has ended (its memory is large, or a tracer has not waited for a thread
/// of it). False for one of which only the main thread has ended, and for one that is gone.
bool is_exiting(pid_t pid);
/// The tracer of the process, for a message: "process 42 (gdb)", or "another debugger" if there is
/// none.
std::string debugger_of(pid_t pid);
/// A thread of the process that is not on its way out, other than the main thread. 0: none.
pid_t living_thread_of(pid_t pid);
/// Whether the main thread is on its way out, or gone. False before the stop of a traced one.
bool leader_is_exiting(pid_t pid) noexcept;
/// Whether the pid is that of a thread of the kernel, which has no descriptors.
bool is_kernel_thread(pid_t pid) noexcept;
/// Whether this process is the parent.
bool is_own_child(pid_t pid) noexcept;

/// Field 51 of /proc/PID/stat: the address at which the environment of the program ends. 0: it has
/// none yet, early in an exec, or no longer, because the process exits; /proc/PID/environ reads as
/// empty then, as it does for an empty environment.
std::uint64_t environment_end_of(pid_t pid) noexcept;

/// TracerPid of /proc/PID/status: a thread's id, 0 when nobody traces the process.
std::optional<pid_t> tracer_of(pid_t pid) noexcept;
/// The process that a thread belongs to, or the process itself. \return nothing: there is none.
std::optional<pid_t> process_of(pid_t thread) noexcept;
/// Real user id of the process.
std::optional<uid_t> user_of(pid_t pid) noexcept;
/// Value of "Key:<blanks>number" in a status text.
std::optional<std::uint64_t> status_number(std::string_view status, std::string_view key) noexcept;

/// /proc/PID/comm without its line end; "?" when it cannot be read.
std::string command_of(pid_t pid);

/// The whole text as one unsigned decimal, blanks and a line end after it allowed.
template <class Number>
std::optional<Number> parse_number(std::string_view text) noexcept {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

/// \return no descriptor when there is no such directory, or it cannot be read.
inline unique_fd open_directory(const std::string& path) {
  return unique_fd{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
}

/// Calls `visit(n)`, or `visit(n, inode)`, for every entry of an open directory whose whole name is
/// a decimal number.
/// \return false when the directory cannot be read.
template <class Number, class Visit>
bool for_each_numbered_entry(const unique_fd& directory, Visit visit) {
  if (!directory || ::lseek(directory.get(), 0, SEEK_SET) != 0) return false;
  alignas(dirent64) std::array<char, 8192> piece;
  for (;;) {
    const ssize_t got = ::getdents64(directory.get(), piece.data(), piece.size());
    if (got <= 0) return got == 0;
    for (ssize_t at = 0; at < got;) {
      const auto* const entry = reinterpret_cast<const dirent64*>(piece.data() + at);
      at += entry->d_reclen;
      const auto number = parse_number<Number>(entry->d_name);
      if (!number) continue;
      if constexpr (std::is_invocable_v<Visit, Number, ino_t>) {
        visit(*number, entry->d_ino);
      } else {
        visit(*number);
      }
    }
  }
}

/// The same by its name.
template <class Number, class Visit>
bool for_each_numbered_entry(const std::string& directory, Visit visit) {
  return for_each_numbered_entry<Number>(open_directory(directory), std::move(visit));
}

}  // namespace sluice
