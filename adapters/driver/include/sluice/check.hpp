#pragma once
/// \file
/// What `sluice doctor` finds on a machine: one check for each thing that preemption needs. A
/// driver has checks of its own (driver::examine()).

#include <cstdint>
#include <optional>
#include <string>

#pragma GCC visibility push(default)
namespace sluice {

enum class verdict : std::uint8_t {
  good,
  note,     ///< Works, with a limit that somebody may want to know or lift.
  unknown,  ///< It could not be found out.
  blocked,  ///< Preemption cannot work like this.
};

struct check {
  std::string name;
  verdict what{};
  std::string found;
  std::string how{};     ///< How that is known.
  std::string advice{};  ///< What to do; empty where there is nothing to do.
};

/// What is looked at. Tests look at another machine.
struct machine {
  std::string prefix{};  ///< Goes before /proc and /sys.
  std::string agent{};   ///< Path of sluice-agent; empty: not found.

  /// Of a file below /proc or /sys. \return nothing when it cannot be read, or is empty.
  [[nodiscard]] std::optional<std::string> first_line(const std::string& path) const;
};

}  // namespace sluice
#pragma GCC visibility pop
