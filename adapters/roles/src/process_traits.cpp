#include "sluice/roles/process_traits.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include "sluice/os/proc.hpp"
#include "sluice/os/unique_fd.hpp"

namespace sluice::roles {

namespace {

/// Far above what the kernel prints: 64 Ki supplementary groups, or paths of 4 KiB in each of some
/// dozen hierarchies.
constexpr std::size_t most_text = 1U << 20U;

result<std::string> read_text(const std::string& path) {
  std::string text;
  const unique_fd fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!fd) return last_system_error();
  std::array<char, 4096> piece;
  while (text.size() < most_text) {
    const ssize_t got = ::read(fd.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return last_system_error();
    if (got == 0) break;
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
  return text;
}

/// struct pidfd_info as its first version (Linux 6.13, include/uapi/linux/pidfd.h), which later
/// kernels go on to fill: libraries' headers are older.
struct pidfd_info {
  std::uint64_t mask;
  std::uint64_t cgroupid;
  std::uint32_t pid, tgid, ppid;
  std::uint32_t ruid, rgid, euid, egid, suid, sgid, fsuid, fsgid;
  std::int32_t exit_code;
};
static_assert(sizeof(pidfd_info) == 64);
constexpr unsigned long get_pidfd_info = _IOWR(0xFF, 11, pidfd_info);
constexpr std::uint64_t with_credentials = 1U << 1U;
constexpr std::uint64_t with_cgroup = 1U << 2U;

/// Takes what comes before `end` off the text.
std::string_view take(std::string_view& text, char end) {
  const std::size_t length = std::min(text.find(end), text.size());
  const std::string_view taken = text.substr(0, length);
  text.remove_prefix(std::min(length + 1, text.size()));
  return taken;
}

}  // namespace

std::optional<credentials> parse_credentials(std::string_view status) {
  const auto user = status_number(status, "Uid");
  const auto group = status_number(status, "Gid");
  if (!user || !group) return {};
  credentials found{static_cast<uid_t>(*user), {static_cast<gid_t>(*group)}};
  constexpr std::string_view key = "Groups:";
  while (!status.empty()) {
    std::string_view line = take(status, '\n');
    if (!line.starts_with(key)) continue;
    line.remove_prefix(key.size());
    while (!line.empty()) {
      const auto number = parse_number<gid_t>(take(line, line.front() == '\t' ? '\t' : ' '));
      if (number) found.groups.push_back(*number);
    }
    break;
  }
  return found;
}

std::vector<std::string> parse_cgroups(std::string_view text) {
  std::vector<std::string> paths;
  std::string unified;
  while (!text.empty()) {
    // "<hierarchy>:<controllers>:<path>"; the unified one has number 0 and no controllers.
    std::string_view line = take(text, '\n');
    const std::string_view hierarchy = take(line, ':');
    (void)take(line, ':');
    if (!line.starts_with('/')) continue;
    if (hierarchy == "0")
      unified = line;
    else if (std::ranges::find(paths, line) == paths.end())
      paths.emplace_back(line);
  }
  if (!unified.empty()) {
    std::erase(paths, unified);
    paths.insert(paths.begin(), std::move(unified));
  }
  return paths;
}

std::map<std::string, std::string, std::less<>> parse_environment(
    std::string_view environment, const std::set<std::string, std::less<>>& wanted) {
  std::map<std::string, std::string, std::less<>> found;
  while (!environment.empty()) {
    const std::string_view entry = take(environment, '\0');
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = entry.substr(0, equals);
    if (wanted.contains(name)) found.emplace(name, entry.substr(equals + 1));
  }
  return found;
}

bool read_changing_traits(process_traits& of) {
  const std::string directory = "/proc/" + std::to_string(of.who.pid);
  bool all = true;
  const auto read = [&](const char* name) -> std::optional<std::string> {
    auto text = read_text(directory + name);
    if (text) return std::move(*text);
    if (!is_for_want_of_descriptors(text.error().value())) return "";
    all = false;
    return {};
  };
  if (const auto status = read("/status")) of.as = parse_credentials(*status);
  if (const auto cgroup = read("/cgroup")) of.cgroups = parse_cgroups(*cgroup);
  return all;
}

result<std::map<std::string, std::string, std::less<>>> read_variables(
    pid_t pid, const std::set<std::string, std::less<>>& wanted) {
  const auto environment = read_text("/proc/" + std::to_string(pid) + "/environ");
  if (!environment) return environment.error();
  return parse_environment(*environment, wanted);
}

std::optional<standing> standing_of(int pidfd) noexcept {
  constexpr std::uint64_t wanted = with_credentials | with_cgroup;
  pidfd_info info{};
  info.mask = wanted;
  if (::ioctl(pidfd, get_pidfd_info, &info) != 0 || (info.mask & wanted) != wanted) return {};
  return standing{info.ruid, info.rgid, info.cgroupid};
}

std::uint64_t network_of(pid_t pid) noexcept {
  struct stat found {};
  std::array<char, 40> path;
  std::snprintf(path.data(), path.size(), "/proc/%d/ns/net", pid);
  return ::stat(path.data(), &found) == 0 ? found.st_ino : 0;
}

}  // namespace sluice::roles
