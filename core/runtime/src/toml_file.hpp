#pragma once
/// \file
/// A TOML file and one of its tables, with errors that name file and line.

#include <string>
#include <string_view>
#include <vector>

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "sluice/result.hpp"

namespace sluice::core {

/// A text of TOML.
/// \param path for the message: on failure, one line that names file and line.
result<toml::table> parse_toml(const std::string& text, const std::string& path,
                               std::string& message);

/// A configuration of sluice; what none of its readers knows is an error.
/// \param message on failure, one line that names file and line.
/// \return errc::bad_config, or the system's error for a file that cannot be read.
result<toml::table> read_toml(const std::string& path, std::string& message);

/// A slip of the pen must not leave a node with the defaults.
/// \param others tables that are read elsewhere, beside the known ones.
/// \return one line about the first key of the file that nobody reads; empty when there is none.
std::string unknown_table(const toml::table& file, const std::string& path,
                          const std::vector<std::string>& others);

/// The table [name], nullptr when the file has none.
/// \return errc::bad_config when it is something else than a table.
result<const toml::table*> table_of(const toml::table& file, const std::string& path,
                                    std::string_view name, std::string& message);

inline std::uint32_t line_of(const toml::node& node) { return node.source().begin.line; }

}  // namespace sluice::core
