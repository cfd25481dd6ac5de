#pragma once
/// \file
/// The acting side: one thread per target, each owning that target's debug session. The agent and
/// the in-process backend are two ways to drive it.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "sluice/acting.hpp"
#include "sluice/hold_book.hpp"
#include "sluice/kfd/bell_maker.hpp"
#include "sluice/kfd/device.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice::kfd {

struct lanes_options {
  /// Whether the owner blocks SIGCHLD in every thread and calls children_changed() on each: for
  /// where lanes do not hear_stops() themselves. If neither does, every lane looks for itself every
  /// 10 ms, and a signal to a target's main thread waits that long.
  bool owner_watches_children = false;
  /// Of an owner that may make no io_uring: who makes those of the lanes. It outlives them. Null:
  /// they make their own.
  bell_maker* bells = nullptr;
  /// Of an owner that can take reports on any thread while its own sleeps. A lane that has said
  /// something calls it, from its own thread: one thread less to wake. It takes all that next()
  /// has, or returns false; then ready_fd() becomes readable, as it does without it. It keeps to
  /// the threading of `lanes`, and returns false rather than wait for its turn.
  std::function<bool()> take_reports = {};
  /// A driver call longer than this takes its GPU for lost. The driver itself gives up after
  /// queue_preemption_timeout_ms (9 s) and resets the GPU; a healthy call takes milliseconds.
  duration stuck_after = std::chrono::seconds{3};
  /// Use the batch commands of a patched driver where it offers them (uapi_batch.hpp).
  bool batch_commands = true;
  /// Not null: targets that no debug session can suspend, because they use the driver without a
  /// runtime, are paused as a whole by the commands that the driver has for CRIU, and only they.
  /// Unlike a session a pause does not end with whoever made it: each is entered here first, and
  /// release_pause() undoes it. The book outlives the lanes.
  hold_book* pauses = nullptr;
  /// Asked before a process is traced, and each time it runs another program: whether it may be
  /// managed. On its lane's thread, of several lanes at once. Empty: any may.
  std::function<bool(pid_t pid, std::uint64_t start_time)> admits = {};
  /// Where those targets' queues are listed, and in which order the driver goes through GPUs.
  /// Empty: that is not known. Targets on different GPUs may then wait for each other, and those
  /// whose suspend crashes some drivers (adapters/kfd/kernel/README.md) are not refused.
  std::string sysfs = {};
  message_sink say = messages_to_stderr();
};

/// All lanes of a node. Targets on different GPUs are acted on in parallel; within one target
/// everything happens in order.
///
/// The mechanism is found out at the start: the debug trap, or where the driver has them its batch
/// commands, which suspend queues of all targets of a GPU in one call. Sessions are held either
/// way: they tell of queues, and are what is fallen back to when a batch command is refused for no
/// known reason.
///
/// Threading: as any acting_side's. Lanes have every signal blocked.
/// Lifetime:  the device outlives it. The destructor resumes everything, ends every session and
///            joins the threads, for which it waits as long as the driver makes it (up to 9 s).
/// Cost:      submit(), flush() and next() neither allocate nor lock. Only flush() waits, as it
/// says.
///
/// attach() starts a lane, detach() makes it end its session. reserve() needs batch commands; a
/// limit ends with stop(). Of targets on different GPUs flush() lets those go first that otherwise
/// would wait for the others in the driver; to see them begin takes up to 200 us for each GPU but
/// the last. children_changed() looks at every target (one system call each) and wakes only the
/// lanes of those that changed. A stranded() lane tries again, answers batches with `failed`, and
/// says nothing of an end. KFD slices no time between processes, so no quantum can be set.
class lanes : public acting_side {
 public:
  /// \return the system's error when no descriptor is left.
  [[nodiscard]] static result<std::unique_ptr<lanes>> create(const device& node,
                                                             lanes_options options);
  lanes(const lanes&) = delete;
  lanes& operator=(const lanes&) = delete;

  /// Whether lanes hear here of their targets' stops by themselves, unless
  /// lanes_options::owner_watches_children (stop_bell.hpp: Linux 6.7, and io_uring is allowed). The
  /// owner then needs no SIGCHLD.
  static bool hear_stops() noexcept;

  /// Whether reserve() can come to anything: there are batch commands.
  virtual bool takes_reservations() const noexcept = 0;
  /// Lanes that exist, including those about to end.
  virtual std::size_t size() const noexcept = 0;

 protected:
  lanes() = default;
};

}  // namespace sluice::kfd
