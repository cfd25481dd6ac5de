#pragma once
/// \file
/// The scheduler's settings on the demo's command lines.

#include <optional>
#include <string>
#include <string_view>
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
  /// What add_to()'s lines leave out: for the end of the help.
  static constexpr std::string_view notes =
      "In the file of --config, [scheduler] contains max_suspend, min_run, offline_floor and\n"
      "more. The table [policy] replaces --slice and --release.\n"
      "Parameters follow the name or path of --policy, such as slo:request.p99=200ms. The\n"
      "command 'sluice policy' lists policies and parameters.\n"
      "The wait of --attach-after begins with the first queue of an offline process. With\n"
      "--config, the default is the configured value. Only an attached process can be suspended.\n"
      "The scheduler also waits for a pause in online work, but at most until attach_at_latest\n"
      "(3 s, or the configured value) after the first queue.\n"
      "With --release client_done, offline work runs again after the slice, once no online work\n"
      "is in flight. With slice_end, it runs again after the slice.";
  std::vector<std::string> arguments() const;
};

}  // namespace demo
