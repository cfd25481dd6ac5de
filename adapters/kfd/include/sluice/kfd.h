#ifndef SLUICE_KFD_H
#define SLUICE_KFD_H
/**
 * \file
 * Suspends and resumes GPU queues of the AMD compute driver (KFD), and lists them: a C API for
 * programs that schedule by themselves. C11 or C++, or anything that loads libsluice_kfd.so.
 *
 * Values:    a call returns what it says, or a negative errno value; then, and whenever an entry
 *            of an array has a status that is not 0, sluice_kfd_last_error() has a sentence.
 * Threading: any thread may call anything at any time, but for sluice_kfd_cleanup(), which must be
 *            the handle's last call. The kernel ties a debug session to one thread; the library
 *            keeps a thread of its own for each process that it holds, with every signal blocked,
 *            so callers need not care. Calls about one process wait for each other.
 * Process:   the one that uses a handle must be the one that made it (a forked child gets -ECHILD),
 *            and must not call waitpid(-1) or wait() while it holds processes: that would take the
 *            stops that belong to the library. When it dies, however it dies, the kernel resumes
 *            everything that was suspended through it.
 * Rights:    suspending another process needs the right to trace it: the same user (and, with
 *            Yama's ptrace_scope 1, an ancestor), or CAP_SYS_PTRACE. A process has one tracer, so
 *            gdb and strace cannot attach to one that is held, nor can this beside them.
 * Resets:    a preemption that fails in hardware, or times out (9 s), makes the driver reset the
 *            GPU and its XGMI hive, which loses the work of everybody on them. That is the risk of
 *            every suspend, resume and first use of a process; a call that meets it, or a reset
 *            since the last one, says -EIO. Resets are heard of by the driver's SMI events, where
 *            it gives them. Do not go on suspending on such a GPU. The breakers of 'sluice breaker'
 *            are neither heeded nor opened here: a program that schedules decides by itself.
 * Stability: a program built against this header works with every later library of the same
 *            SLUICE_KFD_VERSION_MAJOR. Structures grow at their end only, and say how large the
 *            caller's are: by `size`, or by an `entry_size` argument for arrays. New values may
 *            appear where a comment says so.
 */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SLUICE_KFD_API __attribute__((visibility("default")))
#else
#define SLUICE_KFD_API
#endif

#define SLUICE_KFD_VERSION_MAJOR 0
#define SLUICE_KFD_VERSION_MINOR 1
/** Of this header; sluice_kfd_version() is the library's. */
#define SLUICE_KFD_VERSION ((SLUICE_KFD_VERSION_MAJOR << 16) | SLUICE_KFD_VERSION_MINOR)

/** SLUICE_KFD_VERSION of the library: the major number in the upper 16 bits. */
SLUICE_KFD_API uint32_t sluice_kfd_version(void);

/**
 * What the calling thread's last failing call, or failing entry, was about: one sentence without a
 * line end. Empty when none failed yet. Valid until the thread's next call.
 */
SLUICE_KFD_API const char* sluice_kfd_last_error(void);

/** One user of the driver. */
typedef struct sluice_kfd sluice_kfd;

/** sluice_kfd_options::flags */
enum {
  /** Only list: the device node is not opened, so no right to it is needed. */
  SLUICE_KFD_LIST_ONLY = 1
};

typedef struct sluice_kfd_options {
  uint32_t size;  /**< sizeof(sluice_kfd_options) */
  uint32_t flags; /**< SLUICE_KFD_LIST_ONLY or 0. */
  /** Where the driver is. NULL: $SLUICE_KFD_DEVICE, $SLUICE_KFD_SYSFS, $SLUICE_KFD_DEBUGFS, or
   * else /dev/kfd, /sys/class/kfd/kfd, /sys/kernel/debug/kfd. Copied. */
  const char* device;
  const char* sysfs;
  const char* debugfs;
} sluice_kfd_options;

/**
 * Opens the driver.
 * \param options NULL: the defaults.
 * \return 0; -EINVAL, the system's error, or -EOPNOTSUPP for a driver without the debugger API
 *         (KFD 1.13, Linux 6.5).
 */
SLUICE_KFD_API int sluice_kfd_init(const sluice_kfd_options* options, sluice_kfd** handle);

/**
 * Resumes everything that the handle suspended, lets go of every process, and frees the handle.
 * Waits for the driver (milliseconds; at most 10 s or the rest of a driver call in flight).
 * \return 0, also for NULL; -EIO when a GPU failed or was reset meanwhile (what ran there is lost),
 *         or when the driver refuses to resume something: only the end of this process does then.
 */
SLUICE_KFD_API int sluice_kfd_cleanup(sluice_kfd* handle);

/** A queue_id that stands for all compute queues of the process that exist at that moment. */
#define SLUICE_KFD_ALL_QUEUES 0xffffffffu
/** A timeout_ms: 10 s, a second longer than the driver itself waits for the hardware. */
#define SLUICE_KFD_DEFAULT_TIMEOUT 0u

/**
 * Names a queue: the driver's queue ids are per process, and reused. This structure is fixed.
 *
 * status, out: 0 done, or one of (others may appear)
 *   -ENOENT     no such queue,
 *   -EBUSY      its owner is destroying it or still creating it,
 *   -EIO        the hardware failed, after which the driver resets the GPU and its XGMI hive; or
 *               the GPU was reset while the queue was held. What ran there is lost, see dmesg. Or
 *               the driver refused to resume, and the process was released,
 *   -ESRCH      no such process, it ended, or it does not use the driver (then it was not touched);
 *               for resume: not held by this handle,
 *   -EPERM      the process may not be traced, is traced by another, or cannot be debugged,
 *   -EINVAL     the process is the caller itself (see sluice_kfd_suspend_own_queues()),
 *   -ETIMEDOUT  no answer in time: the process is released as soon as there is one.
 */
typedef struct sluice_kfd_queue_ref {
  int32_t pid;       /**< Thread-group leader, in the caller's pid namespace. */
  uint32_t queue_id; /**< Or SLUICE_KFD_ALL_QUEUES: then status is the first failure's, if any. */
  uint32_t gpu_id;   /**< Out: where the queue is, 0 when unknown. */
  int32_t status;    /**< Out. */
} sluice_kfd_queue_ref;

/**
 * Takes queues off their GPUs; running waves are saved, and lose nothing. A process is attached to
 * on its first use (some 10 ms of everybody's time on its GPUs) and held until
 * sluice_kfd_release() or sluice_kfd_cleanup(); one driver call then suspends all its named queues
 * of one GPU, and processes are served in parallel. Suspending what is suspended succeeds.
 *
 * A suspended process waits for ever in whatever waits for the GPU; its memory stays on the GPU.
 * Naming an SDMA queue stalls its owner's copies; SLUICE_KFD_ALL_QUEUES names none.
 *
 * \param refs   in and out, `count` of them.
 * \return how many refs have status 0; or -EINVAL for bad arguments, -ECHILD, -EBADF for a handle
 *         that only lists, -ENOMEM.
 */
SLUICE_KFD_API int sluice_kfd_suspend_queues(sluice_kfd* handle, sluice_kfd_queue_ref* refs,
                                             size_t count, uint32_t timeout_ms);

/** The opposite, with the same values. The process stays held. */
SLUICE_KFD_API int sluice_kfd_resume_queues(sluice_kfd* handle, sluice_kfd_queue_ref* refs,
                                            size_t count, uint32_t timeout_ms);

/**
 * Resumes everything of a process and lets go of it, so that another may trace it.
 * \return 0; -ESRCH: not held; -ETIMEDOUT: it happens when the driver answers; -EIO: it is
 *         let go, but a GPU of it failed or was reset meanwhile, and what ran there is lost; or the
 *         driver refuses, and only the end of this process resumes it.
 */
SLUICE_KFD_API int sluice_kfd_release(sluice_kfd* handle, int32_t pid, uint32_t timeout_ms);

/**
 * Suspends queues of the calling process itself; no right is needed. Until
 * sluice_kfd_resume_own_queues() a thread that waits for their work, destroys one of them, or ends
 * the GPU runtime waits, so keep one thread that does none of these.
 * \param refs   pid 0 or the caller's, any ids; or NULL for all compute queues.
 * \return how many are suspended; -EPERM when the process's runtime has not enabled debugging,
 *         -EBUSY while somebody else (a scheduler, rocgdb) debugs this process.
 */
SLUICE_KFD_API int sluice_kfd_suspend_own_queues(sluice_kfd* handle, sluice_kfd_queue_ref* refs,
                                                 size_t count);
/** Resumes them all. \return 0, also when none was suspended, or the driver's error. */
SLUICE_KFD_API int sluice_kfd_resume_own_queues(sluice_kfd* handle);

/** sluice_kfd_batch_unmap_queues(): the flags of sluice/kfd/uapi_batch.hpp. */
enum {
  SLUICE_KFD_MARK_OFFLINE = 1, /**< The reservation below limits these queues from now on. */
  SLUICE_KFD_MARK_ONLY = 2     /**< Only mark them, with the flag above: unmap nothing. */
};

/**
 * Takes queues of many processes off in one step, without tracing anybody: one driver call for each
 * 4096 refs, which costs everybody on a GPU one runlist cycle, however many processes are named.
 * Needs a patched driver: a stock one has no such command, which is -EOPNOTSUPP. What is held so is
 * put back by sluice_kfd_fast_remap_queues(), sluice_kfd_cleanup() and the death of this process,
 * whichever comes first; an owner that destroys a queue does not wait for that. Holding what this
 * handle holds succeeds. It is apart from sluice_kfd_suspend_queues(): a queue that both took off
 * runs when both have given it back.
 *
 * Of an entry's status are used -ENOENT (no such queue, no right to it, named twice, being
 * destroyed, another handle's, or, with MES, behind one that failed: the driver does not say
 * which), -EIO (the hardware failed; it was
 * put back, see dmesg) and -ECANCELED (an earlier driver call of this one was refused).
 *
 * \param refs      ids only, no SLUICE_KFD_ALL_QUEUES; any number. gpu_id stays 0.
 * \param grace_us  what running waves get to finish by themselves; 0xffffffff: as the driver likes.
 * \return how many refs have status 0; or -EINVAL, also for flags that mean nothing together.
 */
SLUICE_KFD_API int sluice_kfd_batch_unmap_queues(sluice_kfd* handle, sluice_kfd_queue_ref* refs,
                                                 size_t count, uint32_t grace_us, uint32_t flags);
/**
 * Puts them back, with the same values: -ENOENT is also a queue that this handle does not hold, and
 * one with -EIO is still held, to be tried again.
 * \param refs  NULL, and count 0: all that this handle holds.
 * \return how many were put back.
 */
SLUICE_KFD_API int sluice_kfd_fast_remap_queues(sluice_kfd* handle, sluice_kfd_queue_ref* refs,
                                                size_t count);
/**
 * Limits the share of a GPU's hardware queue slots that marked queues occupy, in percent of all
 * slots, rounded down but at least one; with 0 none of them runs. online_percent is promised to the
 * others. 0 and 100 end the reservation, as do sluice_kfd_cleanup() and this process's death.
 * Patched drivers only, as above.
 *
 * \return 0; -EINVAL: no such GPU, or more than 100 together; -EPERM without CAP_SYS_ADMIN; -EBUSY:
 *         another handle has a reservation there; -EOPNOTSUPP, also where firmware chooses slots by
 *         itself (MES).
 */
SLUICE_KFD_API int sluice_kfd_set_hqd_reservation(sluice_kfd* handle, uint32_t gpu_id,
                                                  uint32_t online_percent,
                                                  uint32_t offline_percent);

/** sluice_kfd_queue::type; others may appear. */
enum { SLUICE_KFD_COMPUTE = 0, SLUICE_KFD_SDMA = 1, SLUICE_KFD_SDMA_XGMI = 2 };
/** sluice_kfd_queue::flags; others may appear. */
enum { SLUICE_KFD_SUSPENDED_HERE = 1 /**< Suspended through this handle. */ };

typedef struct sluice_kfd_queue {
  int32_t pid; /**< In the initial pid namespace, as the driver shows it. */
  uint32_t queue_id;
  uint32_t gpu_id;
  uint32_t type;
  int32_t priority; /**< 0 to 15; -1: not known (it takes debugfs, as root). */
  uint32_t flags;
  uint64_t ring_bytes;
  uint64_t start_time; /**< Of the process, in clock ticks from boot: tells a reused pid apart. */
} sluice_kfd_queue;

/**
 * Lists the queues of all processes, from outside: nothing is opened or attached to.
 * \param entry_size  sizeof(sluice_kfd_queue)
 * \param queues      out: an array of *count, by pid and id, to be given to sluice_kfd_free(). NULL
 *                    when there are none.
 * \return 0, or the system's error when the driver's tree cannot be read.
 */
SLUICE_KFD_API int sluice_kfd_get_all_queues(sluice_kfd* handle, size_t entry_size,
                                             sluice_kfd_queue** queues, size_t* count);
/** Those whose priority is known and from `least` to `most`. */
SLUICE_KFD_API int sluice_kfd_find_queues_by_priority(sluice_kfd* handle, uint32_t least,
                                                      uint32_t most, size_t entry_size,
                                                      sluice_kfd_queue** queues, size_t* count);
/** Those of one process. \return also -ESRCH: it does not use the driver. */
SLUICE_KFD_API int sluice_kfd_find_queues_by_process(sluice_kfd* handle, int32_t pid,
                                                     size_t entry_size, sluice_kfd_queue** queues,
                                                     size_t* count);
/** Frees an array that the calls above gave. NULL is fine. */
SLUICE_KFD_API void sluice_kfd_free(sluice_kfd_queue* queues);

#ifdef __cplusplus
}
#endif

#endif
