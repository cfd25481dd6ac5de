#pragma once
/// \file
/// The driver half of a debug session: what lets one process's queues be suspended. For many
/// targets at once, with threads, see lanes.hpp.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/kfd/device.hpp"
#include "sluice/kfd/message_sink.hpp"
#include "sluice/kfd/tracee.hpp"
#include "sluice/kfd/unique_fd.hpp"
#include "sluice/result.hpp"

namespace sluice::kfd {

/// Hears of the target's queues while the session can suspend them.
/// Threading: the session's thread, from inside the session's calls.
class session_listener {
 public:
  virtual void queue_added(const queue_info& queue) = 0;
  virtual void queue_removed(driver_queue_id queue) = 0;

 protected:
  ~session_listener() = default;
};

/// One enabled debug session (DBG_TRAP ENABLE) with a seized process.
///
/// Threading: every member on the thread that seized the target; the driver answers EPERM to any
///            other.
/// Lifetime:  device, tracee and listener outlive it. Destroying it without close() leaves the
///            session to the kernel, which ends it with this process, or with the target.
/// Errors:    errc::unknown_target when the target or its address space is gone (exited, or exec'd:
///            the tracee tells which), errc::not_managed when its queues cannot be suspended,
///            errc::busy when another session with it is (perhaps just ending) there.
/// Cost:      enabling and closing cost everyone on the target's GPUs a runlist cycle or two, so
///            sessions are kept. suspend() and resume() are one driver call and allocate nothing.
class debug_session {
 public:
  /// Enables the session. start() must follow before anything else.
  [[nodiscard]] static result<std::unique_ptr<debug_session>> open(const device& node,
                                                                   tracee& target,
                                                                   session_listener& listener,
                                                                   const message_sink& say);
  /// Reports the queues that exist, and answers a handshake that an earlier session left open.
  [[nodiscard]] result<void> start();
  ~debug_session();
  debug_session(const debug_session&) = delete;
  debug_session& operator=(const debug_session&) = delete;

  /// Readable when the driver has an event: call read_events().
  int event_fd() const noexcept;

  /// Whether the target's runtime is enabled. Until it is, the target owns no queues that could be
  /// suspended, and its start waits for us to answer: so events must be read promptly.
  bool manageable() const noexcept;

  /// Takes every pending event: learns of new and deleted queues, and answers the runtime's
  /// handshake, without which the target hangs in its start or its exit.
  result<void> read_events();

  /// Reads the whole list of queues again and reports the differences. QUEUE_NEW is cleared for
  /// what is reported, and only for that, so a queue nobody registered cannot be suspended by
  /// accident.
  result<void> refresh();

  struct call_result {
    int driver_errno = 0;  ///< 0 when the call returned a count.
    int count = 0;         ///< What the driver counted; the outcomes are what to go by.
  };
  /// Suspends the queues in one driver call and says for each what became of it. An empty span is
  /// answered without a call. At most max_batch_queues ids; `outcomes` is as long as `queues`.
  ///
  /// A call that the driver refuses as a whole (driver_errno) is answered alike for every queue:
  /// target_gone only when the process has exited. Otherwise a refused suspend is `invalid` where
  /// the errno says that no queue was looked at, and a refused resume always `failed`: what was
  /// suspended is not known to run. The caller then does what makes it run, which is close().
  call_result suspend(std::span<const driver_queue_id> queues, std::span<outcome> outcomes);
  call_result resume(std::span<const driver_queue_id> queues, std::span<outcome> outcomes);

  /// The last way to find queues, where neither snapshot nor sysfs nor debugfs shows them: asks the
  /// driver to resume the ids 0 to `ids` - 1 (1024 at most, as many as a process can have), in one
  /// call. A queue that was never suspended counts as resumed, an id without a queue comes back
  /// invalid, and nothing changes; but on a GPU without MES the call costs everyone on it a runlist
  /// cycle. So it is done once in a session, and sessions are kept.
  /// \return the ids that exist, of compute and of SDMA queues. errc::busy after a suspend, for
  /// this
  ///         would undo it; errc::not_supported the second time; EIO when the driver could not
  ///         resume something, after which the GPU is in trouble.
  [[nodiscard]] result<std::vector<driver_queue_id>> probe(std::size_t ids);

  /// Resumes everything, answers what is pending, disables the session and makes sure that no
  /// thread of the target is left waiting for an answer. Idempotent.
  /// \return false when the driver refused to end a session under which queues may be suspended.
  ///         Call it again; what remains after that is the end of this process, for then, and then
  ///         only, the driver ends the session by itself. The end of the thread is not enough.
  [[nodiscard]] bool close();

  /// Whether something has been suspended since the session began or last resumed everything.
  bool may_be_suspended() const noexcept;

  /// The target's address space is gone, and the session with it: reports every queue removed,
  /// without asking the driver.
  void discard();

 private:
  class impl;
  explicit debug_session(std::unique_ptr<impl> state);
  std::unique_ptr<impl> impl_;
};

}  // namespace sluice::kfd
