#include "sluice/os/proc.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

#include "sluice/os/process_identity.hpp"
#include "sluice/os/unique_fd.hpp"

namespace sluice {

namespace {

struct proc_path {
  std::array<char, 40> text;
  proc_path(pid_t pid, const char* leaf) {
    std::snprintf(text.data(), text.size(), "/proc/%d/%s", pid, leaf);
  }
};

}  // namespace

std::optional<std::string_view> read_small_file(const char* path, std::span<char> into,
                                                int directory) noexcept {
  const unique_fd fd{::openat(directory, path, O_RDONLY | O_CLOEXEC)};
  if (!fd) return {};
  for (;;) {
    const ssize_t got = ::read(fd.get(), into.data(), into.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return {};
    return std::string_view{into.data(), static_cast<std::size_t>(got)};
  }
}

namespace {

/// A number from field 3 on of a stat line.
std::optional<std::uint64_t> stat_field(std::string_view line, int wanted) noexcept {
  const std::size_t command_end = line.rfind(')');
  if (command_end == std::string_view::npos) return {};
  line.remove_prefix(command_end + 1);
  // The next field, the state, is number 3.
  for (int field = 3; field <= wanted; ++field) {
    const std::size_t begin = line.find_first_not_of(' ');
    if (begin == std::string_view::npos) return {};
    line.remove_prefix(begin);
    const std::size_t end = line.find_first_of(" \n");
    const std::string_view text = line.substr(0, end);
    if (field == wanted) return parse_number<std::uint64_t>(text);
    line.remove_prefix(text.size());
  }
  return {};
}

std::optional<std::uint64_t> stat_field_of(pid_t pid, int wanted) noexcept {
  std::array<char, 1024> buffer;
  const auto text = read_small_file(proc_path{pid, "stat"}.text.data(), buffer);
  return text ? stat_field(*text, wanted) : std::nullopt;
}

/// Of field 9 of a stat line.
bool is_exiting_flag_set(std::uint64_t flags) noexcept {
  constexpr std::uint64_t kernels_pf_exiting = 0x4;  // include/linux/sched.h
  return (flags & kernels_pf_exiting) != 0;
}

}  // namespace

std::optional<std::uint64_t> parse_start_time(std::string_view line) noexcept {
  return stat_field(line, 22);
}

bool leader_is_exiting(pid_t pid) noexcept {
  const auto flags = stat_field_of(pid, 9);
  return !flags || is_exiting_flag_set(*flags);
}

bool is_kernel_thread(pid_t pid) noexcept {
  constexpr std::uint64_t kernels_pf_kthread = 0x200000;  // include/linux/sched.h
  return (stat_field_of(pid, 9).value_or(0) & kernels_pf_kthread) != 0;
}

bool is_own_child(pid_t pid) noexcept {
  return stat_field_of(pid, 4) == static_cast<std::uint64_t>(::getpid());
}

namespace {

/// Calls `see` with each thread, and whether it is on its way out.
template <class See>
void for_each_thread(pid_t pid, const See& see) {
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  (void)for_each_numbered_entry<pid_t>(tasks, [&](pid_t thread) {
    std::array<char, 1024> buffer;
    const auto text =
        read_small_file((tasks + "/" + std::to_string(thread) + "/stat").c_str(), buffer);
    if (text) see(thread, is_exiting_flag_set(stat_field(*text, 9).value_or(0)));
  });
}

}  // namespace

bool is_exiting(pid_t pid) {
  bool any = false;
  bool all = true;
  for_each_thread(pid, [&](pid_t, bool exits) {
    any = true;
    all &= exits;
  });
  return any && all;
}

std::string debugger_of(pid_t pid) {
  const pid_t tracer = tracer_of(pid).value_or(0);
  if (tracer == 0) return "another debugger";
  const pid_t process = process_of(tracer).value_or(tracer);
  return "process " + std::to_string(process) + " (" + command_of(process) + ")";
}

pid_t living_thread_of(pid_t pid) {
  pid_t found = 0;
  for_each_thread(pid, [&](pid_t thread, bool exits) {
    if (thread != pid && !exits) found = thread;
  });
  return found;
}

std::uint64_t environment_end_of(pid_t pid) noexcept {
  std::array<char, 1024> buffer;
  const auto text = read_small_file(proc_path{pid, "stat"}.text.data(), buffer);
  // An exec sets the end of the environment to its begin first, and the end of the code after it.
  if (!text || stat_field(*text, 27).value_or(0) == 0) return 0;
  return stat_field(*text, 51).value_or(0);
}

std::optional<std::uint64_t> start_time_of(pid_t pid) noexcept { return stat_field_of(pid, 22); }

result<process_identity> identity_of(pid_t pid) {
  const auto start = start_time_of(pid);
  if (!start) return errc::unknown_target;
  return process_identity{pid, *start};
}

std::optional<std::uint64_t> status_number(std::string_view status, std::string_view key) noexcept {
  while (!status.empty()) {
    const std::size_t end = status.find('\n');
    std::string_view line = status.substr(0, end);
    status.remove_prefix(end == std::string_view::npos ? status.size() : end + 1);
    if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ':') continue;
    line.remove_prefix(key.size() + 1);
    const std::size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return {};
    line.remove_prefix(begin);
    return parse_number<std::uint64_t>(line.substr(0, line.find_first_of(" \t")));
  }
  return {};
}

std::optional<pid_t> tracer_of(pid_t pid) noexcept {
  std::array<char, 4096> buffer;
  const auto text = read_small_file(proc_path{pid, "status"}.text.data(), buffer);
  const auto number = text ? status_number(*text, "TracerPid") : std::nullopt;
  if (!number) return {};
  return static_cast<pid_t>(*number);
}

std::optional<pid_t> process_of(pid_t thread) noexcept {
  std::array<char, 4096> buffer;
  const auto text = read_small_file(proc_path{thread, "status"}.text.data(), buffer);
  const auto number = text ? status_number(*text, "Tgid") : std::nullopt;
  if (!number) return {};
  return static_cast<pid_t>(*number);
}

std::optional<uid_t> user_of(pid_t pid) noexcept {
  std::array<char, 4096> buffer;
  const auto text = read_small_file(proc_path{pid, "status"}.text.data(), buffer);
  const auto number = text ? status_number(*text, "Uid") : std::nullopt;
  if (!number) return {};
  return static_cast<uid_t>(*number);
}

std::string command_of(pid_t pid) {
  std::array<char, 64> buffer;
  const auto text = read_small_file(proc_path{pid, "comm"}.text.data(), buffer);
  if (!text || text->empty()) return "?";
  return std::string{text->substr(0, text->find('\n'))};
}

}  // namespace sluice
