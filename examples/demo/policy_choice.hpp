#pragma once
/// \file
/// Which policy the demo's command line asks for.

#include "scheduling_options.hpp"
#include "workload.hpp"

#include <memory>
#include <string>

#include "sluice/policy.hpp"
#include "sluice/policy_registry.hpp"

namespace demo {

/// What --policy says, else the table [policy] of --config, else fixed_timeslice by --slice and
/// --release, tried once: for programs that make more than one of it. Errors: one line.
checked<sluice::policy_choice> choose_policy(const scheduling_options& with);

/// One of it.
/// \param text becomes its sluice::command_text().
checked<std::unique_ptr<sluice::policy>> make_policy(const scheduling_options& with,
                                                     std::string* text = nullptr);

}  // namespace demo
