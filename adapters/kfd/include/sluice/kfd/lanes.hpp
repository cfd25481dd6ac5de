#pragma once
/// \file
/// The acting side: one thread per target, each owning that target's debug session. The agent and
/// the in-process backend are two ways to drive it.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "sluice/backend.hpp"
#include "sluice/kfd/bell_maker.hpp"
#include "sluice/kfd/device.hpp"
#include "sluice/kfd/process_pause.hpp"
#include "sluice/os/message_sink.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice::kfd {

enum class report_kind : std::uint8_t {
  attached,       ///< target; error (none: its queues follow). With an error the lane is gone.
  queue_added,    ///< target, queue.
  queue_removed,  ///< target, queue.id.
  completed,      ///< target, result.
  detached,       ///< target. The lane is gone.
  gpu_lost,       ///< gpu.
  acts_by,        ///< acting, fell_back.
  reserved,       ///< gpu, offline_share, error.
  quantum_set,    ///< target, gpu, quantum, error.
};

/// An error_code that can cross a process boundary: categories are addresses.
struct plain_error {
  enum class domain : std::uint8_t { none, system, sluice };
  domain where = domain::none;
  int value = 0;

  plain_error() noexcept = default;
  explicit plain_error(const error_code& error) noexcept;
  explicit operator error_code() const noexcept;
};

/// What the acting side has to say: backend_listener's calls as values. It crosses a process
/// boundary, so it has no bool: one that is neither true nor false is undefined behaviour.
struct report {
  report_kind kind{};
  plain_error error;
  process_id target{};
  gpu_id gpu{};
  queue_info queue;
  capabilities acting{};
  std::uint8_t fell_back = 0;  ///< Not 0: it did.
  double offline_share = 1;
  duration quantum{};
  batch_result result{};
};
static_assert(std::is_trivially_copyable_v<report>);

/// Calls the member of `listener` that `what` stands for.
void deliver(const report& what, backend_listener& listener);

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
  /// runtime, are paused as a whole (process_pause.hpp), and only they. The guard outlives the
  /// lanes; once it is gone, stop() them.
  const pause_guard* guard = nullptr;
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
/// Threading: one thread at a time. Lanes have every signal blocked.
/// Lifetime:  the device outlives it. The destructor resumes everything, ends every session and
///            joins the threads, for which it waits as long as the driver makes it (up to 9 s).
/// Cost:      submit(), flush() and next() neither allocate nor lock. Only flush() waits, as it
/// says.
class lanes {
 public:
  /// \return the system's error when no descriptor is left.
  [[nodiscard]] static result<std::unique_ptr<lanes>> create(const device& node,
                                                             lanes_options options);
  ~lanes();
  lanes(const lanes&) = delete;
  lanes& operator=(const lanes&) = delete;

  /// Whether lanes hear here of their targets' stops by themselves, unless
  /// lanes_options::owner_watches_children (stop_bell.hpp: Linux 6.7, and io_uring is allowed). The
  /// owner then needs no SIGCHLD.
  static bool hear_stops() noexcept;

  /// Readable when next() may have something; next() makes it unreadable.
  int ready_fd() const noexcept;

  /// Starts a lane.
  /// \return errc::busy when the target has one, errc::not_managed for this process itself, or the
  ///         system's error when no thread can be had.
  [[nodiscard]] result<void> attach(process_id target, pid_t pid, std::uint64_t start_time);
  /// Makes the lane end its session, after the batch in flight if there is one.
  [[nodiscard]] result<void> detach(process_id target);
  /// \return errc::busy while a batch of this target is in flight or it is not attached yet,
  ///         errc::unknown_target when it has no lane.
  [[nodiscard]] result<void> submit(const batch& work);

  /// Has the driver keep at most that share (0 to 1) of the GPU's slots for compute queues of all
  /// targets, and of those that come; 1 ends it, as stop() and the destructor do. A `reserved`
  /// report answers; see backend_listener::reserved().
  /// \return errc::not_supported without batch commands, errc::busy or errc::full: later, or the
  ///         system's error when no thread can be had.
  [[nodiscard]] result<void> reserve(gpu_id gpu, double offline_share);

  /// KFD slices no time between processes.
  [[nodiscard]] static result<void> set_quantum(process_id, gpu_id, duration) {
    return errc::not_supported;
  }

  /// Whether reserve() can come to anything: there are batch commands.
  bool takes_reservations() const noexcept;

  /// What was submitted goes out now at the latest. Of targets on different GPUs those go first
  /// that otherwise would wait for the others in the driver; to see them begin takes up to 200 us
  /// for each GPU but the last.
  void flush() noexcept;

  /// Takes one report. \return false when there is none.
  bool next(report& out);

  /// SIGCHLD came in. One signal may stand for many children, whatever its siginfo says, so every
  /// target is looked at (one system call each); only the lanes of those that changed are woken.
  void children_changed() noexcept;

  /// Looks for lanes stuck in a driver call; their GPUs become gpu_lost reports, once each.
  /// \return when to call again.
  time_point check(time_point now);

  /// Whether the driver keeps queues of a target suspended and refuses to resume them and to end
  /// their session: then only the end of this process frees them, for nothing but its death makes
  /// the driver do so by itself. The owner should end. ready_fd() becomes readable with it; the
  /// lane meanwhile tries again, answers batches with `failed`, and says nothing of an end.
  bool stranded() const noexcept;

  /// Lanes that exist, including those about to end.
  std::size_t size() const noexcept;

  /// Resumes everything and ends every session, waiting `at_most`. Reports not taken are dropped.
  /// \return false when a lane did not come back: then only the end of the process helps.
  bool stop(duration at_most);

 private:
  class impl;
  explicit lanes(std::unique_ptr<impl> state);
  std::unique_ptr<impl> impl_;
};

}  // namespace sluice::kfd
