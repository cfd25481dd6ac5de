#pragma once
/// \file
/// The daemon's configuration as a command line names it.

#include <optional>
#include <string>

#include "sluice/daemon_config.hpp"

namespace sluice::cli {

/// The policies that a configuration may name.
policy_registry daemon_policies();

/// \return nothing after complaints, one for each error of the file.
std::optional<daemon_config> load_daemon(const std::string& path, const policy_registry& known,
                                         const driver_list& drivers);

/// What would run, in one line.
std::string words_of(const daemon_config& config);

}  // namespace sluice::cli
