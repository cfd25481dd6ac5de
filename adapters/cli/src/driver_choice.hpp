#pragma once
/// \file
/// Which driver a subcommand means.

#include <sys/types.h>

#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "sluice/driver_list.hpp"

namespace sluice::cli {

/// \param chosen must outlive the parsing.
void add_driver(CLI::App& to, const driver_list& known, std::string& chosen);

/// \return null, after a complaint, when none can be chosen.
std::shared_ptr<const driver> find_driver(const driver_list& known, const std::string& chosen);
/// The same for a process: of several drivers that are present, the one that lists it.
std::shared_ptr<const driver> find_driver_of(const driver_list& known, const std::string& chosen,
                                             pid_t pid);

}  // namespace sluice::cli
