#include "sluice/policies/all.hpp"

#include "sluice/policies/fixed_timeslice.hpp"

namespace sluice {

std::vector<policy_kind> all_policies() { return {fixed_timeslice_kind()}; }

}  // namespace sluice
