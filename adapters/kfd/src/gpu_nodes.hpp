#pragma once
/// \file
/// The node's GPUs, and on which of them a process has an address space, as far as it can be seen
/// from outside.
///
/// SUSPEND_QUEUES of some drivers (Linux 6.12.117 is one) flushes the TLB of every GPU that comes
/// behind one on which it suspended a queue, and follows a null pointer where the process has no
/// address space: suspend_queues(), kfd_flush_tlb(). A process that never called ACQUIRE_VM for a
/// GPU of the node must therefore not be suspended. ROCm's runtime calls it for every GPU.

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/ids.hpp"

namespace sluice::kfd {

struct gpu_node {
  gpu_id gpu{};
  /// Device number of the DRM render node, whose address space a process gives the driver
  /// (ACQUIRE_VM). 0: none.
  dev_t render = 0;
};

/// In the order of the topology, which is the order in which the driver goes through them.
/// \param device path of the driver's device; its directory has `dri`.
std::vector<gpu_node> find_gpu_nodes(const std::string& sysfs, const std::string& device);

/// Only GPUs that the driver lists for the process count (`vram_<gpu>` in sysfs): a device cgroup
/// can hide the others. The driver keeps an address space whose descriptor the process closed, so
/// that this can blame a process that has all: one that uses the driver without ROCm's runtime.
/// An open render node shows whether ACQUIRE_VM was called for it where the driver prints the PASID
/// of both (Linux 6.12); elsewhere any open render node counts.
/// \return the first GPU on which the process has no address space. Nothing: it has all of them,
///         its descriptors cannot be read, or the node has one GPU.
std::optional<gpu_id> gpu_without_address_space(pid_t pid, std::span<const gpu_node> nodes,
                                                const std::string& sysfs);

/// Why a process is not suspended, after its name: "has no address space on ...".
std::string text_without_address_space(gpu_id gpu);

}  // namespace sluice::kfd
