#pragma once
/// \file
/// A **proposal**: three commands that no released driver has. A driver with the patches of
/// adapters/kfd/kernel/batch unmaps queues of many processes in one runlist cycle, without ptrace
/// and without a debug session. The simulated device answers them where its profile says so;
/// everywhere else they fail with ENOTTY or EINVAL, as all unknown commands. To find out, a client
/// calls BATCH_UNMAP_QUEUES with num_queues == 0, which does nothing and returns 0.
///
/// Names and arguments follow the project owner's design notes, but for two things. Queue ids are
/// per process, so an entry names (pid, queue id). And the driver cannot guess which queues the
/// reservation is to limit, so the caller marks them.
///
/// What the driver keeps:
///  - per queue: its `holder`, the open file that holds it (none at birth), and its `marker`, the
///    open file that marked it. QUEUE_IS_ACTIVE becomes: size, address and percent non-zero, not
///    evicted, not suspended, and not held. A hold and a debug suspension do not know of each
///    other.
///  - A hold ends with FAST_REMAP, a mark with KFD_BATCH_FLAG_UNMARK; both with the queue, with the
///    last close of the file, or with the death (mm release) of the process that opened it,
///    whichever is first. Whatever ends holds maps all of them again, in one cycle per GPU. So a
///    dead scheduler leaves nothing behind.
///  - DESTROY_QUEUE of a held queue does not wait: it destroys.
///
/// Authority, for each entry by itself: ptrace_may_access(task, PTRACE_MODE_ATTACH_REALCREDS).
/// Without it the entry is INVALID like one that does not exist: nothing is told. What a file holds
/// or has marked it may always map again or unmark: its process may have become another user's
/// since, and would stay held.
/// Pids are looked up in the caller's namespace, and a pid may be given to a stranger; a caller
/// keeps a pidfd of each process it names, and remaps what it held of one that has ended.

#include <linux/ioctl.h>

#include <cstddef>
#include <cstdint>

namespace sluice::kfd::uapi {

/// Most entries of one call.
inline constexpr std::uint32_t KFD_BATCH_MAX_QUEUES = 4096;

struct kfd_batch_queue_entry {
  std::int32_t pid;        ///< Thread-group leader, or any thread of the process.
  std::uint32_t queue_id;  ///< In: the id; bits 31 and 30 are ignored. Out: with status bits.
};
static_assert(sizeof(kfd_batch_queue_entry) == 8);
static_assert(offsetof(kfd_batch_queue_entry, queue_id) == 4);

enum kfd_batch_flags : std::uint32_t {
  /// The queues count as offline for this file's SET_HQD_RESERVATION from now on.
  KFD_BATCH_FLAG_MARK_OFFLINE = 1U << 0U,
  /// Only mark (with the flag above): unmap nothing.
  KFD_BATCH_FLAG_MARK_ONLY = 1U << 1U,
  /// Alone: takes back the marks that this file made, and unmaps nothing. INVALID: there was none.
  KFD_BATCH_FLAG_UNMARK = 1U << 2U,
};

/// Unmaps the named queues, saving their waves (CWSR), with one runlist cycle for each GPU on which
/// anything changes (runlist), or one REMOVE_QUEUE for each mapped queue (MES). GPUs are taken in
/// the order of the topology.
///
/// An entry comes back with, as after SUSPEND_QUEUES:
///  - no status bit: held (or held by this file before);
///  - KFD_DBG_QUEUE_INVALID_MASK: no such process or queue, no authority, a repeated entry, being
///    destroyed, to be marked and marked by another file, or, except where only marks change, held
///    by another file. Nothing was done;
///  - KFD_DBG_QUEUE_ERROR_MASK: the hardware's part failed after the hold was recorded. The queue
///    is held as far as the driver knows: FAST_REMAP it. MES: set beside INVALID, and nothing is
///    done for the entries behind it on that GPU, which are INVALID (FAST_REMAP: and in ERROR).
/// Queues of any kind, SDMA included; marks mean something for compute queues only.
/// QUEUE_NEW is not looked at: it belongs to debug sessions.
///
/// A mark that is made or taken back while a reservation is in force costs a runlist cycle.
///
/// \return how many entries are held (with MARK_ONLY or UNMARK: were marked or unmarked). EINVAL:
///         an unknown flag, MARK_ONLY alone, UNMARK with another, pad not 0, num_queues above
///         KFD_BATCH_MAX_QUEUES. EFAULT: the array cannot be read, and nothing was done, or it
///         cannot be written. ESRCH: the caller has called exec since it opened the file.
///         EOPNOTSUPP: the driver does not use the hardware's scheduler.
struct kfd_ioctl_batch_unmap_queues_args {
  std::uint32_t num_queues;
  /// What running waves get to finish by themselves before they are saved, in microseconds; rounded
  /// up to 1000 GPU clocks and cut at 255 of these, the field of the register it goes into.
  /// 0: 1000 GPU clocks. 0xFFFFFFFF: the driver's default. Ignored by MES and before gfx9.
  std::uint32_t grace_period_us;
  std::uint32_t flags;  ///< kfd_batch_flags
  std::uint32_t pad;
  std::uint64_t queue_array_ptr;  ///< kfd_batch_queue_entry[num_queues], in and out.
};
static_assert(sizeof(kfd_ioctl_batch_unmap_queues_args) == 24);
static_assert(offsetof(kfd_ioctl_batch_unmap_queues_args, grace_period_us) == 4);
static_assert(offsetof(kfd_ioctl_batch_unmap_queues_args, flags) == 8);
static_assert(offsetof(kfd_ioctl_batch_unmap_queues_args, queue_array_ptr) == 16);

/// Maps held queues again, with the same costs and status bits. A queue of a process of which the
/// driver has reset a queue after a hang is no longer held, but stays off. A queue that this file
/// does not hold is INVALID; one in ERROR is still held, to be tried again. queue_array_ptr == 0:
/// everything that this file holds, num_queues is ignored. Marks stay. \return how many were mapped
/// (0 status bits).
struct kfd_ioctl_fast_remap_args {
  std::uint32_t num_queues;
  std::uint32_t pad;
  std::uint64_t queue_array_ptr;
};
static_assert(sizeof(kfd_ioctl_fast_remap_args) == 16);
static_assert(offsetof(kfd_ioctl_fast_remap_args, queue_array_ptr) == 8);

/// Limits how many of the GPU's compute HQD slots the queues that this file marked occupy at one
/// time: the share offline_percent, rounded down, but one slot where the share is not 0. With more
/// marked queues than that, these take turns, each of which costs a runlist cycle; with 0, none of
/// them is mapped.
/// Unmarked queues use all the rest. online_percent is the share promised to them; the promise is
/// kept by the limit, and the call fails where both do not go together. 0 and 100 end the
/// reservation, and so do the last close and the death of who made it. Runlist only; takes effect
/// with the cycle that it causes.
/// \return 0. EINVAL: unknown gpu_id, online_percent + offline_percent above 100, pad not 0. EPERM:
///         without CAP_SYS_ADMIN. EBUSY: another open file has a reservation on this GPU.
///         EOPNOTSUPP: MES, whose firmware chooses slots by itself. ESRCH as above. The errors of a
///         runlist cycle: then nothing has changed.
struct kfd_ioctl_set_hqd_reservation_args {
  std::uint32_t gpu_id;
  std::uint32_t online_percent;
  std::uint32_t offline_percent;
  std::uint32_t pad;
};
static_assert(sizeof(kfd_ioctl_set_hqd_reservation_args) == 16);
static_assert(offsetof(kfd_ioctl_set_hqd_reservation_args, offline_percent) == 8);

// Above all numbers in use: upstream ends at 0x27, ROCm's own drivers have 0x80 to 0x86.
inline constexpr std::uint32_t AMDKFD_IOC_BATCH_UNMAP_QUEUES =
    _IOWR('K', 0xC0, kfd_ioctl_batch_unmap_queues_args);
inline constexpr std::uint32_t AMDKFD_IOC_FAST_REMAP = _IOWR('K', 0xC1, kfd_ioctl_fast_remap_args);
inline constexpr std::uint32_t AMDKFD_IOC_SET_HQD_RESERVATION =
    _IOW('K', 0xC2, kfd_ioctl_set_hqd_reservation_args);
static_assert(AMDKFD_IOC_BATCH_UNMAP_QUEUES == 0xC0184BC0);
static_assert(AMDKFD_IOC_FAST_REMAP == 0xC0104BC1);
static_assert(AMDKFD_IOC_SET_HQD_RESERVATION == 0x40104BC2);

}  // namespace sluice::kfd::uapi
