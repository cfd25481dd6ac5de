#pragma once
/// \file
/// Command-line options that several of the demo's programs share.

#include "workload.hpp"

#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace demo {

/// Reads "300us", "1.5s", "20 ms" as sluice::parse_duration does, but nothing negative, and says
/// what is wrong. A number without a unit is in `plain_unit`, or refused when that is zero.
checked<duration> parse_duration(std::string_view text, duration plain_unit);

/// Both ends belong to it.
struct duration_range {
  duration low;
  duration high;
};

/// Adds an option whose value is a duration; `target` holds the default, which --help shows.
CLI::Option* add_duration(CLI::App& app, const std::string& name, duration& target,
                          const std::string& help, duration_range range, duration plain_unit = {});
/// The same, without a default: `target` stays empty when the option is not given.
CLI::Option* add_duration(CLI::App& app, const std::string& name, std::optional<duration>& target,
                          const std::string& help, duration_range range, duration plain_unit = {});

/// Adds an option whose value is a number from `low` to `high`; `target` holds the default. What is
/// no such number to its last character ("-1" for an unsigned one, "nan", "3x") is refused.
template <class Number>
CLI::Option* add_number(CLI::App& app, const std::string& name, Number& target, Number low,
                        Number high, const std::string& help) {
  return app
      .add_option_function<std::string>(
          name,
          [&target, name, low, high](const std::string& text) {
            Number value{};
            const char* const end = text.data() + text.size();
            const auto [rest, error] = std::from_chars(text.data(), end, value);
            // Written so that NaN is out of range.
            if (error != std::errc{} || rest != end || !(value >= low && value <= high)) {
              throw CLI::ValidationError(
                  name,
                  fmt::format("invalid number '{}': expected a {} from {} to {}", text,
                              std::is_integral_v<Number> ? "whole number" : "number", low, high));
            }
            target = value;
          },
          help)
      ->type_name("NUMBER")
      ->default_str(fmt::format("{}", target));
}

/// Adds --control-fd: the socket on which sluice-demo steers a program that it started.
void add_control_fd(CLI::App& app, int& target);

/// "300 us", "20 ms", "1.5 s": for people, rounded to four digits. sluice::to_text is exact.
std::string rounded_text(duration value);

/// Where requests come from, and how much work they are.
struct arrival_options {
  std::string trace;               ///< Empty: generated.
  std::optional<duration> window;  ///< Before the speedup. Empty: 8 s of a trace, 4 s generated.
  double speedup = 1;
  double online_load = 0.4;
  std::uint64_t seed = 1;

  void add_to(CLI::App& app);
  /// What add_to()'s lines leave out: for the end of the help.
  static constexpr std::string_view notes =
      "The columns of --trace are TIMESTAMP,ContextTokens,GeneratedTokens.\n"
      "A number without a unit in --window is in seconds. From a trace, the program selects the\n"
      "busiest part. To reach --online-load, the program scales the work per token.\n";
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
