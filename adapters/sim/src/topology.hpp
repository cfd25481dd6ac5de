#pragma once
/// \file
/// What sysfs says of the node's processors and how they are connected: the texts below
/// `topology/`, to the byte. Pure: made from a profile.

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::sim {

struct gpu_profile;
struct profile;

/// HSA_CAP_*, what debuggers look for: kfd_topology_set_capabilities.
inline constexpr std::uint32_t capability_precise_memory = 1U << 18U;
inline constexpr std::uint32_t capability_precise_alu = 1U << 30U;
std::uint32_t capability_of(const gpu_profile& gpu);
/// HSA_DBG_*: which bits of an address a watch point compares, and what waves are told.
std::uint32_t debug_properties_of(const gpu_profile& gpu);

/// What a queue needs for saved waves: kfd_queue_ctx_save_restore_size. Bytes.
struct save_area_sizes {
  std::uint64_t control_stack = 0;
  std::uint64_t context = 0;   ///< Of an XCC, control stack included.
  std::uint64_t debugger = 0;  ///< Of an XCC, in addition.
};
save_area_sizes save_area_of(const gpu_profile& gpu);

/// Bytes of system memory. An assumption.
inline constexpr std::uint64_t cpu_memory = std::uint64_t{512} << 30U;

/// Of GPU 0; the others follow. `drm_render_minor` of its properties, and N of dev/dri/renderDN.
inline constexpr std::uint32_t first_render_minor = 128;

/// One directory below `topology/nodes`.
struct topology_node {
  std::uint32_t gpu_id = 0;  ///< 0: a CPU.
  std::string name;
  std::string properties;
  std::vector<std::string> mem_banks;  ///< `properties` of each, in order.
  std::vector<std::string> caches;     ///< The same.
  std::vector<std::string> io_links;   ///< The same.
};

/// The CPU as node 0, then the GPUs.
///
/// The keys of `properties` and their order are documented; the formats of memory banks and links
/// are those of mem_show() and iolink_show() (kfd_topology.c), and of caches what libhsakmt reads.
/// Inferred, and no promise of any machine: the CPU's numbers, bandwidths, clocks, firmware
/// versions, and the flags of links. A GPU shows one cache of each level, as ROCr asks of it, not
/// one for each compute unit. Not shown: the CPU's caches (libhsakmt then asks the machine),
/// performance counters, and links between GPUs over PCIe (`p2p_links`).
std::vector<topology_node> topology_of(const profile& node);

/// `topology/system_properties`. The platform's numbers are those of a machine without a CRAT.
std::string system_properties();

}  // namespace sluice::sim
