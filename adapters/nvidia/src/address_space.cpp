#include "address_space.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "sluice/os/whole_file.hpp"

namespace sluice::nvidia {

namespace {

/// libcuda's objects lie in the heap or in arenas of malloc(), which have at most 64 MiB.
/// Larger mappings hold data.
constexpr std::uint64_t largest_mapping = 128U << 20U;
constexpr std::uint64_t largest_heap = 1024U << 20U;
/// 65530 mappings, the kernel's default limit, with long paths.
constexpr std::size_t largest_maps = 64U << 20U;
constexpr std::size_t piece_bytes = 256U << 10U;

/// A line of /proc/PID/maps: "begin-end rw-p offset device inode path".
struct mapping_line {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string_view rest{};  ///< From the blank before the rights on.
};
std::optional<mapping_line> parse_mapping(std::string_view line) {
  mapping_line made;
  const char* const end = line.data() + line.size();
  const auto begin = std::from_chars(line.data(), end, made.begin, 16);
  if (begin.ec != std::errc{} || begin.ptr == end || *begin.ptr != '-') return {};
  const auto last = std::from_chars(begin.ptr + 1, end, made.end, 16);
  if (last.ec != std::errc{} || made.end < made.begin) return {};
  made.rest = {last.ptr, static_cast<std::size_t>(end - last.ptr)};
  return made;
}

/// Whether handles of clients may be in it.
bool may_have_handles(const mapping_line& of) {
  if (!of.rest.starts_with(" rw-p ")) return false;
  const bool heap = of.rest.ends_with("[heap]");
  // Anonymous: no path, and so the line ends with the inode 0 and blanks.
  const auto text = of.rest.substr(0, of.rest.find_last_not_of(' ') + 1);
  if (!heap && !text.ends_with(" 0")) return false;
  return of.end - of.begin <= (heap ? largest_heap : largest_mapping);
}

/// \param use returns whether to go on.
/// \return false where it did not.
template <class Use>
bool for_each_mapping(pid_t pid, const Use& use) {
  const auto maps = read_whole_file("/proc/" + std::to_string(pid) + "/maps", largest_maps);
  if (!maps) return true;
  for (std::string_view rest = *maps; !rest.empty();) {
    const auto line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (const auto parsed = parse_mapping(line); parsed && !use(*parsed)) return false;
  }
  return true;
}

}  // namespace

result<address_space> address_space::open(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/mem";
  unique_fd memory{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!memory) return last_system_error();
  return address_space{pid, std::move(memory)};
}

bool address_space::is_alive() const noexcept {
  // The end of the file where it is not in use any more; no such address (EIO) where it is.
  char ignored = 0;
  return ::pread(memory_.get(), &ignored, 1, 0) != 0;
}

address_space::search address_space::find_clients(duration at_most, const stop_function& stops) {
  const time_point begun = clock::now();
  const std::uint64_t before = std::exchange(searched_, 0);
  std::vector<std::uint32_t> words(piece_bytes / sizeof(std::uint32_t));
  const bool complete = for_each_mapping(pid_, [&](const mapping_line& each) {
    if (!may_have_handles(each)) return true;
    for (std::uint64_t at = std::max(each.begin, before); at < each.end;) {
      const std::size_t wanted = std::min<std::uint64_t>(piece_bytes, each.end - at);
      const ssize_t got = ::pread(memory_.get(), words.data(), wanted, static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      seen_.feed({words.data(), static_cast<std::size_t>(got) / sizeof(std::uint32_t)});
      at += static_cast<std::uint64_t>(got);
      if (clock::now() - begun < at_most && !(stops && stops())) continue;
      searched_ = at;
      return false;
    }
    return true;
  });
  if (!complete) return {};
  return {.found = std::exchange(seen_, handle_scan{}).found(), .complete = true};
}

std::vector<device_mapping> address_space::device_mappings(
    const std::function<std::optional<gpu_id>(unsigned minor)>& gpu_of) const {
  std::vector<device_mapping> found;
  (void)for_each_mapping(pid_, [&](const mapping_line& each) {
    // A doorbell is not readable, and slow to read.
    if (!each.rest.starts_with(" rw-s ")) return true;
    const std::string_view name = each.rest.substr(each.rest.rfind('/') + 1);
    if (name == "nvidiactl") {
      found.push_back({each.begin, each.end, gpu_id::none});
      return true;
    }
    constexpr std::string_view node = "nvidia";
    unsigned minor = 0;
    const char* const end = name.data() + name.size();
    if (!name.starts_with(node)) return true;
    const auto number = std::from_chars(name.data() + node.size(), end, minor);
    if (number.ec != std::errc{} || number.ptr != end) return true;
    if (const auto gpu = gpu_of(minor)) found.push_back({each.begin, each.end, *gpu});
    return true;
  });
  return found;
}

bool address_space::read(std::uint64_t at, std::span<std::uint32_t> into) const noexcept {
  const auto bytes = static_cast<ssize_t>(into.size_bytes());
  for (;;) {
    const ssize_t got =
        ::pread(memory_.get(), into.data(), into.size_bytes(), static_cast<off_t>(at));
    if (got >= 0 || errno != EINTR) return got == bytes;
  }
}

}  // namespace sluice::nvidia
