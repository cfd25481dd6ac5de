#include "sluice/policies/all.hpp"

#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/policies/shadow.hpp"
#include "sluice/policies/slo.hpp"

namespace sluice {

std::vector<policy_kind> all_policies() {
  return {fixed_timeslice_kind(), shadow_kind(), slo_kind()};
}

}  // namespace sluice
