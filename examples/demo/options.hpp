#pragma once
/// \file
/// Command-line options that several of the demo's programs share.

#include "arrivals.hpp"
#include "checked.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

namespace demo {

/// Reads "300us", "1.5s", "20 ms"; units ns, us, ms, s, min. A number without a unit is in
/// `plain_unit`, or refused when that is zero.
checked<duration> parse_duration(std::string_view text, duration plain_unit);

/// Adds an option whose value is a duration; `target` holds the default, which --help shows.
CLI::Option* add_duration(CLI::App& app, const std::string& name, duration& target,
                          const std::string& help, duration plain_unit = {});

/// "300 us", "20 ms", "1.5 s": for people.
std::string to_text(duration value);
/// "300us": what parse_duration reads back exactly.
std::string to_argument(duration value);

/// Where requests come from, and how much work they are.
struct arrival_options {
  std::string trace;  ///< Empty: generated.
  duration window{};  ///< Zero: 8 s of a trace, 4 s generated.
  double speedup = 1;
  double online_load = 0.4;
  std::uint64_t seed = 1;

  void add_to(CLI::App& app);
  std::vector<std::string> arguments() const;
  /// The arrivals of the run, cut and sped up.
  checked<arrivals> load() const;
  /// One line for the table's head.
  std::string description(const arrivals& work) const;
};

/// Parses and runs: --help, the message for a wrong option, and its exit code are CLI11's, but for
/// a wrong option one line and exit code 2. \return -1 to go on, or the exit code.
int parse(CLI::App& app, int argc, char** argv);

/// The directory of the running program: its siblings are found there.
std::string program_directory();

}  // namespace demo
