#pragma once
/// \file
/// The memory half of the driver's ABI: what a runtime says to the driver and a scheduler never
/// does. Apart from uapi.hpp because only a driver (the simulated one) has to understand it.
///
/// Everything here equals <linux/kfd_ioctl.h> of KFD 1.11 to the byte; a test compares them.

#include <array>
#include <cstddef>
#include <cstdint>

#include "sluice/kfd/uapi.hpp"

namespace sluice::kfd::uapi {

inline constexpr std::uint32_t KFD_IOC_CACHE_POLICY_COHERENT = 0;
inline constexpr std::uint32_t KFD_IOC_CACHE_POLICY_NONCOHERENT = 1;

struct kfd_ioctl_set_memory_policy_args {
  std::uint64_t alternate_aperture_base;
  std::uint64_t alternate_aperture_size;
  std::uint32_t gpu_id;
  std::uint32_t default_policy;  ///< KFD_IOC_CACHE_POLICY_*
  std::uint32_t alternate_policy;
  std::uint32_t pad;
};
static_assert(sizeof(kfd_ioctl_set_memory_policy_args) == 32);

inline constexpr std::uint32_t NUM_OF_SUPPORTED_GPUS = 7;

/// The old command of before GPUs could be more than seven.
struct kfd_ioctl_get_process_apertures_args {
  std::array<kfd_process_device_apertures, NUM_OF_SUPPORTED_GPUS> process_apertures;  ///< Out.
  std::uint32_t num_of_nodes;                                                         ///< Out.
  std::uint32_t pad;
};
static_assert(sizeof(kfd_ioctl_get_process_apertures_args) == 400);

struct kfd_ioctl_set_scratch_backing_va_args {
  std::uint64_t va_addr;
  std::uint32_t gpu_id;
  std::uint32_t pad;
};
static_assert(sizeof(kfd_ioctl_set_scratch_backing_va_args) == 16);

struct kfd_ioctl_get_tile_config_args {
  std::uint64_t tile_config_ptr;        ///< In: array of u32.
  std::uint64_t macro_tile_config_ptr;  ///< In: array of u32.
  std::uint32_t num_tile_configs;       ///< In: capacity; out: entries written.
  std::uint32_t num_macro_tile_configs;
  std::uint32_t gpu_id;  ///< In.
  std::uint32_t gb_addr_config;
  std::uint32_t num_banks;
  std::uint32_t num_ranks;
};
static_assert(sizeof(kfd_ioctl_get_tile_config_args) == 40);

struct kfd_ioctl_set_trap_handler_args {
  std::uint64_t tba_addr;
  std::uint64_t tma_addr;
  std::uint32_t gpu_id;
  std::uint32_t pad;
};
static_assert(sizeof(kfd_ioctl_set_trap_handler_args) == 24);

// Kinds of memory; the bits from 25 on are attributes.
inline constexpr std::uint32_t KFD_IOC_ALLOC_MEM_FLAGS_VRAM = 1U << 0U;
inline constexpr std::uint32_t KFD_IOC_ALLOC_MEM_FLAGS_GTT = 1U << 1U;
inline constexpr std::uint32_t KFD_IOC_ALLOC_MEM_FLAGS_USERPTR = 1U << 2U;
inline constexpr std::uint32_t KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL = 1U << 3U;
inline constexpr std::uint32_t KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP = 1U << 4U;
inline constexpr std::uint32_t KFD_IOC_ALLOC_MEM_FLAGS_COHERENT = 1U << 26U;
/// VRAM that the CPU can access.
inline constexpr std::uint32_t KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC = 1U << 29U;
inline constexpr std::uint32_t KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE = 1U << 30U;
inline constexpr std::uint32_t KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE = 1U << 31U;

struct kfd_ioctl_alloc_memory_of_gpu_args {
  std::uint64_t va_addr;
  std::uint64_t size;
  std::uint64_t handle;       ///< Out.
  std::uint64_t mmap_offset;  ///< USERPTR, in: the CPU's address; others, out: for mmap.
  std::uint32_t gpu_id;
  std::uint32_t flags;
};
static_assert(sizeof(kfd_ioctl_alloc_memory_of_gpu_args) == 40);

struct kfd_ioctl_free_memory_of_gpu_args {
  std::uint64_t handle;
};
static_assert(sizeof(kfd_ioctl_free_memory_of_gpu_args) == 8);

/// Of MAP_MEMORY_TO_GPU and, field for field, of UNMAP_MEMORY_FROM_GPU.
struct kfd_ioctl_map_memory_to_gpu_args {
  std::uint64_t handle;
  std::uint64_t device_ids_array_ptr;
  std::uint32_t n_devices;
  std::uint32_t n_success;  ///< In: devices to skip; out: devices done, counted from the first.
};
static_assert(sizeof(kfd_ioctl_map_memory_to_gpu_args) == 24);

struct kfd_ioctl_set_xnack_mode_args {
  std::int32_t xnack_enabled;  ///< Negative: asks only.
};
static_assert(sizeof(kfd_ioctl_set_xnack_mode_args) == 4);

struct kfd_ioctl_get_available_memory_args {
  std::uint64_t available;  ///< Out.
  std::uint32_t gpu_id;
  std::uint32_t pad;
};
static_assert(sizeof(kfd_ioctl_get_available_memory_args) == 16);

struct kfd_ioctl_get_dmabuf_info_args {
  std::uint64_t size;           ///< Out.
  std::uint64_t metadata_ptr;   ///< In.
  std::uint32_t metadata_size;  ///< In: room; out: size of the metadata.
  std::uint32_t gpu_id;         ///< Out.
  std::uint32_t flags;          ///< Out: KFD_IOC_ALLOC_MEM_FLAGS_*
  std::uint32_t dmabuf_fd;      ///< In.
};
static_assert(sizeof(kfd_ioctl_get_dmabuf_info_args) == 32);

struct kfd_ioctl_import_dmabuf_args {
  std::uint64_t va_addr;    ///< In.
  std::uint64_t handle;     ///< Out.
  std::uint32_t gpu_id;     ///< In.
  std::uint32_t dmabuf_fd;  ///< In.
};
static_assert(sizeof(kfd_ioctl_import_dmabuf_args) == 24);

struct kfd_ioctl_export_dmabuf_args {
  std::uint64_t handle;     ///< In.
  std::uint32_t flags;      ///< In: O_CLOEXEC or 0.
  std::uint32_t dmabuf_fd;  ///< Out.
};
static_assert(sizeof(kfd_ioctl_export_dmabuf_args) == 16);

}  // namespace sluice::kfd::uapi
