#pragma once
/// \file
/// Blocking calls to suspend and resume queues by hand: for `sluice suspend` and other tools. A
/// scheduler wants a backend instead, which never waits.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/breaker.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// An errno with the sentence that goes with it: what, where, what to do.
struct hold_failure {
  int error = 0;  ///< Positive; 0: none.
  std::string what{};

  explicit operator bool() const noexcept { return error != 0; }
};

/// One queue of a change(): in which, out what became of it.
struct queue_order {
  pid_t pid = 0;
  driver_queue_id queue{};
  gpu_id gpu{};  ///< Out: none where the queue is not known.
  /// Out: 0 done; ENOENT: no such queue; EBUSY: its owner is destroying it; EIO: the hardware
  /// failed (see below), or the driver refused to resume it; ESRCH: the process is gone; ETIMEDOUT:
  /// no answer in time; else why the process cannot be held.
  int error = 0;
  /// Out, of EIO: preemption_failed: in this call, after which the driver resets the GPU and its
  /// hive; reset: the GPU was reset while the queue was held, which is dead. Nothing: neither.
  std::optional<breaker_cause> hardware{};
};

struct held_queue {
  queue_info about;
  bool suspended = false;  ///< By this holder, and not resumed since.
  bool lost = false;       ///< Its GPU was reset since: it never runs again.
};

/// What befell a GPU of a process that is held, or was to be.
struct gpu_failure {
  gpu_id gpu{};
  breaker_cause why{};  ///< preemption_failed or reset.
};

/// Holds processes until release(). Whatever is in doubt runs: a call that gets no answer in time,
/// or a queue that fails, ends with everything of that process resumed.
///
/// Threading: any thread; calls about one process wait for each other.
/// Lifetime:  the end of this process, and the destructor, resume everything.
class queue_holder {
 public:
  queue_holder() = default;
  virtual ~queue_holder() = default;
  queue_holder(const queue_holder&) = delete;
  queue_holder& operator=(const queue_holder&) = delete;

  /// Attaches if that was not done yet, and waits for the list of queues.
  /// \return ESRCH: no such process, or it does not use the driver and was not touched; EPERM: it
  ///         may not be held, or cannot be, now or ever; EINVAL: it is this process; ETIMEDOUT.
  virtual hold_failure attach(pid_t pid, time_point deadline) = 0;

  /// The queues of a process that is held, by id; empty where it is not, or not any more.
  virtual std::vector<held_queue> queues(pid_t pid) const = 0;
  virtual bool holds(pid_t pid) const = 0;

  /// Suspends or resumes, in one driver call for each process and GPU. Of resume orders, those for
  /// a process that is not held are ESRCH: nothing is attached for them.
  /// \return the first order's failure, if any; each order has its own.
  virtual hold_failure change(command_kind kind, std::span<queue_order> orders,
                              time_point deadline) = 0;

  /// Resumes everything of the process and lets go of it.
  /// \return ESRCH: it is not held; ETIMEDOUT: not yet, it happens when the driver call returns;
  ///         EIO: the driver refuses (see stranded()), or work was lost while it was held.
  virtual hold_failure release(pid_t pid, time_point deadline) = 0;

  /// What befell GPUs of the processes held since the last call, in order.
  virtual std::vector<gpu_failure> take_gpu_failures() { return {}; }
  /// The driver refuses to resume queues that stay suspended until this process ends: end it.
  virtual bool stranded() const { return false; }

  /// Why an order failed, and what to do: what follows "cannot suspend queue 0 of process 42: ".
  virtual std::string reason_of(command_kind kind, const queue_order& order) const = 0;
  /// For a process that runs and that holds() is not true of any more: one sentence.
  virtual std::string why_ended(pid_t pid) const = 0;
  /// The driver's words for queue_info::fault: "QUEUE_PREEMPTION_ERROR".
  virtual std::string words_of_fault(std::uint64_t fault) const = 0;
};

}  // namespace sluice
#pragma GCC visibility pop
