#pragma once
/// \file
/// What sysfs says of the node's processors and how they are connected: the texts below
/// `topology/`, to the byte. Pure: made from a profile.

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::sim {

struct profile;

/// One directory below `topology/nodes`.
struct topology_node {
  std::uint32_t gpu_id = 0;  ///< 0: a CPU.
  std::string name;
  std::string properties;
  std::vector<std::string> mem_banks;  ///< `properties` of each, in order.
  std::vector<std::string> io_links;   ///< The same.
};

/// The CPU as node 0, then the GPUs.
///
/// The keys of `properties` and their order are documented; the formats of memory banks and links
/// are those of mem_show() and iolink_show() (kfd_topology.c). Inferred, and no promise of any
/// machine: the CPU's numbers, bandwidths, clocks, firmware versions, and the flags of links. Not
/// shown: caches, performance counters, and links between GPUs over PCIe (`p2p_links`).
std::vector<topology_node> topology_of(const profile& node);

/// `topology/system_properties`. The platform's numbers are those of a machine without a CRAT.
std::string system_properties();

}  // namespace sluice::sim
