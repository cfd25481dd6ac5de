#pragma once
/// \file
/// The agent's command line.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/agent/acting_driver.hpp"
#include "sluice/time.hpp"

namespace sluice::agent {

struct agent_settings {
  acting_choice choice{};  ///< As it was told.
  std::string owner_lock{};
  std::string roles{};
  bool of_a_node = false;
  bool rescue = false;
  bool everything = false;  ///< Of a rescue.
  duration lease = std::chrono::milliseconds{500};
  std::optional<duration> cpu_latency{};
};

/// Ends the process where the command line is wrong (2), or asks for help or the version (0).
[[nodiscard]] agent_settings parse(int argc, char** argv, const acting_drivers& drivers);

/// \return null where there is none of that name.
[[nodiscard]] std::unique_ptr<acting_driver> make(const acting_drivers& drivers,
                                                  std::string_view name);
[[nodiscard]] std::string names_of(const acting_drivers& drivers);
/// \return a sentence where it does not take them; empty: it does.
[[nodiscard]] std::string apply(const acting_choice& choice, acting_driver& driver);

}  // namespace sluice::agent
