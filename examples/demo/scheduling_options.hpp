#pragma once
/// \file
/// The scheduler's settings on the demo's command lines.

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "sluice/time.hpp"

namespace demo {

using sluice::duration;

struct scheduling_options {
  std::string config_file;  ///< TOML: [scheduler], [policy], [roles]; empty: defaults.
  std::string policy;       ///< "name:key=value,..."; empty: the file's, else by slice and release.
  std::optional<duration> attach_after;  ///< Empty: what the configuration says.
  /// As long as the longest gap inside a generated burst: a resume in the middle of one would cost
  /// both sides more than offline work could do in it.
  duration slice = std::chrono::milliseconds(30);
  std::string release = "client_done";  ///< Or "slice_end".

  /// \param attach_after_default for --help.
  void add_to(CLI::App& app, const std::string& attach_after_default);
  std::vector<std::string> arguments() const;
};

}  // namespace demo
