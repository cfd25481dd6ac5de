#pragma once
/// \file
/// A whole acting side for a driver whose targets are independent of each other: it supplies what
/// is done to one target, and the calls may block.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sluice/acting.hpp"
#include "sluice/agent/acting_driver.hpp"
#include "sluice/agent/followed_process.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice::agent {

/// One process that is managed.
///
/// Threading: one thread of its own. Lifetime: ends there, after close().
/// Errors:    an error of open() refuses the process; one of refresh() ends its management, and
///            everything of it is made to run.
class lane_target {
 public:
  lane_target() = default;
  virtual ~lane_target() = default;
  lane_target(const lane_target&) = delete;
  lane_target& operator=(const lane_target&) = delete;

  /// Called once, before open(). While `has_order` returns true, an act() waits: refresh() may then
  /// return early with what it knows, and go on the next time. It is called on the target's thread,
  /// and is valid for the target's life.
  virtual void yield_to(std::function<bool()> has_order) { (void)has_order; }
  /// Begins. \return its queues, which all run; queue_info::target need not be set.
  [[nodiscard]] virtual result<std::vector<queue_info>> open() = 0;
  /// Why open() failed: one sentence for people, which `sluice why` and the scheduler's log show
  /// (report::longest_why characters at most). Empty: the error says it all.
  virtual std::string why_refused() const { return {}; }
  /// Readable when the queues may have changed. Asked once, after open(). -1: they do not.
  virtual int event_fd() const noexcept { return -1; }
  /// The queues as they are now; makes event_fd() unreadable.
  [[nodiscard]] virtual result<std::vector<queue_info>> refresh() { return errc::not_supported; }

  /// What release() has to know, beside the process, to let go of what act() may hold: put into
  /// hold::about (most_bytes at most). Asked before each suspend, where the driver
  /// outlives_agent(): it covers what act() is about to hold, what is held already, and quanta. The
  /// lane enters it before act() and strikes it out once everything runs.
  virtual std::string record() const { return {}; }
  /// Suspends or resumes queues of one GPU, and says of each what became of it (before, all are
  /// `invalid`, or for a resume `failed`: in doubt). A suspend that returns has happened. A queue
  /// that is suspended may be suspended again, and a resume has to make it run whatever that did.
  /// Where the driver changed nothing, as after EPERM, a suspend leaves `invalid`; `failed` is for
  /// what may have happened.
  /// \return 0, or the errno where the driver refused as a whole.
  [[nodiscard]] virtual int act(command_kind what, gpu_id gpu,
                                std::span<const driver_queue_id> queues,
                                std::span<outcome> outcomes) = 0;
  /// As backend::set_quantum(). One that release() has to end is in record(), which is asked first.
  [[nodiscard]] virtual result<void> set_quantum(gpu_id gpu, duration length) {
    (void)gpu;
    (void)length;
    return errc::not_supported;
  }
  /// Ends what act() suspended and set_quantum() set, and nothing else.
  /// \return false where that is refused: it is called again.
  [[nodiscard]] virtual bool close() noexcept = 0;
  /// Whether it is still held if close() returns false after the process ended, because other
  /// processes share it. Then close() is called again, and the record stays for release().
  virtual bool outlives_process() const noexcept { return false; }
};

struct lane_side_options {
  capabilities acting{};
  /// Any thread of a lane, also concurrently; only makes the object.
  std::function<std::unique_ptr<lane_target>(process_id target, pid_t pid,
                                             std::uint64_t start_time)>
      make_target{};
  /// For acting_side::follow(), which the library bounds and paces. Empty: it does not follow.
  follow_function follow{};
  /// Empty, or told before several targets begin to suspend, or to resume, queues of one GPU at the
  /// same time. On the side's thread; returns at once, and throws nothing but std::bad_alloc.
  std::function<void(command_kind what, gpu_id gpu, std::size_t targets)> begins_together{};
  /// A driver call longer than this takes its GPU for lost.
  duration stuck_after = std::chrono::seconds{3};
};

/// \return the system's error when no descriptor is left.
[[nodiscard]] result<std::unique_ptr<acting_side>> make_lane_side(lane_side_options options,
                                                                  const acting_host& host);

}  // namespace sluice::agent
#pragma GCC visibility pop
