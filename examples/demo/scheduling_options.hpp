#pragma once
/// \file
/// The scheduler's settings on the demo's command lines.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "sluice/time.hpp"

namespace demo {

using sluice::duration;

struct scheduling_options {
  std::string config_file;  ///< TOML with a [scheduler] table; empty: defaults.
  duration attach_after{};  ///< Zero: what the configuration says.
  /// As long as the longest gap inside a generated burst: a resume in the middle of one would cost
  /// both sides more than offline work could do in it.
  duration slice = std::chrono::milliseconds(30);
  std::string release = "client_done";  ///< Or "slice_end".

  void add_to(CLI::App& app);
  std::vector<std::string> arguments() const;
};

}  // namespace demo
