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

/// Where the words of one channel lie in a program's memory (see below). 0: nowhere.
struct channel_words {
  std::uint64_t userd;
  std::uint64_t record;
  std::uint64_t states;
};

/// Says where a channel's page lies in the calling process: a channel_page and `count` records
/// behind it. Before the channel's first kernel. Again with the page 0: forgets the page and all of
/// the channel's kernels, which end in its words.
struct bind_args {
  std::uint32_t hClient;
  std::uint32_t hChannel;
  std::uint64_t page;
  std::uint32_t count;
  std::uint32_t status;  ///< Out.
  channel_words words;
};
static_assert(sizeof(bind_args) == 48);

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

// ---- What shows the GPU's work in a program's memory ----
// Places and meanings as measured on an H200 with driver 580.159.04 and CUDA 13. For each of its
// contexts, a client maps mapping_size bytes of the GPU's node and as many of nvidiactl, at the
// offset mapping_of() both. Contexts, and the channels of one, count from 0, in the order of
// creation.

inline constexpr std::uint64_t mapping_size = std::uint64_t{2} << 20U;
constexpr std::uint64_t mapping_of(std::uint32_t client, std::uint64_t context = 0) {
  constexpr std::uint64_t clients = std::uint64_t{1} << 20U;  // RS_CLIENT_HANDLE_MAX
  return (std::uint64_t{1} << 60U) + (context * clients + client % clients) * mapping_size;
}

/// In the GPU's node: the channel's USERD, behind its ring. Of 32-bit words at these offsets, the
/// program writes Put, PutHi and GPPut before it submits, and the device the others when a kernel
/// starts. All are 0 before the channel's first kernel.
constexpr std::uint64_t userd_of(std::uint64_t channel) { return 0x3000 * channel + 0x2000; }
namespace userd {
inline constexpr std::uint64_t put = 0x40;  ///< Bytes of commands, push_bytes for each kernel.
inline constexpr std::uint64_t get = 0x44;
inline constexpr std::uint64_t put_high = 0x4c;
inline constexpr std::uint64_t get_high = 0x60;
inline constexpr std::uint64_t gp_get = 0x88;
inline constexpr std::uint64_t gp_put = 0x8c;  ///< Kernels submitted, modulo ring_entries.
inline constexpr std::uint32_t high = 2;       ///< What put_high and get_high are.
inline constexpr std::uint32_t push_bytes = 48;
inline constexpr std::uint32_t ring_entries = 1024;
}  // namespace userd

/// In nvidiactl, written by the device when a kernel starts: a 32-bit word with the number of
/// kernels that have started, one that is 0, and the start in nanoseconds of CLOCK_REALTIME.
constexpr std::uint64_t record_of(std::uint64_t channel) { return 0x10000 - 16 * (channel + 1); }

/// In nvidiactl, written by the device: `state_slots` slots of 8 bytes, of which kernel k has slot
/// k % state_slots. Its second 32-bit word is (k / state_slots + 1) << 2, plus 1 from the start of
/// the kernel to its end and 2 after it.
constexpr std::uint64_t states_of(std::uint64_t channel) {
  constexpr std::uint64_t first[] = {0x37f00, 0x37a80, 0x379c0};
  return channel < 3 ? first[channel] : 0x37900 - 0x80 * (channel - 3);
}
inline constexpr std::uint64_t state_slots = 8;
inline constexpr std::uint64_t running = 1;
inline constexpr std::uint64_t ended = 2;

// Far above every number that the driver uses with this magic.
inline constexpr std::uint32_t SLUICE_SIM_BIND_CHANNEL = _IOWR('F', 0xF0, bind_args);
inline constexpr std::uint32_t SLUICE_SIM_SUBMIT = _IOWR('F', 0xF1, submit_args);
inline constexpr std::uint32_t SLUICE_SIM_WAIT = _IOWR('F', 0xF2, wait_args);
inline constexpr std::uint32_t SLUICE_SIM_GPU_INFO = _IOWR('F', 0xF3, gpu_info_args);

}  // namespace sluice::sim::nvidia_abi
