#pragma once
/// \file
/// Profiles as TOML files: found by name, read, and checked to the last key.

#include "profile.hpp"

#include <stdexcept>
#include <string>

namespace sluice::sim {

/// What is wrong with a profile, in one line that names file, line and key.
struct profile_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Finds a profile: a path (anything with a slash, or ending in ".toml") is taken as it is; a name
/// is looked for as NAME.toml in `profiles` beside the running program, then in the data directory
/// of the installation the program belongs to.
/// Errors: throws profile_error naming the places it looked at.
std::string find_profile(const std::string& name_or_path);

/// Reads a profile. Keys that are not given keep the defaults of profile.hpp; unknown keys are
/// errors. Times are strings: "500us", "5ms", "9s", "100ns".
/// Errors: throws profile_error.
profile load_profile(const std::string& path);

/// The same GPU so many times, with an id of its own each.
void set_gpu_count(profile& node, std::uint32_t count);

}  // namespace sluice::sim
