#pragma once
/// \file
/// The parts of sluice that log: each may have a level of its own, and names itself in its lines.

#include <array>
#include <cstdint>
#include <string_view>

#pragma GCC visibility push(default)
namespace sluice {

/// A program sets the level of one by making spdlog's logger "sluice.PART"; what has none of its
/// own goes to the logger "sluice".
enum class log_part : std::uint8_t {
  scheduler,  ///< Turns, limits, sources, recordings.
  policy,     ///< What policies note, and who takes over.
  driver,     ///< What the driver is told and answers.
  attach,     ///< Who is managed, and who cannot be.
  breaker,    ///< GPUs that are left alone.
  clients,    ///< What clients claim.
  node,       ///< The node, its files, its agent and what it discovers.
};

inline constexpr std::array all_log_parts{log_part::scheduler, log_part::policy,  log_part::driver,
                                          log_part::attach,    log_part::breaker, log_part::clients,
                                          log_part::node};

constexpr std::string_view to_string(log_part value) noexcept {
  switch (value) {
    case log_part::scheduler: return "scheduler";
    case log_part::policy: return "policy";
    case log_part::driver: return "driver";
    case log_part::attach: return "attach";
    case log_part::breaker: return "breaker";
    case log_part::clients: return "clients";
    case log_part::node: break;
  }
  return "node";
}

}  // namespace sluice
#pragma GCC visibility pop
