#pragma once
/// \file
/// The daemon's configuration: one TOML file with the tables [daemon], [scheduler], [policy] and
/// [roles], and one for each driver, validated as a whole. sluice.toml beside the documentation
/// shows every key.

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sluice/driver_list.hpp"
#include "sluice/node.hpp"
#include "sluice/os/log_part.hpp"
#include "sluice/policy_registry.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

enum class daemon_log_level : std::uint8_t { info, warning, error };

struct daemon_config {
  /// Of it a reload changes `settings` alone.
  node_options node{};
  /// How a command line would name the policy, with every parameter; empty where it cannot.
  std::string policy{};
  /// Of the table [policy] as it stands in the file: the same text, the same policy.
  std::string policy_table{};
  daemon_log_level log_level = daemon_log_level::info;
  /// By log_part, where a part has a level of its own.
  std::array<std::optional<daemon_log_level>, all_log_parts.size()> log_levels{};
  /// How often a line of counters is logged; 0: at the end and on SIGUSR1 alone.
  /// Or 1 s to 24 h.
  duration statistics_interval = std::chrono::minutes(10);

  /// Which driver: its name, or any_driver. node.driver is chosen by it.
  std::string driver{any_driver};
  /// Why node.driver is null, one sentence; empty: it is not. No error of the file, for it depends
  /// on the machine.
  std::string no_driver{};

  daemon_config() {
    node.mode = node_mode::observe;
    node.observing.jobs = observing_options::jobs_to_log;
  }

  /// What it names and this machine does not have (an agent to enforce with, the directory of a
  /// recording), one sentence each: it cannot start like that. Rights are not looked at, for it may
  /// run as another user. Blocks on file operations.
  [[nodiscard]] std::vector<std::string> missing_here() const;
  /// Names the keys of [daemon] in which `other` differs, but for those that a reload changes.
  [[nodiscard]] std::string fixed_differences(const daemon_config& other) const;
};

/// \param path     empty: no file, every default.
/// \param known    the policies that [policy] may name.
/// \param list     the drivers that may be chosen, whose names are tables with their settings.
/// \param problems on failure, every error that could be found, one line each that names file,
///                 line, key and what is allowed.
///
/// Threading: as load_classification(). Errors: errc::bad_config, or the system's error for a file
/// that cannot be read.
[[nodiscard]] result<daemon_config> load_daemon_config(const std::string& path,
                                                       const policy_registry& known,
                                                       const driver_list& list,
                                                       std::vector<std::string>& problems);

}  // namespace sluice
#pragma GCC visibility pop
