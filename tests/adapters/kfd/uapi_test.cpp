#include "sluice/kfd/uapi.hpp"

#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

#include "sluice/kfd/uapi_memory.hpp"

namespace {

namespace ours = sluice::kfd::uapi;

// Taken before the system's header below turns the names into macros.
constexpr std::uint32_t get_version = ours::AMDKFD_IOC_GET_VERSION;
constexpr std::uint32_t destroy_queue = ours::AMDKFD_IOC_DESTROY_QUEUE;
constexpr std::uint32_t update_queue = ours::AMDKFD_IOC_UPDATE_QUEUE;
constexpr std::uint32_t create_event = ours::AMDKFD_IOC_CREATE_EVENT;
constexpr std::uint32_t destroy_event = ours::AMDKFD_IOC_DESTROY_EVENT;
constexpr std::uint32_t set_event = ours::AMDKFD_IOC_SET_EVENT;
constexpr std::uint32_t reset_event = ours::AMDKFD_IOC_RESET_EVENT;
constexpr std::uint32_t wait_events = ours::AMDKFD_IOC_WAIT_EVENTS;
constexpr std::uint32_t set_cu_mask = ours::AMDKFD_IOC_SET_CU_MASK;
constexpr std::uint32_t wave_state = ours::AMDKFD_IOC_GET_QUEUE_WAVE_STATE;
constexpr std::uint32_t apertures = ours::AMDKFD_IOC_GET_PROCESS_APERTURES_NEW;
constexpr std::uint32_t acquire_vm = ours::AMDKFD_IOC_ACQUIRE_VM;
constexpr std::uint32_t clock_counters = ours::AMDKFD_IOC_GET_CLOCK_COUNTERS;
constexpr std::uint32_t smi_events = ours::AMDKFD_IOC_SMI_EVENTS;
constexpr std::uint32_t criu_op = ours::AMDKFD_IOC_CRIU_OP;
constexpr std::uint32_t gws = ours::AMDKFD_IOC_ALLOC_QUEUE_GWS;
constexpr std::uint32_t svm = ours::AMDKFD_IOC_SVM;
constexpr std::uint32_t xnack = ours::AMDKFD_IOC_SET_XNACK_MODE;
constexpr std::uint32_t memory_policy = ours::AMDKFD_IOC_SET_MEMORY_POLICY;
constexpr std::uint32_t apertures_old = ours::AMDKFD_IOC_GET_PROCESS_APERTURES;
constexpr std::uint32_t scratch_backing = ours::AMDKFD_IOC_SET_SCRATCH_BACKING_VA;
constexpr std::uint32_t tile_config = ours::AMDKFD_IOC_GET_TILE_CONFIG;
constexpr std::uint32_t trap_handler = ours::AMDKFD_IOC_SET_TRAP_HANDLER;
constexpr std::uint32_t alloc_memory = ours::AMDKFD_IOC_ALLOC_MEMORY_OF_GPU;
constexpr std::uint32_t free_memory = ours::AMDKFD_IOC_FREE_MEMORY_OF_GPU;
constexpr std::uint32_t map_memory = ours::AMDKFD_IOC_MAP_MEMORY_TO_GPU;
constexpr std::uint32_t unmap_memory = ours::AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU;
constexpr std::uint32_t available_memory = ours::AMDKFD_IOC_AVAILABLE_MEMORY;
constexpr std::uint32_t noncoherent = ours::KFD_IOC_CACHE_POLICY_NONCOHERENT;
constexpr std::uint32_t in_vram = ours::KFD_IOC_ALLOC_MEM_FLAGS_VRAM;
constexpr std::uint32_t in_gtt = ours::KFD_IOC_ALLOC_MEM_FLAGS_GTT;
constexpr std::uint32_t in_user_pages = ours::KFD_IOC_ALLOC_MEM_FLAGS_USERPTR;
constexpr std::uint32_t in_doorbells = ours::KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL;
constexpr std::uint32_t in_mmio = ours::KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP;

}  // namespace

#include <linux/kfd_ioctl.h>

namespace {

#define SAME_STRUCT(name) EXPECT_EQ(sizeof(ours::name), sizeof(::name)) << #name
#define SAME_FIELD(name, field) \
  EXPECT_EQ(offsetof(ours::name, field), offsetof(::name, field)) << #name "." #field

// The system's header may be older than ours; what it knows must agree.
TEST(Uapi, HasTheSystemHeadersCommandNumbers) {
  EXPECT_EQ(get_version, AMDKFD_IOC_GET_VERSION);
  EXPECT_EQ(destroy_queue, AMDKFD_IOC_DESTROY_QUEUE);
  EXPECT_EQ(update_queue, AMDKFD_IOC_UPDATE_QUEUE);
  EXPECT_EQ(create_event, AMDKFD_IOC_CREATE_EVENT);
  EXPECT_EQ(destroy_event, AMDKFD_IOC_DESTROY_EVENT);
  EXPECT_EQ(set_event, AMDKFD_IOC_SET_EVENT);
  EXPECT_EQ(reset_event, AMDKFD_IOC_RESET_EVENT);
  EXPECT_EQ(wait_events, AMDKFD_IOC_WAIT_EVENTS);
  EXPECT_EQ(set_cu_mask, AMDKFD_IOC_SET_CU_MASK);
  EXPECT_EQ(wave_state, AMDKFD_IOC_GET_QUEUE_WAVE_STATE);
  EXPECT_EQ(apertures, AMDKFD_IOC_GET_PROCESS_APERTURES_NEW);
  EXPECT_EQ(acquire_vm, AMDKFD_IOC_ACQUIRE_VM);
  EXPECT_EQ(clock_counters, AMDKFD_IOC_GET_CLOCK_COUNTERS);
  EXPECT_EQ(smi_events, AMDKFD_IOC_SMI_EVENTS);
  EXPECT_EQ(criu_op, AMDKFD_IOC_CRIU_OP);
  EXPECT_EQ(gws, AMDKFD_IOC_ALLOC_QUEUE_GWS);
  EXPECT_EQ(svm, AMDKFD_IOC_SVM);
  EXPECT_EQ(xnack, AMDKFD_IOC_SET_XNACK_MODE);
}

TEST(Uapi, HasTheSystemHeadersLayouts) {
  SAME_STRUCT(kfd_ioctl_get_version_args);
  SAME_STRUCT(kfd_ioctl_destroy_queue_args);
  SAME_STRUCT(kfd_ioctl_update_queue_args);
  SAME_FIELD(kfd_ioctl_update_queue_args, queue_priority);
  SAME_STRUCT(kfd_ioctl_set_cu_mask_args);
  SAME_STRUCT(kfd_ioctl_get_queue_wave_state_args);
  SAME_FIELD(kfd_ioctl_get_queue_wave_state_args, queue_id);
  SAME_STRUCT(kfd_ioctl_alloc_queue_gws_args);
  SAME_STRUCT(kfd_ioctl_get_clock_counters_args);
  SAME_FIELD(kfd_ioctl_get_clock_counters_args, gpu_id);
  SAME_STRUCT(kfd_process_device_apertures);
  SAME_FIELD(kfd_process_device_apertures, gpu_id);
  SAME_STRUCT(kfd_ioctl_get_process_apertures_new_args);
  SAME_STRUCT(kfd_ioctl_acquire_vm_args);
  SAME_STRUCT(kfd_ioctl_create_event_args);
  SAME_FIELD(kfd_ioctl_create_event_args, event_id);
  SAME_FIELD(kfd_ioctl_create_event_args, event_slot_index);
  SAME_STRUCT(kfd_ioctl_destroy_event_args);
  SAME_STRUCT(kfd_ioctl_set_event_args);
  SAME_STRUCT(kfd_ioctl_reset_event_args);
  SAME_STRUCT(kfd_memory_exception_failure);
  SAME_STRUCT(kfd_hsa_memory_exception_data);
  SAME_STRUCT(kfd_hsa_hw_exception_data);
  SAME_STRUCT(kfd_event_data);
  SAME_FIELD(kfd_event_data, kfd_event_data_ext);
  SAME_FIELD(kfd_event_data, event_id);
  SAME_STRUCT(kfd_ioctl_wait_events_args);
  SAME_FIELD(kfd_ioctl_wait_events_args, wait_result);
  SAME_STRUCT(kfd_ioctl_smi_events_args);
  SAME_STRUCT(kfd_ioctl_criu_args);
  SAME_FIELD(kfd_ioctl_criu_args, op);
}

TEST(Uapi, HasTheSystemHeadersMemoryCommands) {
  EXPECT_EQ(memory_policy, AMDKFD_IOC_SET_MEMORY_POLICY);
  EXPECT_EQ(apertures_old, AMDKFD_IOC_GET_PROCESS_APERTURES);
  EXPECT_EQ(scratch_backing, AMDKFD_IOC_SET_SCRATCH_BACKING_VA);
  EXPECT_EQ(tile_config, AMDKFD_IOC_GET_TILE_CONFIG);
  EXPECT_EQ(trap_handler, AMDKFD_IOC_SET_TRAP_HANDLER);
  EXPECT_EQ(alloc_memory, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU);
  EXPECT_EQ(free_memory, AMDKFD_IOC_FREE_MEMORY_OF_GPU);
  EXPECT_EQ(map_memory, AMDKFD_IOC_MAP_MEMORY_TO_GPU);
  EXPECT_EQ(unmap_memory, AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU);
  EXPECT_EQ(available_memory, AMDKFD_IOC_AVAILABLE_MEMORY);
  EXPECT_EQ(noncoherent, KFD_IOC_CACHE_POLICY_NONCOHERENT);
  EXPECT_EQ(in_vram, KFD_IOC_ALLOC_MEM_FLAGS_VRAM);
  EXPECT_EQ(in_gtt, KFD_IOC_ALLOC_MEM_FLAGS_GTT);
  EXPECT_EQ(in_user_pages, KFD_IOC_ALLOC_MEM_FLAGS_USERPTR);
  EXPECT_EQ(in_doorbells, KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL);
  EXPECT_EQ(in_mmio, KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP);
}

TEST(Uapi, HasTheSystemHeadersMemoryLayouts) {
  SAME_STRUCT(kfd_ioctl_set_memory_policy_args);
  SAME_FIELD(kfd_ioctl_set_memory_policy_args, gpu_id);
  SAME_FIELD(kfd_ioctl_set_memory_policy_args, default_policy);
  SAME_FIELD(kfd_ioctl_set_memory_policy_args, alternate_policy);
  SAME_STRUCT(kfd_ioctl_get_process_apertures_args);
  SAME_FIELD(kfd_ioctl_get_process_apertures_args, num_of_nodes);
  SAME_STRUCT(kfd_ioctl_set_scratch_backing_va_args);
  SAME_FIELD(kfd_ioctl_set_scratch_backing_va_args, gpu_id);
  SAME_STRUCT(kfd_ioctl_get_tile_config_args);
  SAME_FIELD(kfd_ioctl_get_tile_config_args, num_tile_configs);
  SAME_FIELD(kfd_ioctl_get_tile_config_args, num_macro_tile_configs);
  SAME_FIELD(kfd_ioctl_get_tile_config_args, gpu_id);
  SAME_FIELD(kfd_ioctl_get_tile_config_args, gb_addr_config);
  SAME_FIELD(kfd_ioctl_get_tile_config_args, num_banks);
  SAME_FIELD(kfd_ioctl_get_tile_config_args, num_ranks);
  SAME_STRUCT(kfd_ioctl_set_trap_handler_args);
  SAME_FIELD(kfd_ioctl_set_trap_handler_args, tma_addr);
  SAME_FIELD(kfd_ioctl_set_trap_handler_args, gpu_id);
  SAME_STRUCT(kfd_ioctl_alloc_memory_of_gpu_args);
  SAME_FIELD(kfd_ioctl_alloc_memory_of_gpu_args, size);
  SAME_FIELD(kfd_ioctl_alloc_memory_of_gpu_args, handle);
  SAME_FIELD(kfd_ioctl_alloc_memory_of_gpu_args, mmap_offset);
  SAME_FIELD(kfd_ioctl_alloc_memory_of_gpu_args, gpu_id);
  SAME_FIELD(kfd_ioctl_alloc_memory_of_gpu_args, flags);
  SAME_STRUCT(kfd_ioctl_free_memory_of_gpu_args);
  SAME_STRUCT(kfd_ioctl_map_memory_to_gpu_args);
  SAME_FIELD(kfd_ioctl_map_memory_to_gpu_args, device_ids_array_ptr);
  SAME_FIELD(kfd_ioctl_map_memory_to_gpu_args, n_devices);
  SAME_FIELD(kfd_ioctl_map_memory_to_gpu_args, n_success);
  SAME_STRUCT(kfd_ioctl_set_xnack_mode_args);
  SAME_STRUCT(kfd_ioctl_get_dmabuf_info_args);
  SAME_FIELD(kfd_ioctl_get_dmabuf_info_args, metadata_ptr);
  SAME_FIELD(kfd_ioctl_get_dmabuf_info_args, metadata_size);
  SAME_FIELD(kfd_ioctl_get_dmabuf_info_args, gpu_id);
  SAME_FIELD(kfd_ioctl_get_dmabuf_info_args, flags);
  SAME_FIELD(kfd_ioctl_get_dmabuf_info_args, dmabuf_fd);
  SAME_STRUCT(kfd_ioctl_import_dmabuf_args);
  SAME_FIELD(kfd_ioctl_import_dmabuf_args, handle);
  SAME_FIELD(kfd_ioctl_import_dmabuf_args, gpu_id);
  SAME_FIELD(kfd_ioctl_import_dmabuf_args, dmabuf_fd);
  SAME_STRUCT(kfd_ioctl_get_available_memory_args);
  SAME_FIELD(kfd_ioctl_get_available_memory_args, gpu_id);
}

// Created by both generations: 88 bytes before KFD 1.17, 96 since, the same up to there.
TEST(Uapi, HasTheSystemHeadersQueueFields) {
  EXPECT_GE(sizeof(::kfd_ioctl_create_queue_args), ours::KFD_CREATE_QUEUE_ARGS_SIZE_1_16);
  SAME_FIELD(kfd_ioctl_create_queue_args, ring_base_address);
  SAME_FIELD(kfd_ioctl_create_queue_args, write_pointer_address);
  SAME_FIELD(kfd_ioctl_create_queue_args, read_pointer_address);
  SAME_FIELD(kfd_ioctl_create_queue_args, doorbell_offset);
  SAME_FIELD(kfd_ioctl_create_queue_args, ring_size);
  SAME_FIELD(kfd_ioctl_create_queue_args, gpu_id);
  SAME_FIELD(kfd_ioctl_create_queue_args, queue_type);
  SAME_FIELD(kfd_ioctl_create_queue_args, queue_percentage);
  SAME_FIELD(kfd_ioctl_create_queue_args, queue_priority);
  SAME_FIELD(kfd_ioctl_create_queue_args, queue_id);
  SAME_FIELD(kfd_ioctl_create_queue_args, eop_buffer_address);
  SAME_FIELD(kfd_ioctl_create_queue_args, ctx_save_restore_address);
  SAME_FIELD(kfd_ioctl_create_queue_args, ctl_stack_size);
}

}  // namespace
