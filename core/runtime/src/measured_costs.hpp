#pragma once
/// \file
/// What a suspend and a resume cost on a device that was measured, from its profile.

#include <filesystem>
#include <string>

#include "sluice/policy_kind.hpp"

namespace sluice::core {

struct profile_use {
  std::string wrong{};  ///< One sentence that begins with "profile"; empty: nothing is wrong.
  std::string note{};   ///< What whoever schedules a GPU by it should know; may be empty.
};

/// For a policy with the parameters `profile`, `suspend_cost` and `resume_cost`: puts the costs
/// that the profile says in the place of its path. Of several GPUs the dearest; what is said beside
/// it stands. Refuses a profile whose [measured] says that the run was not accepted, and notes
/// where it says that the device was simulated: which device is to be scheduled is not known here.
/// \param folder where a relative path begins.
profile_use use_profile(const policy_kind& kind, parameters& values,
                        const std::filesystem::path& folder = {});

}  // namespace sluice::core
