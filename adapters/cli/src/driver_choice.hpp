#pragma once
/// \file
/// Which driver a subcommand means.

#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "sluice/driver_list.hpp"

namespace sluice::cli {

/// \param chosen must outlive the parsing.
void add_driver(CLI::App& to, const driver_list& known, std::string& chosen);

/// \return null, after a complaint, when none can be chosen.
std::shared_ptr<const driver> find_driver(const driver_list& known, const std::string& chosen);

}  // namespace sluice::cli
