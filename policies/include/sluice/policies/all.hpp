#pragma once
/// \file
/// Every policy of this library, for a policy_registry.

#include <vector>

#include "sluice/policy_kind.hpp"

#pragma GCC visibility push(default)
namespace sluice {

[[nodiscard]] std::vector<policy_kind> all_policies();

}  // namespace sluice
#pragma GCC visibility pop
