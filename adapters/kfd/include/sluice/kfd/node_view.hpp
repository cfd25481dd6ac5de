#pragma once
/// \file
/// One look at the node for people and tools: its GPUs, the processes that use them and their
/// queues, as the driver's sysfs tree and /proc show them. A scheduler wants discovery.hpp, which
/// follows what changes.

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/kfd/mqds.hpp"
#include "sluice/kfd/roots.hpp"
#include "sluice/node_view.hpp"
#include "sluice/result.hpp"

namespace sluice::kfd {

/// `reset_domain` is the XGMI hive. `facts` are the node, the unique id and the gfx version.
struct gpu_description : sluice::gpu_description {
  std::uint32_t node = 0;  ///< Number in the topology, which counts CPU nodes too.
  pci_location location{};
  std::uint64_t unique_id = 0;           ///< 0: the driver shows none.
  std::uint32_t gfx_target_version = 0;  ///< major * 10000 + minor * 100 + step: 90402 is gfx942.
  std::uint64_t capability = 0;
  std::uint32_t compute_slots = 0;  ///< num_cp_queues; 0: not shown.
};

/// "9.4.2"
[[nodiscard]] std::string gfx_text(std::uint32_t gfx_target_version);

/// GPUs are by node: their ordinals are those of HIP_ and ROCR_VISIBLE_DEVICES. Pids are those of
/// the initial pid namespace. sysfs shows no queue's priority (add_priorities()), and does not tell
/// kinds of compute queue apart: queues are "compute", "sdma" or "sdma_xgmi".
struct node_view {
  std::vector<gpu_description> gpus;
  std::vector<process_description> processes;

  const gpu_description* find(gpu_id id) const noexcept;
};

/// Reads the trees. What disappears while it reads is left out; a file that is missing leaves its
/// value unknown.
/// \param proc where /proc is.
/// \return the system's error when the driver's tree cannot be read at all.
/// Threading: any thread. Cost: some system calls for each process and queue.
[[nodiscard]] result<node_view> look_at_node(const roots& where, const std::string& proc = "/proc");

/// Why the driver's tree does not list a process: there is none, it is a thread of another, or it
/// does not use the driver. One sentence.
std::string why_not_listed(pid_t pid, const roots& where);

/// Whether the driver's tree lists the process, where that can be told: this process must have
/// opened the driver, for whoever did is listed. Where it is not, the tree is another driver's, or
/// shows the pids of another namespace.
bool may_be_listed(pid_t pid, const roots& where);

/// Ring bases of queues that a debug session listed, by process.
using known_rings = std::map<pid_t, std::vector<queue_ring>>;

/// Reads debugfs `mqds` and fills in what it proves: by queue id where the driver prints it, by
/// ring base for the known rings, and for the others where all compute queues that a process has on
/// a GPU are listed there and have one priority. Anything else stays unknown.
/// \return the system's error when the file cannot be read (root only; it may not exist at all).
/// Cost: the driver takes every process's lock in turn; one that sits in a long call delays this.
result<void> add_priorities(node_view& node, const roots& where, const known_rings& rings = {});

/// The same of a text.
void add_priorities(node_view& node, const mqds& seen, const known_rings& rings = {});

}  // namespace sluice::kfd
