#pragma once
/// \file
/// The daemon's configuration as a command line names it.

#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "sluice/daemon_config.hpp"
#include "sluice/driver_list.hpp"
#include "sluice/node_files.hpp"

namespace sluice::cli {

/// The policies that a configuration may name.
policy_registry daemon_policies();

/// \return nothing after complaints, one for each error of the file.
std::optional<daemon_config> load_daemon(const std::string& path, const policy_registry& known,
                                         const driver_list& drivers);

/// The option --config of commands that do something in place of a daemon.
void add_daemon(CLI::App& to, std::string& config);
/// What they take from that file.
struct chosen_daemon {
  node_files files{};
  std::string agent{};  ///< Empty: as find_agent() finds it.
  /// With its settings. Null if none is present, or `driver` is another one.
  std::shared_ptr<const driver> on{};
};
/// \param config empty: a daemon with the defaults and these files.
/// \param driver of add_driver().
/// \return nothing after complaints, one for each error of the file.
std::optional<chosen_daemon> choose_daemon(const std::string& config, const node_files& files,
                                           const std::string& driver, const driver_list& known);

/// What would run, in one line.
std::string words_of(const daemon_config& config);

}  // namespace sluice::cli
