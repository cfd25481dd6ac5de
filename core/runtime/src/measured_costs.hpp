#pragma once
/// \file
/// What a suspend and a resume cost on a device that was measured, from its profile.

#include <filesystem>
#include <string>

#include "sluice/policy_kind.hpp"

namespace sluice::core {

/// For a policy with the parameters `profile`, `suspend_cost` and `resume_cost`: puts the costs
/// that the profile says in the place of its path. Of several GPUs the dearest; what is said beside
/// it stands. Refuses a profile whose [measured] says that the run was not accepted; where it says
/// that the device was simulated, the log warns: which device is to be scheduled is not known here.
/// \param folder where a relative path begins.
/// \return one sentence that begins with "profile"; empty where nothing is wrong.
std::string use_profile(const policy_kind& kind, parameters& values,
                        const std::filesystem::path& folder = {});

}  // namespace sluice::core
