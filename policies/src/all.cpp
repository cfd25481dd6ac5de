#include "sluice/policies/all.hpp"

#include "sluice/policies/deadline.hpp"
#include "sluice/policies/fair_share.hpp"
#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/policies/hqd_reservation.hpp"
#include "sluice/policies/pointer_polling.hpp"
#include "sluice/policies/priority.hpp"
#include "sluice/policies/shadow.hpp"
#include "sluice/policies/slo.hpp"

namespace sluice {

std::vector<policy_kind> all_policies() {
  return {
      fixed_timeslice_kind(),
      pointer_polling_kind(),
      hqd_reservation_kind(),
      priority_kind(),
      fair_share_kind(),
      deadline_kind(),
      slo_kind(),
      shadow_kind(),
  };
}

}  // namespace sluice
