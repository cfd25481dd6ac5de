#pragma once
/// \file
/// The command line as data, read off its definition: what manual pages and completions are made
/// of, so that neither says anything else than --help.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace sluice::cli {

struct described_option {
  std::vector<std::string> names;    ///< "-c", "--config"; of a positional "PID".
  std::string value;                 ///< "FILE"; empty: it takes none.
  std::vector<std::string> choices;  ///< Its values, where only some words are.
  std::string text;
  bool positional = false;
  bool required = false;
  bool several = false;
};

struct described_command {
  std::vector<std::string> path;  ///< Without the program's name; empty: the program itself.
  std::string summary;
  std::string footer;
  std::vector<described_option> options;  ///< Positionals as well.
  std::vector<std::string> subcommands;
};

/// The program and all its subcommands, each before its own; without what --help does not list.
std::vector<described_command> describe(const CLI::App& program);

/// For the shells' own folders of completions.
std::string bash_completion(const std::vector<described_command>& all, const std::string& name);
std::string zsh_completion(const std::vector<described_command>& all, const std::string& name);
std::string fish_completion(const std::vector<described_command>& all, const std::string& name);

/// The page of the program, or of a subcommand with all below it, as man(7) source.
/// \param first its index in `all`.
/// \param version as "sluice 0.1.0".
std::string manual_page(const std::vector<described_command>& all, std::size_t first,
                        const std::string& program, const std::string& version);
/// A page of a text as it is.
std::string manual_page_of_text(const std::string& name, const std::string& section,
                                const std::string& summary, const std::string& text,
                                const std::string& version);

}  // namespace sluice::cli
