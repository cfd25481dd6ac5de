#pragma once
/// \file
/// The driver's calls that share buffers as dma-bufs, which only the simulated driver and its tests
/// need. Equals <linux/kfd_ioctl.h> to the byte.

#include <cstdint>

namespace sluice::kfd::uapi {

/// VRAM that the CPU can access.
inline constexpr std::uint32_t KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC = 1U << 29U;

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
