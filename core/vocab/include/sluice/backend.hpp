#pragma once
/// \file
/// The backend port: how the reconciler acts on a driver. Asynchronous: commands go down without
/// waiting, answers come up through backend::drain() on the reactor thread.

#include <sys/types.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <type_traits>

#include "sluice/ids.hpp"
#include "sluice/observation.hpp"
#include "sluice/result.hpp"
#include "sluice/role.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// More than any process owns on one GPU (255 with the largest generation of one driver), so one
/// batch always covers a (process, GPU) pair.
inline constexpr std::size_t max_batch_queues = 256;

enum class command_kind : std::uint8_t { suspend, resume };

/// One driver call's worth of work: queues of one target process on one GPU.
struct batch {
  std::uint64_t id = 0;  ///< Chosen by the reconciler, never 0, never reused.
  process_id target{};
  gpu_id gpu{};
  command_kind kind{};
  std::uint16_t count = 0;
  std::array<driver_queue_id, max_batch_queues> queues;  ///< The first `count` are meaningful.

  /// As the assignment, but for what means nothing: a kilobyte that nobody has looked at for a
  /// while takes longer to copy than all else takes that is done with a batch.
  void assign(const batch& other) noexcept {
    id = other.id;
    target = other.target;
    gpu = other.gpu;
    kind = other.kind;
    count = other.count;
    std::copy_n(other.queues.begin(), std::min<std::size_t>(count, max_batch_queues),
                queues.begin());
  }
};

enum class outcome : std::uint8_t {
  done,         ///< The queue is in the asked state.
  invalid,      ///< The driver did nothing: unknown, new, or being destroyed.
  failed,       ///< Hardware or firmware failed after software state changed: in doubt.
  target_gone,  ///< The process is gone, and its queues with it.
};

struct batch_result {
  std::uint64_t id = 0;
  process_id target{};
  gpu_id gpu{};
  command_kind kind{};
  std::uint16_t count = 0;
  int driver_errno = 0;   ///< errno of the call itself, 0 when it returned a count.
  time_point started{};   ///< Just before the driver call.
  time_point finished{};  ///< Just after it.
  std::array<driver_queue_id, max_batch_queues> queues;
  std::array<outcome, max_batch_queues> outcomes;
};
static_assert(std::is_trivially_copyable_v<batch> && std::is_trivially_copyable_v<batch_result>);

/// What a driver can do, and what it costs. Bits of capabilities::can.
enum class capability : std::uint16_t {
  batch_targets = 1U << 0U,         ///< One call covers queues of several targets on one GPU.
  reserve_slots = 1U << 1U,         ///< backend::reserve().
  set_quantum = 1U << 2U,           ///< It slices time between processes, and the slice can be set.
  read_backlog = 1U << 3U,          ///< acting_side::follow(), for backend::poll_work().
  preempt_kernels = 1U << 4U,       ///< A suspend takes running kernels off in their middle.
  holds_end_with_maker = 1U << 5U,  ///< The kernel resumes everything when the acting process ends.
  needs_tracer = 1U << 6U,          ///< Attaching keeps debuggers and profilers from the target.
};

/// How a backend suspends and resumes. It crosses a process boundary as it is.
struct capabilities {
  static constexpr std::size_t longest_name = 23;

  std::uint16_t can = 0;
  std::array<char, longest_name + 1> mechanism{};  ///< The driver's name for it, for people.

  constexpr capabilities() noexcept = default;
  constexpr capabilities(std::string_view name, std::initializer_list<capability> all) noexcept {
    std::copy_n(name.begin(), std::min(name.size(), longest_name), mechanism.begin());
    for (const capability each : all) can |= static_cast<std::uint16_t>(each);
  }
  constexpr bool has(capability one) const noexcept {
    return (can & static_cast<std::uint16_t>(one)) != 0;
  }
  /// Whatever another process wrote there.
  constexpr std::string_view name() const noexcept {
    return {mechanism.begin(), std::find(mechanism.begin(), mechanism.end(), '\0')};
  }
  friend bool operator==(const capabilities&, const capabilities&) = default;
};
static_assert(std::is_trivially_copyable_v<capabilities>);

struct queue_info {
  process_id target{};
  driver_queue_id id{};
  gpu_id gpu{};
  queue_kind type{};
  std::uint64_t incarnation = 0;  ///< The driver's; tells a reused id apart. 0: nobody tells.
  /// The driver's word for what went wrong with it while it was attached. 0 where nothing did, or
  /// nobody tells. A queue is added again when this changes.
  std::uint64_t fault = 0;
};

/// Threading: called on the reactor thread, from inside backend::drain() only.
class backend_listener {
 public:
  /// The answer to attach(). On success the target's queues follow as queue_added().
  virtual void attached(process_id target, error_code error) = 0;
  /// Just before attached() with an error, where the driver has a reason: one sentence for people,
  /// valid during the call.
  virtual void attach_refused(process_id target, std::string_view why) {
    (void)target;
    (void)why;
  }
  virtual void queue_added(const queue_info& queue) = 0;
  virtual void queue_removed(process_id target, driver_queue_id queue) = 0;
  /// Exactly once per accepted batch, unless lost() comes first.
  virtual void completed(const batch_result& result) = 0;
  /// The target exited or its session ended for good; its queues run or are gone.
  virtual void detached(process_id target) = 0;
  /// How it acts from now on: said once after the start, and again when the better mechanism
  /// failed for no known reason. Then everything runs at that moment, and every queue that is still
  /// there is removed and added again.
  virtual void acts_by(const capabilities& what, bool fell_back) {
    (void)what;
    (void)fell_back;
  }
  /// The answer to reserve(), and unasked, with an error, where a reservation could not be kept up.
  /// Without an error the driver keeps to `offline_share` from now on; with one it limits nobody on
  /// that GPU, or the backend sees to that until the driver lets it. Everything runs unlimited,
  /// too, after lost() and acts_by().
  virtual void reserved(gpu_id gpu, double offline_share, error_code error) {
    (void)gpu;
    (void)offline_share;
    (void)error;
  }
  /// The answer to set_quantum(), and unasked, with an error, where it could not be kept up.
  /// Without an error the target's work on that GPU has that quantum from now on, and what comes of
  /// it there, too; with one it has the driver's default, or the backend sees to that until the
  /// driver lets it. The default holds, too, after detached() and lost();
  /// not after acts_by().
  virtual void quantum_set(process_id target, gpu_id gpu, duration length, error_code error) {
    (void)target;
    (void)gpu;
    (void)length;
    (void)error;
  }
  /// What the acting side saw of a process's work, while poll_work() asks for it:
  /// observation_kind::pointers_seen. Other kinds are ignored.
  virtual void observed(const observation& seen) { (void)seen; }
  /// A lane is stuck in a driver call: no commands for the GPU until an operator re-arms it.
  virtual void gpu_lost(gpu_id gpu) = 0;
  /// The acting side died: every session is closed, every queue runs, no batch in flight will
  /// complete. The backend restarts itself; restored() follows when it takes commands again.
  virtual void lost(error_code reason) = 0;
  virtual void restored() = 0;

 protected:
  ~backend_listener() = default;
};

/// Threading: reactor thread only, never re-entered from a listener call.
/// Lifetime:  the listener outlives the backend's last drain(). Destruction without stop() is safe:
///            failing means resuming.
class backend {
 public:
  virtual ~backend() = default;
  virtual std::string_view name() const noexcept = 0;
  /// Whether what it reports as done happens. False: it only pretends, everything runs, and clients
  /// are told so. Always the same.
  virtual bool acts() const noexcept { return true; }
  /// Opens the driver (or starts the agent). May block for up to a few hundred milliseconds.
  virtual result<void> start(backend_listener& listener) = 0;
  /// Readable whenever drain() has something; -1 when the caller must drain every turn. The same
  /// from start() to stop().
  virtual int ready_fd() const noexcept = 0;
  /// Delivers what has come up since the last call. Never blocks.
  virtual void drain() = 0;
  /// Begins to manage a process; attached() answers. Never blocks.
  /// \param start_time identity of the process beside its pid (observation::start_time).
  virtual result<void> attach(process_id target, pid_t pid, std::uint64_t start_time) = 0;
  /// Ends the session (everything of it runs); detached() answers. Never blocks.
  virtual result<void> detach(process_id target) = 0;
  /// submit() is likely to follow within microseconds: wakes who performs it, so that it comes out
  /// of its sleep while the scheduler decides. Never blocks.
  virtual void expect() {}
  /// Hands over one batch. errc::busy: this target's lane has one in flight; errc::full: too many
  /// are in flight altogether; either way it is handed over again. Never blocks, never allocates.
  virtual result<void> submit(const batch& work) = 0;
  /// decision_sink::reserve(): limits the compute queues of attached targets, and of those that are
  /// attached later. 1 ends it; where there is none to end, that asks whether the driver can, and
  /// changes nothing. reserved() answers, once for each accepted call unless lost() comes first.
  /// errc::full, errc::busy: to be handed over again. Never blocks.
  virtual result<void> reserve(gpu_id gpu, double offline_share) {
    (void)gpu;
    (void)offline_share;
    return errc::not_supported;
  }
  /// decision_sink::set_quantum() for an attached target: how long it may keep the GPU once others
  /// want it, until the session ends. Zero is the driver's default; where that holds already, it
  /// asks whether the driver can, and changes nothing. quantum_set() answers, once for each
  /// accepted call unless detached() or lost() comes first. errc::full, errc::busy: to be handed
  /// over again. Never blocks.
  virtual result<void> set_quantum(process_id target, gpu_id gpu, duration length) {
    (void)target;
    (void)gpu;
    (void)length;
    return errc::not_supported;
  }
  /// What source number `source` saw, after the scheduler has taken it in: for a backend that has
  /// no driver to tell it of queues. Never blocks.
  virtual void observed(unsigned source, const observation& seen) {
    (void)source;
    (void)seen;
  }
  /// As source::poll_pointers(), where the acting side sees the work of online processes and the
  /// host does not. backend_listener::observed() says what changed. Never blocks.
  virtual void poll_work(duration every) { (void)every; }
  /// Whether a client in that process marks its requests: then its work need not be looked at.
  virtual void marks_requests(pid_t pid, bool so) {
    (void)pid;
    (void)so;
  }
  /// Nothing more will be submitted this turn: what waits for company goes out.
  virtual void flush() {}
  /// Says "the scheduler lives" (renews the lease) and checks the acting side.
  /// \return when to call again at the latest.
  virtual time_point tick(time_point now) = 0;
  /// Resumes everything, ends every session. Blocks up to a few seconds; idempotent.
  virtual void stop() = 0;
};

}  // namespace sluice
#pragma GCC visibility pop
