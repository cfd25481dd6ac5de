#pragma once
/// \file
/// Which role store a subcommand means.

#include <string>

#include <CLI/CLI.hpp>

#include "sluice/result.hpp"
#include "sluice/roles/classification.hpp"
#include "sluice/roles/role_store.hpp"

namespace sluice::cli {

/// Neither given: the one of SLUICE_ROLES, or the default.
struct store_choice {
  std::string config;
  std::string store;
};

/// \param chosen must outlive the parsing.
void add_store(CLI::App& to, store_choice& chosen);

/// roles::load_classification(), with a warning where a file is named that has no table [roles]: a
/// program may want none, but who names the file here wants its rules.
result<roles::classification_rules> load_rules(const std::string& config, std::string& message);

/// \return an error, after a complaint, when none is configured rightly.
result<roles::role_store> find_store(const store_choice& chosen);

}  // namespace sluice::cli
