#pragma once
/// \file
/// Which profiles there are, for whoever names them: the device itself, and what starts it.

#include <filesystem>
#include <string>
#include <vector>

namespace sluice::sim {

/// Where profiles are looked for, in this order: `profiles` beside the running program, then the
/// data directory of the installation that the program belongs to.
std::vector<std::filesystem::path> profile_folders();

/// "gfx1100, mi300x": the names found there, sorted; empty when there are none.
std::string profile_names();

}  // namespace sluice::sim
