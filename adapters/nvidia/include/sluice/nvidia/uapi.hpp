#pragma once
/// \file
/// The ABI of the calls to NVIDIA's resource manager (RM) that sluice makes, under the driver's own
/// names: what travels through ioctl(2) on /dev/nvidiactl. Every size and offset is pinned.
///
/// Source: NVIDIA/open-gpu-kernel-modules, release 580.95.05, in src/common/sdk/nvidia/inc (nvos.h,
/// ctrl/..., class/...), src/nvidia/arch/nvalloc/unix/include/nv_escape.h and
/// src/common/sdk/nvidia/inc/nvstatus.h. The structures are the same in every release from 515.43
/// (2022) to 595.45 (2026).

#include <linux/ioctl.h>

#include <cstddef>
#include <cstdint>

namespace sluice::nvidia::uapi {

using NvHandle = std::uint32_t;

// ---- nv_escape.h, nvos.h: the ioctls ----

inline constexpr std::uint8_t NV_IOCTL_MAGIC = 'F';
inline constexpr std::uint8_t NV_ESC_RM_FREE = 0x29;
inline constexpr std::uint8_t NV_ESC_RM_CONTROL = 0x2A;
inline constexpr std::uint8_t NV_ESC_RM_ALLOC = 0x2B;

/// Frees an object with its descendants.
struct NVOS00_PARAMETERS {
  NvHandle hRoot;
  NvHandle hObjectParent;
  NvHandle hObjectOld;
  std::uint32_t status;  ///< Out.
};
static_assert(sizeof(NVOS00_PARAMETERS) == 16);
static_assert(offsetof(NVOS00_PARAMETERS, hObjectOld) == 8);
static_assert(offsetof(NVOS00_PARAMETERS, status) == 12);

/// Makes an object.
struct NVOS21_PARAMETERS {
  NvHandle hRoot;  ///< The client. To make one: 0, or the handle that is wanted.
  NvHandle hObjectParent;
  NvHandle hObjectNew;  ///< In and out: 0 asks for a handle.
  std::uint32_t hClass;
  std::uint64_t pAllocParms;  ///< Address in the caller.
  std::uint32_t paramsSize;
  std::uint32_t status;  ///< Out.
};
static_assert(sizeof(NVOS21_PARAMETERS) == 32);
static_assert(offsetof(NVOS21_PARAMETERS, hObjectNew) == 8);
static_assert(offsetof(NVOS21_PARAMETERS, hClass) == 12);
static_assert(offsetof(NVOS21_PARAMETERS, pAllocParms) == 16);
static_assert(offsetof(NVOS21_PARAMETERS, paramsSize) == 24);
static_assert(offsetof(NVOS21_PARAMETERS, status) == 28);

/// Calls a method of an object.
struct NVOS54_PARAMETERS {
  NvHandle hClient;
  NvHandle hObject;
  std::uint32_t cmd;
  std::uint32_t flags;   ///< 0.
  std::uint64_t params;  ///< Address in the caller.
  std::uint32_t paramsSize;
  std::uint32_t status;  ///< Out. The ioctl returns 0 even where this is an error.
};
static_assert(sizeof(NVOS54_PARAMETERS) == 32);
static_assert(offsetof(NVOS54_PARAMETERS, hClient) == 0);
static_assert(offsetof(NVOS54_PARAMETERS, hObject) == 4);
static_assert(offsetof(NVOS54_PARAMETERS, cmd) == 8);
static_assert(offsetof(NVOS54_PARAMETERS, flags) == 12);
static_assert(offsetof(NVOS54_PARAMETERS, params) == 16);
static_assert(offsetof(NVOS54_PARAMETERS, paramsSize) == 24);
static_assert(offsetof(NVOS54_PARAMETERS, status) == 28);

inline constexpr unsigned NV_RM_FREE = _IOWR(NV_IOCTL_MAGIC, NV_ESC_RM_FREE, NVOS00_PARAMETERS);
inline constexpr unsigned NV_RM_CONTROL =
    _IOWR(NV_IOCTL_MAGIC, NV_ESC_RM_CONTROL, NVOS54_PARAMETERS);
inline constexpr unsigned NV_RM_ALLOC = _IOWR(NV_IOCTL_MAGIC, NV_ESC_RM_ALLOC, NVOS21_PARAMETERS);
static_assert(NV_RM_FREE == 0xc0104629 && NV_RM_CONTROL == 0xc020462a && NV_RM_ALLOC == 0xc020462b);

// ---- nvstatus.h (nvstatuscodes.h) ----

inline constexpr std::uint32_t NV_OK = 0x00;
inline constexpr std::uint32_t NV_ERR_BUSY_RETRY = 0x03;
inline constexpr std::uint32_t NV_ERR_GPU_IS_LOST = 0x0F;
inline constexpr std::uint32_t NV_ERR_INSUFFICIENT_PERMISSIONS = 0x1B;
inline constexpr std::uint32_t NV_ERR_INVALID_ARGUMENT = 0x1F;
inline constexpr std::uint32_t NV_ERR_INVALID_CHANNEL = 0x21;
inline constexpr std::uint32_t NV_ERR_INVALID_CLASS = 0x22;
/// A wrong client, or a client that another file description made.
inline constexpr std::uint32_t NV_ERR_INVALID_CLIENT = 0x23;
inline constexpr std::uint32_t NV_ERR_INVALID_OBJECT_PARENT = 0x36;
inline constexpr std::uint32_t NV_ERR_INVALID_PARAM_STRUCT = 0x3A;
inline constexpr std::uint32_t NV_ERR_NOT_SUPPORTED = 0x56;
/// No object has this handle.
inline constexpr std::uint32_t NV_ERR_OBJECT_NOT_FOUND = 0x57;

// ---- resource_server/rs_server.h, class/: handles and classes ----

/// Handles of clients that the driver chose: this, plus a number below RS_CLIENT_HANDLE_MAX that
/// counts up over the node.
inline constexpr NvHandle RS_CLIENT_HANDLE_BASE = 0xC1D00000;
inline constexpr NvHandle RS_CLIENT_HANDLE_MAX = 0x100000;

inline constexpr std::uint32_t NV01_ROOT_CLIENT = 0x0041;
inline constexpr std::uint32_t NV01_DEVICE_0 = 0x0080;
inline constexpr std::uint32_t NV20_SUBDEVICE_0 = 0x2080;
inline constexpr std::uint32_t KEPLER_CHANNEL_GROUP_A = 0xA06C;
inline constexpr std::uint32_t HOPPER_CHANNEL_GPFIFO_A = 0xC86F;
inline constexpr std::uint32_t HOPPER_COMPUTE_A = 0xCBC0;
inline constexpr std::uint32_t HOPPER_DMA_COPY_A = 0xC8B5;

/// \return whether objects of this class are channels: C36F (Volta), C46F, C56F (Ampere), C86F, ...
[[nodiscard]] constexpr bool is_channel_class(std::uint32_t cls) noexcept {
  return cls > 0xA000 && cls <= 0xFFFF && (cls & 0xFFU) == 0x6F;
}
/// \return whether objects of this class compute: C3C0 (Volta), ..., CBC0 (Hopper), ...
[[nodiscard]] constexpr bool is_compute_class(std::uint32_t cls) noexcept {
  return cls > 0xA000 && cls <= 0xFFFF && (cls & 0xFFU) == 0xC0;
}

// ---- ctrl/ctrl0000/ctrl0000client.h ----

inline constexpr std::uint32_t NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO = 0xd02;
inline constexpr std::uint32_t NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_PARENT = 1;
inline constexpr std::uint32_t NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID = 2;
struct NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS {
  NvHandle hObject;
  std::uint32_t index;
  std::uint64_t iResult;  ///< Out.
};
static_assert(sizeof(NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS) == 16);
static_assert(offsetof(NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS, iResult) == 8);

inline constexpr std::uint32_t NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE = 0xd05;
/// Finds the first child of a class, which is named by the driver's internal number
/// (nvoc_class_id).
struct NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE_PARAMS {
  NvHandle hParent;
  std::uint32_t classId;
  NvHandle hObject;  ///< Out.
};
static_assert(sizeof(NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE_PARAMS) == 12);
static_assert(offsetof(NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE_PARAMS, hObject) == 8);
/// Internal numbers of classes (src/nvidia/generated/g_*_nvoc.h; the same in every release from
/// 515.43 to 595.45).
namespace nvoc_class_id {
inline constexpr std::uint32_t Device = 0xe0ac20;
inline constexpr std::uint32_t Subdevice = 0x4b01b3;
inline constexpr std::uint32_t KernelChannelGroupApi = 0x2b5b80;
inline constexpr std::uint32_t KernelChannel = 0x5d8d70;
}  // namespace nvoc_class_id

// ---- ctrl/ctrl2080/ctrl2080gpu.h ----

inline constexpr std::uint32_t NV2080_CTRL_CMD_GPU_GET_ID = 0x20800142;
struct NV2080_CTRL_GPU_GET_ID_PARAMS {
  /// Out: (PCI domain << 16) | (bus << 8) | device (gpuGenerate32BitId() in
  /// src/nvidia/src/kernel/gpu/gpu.c).
  std::uint32_t gpuId;
};
static_assert(sizeof(NV2080_CTRL_GPU_GET_ID_PARAMS) == 4);

// ---- ctrl/ctrl2080/ctrl2080fifo.h ----

inline constexpr std::uint32_t NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS = 0x2080110b;
inline constexpr std::uint32_t NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES = 64;
/// Takes channels, which may belong to several clients, off the GPU, or lets them run again.
/// Disables of a channel are counted, and outlive the process that made them.
struct NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS {
  std::uint8_t bDisable;
  std::uint32_t numChannels;
  std::uint8_t bOnlyDisableScheduling;
  std::uint8_t bRewindGpPut;
  std::uint64_t pRunlistPreemptEvent;                                    ///< 0.
  NvHandle hClientList[NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES];   // NOLINT: the driver's
  NvHandle hChannelList[NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES];  // NOLINT
};
static_assert(sizeof(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS) == 536);
static_assert(offsetof(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS, numChannels) == 4);
static_assert(offsetof(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS, bOnlyDisableScheduling) == 8);
static_assert(offsetof(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS, bRewindGpPut) == 9);
static_assert(offsetof(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS, pRunlistPreemptEvent) == 16);
static_assert(offsetof(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS, hClientList) == 24);
static_assert(offsetof(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS, hChannelList) == 280);

// ---- ctrl/ctrla06c.h ----

inline constexpr std::uint32_t NVA06C_CTRL_CMD_SET_TIMESLICE = 0xa06c0103;
inline constexpr std::uint32_t NVA06C_CTRL_CMD_GET_TIMESLICE = 0xa06c0104;
struct NVA06C_CTRL_TIMESLICE_PARAMS {
  std::uint64_t timesliceUs;
};
static_assert(sizeof(NVA06C_CTRL_TIMESLICE_PARAMS) == 8);

}  // namespace sluice::nvidia::uapi
