#pragma once
/// \file
/// Which policy the demo's command line asks for.

#include "scheduling_options.hpp"
#include "workload.hpp"

#include <memory>

#include "sluice/policy.hpp"

namespace demo {

/// What --policy says, else the table [policy] of --config, else fixed_timeslice by --slice and
/// --release. Errors: one line.
checked<std::unique_ptr<sluice::policy>> make_policy(const scheduling_options& with);

}  // namespace demo
