#include "sluice/policies/all.hpp"

#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/policies/pointer_polling.hpp"

namespace sluice {

std::vector<policy_kind> all_policies() { return {fixed_timeslice_kind(), pointer_polling_kind()}; }

}  // namespace sluice
