#pragma once
/// \file
/// What a subcommand is. Each has a source file of its own; main() lists them.

#include <functional>

#include <CLI/CLI.hpp>

namespace sluice::cli {

/// Exit codes of every subcommand, beside those it names itself.
inline constexpr int exit_done = 0;
inline constexpr int exit_failed = 1;
inline constexpr int exit_usage = 2;

struct subcommand {
  CLI::App* parsed;          ///< Whether it was given, after parsing.
  std::function<int()> run;  ///< \return the program's exit code.
};

// Each adds its options to the program's.
subcommand add_doctor(CLI::App& program);
subcommand add_hqds(CLI::App& program);
subcommand add_lab(CLI::App& program);
subcommand add_queues(CLI::App& program);
subcommand add_release(CLI::App& program);
subcommand add_resume(CLI::App& program);
subcommand add_role(CLI::App& program);
subcommand add_sim(CLI::App& program);
subcommand add_suspend(CLI::App& program);

}  // namespace sluice::cli
