#pragma once
/// \file
/// What is simulated: the node's GPUs, their sizes and costs, and the generation of the driver.
/// Every default says where it comes from; what nobody published is named an assumption.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::sim {

/// Who may operate on another process's debug session (kfd_ioctl_set_debug_trap).
enum class trap_authority : std::uint8_t {
  tracer_thread,     ///< Linux 6.5 on: the calling thread traces the target; DISABLE needs nothing.
  debugger_process,  ///< Mid-2026: that, or the process that enabled the session; DISABLE included.
};

/// First line of each process in debugfs `mqds`.
enum class mqds_header : std::uint8_t {
  pasid,     ///< "Process %d PASID 0x%x:", up to about 6.13.
  lead_pid,  ///< "Process %d PASID %d:", the pid twice, since PASIDs are per device.
};

/// What debugfs `mqds` looks like.
enum class mqds_format : std::uint8_t {
  mainline,  ///< A line for each process and queue, and the descriptors as hexadecimal dumps.
  labelled,  ///< Of a patched driver: for each queue a block of "name: value" lines.
};

/// Which firmware the driver hands its queues to.
enum class queue_scheduler : std::uint8_t {
  runlist,   ///< CPSCH (gfx9, gfx10): every change takes the whole runlist down and puts it up
             ///< again.
  mes,       ///< Micro Engine Scheduler (gfx11, gfx12): one command for each queue, others go on.
  channels,  ///< NVIDIA's resource manager: one call for all queues, at its end; others go on.
};

/// Which driver is simulated.
enum class driver_kind : std::uint8_t {
  kfd,     ///< AMD's compute driver (driver.hpp).
  nvidia,  ///< NVIDIA's resource manager (rm_driver.hpp).
};

struct gpu_profile {
  /// KFD's id of the node; not 0 (the CPU node's). NVIDIA: domain << 16 | bus << 8 | device of the
  /// PCI address, as GPU_GET_ID says.
  std::uint32_t gpu_id = 0;
  /// NVIDIA: the name in /proc/driver/nvidia/gpus.
  std::string model = "NVIDIA H100 80GB HBM3";
  queue_scheduler scheduler = queue_scheduler::runlist;

  // --- Size -------------------------------------------------------------------------------------
  /// gfx942 (MI300X): major * 10000 + minor * 100 + step, as in the KFD topology.
  std::uint32_t gfx_target_version = 90402;
  /// MI300X data sheet: 304 compute units in 8 XCDs; SPX mode shows them as one GPU.
  std::uint32_t compute_units = 304;
  std::uint32_t num_xcc = 8;
  /// CDNA3 ISA guide: 4 SIMDs per compute unit, 8 waves per SIMD.
  std::uint32_t simd_per_cu = 4;
  std::uint32_t waves_per_simd = 8;
  /// One MEC of 4 pipes x 8 queues, of which amdgpu keeps 8 for its own rings; the topology of
  /// gfx9 parts shows num_cp_queues 24.
  std::uint32_t hqd_slots = 24;
  /// kfd_process_queue_manager: KFD_MAX_NUM_OF_QUEUES_PER_PROCESS; 127 before gfx9.4.3.
  std::uint32_t max_queues_per_process = 255;
  /// gmc_v9_0_sw_init: amdgpu leaves VMIDs 3..15 to KFD on GPUs without graphics, else 8..15.
  std::uint32_t vmids = 13;
  /// kfd_dbg_is_per_vmid_supported: GC 9.4.2 and later of that line have debug registers for each
  /// VMID. False: one debugged process per GPU.
  bool per_vmid_debug = true;

  /// CWSR workaround of GFX 11.0.0 to 11.0.3: no debug session beside a CU mask or a GWS queue.
  constexpr bool restricts_cus_for_debug() const noexcept {
    return gfx_target_version >= 110000 && gfx_target_version <= 110003;
  }
  /// Peak engine clock (MI300X data sheet); the unit of grace periods is 1000 of its cycles.
  std::uint32_t gpu_clock_mhz = 2100;

  // --- Identity and surroundings, as the topology shows them ------------------------------------
  /// PCI device id. 0x74a1: MI300X (pciutils' pci.ids); the vendor is always 0x1002.
  std::uint32_t device_id = 0x74a1;
  /// PCI domain and bus << 8 | device << 3 | function. 0: bus 1 for the first GPU, 2 for the next.
  std::uint32_t domain = 0;
  std::uint32_t location_id = 0;
  /// The board's serial number as KFD prints it. 0: one made of gpu_id (assumption: any value).
  std::uint64_t unique_id = 0;
  /// GPUs of one XGMI hive have the same number and a link to each other, and one of them is reset
  /// with all; 0: no XGMI.
  std::uint64_t hive_id = 0;
  /// Device memory. MI300X data sheet: 192 GB of HBM3 on an interface of 8192 bits.
  std::uint64_t memory_mib = 196592;
  std::uint32_t memory_width = 8192;
  /// Caches: of a compute unit, of an XCC, of the GPU; 0: none. CDNA3 white paper.
  std::uint32_t l1_kib = 32;
  std::uint32_t l2_kib = 4096;
  std::uint32_t l3_kib = 262144;
  /// Shader arrays of the whole GPU, and of one shader engine. gfx942: 4 for each XCC.
  std::uint32_t shader_arrays = 32;
  std::uint32_t arrays_per_engine = 1;
  /// CDNA3: 64; RDNA runs KFD's compute queues with 32.
  std::uint32_t wave_front_size = 64;
  /// KFD topology of MI300X in SPX mode: 2 engines of its own, 14 for the links between GPUs.
  std::uint32_t sdma_engines = 2;
  std::uint32_t sdma_xgmi_engines = 14;
  std::uint32_t sdma_queues_per_engine = 8;
  /// Versions of the firmware. 0: not known.
  std::uint32_t fw_version = 0;
  std::uint32_t sdma_fw_version = 0;

  // --- Costs ------------------------------------------------------------------------------------
  /// One debug SUSPEND (unmap everything, save contexts, map the rest) and one RESUME: the project
  /// owner's design notes on the debug ioctl (taken as the whole call, whatever is resident).
  /// MES: one REMOVE_QUEUE and one ADD_QUEUE, for each queue.
  duration suspend_cost = std::chrono::milliseconds{5};
  duration resume_cost = std::chrono::milliseconds{10};
  /// Where they were measured (sluice accept): the two above are medians, and 99 of 100 calls cost
  /// no more than this. 0: every call costs the same.
  duration suspend_cost_p99{};
  duration resume_cost_p99{};
  /// Every other runlist cycle (queue created, updated, destroyed; session enabled, disabled); MES:
  /// every other command.
  /// Assumption: 1 ms, the upper end of the owner's figure for one batched cycle.
  duration cycle_cost = std::chrono::milliseconds{1};
  /// Oversubscribed runlist: how long one set of queues stays mapped. pm_map_process_v9 writes
  /// process_quantum 10; that its unit is a millisecond is an assumption.
  duration quantum = std::chrono::milliseconds{10};
  /// Oversubscribed runlist: nothing runs for so long at every change of sets (context save and
  /// restore). Assumption: half of a batched cycle.
  duration switch_cost = std::chrono::microseconds{500};
  /// Whether the driver slices time between processes: the kernels of one of them at a time. Of
  /// NVIDIA's GPUs; AMD's do not.
  bool time_sliced = false;
  /// Time-sliced: how long a process keeps the GPU once others want it. NVIDIA's default for
  /// compute, read from driver 580.159 on an H100.
  duration time_slice = std::chrono::microseconds{2048};
  /// NVIDIA: the default of channel groups that only copy. Measured there.
  duration copy_time_slice = std::chrono::microseconds{1024};
  /// Time-sliced: nothing runs for so long when running kernels are saved or saved ones put back.
  /// Measured there: a request of 65 us takes so much longer beside offline work with the shortest
  /// slice than alone.
  duration slice_switch_cost = std::chrono::microseconds{190};
  /// One BATCH_UNMAP_QUEUES and one FAST_REMAP of a patched driver (uapi_batch.hpp): the project
  /// owner's design notes, 0.5 ms each, whatever the number of queues. MES: for each queue.
  duration batch_unmap_cost = std::chrono::microseconds{500};
  duration batch_remap_cost = std::chrono::microseconds{500};
  /// How long a GPU reset takes. Assumption: nobody publishes it.
  duration reset_time = std::chrono::seconds{1};

  constexpr std::uint64_t vram_bytes() const noexcept { return memory_mib << 20U; }
  constexpr std::uint32_t wave_slots() const noexcept {
    return compute_units * simd_per_cu * waves_per_simd;
  }
  /// Can the driver read how many compute units a process occupies (kfd2kgd get_cu_occupancy)?
  constexpr bool counts_occupancy() const noexcept { return gfx_target_version / 10000 == 9; }
  /// location_id, with the default resolved. \param index of the GPU on its node, from 0.
  constexpr std::uint32_t location(std::size_t index) const noexcept {
    return location_id != 0 ? location_id : static_cast<std::uint32_t>(index + 1) << 8U;
  }
};

struct profile {
  std::string name;
  std::vector<gpu_profile> gpus;

  driver_kind driver = driver_kind::kfd;
  /// NVIDIA: its release, as /proc/driver/nvidia/version says.
  std::string driver_version = "580.159.04";

  // --- Generation of KFD ------------------------------------------------------------------------
  /// KFD_IOCTL_MINOR_VERSION; 17 is Linux 6.12. The debugger API needs 13.
  std::uint32_t abi_minor = 17;
  trap_authority authority = trap_authority::tracer_thread;
  /// Stable releases brought these together with that authority (6.12.117): an ENABLE that fails is
  /// undone, CRIU pauses once, SMI tells of processes to their owners only, and an interrupted
  /// DESTROY_QUEUE leaves no trace.
  constexpr bool has_fixes_of_2026() const noexcept {
    return authority == trap_authority::debugger_process;
  }
  /// What an unknown command gets: EINVAL instead of ENOTTY, as from drivers before late 2025
  /// (read in 6.6.0, 6.12-rc4 and 6.17-rc4).
  bool einval_for_unknown_commands = false;
  mqds_header header = mqds_header::pasid;
  mqds_format format = mqds_format::mainline;
  /// debugfs has a directory kfd/proc/<pid> for each process (2025 on): these raise inotify events.
  bool debugfs_proc_dirs = false;
  /// Room of an SMI client's FIFO: 1024 bytes, 8192 in newer drivers. What does not fit is dropped.
  std::uint32_t smi_fifo_bytes = 1024;
  /// SMI has PROCESS_START and PROCESS_END (about 6.16 on).
  bool smi_process_events = false;
  /// SMI's QUEUE_RESTORE ends with 'R' or a NUL byte; newer drivers.
  bool smi_restore_flag = false;
  /// SMI's GPU_PRE_RESET names the cause; newer drivers.
  bool smi_reset_cause = false;
  /// Internal numbers of SDMA queue types moved by one when the DIQ type was removed (2025-2026).
  bool diq_type_exists = true;
  /// Module parameter sched_policy: 0 and 1 leave queues to firmware, 2 (NO_HWS) to the driver,
  /// which then refuses every debug operation. That is all it changes here.
  std::uint32_t sched_policy = 0;
  /// A driver with the commands of uapi_batch.hpp: a proposal, no released driver has them.
  bool batch_commands = false;
  /// queue_preemption_timeout_ms (module parameter, default 9000): how long a failing unmap lasts.
  duration preemption_timeout = std::chrono::seconds{9};

  // --- How fast the device looks at memory ------------------------------------------------------
  /// A queue without a doorbell eventfd: its write index is read so often while it has work, and
  /// while it has none. Both are the simulator's own, no property of hardware.
  duration poll_busy = std::chrono::microseconds{200};
  duration poll_idle = std::chrono::milliseconds{5};
};

/// An MI300X-like node with one GPU.
inline profile default_profile() {
  profile node;
  node.name = "mi300x";
  // Plausible ids: the real ones are a hash of the board, and the hive's of all its boards.
  node.gpus.push_back({.gpu_id = 51110, .hive_id = 0x5e1f00d5b0a7d001});
  return node;
}

}  // namespace sluice::sim
