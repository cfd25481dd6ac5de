#pragma once
/// \file
/// The ABI of the AMD compute driver (KFD), under the kernel's own names: what travels through
/// ioctl(2) on /dev/kfd. Declared here because the distribution's <linux/kfd_ioctl.h> may predate
/// the debugger API (KFD 1.13). Every size, offset and command number is pinned, so that a compiler
/// that lays something out differently stops here. In the kernel most of these names are macros:
/// do not include <linux/kfd_ioctl.h> before this header.
///
/// Source: include/uapi/linux/kfd_ioctl.h of the Linux kernel (KFD 1.17), x86-64.

#include <linux/ioctl.h>

#include <cstddef>
#include <cstdint>

namespace sluice::kfd::uapi {

/// The debugger API exists from this version on.
inline constexpr std::uint32_t KFD_IOCTL_MAJOR_VERSION = 1;
inline constexpr std::uint32_t KFD_IOCTL_MINOR_VERSION_DEBUGGER = 13;
/// CREATE_PROCESS: more than one KFD process in an address space.
inline constexpr std::uint32_t KFD_IOCTL_MINOR_VERSION_SECONDARY = 19;

inline constexpr std::uint32_t KFD_INVALID_FD = 0xffffffff;
inline constexpr std::uint32_t KFD_INVALID_GPUID = 0xffffffff;
inline constexpr std::uint32_t KFD_INVALID_QUEUEID = 0xffffffff;

/// kfd_ioctl_create_queue_args::queue_type, and queue_type of a snapshot entry.
inline constexpr std::uint32_t KFD_IOC_QUEUE_TYPE_COMPUTE = 0;
inline constexpr std::uint32_t KFD_IOC_QUEUE_TYPE_SDMA = 1;
inline constexpr std::uint32_t KFD_IOC_QUEUE_TYPE_COMPUTE_AQL = 2;
inline constexpr std::uint32_t KFD_IOC_QUEUE_TYPE_SDMA_XGMI = 3;
inline constexpr std::uint32_t KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID = 4;

inline constexpr std::uint32_t KFD_MAX_QUEUE_PERCENTAGE = 100;
inline constexpr std::uint32_t KFD_MAX_QUEUE_PRIORITY = 15;
inline constexpr std::uint32_t KFD_MIN_QUEUE_RING_SIZE = 1024;

// ---- version, memory, queues ----

struct kfd_ioctl_get_version_args {
  std::uint32_t major_version;  ///< Out.
  std::uint32_t minor_version;  ///< Out.
};
static_assert(sizeof(kfd_ioctl_get_version_args) == 8);
static_assert(offsetof(kfd_ioctl_get_version_args, major_version) == 0);
static_assert(offsetof(kfd_ioctl_get_version_args, minor_version) == 4);

struct kfd_ioctl_create_queue_args {
  std::uint64_t ring_base_address;
  std::uint64_t write_pointer_address;
  std::uint64_t read_pointer_address;
  std::uint64_t doorbell_offset;  ///< Out.
  std::uint32_t ring_size;        ///< Bytes.
  std::uint32_t gpu_id;
  std::uint32_t queue_type;
  std::uint32_t queue_percentage;
  std::uint32_t queue_priority;
  std::uint32_t queue_id;  ///< Out.
  std::uint64_t eop_buffer_address;
  std::uint64_t eop_buffer_size;
  std::uint64_t ctx_save_restore_address;
  std::uint32_t ctx_save_restore_size;
  std::uint32_t ctl_stack_size;
  std::uint32_t sdma_engine_id;  ///< From KFD 1.17 on; before, the struct ended here.
  std::uint32_t pad;
};
static_assert(sizeof(kfd_ioctl_create_queue_args) == 96);
static_assert(offsetof(kfd_ioctl_create_queue_args, ring_base_address) == 0);
static_assert(offsetof(kfd_ioctl_create_queue_args, write_pointer_address) == 8);
static_assert(offsetof(kfd_ioctl_create_queue_args, read_pointer_address) == 16);
static_assert(offsetof(kfd_ioctl_create_queue_args, doorbell_offset) == 24);
static_assert(offsetof(kfd_ioctl_create_queue_args, ring_size) == 32);
static_assert(offsetof(kfd_ioctl_create_queue_args, gpu_id) == 36);
static_assert(offsetof(kfd_ioctl_create_queue_args, queue_type) == 40);
static_assert(offsetof(kfd_ioctl_create_queue_args, queue_percentage) == 44);
static_assert(offsetof(kfd_ioctl_create_queue_args, queue_priority) == 48);
static_assert(offsetof(kfd_ioctl_create_queue_args, queue_id) == 52);
static_assert(offsetof(kfd_ioctl_create_queue_args, eop_buffer_address) == 56);
static_assert(offsetof(kfd_ioctl_create_queue_args, eop_buffer_size) == 64);
static_assert(offsetof(kfd_ioctl_create_queue_args, ctx_save_restore_address) == 72);
static_assert(offsetof(kfd_ioctl_create_queue_args, ctx_save_restore_size) == 80);
static_assert(offsetof(kfd_ioctl_create_queue_args, ctl_stack_size) == 84);
static_assert(offsetof(kfd_ioctl_create_queue_args, sdma_engine_id) == 88);
static_assert(offsetof(kfd_ioctl_create_queue_args, pad) == 92);

/// Size of kfd_ioctl_create_queue_args before KFD 1.17. The kernel takes either: it dispatches on
/// the number alone and zero-extends.
inline constexpr std::size_t KFD_CREATE_QUEUE_ARGS_SIZE_1_16 = 88;

struct kfd_ioctl_destroy_queue_args {
  std::uint32_t queue_id;
  std::uint32_t pad;
};
static_assert(sizeof(kfd_ioctl_destroy_queue_args) == 8);
static_assert(offsetof(kfd_ioctl_destroy_queue_args, queue_id) == 0);
static_assert(offsetof(kfd_ioctl_destroy_queue_args, pad) == 4);

struct kfd_ioctl_update_queue_args {
  std::uint64_t ring_base_address;
  std::uint32_t queue_id;
  std::uint32_t ring_size;
  std::uint32_t queue_percentage;
  std::uint32_t queue_priority;
};
static_assert(sizeof(kfd_ioctl_update_queue_args) == 24);
static_assert(offsetof(kfd_ioctl_update_queue_args, ring_base_address) == 0);
static_assert(offsetof(kfd_ioctl_update_queue_args, queue_id) == 8);
static_assert(offsetof(kfd_ioctl_update_queue_args, ring_size) == 12);
static_assert(offsetof(kfd_ioctl_update_queue_args, queue_percentage) == 16);
static_assert(offsetof(kfd_ioctl_update_queue_args, queue_priority) == 20);

struct kfd_ioctl_set_cu_mask_args {
  std::uint32_t queue_id;
  std::uint32_t num_cu_mask;  ///< Bits, a multiple of 32.
  std::uint64_t cu_mask_ptr;
};
static_assert(sizeof(kfd_ioctl_set_cu_mask_args) == 16);
static_assert(offsetof(kfd_ioctl_set_cu_mask_args, queue_id) == 0);
static_assert(offsetof(kfd_ioctl_set_cu_mask_args, num_cu_mask) == 4);
static_assert(offsetof(kfd_ioctl_set_cu_mask_args, cu_mask_ptr) == 8);

struct kfd_ioctl_get_queue_wave_state_args {
  std::uint64_t ctl_stack_address;
  std::uint32_t ctl_stack_used_size;  ///< Out.
  std::uint32_t save_area_used_size;  ///< Out.
  std::uint32_t queue_id;
  std::uint32_t pad;
};
static_assert(sizeof(kfd_ioctl_get_queue_wave_state_args) == 24);
static_assert(offsetof(kfd_ioctl_get_queue_wave_state_args, ctl_stack_address) == 0);
static_assert(offsetof(kfd_ioctl_get_queue_wave_state_args, ctl_stack_used_size) == 8);
static_assert(offsetof(kfd_ioctl_get_queue_wave_state_args, save_area_used_size) == 12);
static_assert(offsetof(kfd_ioctl_get_queue_wave_state_args, queue_id) == 16);
static_assert(offsetof(kfd_ioctl_get_queue_wave_state_args, pad) == 20);

struct kfd_ioctl_alloc_queue_gws_args {
  std::uint32_t queue_id;
  std::uint32_t num_gws;
  std::uint32_t first_gws;  ///< Out.
  std::uint32_t pad;
};
static_assert(sizeof(kfd_ioctl_alloc_queue_gws_args) == 16);
static_assert(offsetof(kfd_ioctl_alloc_queue_gws_args, queue_id) == 0);
static_assert(offsetof(kfd_ioctl_alloc_queue_gws_args, num_gws) == 4);
static_assert(offsetof(kfd_ioctl_alloc_queue_gws_args, first_gws) == 8);
static_assert(offsetof(kfd_ioctl_alloc_queue_gws_args, pad) == 12);

struct kfd_ioctl_get_clock_counters_args {
  std::uint64_t gpu_clock_counter;
  std::uint64_t cpu_clock_counter;
  std::uint64_t system_clock_counter;
  std::uint64_t system_clock_freq;
  std::uint32_t gpu_id;  ///< In.
  std::uint32_t pad;
};
static_assert(sizeof(kfd_ioctl_get_clock_counters_args) == 40);
static_assert(offsetof(kfd_ioctl_get_clock_counters_args, gpu_clock_counter) == 0);
static_assert(offsetof(kfd_ioctl_get_clock_counters_args, cpu_clock_counter) == 8);
static_assert(offsetof(kfd_ioctl_get_clock_counters_args, system_clock_counter) == 16);
static_assert(offsetof(kfd_ioctl_get_clock_counters_args, system_clock_freq) == 24);
static_assert(offsetof(kfd_ioctl_get_clock_counters_args, gpu_id) == 32);
static_assert(offsetof(kfd_ioctl_get_clock_counters_args, pad) == 36);

struct kfd_process_device_apertures {
  std::uint64_t lds_base;
  std::uint64_t lds_limit;
  std::uint64_t scratch_base;
  std::uint64_t scratch_limit;
  std::uint64_t gpuvm_base;
  std::uint64_t gpuvm_limit;
  std::uint32_t gpu_id;
  std::uint32_t pad;
};
static_assert(sizeof(kfd_process_device_apertures) == 56);
static_assert(offsetof(kfd_process_device_apertures, lds_base) == 0);
static_assert(offsetof(kfd_process_device_apertures, lds_limit) == 8);
static_assert(offsetof(kfd_process_device_apertures, scratch_base) == 16);
static_assert(offsetof(kfd_process_device_apertures, scratch_limit) == 24);
static_assert(offsetof(kfd_process_device_apertures, gpuvm_base) == 32);
static_assert(offsetof(kfd_process_device_apertures, gpuvm_limit) == 40);
static_assert(offsetof(kfd_process_device_apertures, gpu_id) == 48);
static_assert(offsetof(kfd_process_device_apertures, pad) == 52);

struct kfd_ioctl_get_process_apertures_new_args {
  std::uint64_t kfd_process_device_apertures_ptr;
  std::uint32_t num_of_nodes;  ///< In: capacity; out: entries written.
  std::uint32_t pad;
};
static_assert(sizeof(kfd_ioctl_get_process_apertures_new_args) == 16);
static_assert(offsetof(kfd_ioctl_get_process_apertures_new_args,
                       kfd_process_device_apertures_ptr) == 0);
static_assert(offsetof(kfd_ioctl_get_process_apertures_new_args, num_of_nodes) == 8);
static_assert(offsetof(kfd_ioctl_get_process_apertures_new_args, pad) == 12);

struct kfd_ioctl_acquire_vm_args {
  std::uint32_t drm_fd;
  std::uint32_t gpu_id;
};
static_assert(sizeof(kfd_ioctl_acquire_vm_args) == 8);
static_assert(offsetof(kfd_ioctl_acquire_vm_args, drm_fd) == 0);
static_assert(offsetof(kfd_ioctl_acquire_vm_args, gpu_id) == 4);

// ---- events ----

inline constexpr std::uint32_t KFD_IOC_EVENT_SIGNAL = 0;
inline constexpr std::uint32_t KFD_IOC_EVENT_NODECHANGE = 1;
inline constexpr std::uint32_t KFD_IOC_EVENT_DEVICESTATECHANGE = 2;
inline constexpr std::uint32_t KFD_IOC_EVENT_HW_EXCEPTION = 3;
inline constexpr std::uint32_t KFD_IOC_EVENT_SYSTEM_EVENT = 4;
inline constexpr std::uint32_t KFD_IOC_EVENT_DEBUG_EVENT = 5;
inline constexpr std::uint32_t KFD_IOC_EVENT_PROFILE_EVENT = 6;
inline constexpr std::uint32_t KFD_IOC_EVENT_QUEUE_EVENT = 7;
inline constexpr std::uint32_t KFD_IOC_EVENT_MEMORY = 8;

inline constexpr std::uint32_t KFD_IOC_WAIT_RESULT_COMPLETE = 0;
inline constexpr std::uint32_t KFD_IOC_WAIT_RESULT_TIMEOUT = 1;
inline constexpr std::uint32_t KFD_IOC_WAIT_RESULT_FAIL = 2;

inline constexpr std::uint32_t KFD_SIGNAL_EVENT_LIMIT = 4096;

struct kfd_ioctl_create_event_args {
  std::uint64_t event_page_offset;   ///< Out.
  std::uint32_t event_trigger_data;  ///< Out, signal events only.
  std::uint32_t event_type;
  std::uint32_t auto_reset;
  std::uint32_t node_id;
  std::uint32_t event_id;          ///< Out.
  std::uint32_t event_slot_index;  ///< Out.
};
static_assert(sizeof(kfd_ioctl_create_event_args) == 32);
static_assert(offsetof(kfd_ioctl_create_event_args, event_page_offset) == 0);
static_assert(offsetof(kfd_ioctl_create_event_args, event_trigger_data) == 8);
static_assert(offsetof(kfd_ioctl_create_event_args, event_type) == 12);
static_assert(offsetof(kfd_ioctl_create_event_args, auto_reset) == 16);
static_assert(offsetof(kfd_ioctl_create_event_args, node_id) == 20);
static_assert(offsetof(kfd_ioctl_create_event_args, event_id) == 24);
static_assert(offsetof(kfd_ioctl_create_event_args, event_slot_index) == 28);

struct kfd_ioctl_destroy_event_args {
  std::uint32_t event_id;
  std::uint32_t pad;
};
static_assert(sizeof(kfd_ioctl_destroy_event_args) == 8);
static_assert(offsetof(kfd_ioctl_destroy_event_args, event_id) == 0);
static_assert(offsetof(kfd_ioctl_destroy_event_args, pad) == 4);

struct kfd_ioctl_set_event_args {
  std::uint32_t event_id;
  std::uint32_t pad;
};
static_assert(sizeof(kfd_ioctl_set_event_args) == 8);
static_assert(offsetof(kfd_ioctl_set_event_args, event_id) == 0);
static_assert(offsetof(kfd_ioctl_set_event_args, pad) == 4);

struct kfd_ioctl_reset_event_args {
  std::uint32_t event_id;
  std::uint32_t pad;
};
static_assert(sizeof(kfd_ioctl_reset_event_args) == 8);
static_assert(offsetof(kfd_ioctl_reset_event_args, event_id) == 0);
static_assert(offsetof(kfd_ioctl_reset_event_args, pad) == 4);

struct kfd_memory_exception_failure {
  std::uint32_t NotPresent;
  std::uint32_t ReadOnly;
  std::uint32_t NoExecute;
  std::uint32_t imprecise;
};
static_assert(sizeof(kfd_memory_exception_failure) == 16);
static_assert(offsetof(kfd_memory_exception_failure, NotPresent) == 0);
static_assert(offsetof(kfd_memory_exception_failure, ReadOnly) == 4);
static_assert(offsetof(kfd_memory_exception_failure, NoExecute) == 8);
static_assert(offsetof(kfd_memory_exception_failure, imprecise) == 12);

struct kfd_hsa_memory_exception_data {
  kfd_memory_exception_failure failure;
  std::uint64_t va;
  std::uint32_t gpu_id;
  std::uint32_t ErrorType;
};
static_assert(sizeof(kfd_hsa_memory_exception_data) == 32);
static_assert(offsetof(kfd_hsa_memory_exception_data, failure) == 0);
static_assert(offsetof(kfd_hsa_memory_exception_data, va) == 16);
static_assert(offsetof(kfd_hsa_memory_exception_data, gpu_id) == 24);
static_assert(offsetof(kfd_hsa_memory_exception_data, ErrorType) == 28);

struct kfd_hsa_hw_exception_data {
  std::uint32_t reset_type;
  std::uint32_t reset_cause;
  std::uint32_t memory_lost;
  std::uint32_t gpu_id;
};
static_assert(sizeof(kfd_hsa_hw_exception_data) == 16);
static_assert(offsetof(kfd_hsa_hw_exception_data, reset_type) == 0);
static_assert(offsetof(kfd_hsa_hw_exception_data, reset_cause) == 4);
static_assert(offsetof(kfd_hsa_hw_exception_data, memory_lost) == 8);
static_assert(offsetof(kfd_hsa_hw_exception_data, gpu_id) == 12);

struct kfd_hsa_signal_event_data {
  std::uint64_t last_event_age;  ///< In and out, from KFD 1.14 on.
};
static_assert(sizeof(kfd_hsa_signal_event_data) == 8);
static_assert(offsetof(kfd_hsa_signal_event_data, last_event_age) == 0);

struct kfd_event_data {
  union {
    kfd_hsa_memory_exception_data memory_exception_data;
    kfd_hsa_hw_exception_data hw_exception_data;
    kfd_hsa_signal_event_data signal_event_data;
  };
  std::uint64_t kfd_event_data_ext;  ///< Pointer to an extension struct; 0.
  std::uint32_t event_id;            ///< In.
  std::uint32_t pad;
};
static_assert(sizeof(kfd_event_data) == 48);
static_assert(offsetof(kfd_event_data, memory_exception_data) == 0);
static_assert(offsetof(kfd_event_data, hw_exception_data) == 0);
static_assert(offsetof(kfd_event_data, signal_event_data) == 0);
static_assert(offsetof(kfd_event_data, kfd_event_data_ext) == 32);
static_assert(offsetof(kfd_event_data, event_id) == 40);
static_assert(offsetof(kfd_event_data, pad) == 44);

struct kfd_ioctl_wait_events_args {
  std::uint64_t events_ptr;  ///< Array of kfd_event_data.
  std::uint32_t num_events;
  std::uint32_t wait_for_all;
  std::uint32_t timeout;      ///< Milliseconds; 0xffffffff waits for ever.
  std::uint32_t wait_result;  ///< Out.
};
static_assert(sizeof(kfd_ioctl_wait_events_args) == 24);
static_assert(offsetof(kfd_ioctl_wait_events_args, events_ptr) == 0);
static_assert(offsetof(kfd_ioctl_wait_events_args, num_events) == 8);
static_assert(offsetof(kfd_ioctl_wait_events_args, wait_for_all) == 12);
static_assert(offsetof(kfd_ioctl_wait_events_args, timeout) == 16);
static_assert(offsetof(kfd_ioctl_wait_events_args, wait_result) == 20);

// ---- system management interface, checkpoint and restore ----

struct kfd_ioctl_smi_events_args {
  std::uint32_t gpuid;
  std::uint32_t anon_fd;  ///< Out.
};
static_assert(sizeof(kfd_ioctl_smi_events_args) == 8);
static_assert(offsetof(kfd_ioctl_smi_events_args, gpuid) == 0);
static_assert(offsetof(kfd_ioctl_smi_events_args, anon_fd) == 4);

/// Ids of SMI event lines; the mask bit is 1 << (id - 1).
enum kfd_smi_event : std::uint32_t {
  KFD_SMI_EVENT_NONE = 0,
  KFD_SMI_EVENT_VMFAULT = 1,
  KFD_SMI_EVENT_THERMAL_THROTTLE = 2,
  KFD_SMI_EVENT_GPU_PRE_RESET = 3,
  KFD_SMI_EVENT_GPU_POST_RESET = 4,
  KFD_SMI_EVENT_MIGRATE_START = 5,
  KFD_SMI_EVENT_MIGRATE_END = 6,
  KFD_SMI_EVENT_PAGE_FAULT_START = 7,
  KFD_SMI_EVENT_PAGE_FAULT_END = 8,
  KFD_SMI_EVENT_QUEUE_EVICTION = 9,
  KFD_SMI_EVENT_QUEUE_RESTORE = 10,
  KFD_SMI_EVENT_UNMAP_FROM_GPU = 11,
  KFD_SMI_EVENT_PROCESS_START = 12,
  KFD_SMI_EVENT_PROCESS_END = 13,
  KFD_SMI_EVENT_ALL_PROCESS = 64,
};
inline constexpr std::size_t KFD_SMI_EVENT_MSG_SIZE = 96;

enum kfd_criu_op : std::uint32_t {
  KFD_CRIU_OP_PROCESS_INFO = 0,  ///< Evicts every queue and says what there is to save.
  KFD_CRIU_OP_CHECKPOINT = 1,
  KFD_CRIU_OP_UNPAUSE = 2,
  KFD_CRIU_OP_RESTORE = 3,
  KFD_CRIU_OP_RESUME = 4,
};

struct kfd_ioctl_criu_args {
  std::uint64_t devices;
  std::uint64_t bos;
  std::uint64_t priv_data;
  std::uint64_t priv_data_size;
  std::uint32_t num_devices;
  std::uint32_t num_bos;
  std::uint32_t num_objects;
  std::uint32_t pid;
  std::uint32_t op;
};
static_assert(sizeof(kfd_ioctl_criu_args) == 56);
static_assert(offsetof(kfd_ioctl_criu_args, devices) == 0);
static_assert(offsetof(kfd_ioctl_criu_args, bos) == 8);
static_assert(offsetof(kfd_ioctl_criu_args, priv_data) == 16);
static_assert(offsetof(kfd_ioctl_criu_args, priv_data_size) == 24);
static_assert(offsetof(kfd_ioctl_criu_args, num_devices) == 32);
static_assert(offsetof(kfd_ioctl_criu_args, num_bos) == 36);
static_assert(offsetof(kfd_ioctl_criu_args, num_objects) == 40);
static_assert(offsetof(kfd_ioctl_criu_args, pid) == 44);
static_assert(offsetof(kfd_ioctl_criu_args, op) == 48);

// ---- runtime and debugger ----

inline constexpr std::uint32_t KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK = 1;
inline constexpr std::uint32_t KFD_RUNTIME_ENABLE_MODE_TTMP_SAVE_MASK = 2;

struct kfd_ioctl_runtime_enable_args {
  std::uint64_t r_debug;
  std::uint32_t mode_mask;  ///< Without the ENABLE bit: disable.
  std::uint32_t capabilities_mask;
};
static_assert(sizeof(kfd_ioctl_runtime_enable_args) == 16);
static_assert(offsetof(kfd_ioctl_runtime_enable_args, r_debug) == 0);
static_assert(offsetof(kfd_ioctl_runtime_enable_args, mode_mask) == 8);
static_assert(offsetof(kfd_ioctl_runtime_enable_args, capabilities_mask) == 12);

/// kfd_runtime_info::runtime_state.
enum kfd_dbg_runtime_state : std::uint32_t {
  DBG_RUNTIME_STATE_DISABLED = 0,
  DBG_RUNTIME_STATE_ENABLED = 1,
  DBG_RUNTIME_STATE_ENABLED_BUSY = 2,   ///< Another process holds the debug VMID of a GPU.
  DBG_RUNTIME_STATE_ENABLED_ERROR = 3,  ///< Activation failed.
};

struct kfd_runtime_info {
  std::uint64_t r_debug;
  std::uint32_t runtime_state;
  std::uint32_t ttmp_setup;
};
static_assert(sizeof(kfd_runtime_info) == 16);
static_assert(offsetof(kfd_runtime_info, r_debug) == 0);
static_assert(offsetof(kfd_runtime_info, runtime_state) == 8);
static_assert(offsetof(kfd_runtime_info, ttmp_setup) == 12);

/// Exception codes. A status word has bit KFD_EC_MASK(code) set.
enum kfd_dbg_trap_exception_code : std::uint32_t {
  EC_NONE = 0,
  EC_QUEUE_WAVE_ABORT = 1,
  EC_QUEUE_WAVE_TRAP = 2,
  EC_QUEUE_WAVE_MATH_ERROR = 3,
  EC_QUEUE_WAVE_ILLEGAL_INSTRUCTION = 4,
  EC_QUEUE_WAVE_MEMORY_VIOLATION = 5,
  EC_QUEUE_WAVE_APERTURE_VIOLATION = 6,
  EC_QUEUE_PACKET_DISPATCH_DIM_INVALID = 16,
  EC_QUEUE_PACKET_DISPATCH_GROUP_SEGMENT_SIZE_INVALID = 17,
  EC_QUEUE_PACKET_DISPATCH_CODE_INVALID = 18,
  EC_QUEUE_PACKET_RESERVED = 19,
  EC_QUEUE_PACKET_UNSUPPORTED = 20,
  EC_QUEUE_PACKET_DISPATCH_WORK_GROUP_SIZE_INVALID = 21,
  EC_QUEUE_PACKET_DISPATCH_REGISTER_INVALID = 22,
  EC_QUEUE_PACKET_VENDOR_UNSUPPORTED = 23,
  EC_QUEUE_PREEMPTION_ERROR = 30,
  EC_QUEUE_NEW = 31,
  EC_DEVICE_QUEUE_DELETE = 32,
  EC_DEVICE_MEMORY_VIOLATION = 33,
  EC_DEVICE_RAS_ERROR = 34,
  EC_DEVICE_FATAL_HALT = 35,
  EC_DEVICE_NEW = 36,
  EC_PROCESS_RUNTIME = 48,
  EC_PROCESS_DEVICE_REMOVE = 49,
  EC_MAX = 50,
};

constexpr std::uint64_t KFD_EC_MASK(kfd_dbg_trap_exception_code code) {
  return std::uint64_t{1} << (code - 1);
}

inline constexpr std::uint64_t KFD_EC_MASK_QUEUE =
    KFD_EC_MASK(EC_QUEUE_WAVE_ABORT) | KFD_EC_MASK(EC_QUEUE_WAVE_TRAP) |
    KFD_EC_MASK(EC_QUEUE_WAVE_MATH_ERROR) | KFD_EC_MASK(EC_QUEUE_WAVE_ILLEGAL_INSTRUCTION) |
    KFD_EC_MASK(EC_QUEUE_WAVE_MEMORY_VIOLATION) | KFD_EC_MASK(EC_QUEUE_WAVE_APERTURE_VIOLATION) |
    KFD_EC_MASK(EC_QUEUE_PACKET_DISPATCH_DIM_INVALID) |
    KFD_EC_MASK(EC_QUEUE_PACKET_DISPATCH_GROUP_SEGMENT_SIZE_INVALID) |
    KFD_EC_MASK(EC_QUEUE_PACKET_DISPATCH_CODE_INVALID) | KFD_EC_MASK(EC_QUEUE_PACKET_RESERVED) |
    KFD_EC_MASK(EC_QUEUE_PACKET_UNSUPPORTED) |
    KFD_EC_MASK(EC_QUEUE_PACKET_DISPATCH_WORK_GROUP_SIZE_INVALID) |
    KFD_EC_MASK(EC_QUEUE_PACKET_DISPATCH_REGISTER_INVALID) |
    KFD_EC_MASK(EC_QUEUE_PACKET_VENDOR_UNSUPPORTED) | KFD_EC_MASK(EC_QUEUE_PREEMPTION_ERROR) |
    KFD_EC_MASK(EC_QUEUE_NEW);
inline constexpr std::uint64_t KFD_EC_MASK_DEVICE =
    KFD_EC_MASK(EC_DEVICE_QUEUE_DELETE) | KFD_EC_MASK(EC_DEVICE_MEMORY_VIOLATION) |
    KFD_EC_MASK(EC_DEVICE_RAS_ERROR) | KFD_EC_MASK(EC_DEVICE_FATAL_HALT) |
    KFD_EC_MASK(EC_DEVICE_NEW);
inline constexpr std::uint64_t KFD_EC_MASK_PROCESS =
    KFD_EC_MASK(EC_PROCESS_RUNTIME) | KFD_EC_MASK(EC_PROCESS_DEVICE_REMOVE);
static_assert(KFD_EC_MASK(EC_QUEUE_NEW) == 0x40000000);
static_assert(KFD_EC_MASK(EC_DEVICE_QUEUE_DELETE) == 0x80000000);
static_assert(KFD_EC_MASK(EC_PROCESS_RUNTIME) == 0x0000800000000000);
static_assert(KFD_EC_MASK_QUEUE == 0x607F803F);
static_assert(KFD_EC_MASK_DEVICE == 0xF80000000);
static_assert(KFD_EC_MASK_PROCESS == 0x0001800000000000);

/// Status bits that SUSPEND_QUEUES and RESUME_QUEUES leave in the caller's array of ids.
inline constexpr std::uint32_t KFD_DBG_QUEUE_ERROR_BIT = 30;
inline constexpr std::uint32_t KFD_DBG_QUEUE_INVALID_BIT = 31;
inline constexpr std::uint32_t KFD_DBG_QUEUE_ERROR_MASK = 1U << KFD_DBG_QUEUE_ERROR_BIT;
inline constexpr std::uint32_t KFD_DBG_QUEUE_INVALID_MASK = 1U << KFD_DBG_QUEUE_INVALID_BIT;

/// Size of a process's queue id space (one bitmap over all GPUs and types).
inline constexpr std::uint32_t KFD_MAX_NUM_OF_QUEUES_PER_PROCESS = 1024;

enum kfd_dbg_trap_override_mode : std::uint32_t {
  KFD_DBG_TRAP_OVERRIDE_OR = 0,
  KFD_DBG_TRAP_OVERRIDE_REPLACE = 1,
};
enum kfd_dbg_trap_wave_launch_mode : std::uint32_t {
  KFD_DBG_TRAP_WAVE_LAUNCH_MODE_NORMAL = 0,
  KFD_DBG_TRAP_WAVE_LAUNCH_MODE_HALT = 1,
  KFD_DBG_TRAP_WAVE_LAUNCH_MODE_DEBUG = 3,
};
enum kfd_dbg_trap_address_watch_mode : std::uint32_t {
  KFD_DBG_TRAP_ADDRESS_WATCH_MODE_READ = 0,
  KFD_DBG_TRAP_ADDRESS_WATCH_MODE_NONREAD = 1,
  KFD_DBG_TRAP_ADDRESS_WATCH_MODE_ATOMIC = 2,
  KFD_DBG_TRAP_ADDRESS_WATCH_MODE_ALL = 3,
};
enum kfd_dbg_trap_flags : std::uint32_t {
  KFD_DBG_TRAP_FLAG_SINGLE_MEM_OP = 1,
  KFD_DBG_TRAP_FLAG_SINGLE_ALU_OP = 2,
  KFD_DBG_TRAP_FLAG_LDS_OUT_OF_ADDR_RANGE = 4,
};

enum kfd_dbg_trap_operations : std::uint32_t {
  KFD_IOC_DBG_TRAP_ENABLE = 0,
  KFD_IOC_DBG_TRAP_DISABLE = 1,
  KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT = 2,
  KFD_IOC_DBG_TRAP_SET_EXCEPTIONS_ENABLED = 3,
  KFD_IOC_DBG_TRAP_SET_WAVE_LAUNCH_OVERRIDE = 4,
  KFD_IOC_DBG_TRAP_SET_WAVE_LAUNCH_MODE = 5,
  KFD_IOC_DBG_TRAP_SUSPEND_QUEUES = 6,
  KFD_IOC_DBG_TRAP_RESUME_QUEUES = 7,
  KFD_IOC_DBG_TRAP_SET_NODE_ADDRESS_WATCH = 8,
  KFD_IOC_DBG_TRAP_CLEAR_NODE_ADDRESS_WATCH = 9,
  KFD_IOC_DBG_TRAP_SET_FLAGS = 10,
  KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT = 11,
  KFD_IOC_DBG_TRAP_QUERY_EXCEPTION_INFO = 12,
  KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT = 13,
  KFD_IOC_DBG_TRAP_GET_DEVICE_SNAPSHOT = 14,
};

struct kfd_ioctl_dbg_trap_enable_args {
  std::uint64_t exception_mask;
  std::uint64_t rinfo_ptr;   ///< Pointer to kfd_runtime_info.
  std::uint32_t rinfo_size;  ///< In and out.
  std::uint32_t dbg_fd;
};
static_assert(sizeof(kfd_ioctl_dbg_trap_enable_args) == 24);
static_assert(offsetof(kfd_ioctl_dbg_trap_enable_args, exception_mask) == 0);
static_assert(offsetof(kfd_ioctl_dbg_trap_enable_args, rinfo_ptr) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_enable_args, rinfo_size) == 16);
static_assert(offsetof(kfd_ioctl_dbg_trap_enable_args, dbg_fd) == 20);

struct kfd_ioctl_dbg_trap_send_runtime_event_args {
  std::uint64_t exception_mask;
  std::uint32_t gpu_id;
  std::uint32_t queue_id;
};
static_assert(sizeof(kfd_ioctl_dbg_trap_send_runtime_event_args) == 16);
static_assert(offsetof(kfd_ioctl_dbg_trap_send_runtime_event_args, exception_mask) == 0);
static_assert(offsetof(kfd_ioctl_dbg_trap_send_runtime_event_args, gpu_id) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_send_runtime_event_args, queue_id) == 12);

struct kfd_ioctl_dbg_trap_set_exceptions_enabled_args {
  std::uint64_t exception_mask;
};
static_assert(sizeof(kfd_ioctl_dbg_trap_set_exceptions_enabled_args) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_set_exceptions_enabled_args, exception_mask) == 0);

struct kfd_ioctl_dbg_trap_set_wave_launch_override_args {
  std::uint32_t override_mode;
  std::uint32_t enable_mask;           ///< In and out.
  std::uint32_t support_request_mask;  ///< In and out.
  std::uint32_t pad;
};
static_assert(sizeof(kfd_ioctl_dbg_trap_set_wave_launch_override_args) == 16);
static_assert(offsetof(kfd_ioctl_dbg_trap_set_wave_launch_override_args, override_mode) == 0);
static_assert(offsetof(kfd_ioctl_dbg_trap_set_wave_launch_override_args, enable_mask) == 4);
static_assert(offsetof(kfd_ioctl_dbg_trap_set_wave_launch_override_args, support_request_mask) ==
              8);
static_assert(offsetof(kfd_ioctl_dbg_trap_set_wave_launch_override_args, pad) == 12);

struct kfd_ioctl_dbg_trap_set_wave_launch_mode_args {
  std::uint32_t launch_mode;
  std::uint32_t pad;
};
static_assert(sizeof(kfd_ioctl_dbg_trap_set_wave_launch_mode_args) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_set_wave_launch_mode_args, launch_mode) == 0);
static_assert(offsetof(kfd_ioctl_dbg_trap_set_wave_launch_mode_args, pad) == 4);

struct kfd_ioctl_dbg_trap_suspend_queues_args {
  std::uint64_t exception_mask;   ///< Bits to clear.
  std::uint64_t queue_array_ptr;  ///< Never 0 with num_queues > 0: the kernel does not check.
  std::uint32_t num_queues;
  std::uint32_t grace_period;  ///< Units of 1024 GPU clocks; runlist hardware only.
};
static_assert(sizeof(kfd_ioctl_dbg_trap_suspend_queues_args) == 24);
static_assert(offsetof(kfd_ioctl_dbg_trap_suspend_queues_args, exception_mask) == 0);
static_assert(offsetof(kfd_ioctl_dbg_trap_suspend_queues_args, queue_array_ptr) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_suspend_queues_args, num_queues) == 16);
static_assert(offsetof(kfd_ioctl_dbg_trap_suspend_queues_args, grace_period) == 20);

struct kfd_ioctl_dbg_trap_resume_queues_args {
  std::uint64_t queue_array_ptr;  ///< 0: every queue of the target.
  std::uint32_t num_queues;
  std::uint32_t pad;
};
static_assert(sizeof(kfd_ioctl_dbg_trap_resume_queues_args) == 16);
static_assert(offsetof(kfd_ioctl_dbg_trap_resume_queues_args, queue_array_ptr) == 0);
static_assert(offsetof(kfd_ioctl_dbg_trap_resume_queues_args, num_queues) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_resume_queues_args, pad) == 12);

struct kfd_ioctl_dbg_trap_set_node_address_watch_args {
  std::uint64_t address;
  std::uint32_t mode;
  std::uint32_t mask;
  std::uint32_t gpu_id;
  std::uint32_t id;  ///< Out.
};
static_assert(sizeof(kfd_ioctl_dbg_trap_set_node_address_watch_args) == 24);
static_assert(offsetof(kfd_ioctl_dbg_trap_set_node_address_watch_args, address) == 0);
static_assert(offsetof(kfd_ioctl_dbg_trap_set_node_address_watch_args, mode) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_set_node_address_watch_args, mask) == 12);
static_assert(offsetof(kfd_ioctl_dbg_trap_set_node_address_watch_args, gpu_id) == 16);
static_assert(offsetof(kfd_ioctl_dbg_trap_set_node_address_watch_args, id) == 20);

struct kfd_ioctl_dbg_trap_clear_node_address_watch_args {
  std::uint32_t gpu_id;
  std::uint32_t id;
};
static_assert(sizeof(kfd_ioctl_dbg_trap_clear_node_address_watch_args) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_clear_node_address_watch_args, gpu_id) == 0);
static_assert(offsetof(kfd_ioctl_dbg_trap_clear_node_address_watch_args, id) == 4);

struct kfd_ioctl_dbg_trap_set_flags_args {
  std::uint32_t flags;  ///< Out: the previous ones.
  std::uint32_t pad;
};
static_assert(sizeof(kfd_ioctl_dbg_trap_set_flags_args) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_set_flags_args, flags) == 0);
static_assert(offsetof(kfd_ioctl_dbg_trap_set_flags_args, pad) == 4);

struct kfd_ioctl_dbg_trap_query_debug_event_args {
  std::uint64_t exception_mask;  ///< In: bits to clear; out: the full status.
  std::uint32_t gpu_id;          ///< Out.
  std::uint32_t queue_id;        ///< Out.
};
static_assert(sizeof(kfd_ioctl_dbg_trap_query_debug_event_args) == 16);
static_assert(offsetof(kfd_ioctl_dbg_trap_query_debug_event_args, exception_mask) == 0);
static_assert(offsetof(kfd_ioctl_dbg_trap_query_debug_event_args, gpu_id) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_query_debug_event_args, queue_id) == 12);

struct kfd_ioctl_dbg_trap_query_exception_info_args {
  std::uint64_t info_ptr;
  std::uint32_t info_size;  ///< In and out.
  std::uint32_t source_id;
  std::uint32_t exception_code;
  std::uint32_t clear_exception;
};
static_assert(sizeof(kfd_ioctl_dbg_trap_query_exception_info_args) == 24);
static_assert(offsetof(kfd_ioctl_dbg_trap_query_exception_info_args, info_ptr) == 0);
static_assert(offsetof(kfd_ioctl_dbg_trap_query_exception_info_args, info_size) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_query_exception_info_args, source_id) == 12);
static_assert(offsetof(kfd_ioctl_dbg_trap_query_exception_info_args, exception_code) == 16);
static_assert(offsetof(kfd_ioctl_dbg_trap_query_exception_info_args, clear_exception) == 20);

struct kfd_ioctl_dbg_trap_queue_snapshot_args {
  std::uint64_t exception_mask;    ///< Bits to clear in the entries written.
  std::uint64_t snapshot_buf_ptr;  ///< Array of kfd_queue_snapshot_entry.
  std::uint32_t num_queues;        ///< In: capacity; out: queues that exist.
  std::uint32_t entry_size;        ///< In: stride; out: bytes written per entry.
};
static_assert(sizeof(kfd_ioctl_dbg_trap_queue_snapshot_args) == 24);
static_assert(offsetof(kfd_ioctl_dbg_trap_queue_snapshot_args, exception_mask) == 0);
static_assert(offsetof(kfd_ioctl_dbg_trap_queue_snapshot_args, snapshot_buf_ptr) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_queue_snapshot_args, num_queues) == 16);
static_assert(offsetof(kfd_ioctl_dbg_trap_queue_snapshot_args, entry_size) == 20);

struct kfd_ioctl_dbg_trap_device_snapshot_args {
  std::uint64_t exception_mask;
  std::uint64_t snapshot_buf_ptr;  ///< Array of kfd_dbg_device_info_entry.
  std::uint32_t num_devices;
  std::uint32_t entry_size;
};
static_assert(sizeof(kfd_ioctl_dbg_trap_device_snapshot_args) == 24);
static_assert(offsetof(kfd_ioctl_dbg_trap_device_snapshot_args, exception_mask) == 0);
static_assert(offsetof(kfd_ioctl_dbg_trap_device_snapshot_args, snapshot_buf_ptr) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_device_snapshot_args, num_devices) == 16);
static_assert(offsetof(kfd_ioctl_dbg_trap_device_snapshot_args, entry_size) == 20);

/// The argument of AMDKFD_IOC_DBG_TRAP. A result >= 0 of SUSPEND_QUEUES and RESUME_QUEUES is a
/// count.
struct kfd_ioctl_dbg_trap_args {
  std::uint32_t pid;  ///< The target, in the caller's pid namespace.
  std::uint32_t op;   ///< kfd_dbg_trap_operations.
  union {
    kfd_ioctl_dbg_trap_enable_args enable;
    kfd_ioctl_dbg_trap_send_runtime_event_args send_runtime_event;
    kfd_ioctl_dbg_trap_set_exceptions_enabled_args set_exceptions_enabled;
    kfd_ioctl_dbg_trap_set_wave_launch_override_args launch_override;
    kfd_ioctl_dbg_trap_set_wave_launch_mode_args launch_mode;
    kfd_ioctl_dbg_trap_suspend_queues_args suspend_queues;
    kfd_ioctl_dbg_trap_resume_queues_args resume_queues;
    kfd_ioctl_dbg_trap_set_node_address_watch_args set_node_address_watch;
    kfd_ioctl_dbg_trap_clear_node_address_watch_args clear_node_address_watch;
    kfd_ioctl_dbg_trap_set_flags_args set_flags;
    kfd_ioctl_dbg_trap_query_debug_event_args query_debug_event;
    kfd_ioctl_dbg_trap_query_exception_info_args query_exception_info;
    kfd_ioctl_dbg_trap_queue_snapshot_args queue_snapshot;
    kfd_ioctl_dbg_trap_device_snapshot_args device_snapshot;
  };
};
static_assert(sizeof(kfd_ioctl_dbg_trap_args) == 32);
static_assert(offsetof(kfd_ioctl_dbg_trap_args, pid) == 0);
static_assert(offsetof(kfd_ioctl_dbg_trap_args, op) == 4);
static_assert(offsetof(kfd_ioctl_dbg_trap_args, enable) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_args, send_runtime_event) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_args, set_exceptions_enabled) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_args, launch_override) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_args, launch_mode) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_args, suspend_queues) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_args, resume_queues) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_args, set_node_address_watch) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_args, clear_node_address_watch) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_args, set_flags) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_args, query_debug_event) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_args, query_exception_info) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_args, queue_snapshot) == 8);
static_assert(offsetof(kfd_ioctl_dbg_trap_args, device_snapshot) == 8);

struct kfd_queue_snapshot_entry {
  std::uint64_t exception_status;  ///< As it was before the clearing.
  std::uint64_t ring_base_address;
  std::uint64_t write_pointer_address;
  std::uint64_t read_pointer_address;
  std::uint64_t ctx_save_restore_address;
  std::uint32_t queue_id;
  std::uint32_t gpu_id;
  std::uint32_t ring_size;  ///< Bytes.
  std::uint32_t queue_type;
  std::uint32_t ctx_save_restore_area_size;
  std::uint32_t reserved;
};
static_assert(sizeof(kfd_queue_snapshot_entry) == 64);
static_assert(offsetof(kfd_queue_snapshot_entry, exception_status) == 0);
static_assert(offsetof(kfd_queue_snapshot_entry, ring_base_address) == 8);
static_assert(offsetof(kfd_queue_snapshot_entry, write_pointer_address) == 16);
static_assert(offsetof(kfd_queue_snapshot_entry, read_pointer_address) == 24);
static_assert(offsetof(kfd_queue_snapshot_entry, ctx_save_restore_address) == 32);
static_assert(offsetof(kfd_queue_snapshot_entry, queue_id) == 40);
static_assert(offsetof(kfd_queue_snapshot_entry, gpu_id) == 44);
static_assert(offsetof(kfd_queue_snapshot_entry, ring_size) == 48);
static_assert(offsetof(kfd_queue_snapshot_entry, queue_type) == 52);
static_assert(offsetof(kfd_queue_snapshot_entry, ctx_save_restore_area_size) == 56);
static_assert(offsetof(kfd_queue_snapshot_entry, reserved) == 60);

struct kfd_dbg_device_info_entry {
  std::uint64_t exception_status;
  std::uint64_t lds_base;
  std::uint64_t lds_limit;
  std::uint64_t scratch_base;
  std::uint64_t scratch_limit;
  std::uint64_t gpuvm_base;
  std::uint64_t gpuvm_limit;
  std::uint32_t gpu_id;
  std::uint32_t location_id;
  std::uint32_t vendor_id;
  std::uint32_t device_id;
  std::uint32_t revision_id;
  std::uint32_t subsystem_vendor_id;
  std::uint32_t subsystem_device_id;
  std::uint32_t fw_version;
  std::uint32_t gfx_target_version;
  std::uint32_t simd_count;
  std::uint32_t max_waves_per_simd;
  std::uint32_t array_count;
  std::uint32_t simd_arrays_per_engine;
  std::uint32_t num_xcc;
  std::uint32_t capability;
  std::uint32_t debug_prop;
};
static_assert(sizeof(kfd_dbg_device_info_entry) == 120);
static_assert(offsetof(kfd_dbg_device_info_entry, exception_status) == 0);
static_assert(offsetof(kfd_dbg_device_info_entry, lds_base) == 8);
static_assert(offsetof(kfd_dbg_device_info_entry, lds_limit) == 16);
static_assert(offsetof(kfd_dbg_device_info_entry, scratch_base) == 24);
static_assert(offsetof(kfd_dbg_device_info_entry, scratch_limit) == 32);
static_assert(offsetof(kfd_dbg_device_info_entry, gpuvm_base) == 40);
static_assert(offsetof(kfd_dbg_device_info_entry, gpuvm_limit) == 48);
static_assert(offsetof(kfd_dbg_device_info_entry, gpu_id) == 56);
static_assert(offsetof(kfd_dbg_device_info_entry, location_id) == 60);
static_assert(offsetof(kfd_dbg_device_info_entry, vendor_id) == 64);
static_assert(offsetof(kfd_dbg_device_info_entry, device_id) == 68);
static_assert(offsetof(kfd_dbg_device_info_entry, revision_id) == 72);
static_assert(offsetof(kfd_dbg_device_info_entry, subsystem_vendor_id) == 76);
static_assert(offsetof(kfd_dbg_device_info_entry, subsystem_device_id) == 80);
static_assert(offsetof(kfd_dbg_device_info_entry, fw_version) == 84);
static_assert(offsetof(kfd_dbg_device_info_entry, gfx_target_version) == 88);
static_assert(offsetof(kfd_dbg_device_info_entry, simd_count) == 92);
static_assert(offsetof(kfd_dbg_device_info_entry, max_waves_per_simd) == 96);
static_assert(offsetof(kfd_dbg_device_info_entry, array_count) == 100);
static_assert(offsetof(kfd_dbg_device_info_entry, simd_arrays_per_engine) == 104);
static_assert(offsetof(kfd_dbg_device_info_entry, num_xcc) == 108);
static_assert(offsetof(kfd_dbg_device_info_entry, capability) == 112);
static_assert(offsetof(kfd_dbg_device_info_entry, debug_prop) == 116);

/// Lies at ctx_save_restore_address in the target's memory; a suspend writes wave_state.
struct kfd_context_save_area_header {
  struct {
    std::uint32_t control_stack_offset;
    std::uint32_t control_stack_size;
    std::uint32_t wave_state_offset;
    std::uint32_t wave_state_size;
  } wave_state;
  std::uint32_t debug_offset;
  std::uint32_t debug_size;
  std::uint64_t err_payload_addr;
  std::uint32_t err_event_id;
  std::uint32_t reserved1;
};
static_assert(sizeof(kfd_context_save_area_header) == 40);
static_assert(sizeof(kfd_context_save_area_header::wave_state) == 16);
static_assert(offsetof(kfd_context_save_area_header, wave_state) == 0);
static_assert(offsetof(kfd_context_save_area_header, debug_offset) == 16);
static_assert(offsetof(kfd_context_save_area_header, debug_size) == 20);
static_assert(offsetof(kfd_context_save_area_header, err_payload_addr) == 24);
static_assert(offsetof(kfd_context_save_area_header, err_event_id) == 32);
static_assert(offsetof(kfd_context_save_area_header, reserved1) == 36);

// ---- command numbers ----

/// The kernel dispatches on _IOC_NR alone; the size coded in the number says how much it copies.
inline constexpr std::uint32_t AMDKFD_IOCTL_BASE = 'K';

namespace detail {
constexpr std::uint32_t command(std::uint32_t direction, std::uint32_t number, std::size_t size) {
  return direction << _IOC_DIRSHIFT | static_cast<std::uint32_t>(size) << _IOC_SIZESHIFT |
         AMDKFD_IOCTL_BASE << _IOC_TYPESHIFT | number << _IOC_NRSHIFT;
}
inline constexpr std::uint32_t none = _IOC_NONE, r = _IOC_READ, w = _IOC_WRITE, wr = r | w;
}  // namespace detail

inline constexpr std::uint32_t AMDKFD_IOC_GET_VERSION =
    detail::command(detail::r, 0x01, sizeof(kfd_ioctl_get_version_args));
inline constexpr std::uint32_t AMDKFD_IOC_CREATE_QUEUE =
    detail::command(detail::wr, 0x02, sizeof(kfd_ioctl_create_queue_args));
inline constexpr std::uint32_t AMDKFD_IOC_DESTROY_QUEUE =
    detail::command(detail::wr, 0x03, sizeof(kfd_ioctl_destroy_queue_args));
inline constexpr std::uint32_t AMDKFD_IOC_SET_MEMORY_POLICY = detail::command(detail::w, 0x04, 32);
inline constexpr std::uint32_t AMDKFD_IOC_GET_CLOCK_COUNTERS =
    detail::command(detail::wr, 0x05, sizeof(kfd_ioctl_get_clock_counters_args));
inline constexpr std::uint32_t AMDKFD_IOC_GET_PROCESS_APERTURES =
    detail::command(detail::r, 0x06, 400);
inline constexpr std::uint32_t AMDKFD_IOC_UPDATE_QUEUE =
    detail::command(detail::w, 0x07, sizeof(kfd_ioctl_update_queue_args));
inline constexpr std::uint32_t AMDKFD_IOC_CREATE_EVENT =
    detail::command(detail::wr, 0x08, sizeof(kfd_ioctl_create_event_args));
inline constexpr std::uint32_t AMDKFD_IOC_DESTROY_EVENT =
    detail::command(detail::w, 0x09, sizeof(kfd_ioctl_destroy_event_args));
inline constexpr std::uint32_t AMDKFD_IOC_SET_EVENT =
    detail::command(detail::w, 0x0A, sizeof(kfd_ioctl_set_event_args));
inline constexpr std::uint32_t AMDKFD_IOC_RESET_EVENT =
    detail::command(detail::w, 0x0B, sizeof(kfd_ioctl_reset_event_args));
inline constexpr std::uint32_t AMDKFD_IOC_WAIT_EVENTS =
    detail::command(detail::wr, 0x0C, sizeof(kfd_ioctl_wait_events_args));
inline constexpr std::uint32_t AMDKFD_IOC_DBG_REGISTER_DEPRECATED =
    detail::command(detail::w, 0x0D, 8);
inline constexpr std::uint32_t AMDKFD_IOC_DBG_UNREGISTER_DEPRECATED =
    detail::command(detail::w, 0x0E, 8);
inline constexpr std::uint32_t AMDKFD_IOC_DBG_ADDRESS_WATCH_DEPRECATED =
    detail::command(detail::w, 0x0F, 16);
inline constexpr std::uint32_t AMDKFD_IOC_DBG_WAVE_CONTROL_DEPRECATED =
    detail::command(detail::w, 0x10, 16);
inline constexpr std::uint32_t AMDKFD_IOC_SET_SCRATCH_BACKING_VA =
    detail::command(detail::wr, 0x11, 16);
inline constexpr std::uint32_t AMDKFD_IOC_GET_TILE_CONFIG = detail::command(detail::wr, 0x12, 40);
inline constexpr std::uint32_t AMDKFD_IOC_SET_TRAP_HANDLER = detail::command(detail::w, 0x13, 24);
inline constexpr std::uint32_t AMDKFD_IOC_GET_PROCESS_APERTURES_NEW =
    detail::command(detail::wr, 0x14, sizeof(kfd_ioctl_get_process_apertures_new_args));
inline constexpr std::uint32_t AMDKFD_IOC_ACQUIRE_VM =
    detail::command(detail::w, 0x15, sizeof(kfd_ioctl_acquire_vm_args));
inline constexpr std::uint32_t AMDKFD_IOC_ALLOC_MEMORY_OF_GPU =
    detail::command(detail::wr, 0x16, 40);
inline constexpr std::uint32_t AMDKFD_IOC_FREE_MEMORY_OF_GPU = detail::command(detail::w, 0x17, 8);
inline constexpr std::uint32_t AMDKFD_IOC_MAP_MEMORY_TO_GPU = detail::command(detail::wr, 0x18, 24);
inline constexpr std::uint32_t AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU =
    detail::command(detail::wr, 0x19, 24);
inline constexpr std::uint32_t AMDKFD_IOC_SET_CU_MASK =
    detail::command(detail::w, 0x1A, sizeof(kfd_ioctl_set_cu_mask_args));
inline constexpr std::uint32_t AMDKFD_IOC_GET_QUEUE_WAVE_STATE =
    detail::command(detail::wr, 0x1B, sizeof(kfd_ioctl_get_queue_wave_state_args));
inline constexpr std::uint32_t AMDKFD_IOC_GET_DMABUF_INFO = detail::command(detail::wr, 0x1C, 32);
inline constexpr std::uint32_t AMDKFD_IOC_IMPORT_DMABUF = detail::command(detail::wr, 0x1D, 24);
inline constexpr std::uint32_t AMDKFD_IOC_ALLOC_QUEUE_GWS =
    detail::command(detail::wr, 0x1E, sizeof(kfd_ioctl_alloc_queue_gws_args));
inline constexpr std::uint32_t AMDKFD_IOC_SMI_EVENTS =
    detail::command(detail::wr, 0x1F, sizeof(kfd_ioctl_smi_events_args));
inline constexpr std::uint32_t AMDKFD_IOC_SVM = detail::command(detail::wr, 0x20, 24);
inline constexpr std::uint32_t AMDKFD_IOC_SET_XNACK_MODE = detail::command(detail::wr, 0x21, 4);
inline constexpr std::uint32_t AMDKFD_IOC_CRIU_OP =
    detail::command(detail::wr, 0x22, sizeof(kfd_ioctl_criu_args));
inline constexpr std::uint32_t AMDKFD_IOC_AVAILABLE_MEMORY = detail::command(detail::wr, 0x23, 16);
inline constexpr std::uint32_t AMDKFD_IOC_EXPORT_DMABUF = detail::command(detail::wr, 0x24, 16);
inline constexpr std::uint32_t AMDKFD_IOC_RUNTIME_ENABLE =
    detail::command(detail::wr, 0x25, sizeof(kfd_ioctl_runtime_enable_args));
inline constexpr std::uint32_t AMDKFD_IOC_DBG_TRAP =
    detail::command(detail::wr, 0x26, sizeof(kfd_ioctl_dbg_trap_args));
inline constexpr std::uint32_t AMDKFD_IOC_CREATE_PROCESS = detail::command(detail::none, 0x27, 0);

static_assert(AMDKFD_IOC_GET_VERSION == 0x80084B01);
static_assert(AMDKFD_IOC_CREATE_QUEUE == 0xC0604B02);
static_assert(AMDKFD_IOC_DESTROY_QUEUE == 0xC0084B03);
static_assert(AMDKFD_IOC_SET_MEMORY_POLICY == 0x40204B04);
static_assert(AMDKFD_IOC_GET_CLOCK_COUNTERS == 0xC0284B05);
static_assert(AMDKFD_IOC_GET_PROCESS_APERTURES == 0x81904B06);
static_assert(AMDKFD_IOC_UPDATE_QUEUE == 0x40184B07);
static_assert(AMDKFD_IOC_CREATE_EVENT == 0xC0204B08);
static_assert(AMDKFD_IOC_DESTROY_EVENT == 0x40084B09);
static_assert(AMDKFD_IOC_SET_EVENT == 0x40084B0A);
static_assert(AMDKFD_IOC_RESET_EVENT == 0x40084B0B);
static_assert(AMDKFD_IOC_WAIT_EVENTS == 0xC0184B0C);
static_assert(AMDKFD_IOC_DBG_REGISTER_DEPRECATED == 0x40084B0D);
static_assert(AMDKFD_IOC_DBG_UNREGISTER_DEPRECATED == 0x40084B0E);
static_assert(AMDKFD_IOC_DBG_ADDRESS_WATCH_DEPRECATED == 0x40104B0F);
static_assert(AMDKFD_IOC_DBG_WAVE_CONTROL_DEPRECATED == 0x40104B10);
static_assert(AMDKFD_IOC_SET_SCRATCH_BACKING_VA == 0xC0104B11);
static_assert(AMDKFD_IOC_GET_TILE_CONFIG == 0xC0284B12);
static_assert(AMDKFD_IOC_SET_TRAP_HANDLER == 0x40184B13);
static_assert(AMDKFD_IOC_GET_PROCESS_APERTURES_NEW == 0xC0104B14);
static_assert(AMDKFD_IOC_ACQUIRE_VM == 0x40084B15);
static_assert(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU == 0xC0284B16);
static_assert(AMDKFD_IOC_FREE_MEMORY_OF_GPU == 0x40084B17);
static_assert(AMDKFD_IOC_MAP_MEMORY_TO_GPU == 0xC0184B18);
static_assert(AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU == 0xC0184B19);
static_assert(AMDKFD_IOC_SET_CU_MASK == 0x40104B1A);
static_assert(AMDKFD_IOC_GET_QUEUE_WAVE_STATE == 0xC0184B1B);
static_assert(AMDKFD_IOC_GET_DMABUF_INFO == 0xC0204B1C);
static_assert(AMDKFD_IOC_IMPORT_DMABUF == 0xC0184B1D);
static_assert(AMDKFD_IOC_ALLOC_QUEUE_GWS == 0xC0104B1E);
static_assert(AMDKFD_IOC_SMI_EVENTS == 0xC0084B1F);
static_assert(AMDKFD_IOC_SVM == 0xC0184B20);
static_assert(AMDKFD_IOC_SET_XNACK_MODE == 0xC0044B21);
static_assert(AMDKFD_IOC_CRIU_OP == 0xC0384B22);
static_assert(AMDKFD_IOC_AVAILABLE_MEMORY == 0xC0104B23);
static_assert(AMDKFD_IOC_EXPORT_DMABUF == 0xC0104B24);
static_assert(AMDKFD_IOC_RUNTIME_ENABLE == 0xC0104B25);
static_assert(AMDKFD_IOC_DBG_TRAP == 0xC0204B26);
static_assert(AMDKFD_IOC_CREATE_PROCESS == 0x00004B27);

inline constexpr std::uint32_t AMDKFD_COMMAND_START = 0x01;
inline constexpr std::uint32_t AMDKFD_COMMAND_END = 0x28;

}  // namespace sluice::kfd::uapi
