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
#include "sluice/kfd/target_session.hpp"
#include "sluice/kfd/tracee.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"

namespace sluice::kfd {

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
class debug_session final : public target_session {
 public:
  /// Enables the session. start() must follow before anything else.
  /// \param without_runtime where not null: set when the error is errc::not_managed because the
  ///        target has queues and never enabled a runtime. `say` then gets no sentence.
  [[nodiscard]] static result<std::unique_ptr<debug_session>> open(const device& node,
                                                                   tracee& target,
                                                                   session_listener& listener,
                                                                   const message_sink& say,
                                                                   bool* without_runtime = nullptr);
  /// Reports the queues that exist, and answers a handshake that an earlier session left open.
  [[nodiscard]] result<void> start() override;
  ~debug_session() override;
  debug_session(const debug_session&) = delete;
  debug_session& operator=(const debug_session&) = delete;

  /// Readable when the driver has an event: call read_events().
  int event_fd() const noexcept override;

  /// From now on event_fd() also shows (as POLLHUP) that the session has ended, however that came:
  /// for a caller who hears of the target's exec in no other way.
  void forget_driver_end() noexcept;

  /// Whether the target's runtime is enabled. Until it is, the target owns no queues that could be
  /// suspended, and its start waits for us to answer: so events must be read promptly.
  bool manageable() const noexcept;

  /// Takes every pending event: learns of new and deleted queues, and answers the runtime's
  /// handshake, without which the target hangs in its start or its exit.
  result<void> read_events() override;

  /// Reads the whole list of queues again and reports the differences. QUEUE_NEW is cleared for
  /// what is reported, and only for that, so a queue nobody registered cannot be suspended by
  /// accident.
  result<void> refresh() override;

  result<void> announce_again() override;

  /// One driver call each.
  call_result suspend(std::span<const driver_queue_id> queues,
                      std::span<outcome> outcomes) override;
  call_result resume(std::span<const driver_queue_id> queues, std::span<outcome> outcomes) override;

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
  ///         Call it again; what remains after that is the end of this process, with which the
  ///         driver ends the session, if ends_with_process(). The end of the thread is not enough.
  [[nodiscard]] bool close() override;
  /// False after a close() that failed because another debugger has taken the session over: the
  /// driver keeps the session for that one. close() succeeds when it no longer traces the target.
  bool ends_with_process() const noexcept override;

  bool may_be_suspended() const noexcept override;
  void discard() override;

 private:
  class impl;
  explicit debug_session(std::unique_ptr<impl> state);
  std::unique_ptr<impl> impl_;
};

}  // namespace sluice::kfd
