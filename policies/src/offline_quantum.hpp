#pragma once
/// \file
/// The parameter `offline_quantum`, which every policy that holds offline work has.

#include "sluice/policy_kind.hpp"

namespace sluice {

/// The same kind with one more parameter, `offline_quantum`: how long an offline group may keep a
/// GPU once others want it, where the driver slices time between processes. Without it no policy
/// asks for a quantum.
[[nodiscard]] policy_kind with_offline_quantum(policy_kind kind);

}  // namespace sluice
