#pragma once
/// \file
/// What preemption through KFD needs, for `sluice doctor` and `sluice accept`.

#include <cstdint>
#include <vector>

#include "sluice/check.hpp"
#include "sluice/kfd/node_view.hpp"
#include "sluice/kfd/roots.hpp"

namespace sluice::kfd {

/// Whether the driver can debug several processes of such a GPU at once.
bool many_debugged(std::uint32_t gfx_target_version);
/// Whether MES schedules such a GPU's queues: derived, for no interface tells.
bool uses_mes(const machine& here, std::uint32_t gfx_target_version);

// Each looks at one thing. None changes anything or traces anybody; that the device is opened shows
// in sysfs as a process without queues.
std::vector<check> check_device(const roots& where);  ///< Node, version, batch commands.
std::vector<check> check_gpus(const machine& here, const roots& where, const node_view& node);
check check_scheduling(const machine& here);  ///< sched_policy
check check_cwsr(const machine& here);
check check_tracing(const machine& here);  ///< The debug interface needs a tracer.
std::vector<check> check_debugfs(const machine& here, const roots& where);
/// Whose work shows in queue pointers, so that no client need report it.
std::vector<check> check_pointers(const roots& where, const node_view& node);

/// All of them.
std::vector<check> examine(const machine& here, const roots& where);

}  // namespace sluice::kfd
