#pragma once
/// \file
/// What a subcommand is. Each has a source file of its own; main() lists them.

#include <cstdint>
#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "sluice/driver_list.hpp"

namespace sluice::cli {

/// Exit codes of every subcommand, beside those it names itself.
inline constexpr int exit_done = 0;
inline constexpr int exit_failed = 1;
inline constexpr int exit_usage = 2;  ///< The command line alone is wrong, on whatever node.
/// What --help says of them where a subcommand has no more to say.
inline constexpr const char* exit_codes = "Exit code 0: done; 1: failed; 2: invalid command line.";

struct subcommand {
  CLI::App* parsed;          ///< Whether it was given, after parsing.
  std::function<int()> run;  ///< \return the program's exit code.
};

/// For check(): a whole decimal number from `least` to `most`, and nothing that CLI11 would read as
/// one besides (0x10, 1e3, blanks).
/// \param what it is, for the sentence: "process id".
CLI::Validator whole_number_of(std::string what, std::uint64_t least, std::uint64_t most);
/// The same for process ids, up to the kernel's PID_MAX_LIMIT.
CLI::Validator a_process_id();
/// For queue ids.
CLI::Validator queue_number();

// Each adds its options to the program's. `known`: the drivers that may be chosen.
subcommand add_accept(CLI::App& program, const driver_list& known);
subcommand add_analyze(CLI::App& program);
subcommand add_breaker(CLI::App& program, const driver_list& known);
subcommand add_check(CLI::App& program, const driver_list& known);
subcommand add_doctor(CLI::App& program, const driver_list& known);
subcommand add_fleet(CLI::App& program);
subcommand add_hqds(CLI::App& program, const driver_list& known);
subcommand add_jobs(CLI::App& program);
subcommand add_lab(CLI::App& program, const driver_list& known);
subcommand add_manual(CLI::App& program);
subcommand add_pause(CLI::App& program);
subcommand add_policy(CLI::App& program);
subcommand add_queues(CLI::App& program, const driver_list& known);
subcommand add_release(CLI::App& program);
subcommand add_replay(CLI::App& program);
subcommand add_rescue(CLI::App& program, const driver_list& known);
subcommand add_resume(CLI::App& program);
subcommand add_role(CLI::App& program);
subcommand add_run(CLI::App& program, const driver_list& known);
subcommand add_sim(CLI::App& program);
subcommand add_status(CLI::App& program);
subcommand add_suspend(CLI::App& program, const driver_list& known);
subcommand add_top(CLI::App& program);
subcommand add_unpause(CLI::App& program);
subcommand add_why(CLI::App& program);

}  // namespace sluice::cli
