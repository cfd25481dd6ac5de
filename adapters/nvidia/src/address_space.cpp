#include "address_space.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
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

/// A line of /proc/PID/maps, "begin-end rw-p offset device inode path": the addresses of a mapping
/// in which handles may be, else two equal ones.
std::pair<std::uint64_t, std::uint64_t> place_of(std::string_view line) {
  constexpr std::pair<std::uint64_t, std::uint64_t> none{};
  std::pair<std::uint64_t, std::uint64_t> place;
  const char* const end = line.data() + line.size();
  const auto begin = std::from_chars(line.data(), end, place.first, 16);
  if (begin.ec != std::errc{} || begin.ptr == end || *begin.ptr != '-') return none;
  const auto last = std::from_chars(begin.ptr + 1, end, place.second, 16);
  if (last.ec != std::errc{} || place.second < place.first) return none;
  const std::string_view rest{last.ptr, static_cast<std::size_t>(end - last.ptr)};
  if (!rest.starts_with(" rw-p ")) return none;
  const bool heap = rest.ends_with("[heap]");
  // Anonymous: no path, and so the line ends with the inode 0 and blanks.
  const auto text = rest.substr(0, rest.find_last_not_of(' ') + 1);
  if (!heap && !text.ends_with(" 0")) return none;
  if (place.second - place.first > (heap ? largest_heap : largest_mapping)) return none;
  return place;
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

std::vector<handle_scan::candidate> address_space::find_clients() const {
  handle_scan seen;
  std::vector<std::uint32_t> words(piece_bytes / sizeof(std::uint32_t));
  const auto maps = read_whole_file("/proc/" + std::to_string(pid_) + "/maps", largest_maps);
  if (!maps) return {};
  for (std::string_view rest = *maps; !rest.empty();) {
    const auto line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    auto [at, end] = place_of(line);
    while (at < end) {
      const std::size_t wanted = std::min<std::uint64_t>(piece_bytes, end - at);
      const ssize_t got = ::pread(memory_.get(), words.data(), wanted, static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      seen.feed({words.data(), static_cast<std::size_t>(got) / sizeof(std::uint32_t)});
      at += static_cast<std::uint64_t>(got);
    }
  }
  return seen.found();
}

}  // namespace sluice::nvidia
