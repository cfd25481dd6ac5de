#pragma once
/// \file
/// The memory of a process, of one program: an exec ends it.

#include "handle_scan.hpp"
#include "process_words.hpp"
#include "stop_function.hpp"

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice::nvidia {

/// Threading: one thread at a time. Reading neither stops nor changes the process.
class address_space {
 public:
  /// Needs the right to attach to the process (ptrace(2), PTRACE_MODE_ATTACH). \return the system's
  /// error.
  [[nodiscard]] static result<address_space> open(pid_t pid);

  /// Returns whether the process still runs in it.
  [[nodiscard]] bool is_alive() const noexcept;
  struct search {
    std::vector<handle_scan::candidate> found{};
    bool complete = false;  ///< False: nothing is found yet, and the next call continues it.
  };
  /// Looks for handles of RM clients in its heap and its anonymous mappings, for about this time.
  /// \param stops asked after each piece of memory; true ends this call.
  [[nodiscard]] search find_clients(duration at_most, const stop_function& stops = {});

  /// Lists its mappings of the driver's files.
  /// \param gpu_of the GPU of a node (nvidiaN) by the number in its name; none: there is none such.
  [[nodiscard]] std::vector<device_mapping> device_mappings(
      const std::function<std::optional<gpu_id>(unsigned minor)>& gpu_of) const;
  /// Reads words, device memory among them.
  [[nodiscard]] bool read(std::uint64_t at, std::span<std::uint32_t> into) const noexcept;

 private:
  address_space(pid_t pid, unique_fd memory) noexcept : pid_(pid), memory_(std::move(memory)) {}

  pid_t pid_;
  unique_fd memory_;
  std::uint64_t searched_ = 0;  ///< A search that is not complete, up to this address.
  handle_scan seen_;            ///< What it found.
};

}  // namespace sluice::nvidia
