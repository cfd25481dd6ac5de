#pragma once
/// \file
/// What the simulated NVIDIA device understands beyond the driver's ABI: kernels, which reach real
/// hardware by memory that programs and GPU share. A real driver refuses these calls. And the
/// parameters of the driver's own NV_RM_ALLOC that a program needs and sluice does not.

#include <linux/ioctl.h>

#include <cstddef>
#include <cstdint>

namespace sluice::sim::nvidia_abi {

// ---- The driver's: alloc_.../class headers of NVIDIA/open-gpu-kernel-modules 580.95.05 ----

inline constexpr std::uint32_t NV01_MEMORY_LOCAL_USER = 0x40;

struct NV0080_ALLOC_PARAMETERS {
  std::uint32_t deviceId;  ///< The GPU's index.
  std::uint32_t hClientShare;
  std::uint32_t hTargetClient;
  std::uint32_t hTargetDevice;
  std::uint32_t flags;
  std::uint64_t vaSpaceSize;
  std::uint64_t vaStartInternal;
  std::uint64_t vaLimitInternal;
  std::uint32_t vaMode;
};
static_assert(sizeof(NV0080_ALLOC_PARAMETERS) == 56);

struct NV_MEMORY_ALLOCATION_PARAMS {
  std::uint32_t owner;
  std::uint32_t type;
  std::uint32_t flags;
  std::uint32_t width;
  std::uint32_t height;
  std::int32_t pitch;
  std::uint32_t attr;
  std::uint32_t attr2;
  std::uint32_t format;
  std::uint32_t comprCovg;
  std::uint32_t zcullCovg;
  std::uint64_t rangeLo;
  std::uint64_t rangeHi;
  std::uint64_t size;  ///< Bytes.
  std::uint64_t alignment;
  std::uint64_t offset;
  std::uint64_t limit;
  std::uint64_t address;
  std::uint32_t ctagOffset;
  std::uint32_t hVASpace;
  std::uint32_t internalflags;
  std::uint32_t tag;
  std::int32_t numaNode;
};
static_assert(sizeof(NV_MEMORY_ALLOCATION_PARAMS) == 128);
static_assert(offsetof(NV_MEMORY_ALLOCATION_PARAMS, size) == 64);

// ---- The simulated device's own calls, on /dev/nvidiactl ----
// As with the driver's, ioctl(2) returns 0 and `status` says how it went (NV_OK, ...).

/// One kernel. It runs for `length`, and its end shows in the channel's records.
struct kernel_entry {
  std::uint64_t length;  ///< Nanoseconds.
  std::uint64_t waves;   ///< Wave slots that it occupies.
};

/// The end of kernel i of a channel, at records[i % count].
struct kernel_record {
  std::uint64_t start;  ///< CLOCK_MONOTONIC in nanoseconds.
  std::uint64_t end;
  std::uint64_t runs;  ///< The device adds 1.
};

/// What the device writes to the program's memory. The program zeroes it.
struct channel_page {
  std::uint64_t started;    ///< Kernels below have begun...
  std::uint64_t completed;  ///< ...and ended; their records were written before.
};

/// Says where a channel's page lies in the calling process: a channel_page and `count` records
/// behind it. Before the channel's first kernel. Again with the page 0: forgets the page and all of
/// the channel's kernels.
struct bind_args {
  std::uint32_t hClient;
  std::uint32_t hChannel;
  std::uint64_t page;
  std::uint32_t count;
  std::uint32_t status;  ///< Out.
};
static_assert(sizeof(bind_args) == 24);

/// Appends kernels to a channel that computes.
struct submit_args {
  std::uint32_t hClient;
  std::uint32_t hChannel;
  std::uint64_t kernels;  ///< Address of `count` kernel_entry.
  std::uint32_t count;    ///< At most submit_limit.
  std::uint32_t status;   ///< Out.
};
static_assert(sizeof(submit_args) == 24);
inline constexpr std::uint32_t submit_limit = 4096;

/// Waits until kernel `index` of the channel has ended. Interruptible.
struct wait_args {
  std::uint32_t hClient;
  std::uint32_t hChannel;
  std::uint64_t index;
  std::uint64_t timeout;  ///< Nanoseconds.
  std::uint32_t status;   ///< Out. NV_ERR_TIMEOUT: not ended yet.
  std::uint32_t pad;
};
static_assert(sizeof(wait_args) == 32);
inline constexpr std::uint32_t NV_ERR_TIMEOUT = 0x65;

/// Says how many waves fit on a GPU at once.
struct gpu_info_args {
  std::uint32_t hClient;
  std::uint32_t hSubdevice;
  std::uint32_t waves;   ///< Out.
  std::uint32_t status;  ///< Out.
};
static_assert(sizeof(gpu_info_args) == 16);

// Far above every number that the driver uses with this magic.
inline constexpr std::uint32_t SLUICE_SIM_BIND_CHANNEL = _IOWR('F', 0xF0, bind_args);
inline constexpr std::uint32_t SLUICE_SIM_SUBMIT = _IOWR('F', 0xF1, submit_args);
inline constexpr std::uint32_t SLUICE_SIM_WAIT = _IOWR('F', 0xF2, wait_args);
inline constexpr std::uint32_t SLUICE_SIM_GPU_INFO = _IOWR('F', 0xF3, gpu_info_args);

}  // namespace sluice::sim::nvidia_abi
