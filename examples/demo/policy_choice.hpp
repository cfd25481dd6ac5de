#pragma once
/// \file
/// Which policy the demo's command line asks for.

#include "scheduling_options.hpp"
#include "workload.hpp"

#include <memory>
#include <string>

#include "sluice/policy.hpp"

namespace demo {

/// What --policy says, else the table [policy] of --config, else fixed_timeslice by --slice and
/// --release. Errors: one line.
/// \param text becomes its sluice::command_text().
checked<std::unique_ptr<sluice::policy>> make_policy(const scheduling_options& with,
                                                     std::string* text = nullptr);

}  // namespace demo
