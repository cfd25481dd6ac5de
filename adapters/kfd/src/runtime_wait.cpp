#include "runtime_wait.hpp"

#include <sys/syscall.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

#include "sluice/kfd/uapi.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::kfd {

namespace {

/// Whether a line of /proc/PID/task/TID/syscall shows a wait in the RUNTIME_ENABLE ioctl:
/// "<number> <fd> <command> ...", the arguments in hexadecimal with 0x.
bool is_runtime_enable(std::string_view line) noexcept {
  constexpr std::uint64_t which = (1U << (_IOC_NRBITS + _IOC_TYPEBITS)) - 1;
  std::array<std::uint64_t, 3> words{};
  for (std::size_t index = 0; index < words.size(); ++index) {
    const bool hexadecimal = line.starts_with("0x");
    if (hexadecimal) line.remove_prefix(2);
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), words[index],
                                              hexadecimal ? 16 : 10);
    if (error != std::errc{}) return false;
    line.remove_prefix(static_cast<std::size_t>(end - line.data()));
    if (line.starts_with(' ')) line.remove_prefix(1);
  }
  return words[0] == SYS_ioctl && (words[2] & which) == (uapi::AMDKFD_IOC_RUNTIME_ENABLE & which);
}

}  // namespace

bool waits_in_runtime_enable(pid_t pid) {
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  bool found = false;
  for_each_numbered_entry<pid_t>(tasks, [&](pid_t tid) {
    if (found) return;
    std::array<char, 256> buffer;
    const std::string path = tasks + "/" + std::to_string(tid) + "/syscall";
    const auto line = read_small_file(path.c_str(), buffer);
    found = line && is_runtime_enable(*line);
  });
  return found;
}

}  // namespace sluice::kfd
