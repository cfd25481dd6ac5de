#pragma once
/// \file
/// Makes policies out of plugins: shared libraries that export what sluice/plugin.h says.

#include <memory>
#include <string>

#include "sluice/plugin.h"
#include "sluice/policy_kind.hpp"
#include "sluice/result.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// Loads a library. It stays loaded for as long as a copy of the kind or a policy made by it lives,
/// and while it does, its file must not be written to: install a new version under a new name, or
/// by a rename after the last policy of the old one is gone.
///
/// \param path    of the file; without a slash it is one of the working directory.
/// \param message on failure, one line that names the file and what is wrong with it.
/// \return errc::bad_config, or the system's error for a file that cannot be read.
/// Threading: any thread. The library's own initialisers run here.
[[nodiscard]] result<policy_kind> load_policy_plugin(const std::string& path, std::string& message);

/// The same for a descriptor that is here already, as other languages' bridges have it.
///
/// \param keep    kept for as long as the descriptor is used.
/// \param message on failure, one sentence without a subject: "its ABI ...".
/// \return errc::bad_config.
[[nodiscard]] result<policy_kind> make_plugin_kind(const sluice_policy_plugin* descriptor,
                                                   std::shared_ptr<const void> keep,
                                                   std::string& message);

}  // namespace sluice
#pragma GCC visibility pop
