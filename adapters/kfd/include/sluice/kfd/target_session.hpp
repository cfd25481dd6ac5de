#pragma once
/// \file
/// How one target is held so that its queues can be suspended, whatever does it: a debug session
/// (debug_session.hpp), or a pause of the whole process.

#include <span>

#include "sluice/backend.hpp"
#include "sluice/kfd/queue_type.hpp"
#include "sluice/result.hpp"

namespace sluice::kfd {

/// One queue of a target, as the driver reports it to the process that holds the target.
struct session_queue {
  driver_queue_id id{};
  gpu_id gpu{};
  queue_type type{};
  std::uint64_t ring_base = 0;  ///< In the target's address space; tells a reused id apart.
  std::uint64_t write_pointer_address = 0;
  std::uint64_t read_pointer_address = 0;
  /// KFD_EC_MASK bits of what went wrong with it. A queue is added again when this changes.
  std::uint64_t exceptions = 0;
};

/// Hears of the target's queues while the session can suspend them.
/// Threading: the session's thread, from inside the session's calls.
class session_listener {
 public:
  virtual void queue_added(const session_queue& queue) = 0;
  virtual void queue_removed(driver_queue_id queue) = 0;

 protected:
  ~session_listener() = default;
};

/// Threading: every member on the thread that seized the target; the driver refuses any other.
/// Errors:    errc::unknown_target when the target or its address space is gone (exited, or exec'd:
///            the tracee tells which), errc::not_managed when its queues cannot be suspended any
///            more: close() then.
class target_session {
 public:
  virtual ~target_session() = default;

  /// Reports the queues that exist. Before anything else.
  [[nodiscard]] virtual result<void> start() = 0;
  /// Readable when there may be something to learn: call read_events().
  virtual int event_fd() const noexcept = 0;
  virtual result<void> read_events() = 0;
  /// Reads the whole list of queues again and reports the differences.
  virtual result<void> refresh() = 0;
  /// Reports every queue removed and, reading the list again, added: what was said of them no
  /// longer holds, for all of them run.
  virtual result<void> announce_again() = 0;

  struct call_result {
    int driver_errno = 0;  ///< 0 when the call returned a count.
    int count = 0;         ///< What the driver counted; the outcomes are what to go by.
  };
  /// Suspends the queues and says for each what became of it. An empty span is answered without a
  /// call. At most max_batch_queues ids; `outcomes` is as long as `queues`.
  ///
  /// A call that the driver refuses as a whole (driver_errno) is answered alike for every queue:
  /// target_gone only when the process has exited. Otherwise a refused suspend is `invalid` where
  /// nothing was done, and a refused resume always `failed`: what was suspended is not known to
  /// run. The caller then does what makes it run, which is close().
  virtual call_result suspend(std::span<const driver_queue_id> queues,
                              std::span<outcome> outcomes) = 0;
  virtual call_result resume(std::span<const driver_queue_id> queues,
                             std::span<outcome> outcomes) = 0;

  /// Makes everything run and ends the session. Idempotent.
  /// \return false when the driver refused, so that queues may be suspended: call it again.
  [[nodiscard]] virtual bool close() = 0;
  /// Whether the end of this process does what close() could not.
  virtual bool ends_with_process() const noexcept = 0;
  /// Whether something has been suspended since the session began or last resumed everything.
  virtual bool may_be_suspended() const noexcept = 0;
  /// The target's address space is gone, and the session with it: reports every queue removed,
  /// without asking the driver.
  virtual void discard() = 0;
};

}  // namespace sluice::kfd
