#pragma once
/// \file
/// Policies as a command line names them: NAME or FILE, then :KEY=VALUE,...

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sluice/lab/checked.hpp"
#include "sluice/policy.hpp"
#include "sluice/policy_registry.hpp"

namespace sluice::cli {

/// The project's own, and those that `texts` name by file (.so, .py).
/// Errors: one sentence.
lab::checked<policy_registry> policies_for(const std::vector<std::string>& texts);

/// What makes the policy that `text` names; tried once already.
/// Lifetime: `known` outlives it. Errors: one sentence.
lab::checked<std::function<std::unique_ptr<policy>()>> policy_maker(const policy_registry& known,
                                                                    const std::string& text);

}  // namespace sluice::cli
