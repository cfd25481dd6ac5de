#pragma once
/// \file
/// What the agent's guardian needs to release a process (hold::about), as text.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/nvidia/uapi.hpp"

namespace sluice::nvidia {

struct held_process {
  struct client {
    uapi::NvHandle handle = 0;
    int fd = -1;                 ///< In the process.
    std::uint32_t disables = 0;  ///< Of each of its channels, at most.
    std::uint64_t mount = 0;     ///< As mount_of() its descriptor.
    friend bool operator==(const client&, const client&) = default;
  };
  /// A channel group whose slice may have been changed.
  struct slice {
    uapi::NvHandle client = 0;
    uapi::NvHandle group = 0;
    std::uint64_t own = 0;  ///< Microseconds that it had before.
    friend bool operator==(const slice&, const slice&) = default;
  };
  /// A process that had an open file of it, too, and another kinship.
  struct sharer {
    pid_t pid = 0;
    std::uint64_t start_time = 0;
    friend bool operator==(const sharer&, const sharer&) = default;
  };
  std::vector<client> clients{};
  std::vector<slice> slices{};
  std::vector<sharer> sharers{};
  std::uint64_t kinship = 0;  ///< As kinship_of() it.
};

[[nodiscard]] std::string to_text(const held_process& what);
/// Empty: not the text of a held_process.
[[nodiscard]] std::optional<held_process> parse_held_process(std::string_view text);

}  // namespace sluice::nvidia
