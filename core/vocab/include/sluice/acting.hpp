#pragma once
/// \file
/// The acting port: what a driver does to other processes. It runs in the agent, or in the
/// scheduler's own process, and is driven by whoever owns it: commands go down as calls, what it
/// has to say comes up as reports.

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>

#include "sluice/backend.hpp"
#include "sluice/ids.hpp"
#include "sluice/observation.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// Processes whose work one acting side is asked to look at, at the same time.
inline constexpr std::size_t most_followed = 64;

enum class report_kind : std::uint8_t {
  attached,       ///< target; error (none: its queues follow). With an error it is not managed;
                  ///< why.
  queue_added,    ///< target, queue.
  queue_removed,  ///< target, queue.id.
  completed,      ///< target, result.
  detached,       ///< target. It is not managed any more.
  gpu_lost,       ///< gpu.
  acts_by,        ///< acting, fell_back.
  reserved,       ///< gpu, offline_share, error.
  quantum_set,    ///< target, gpu, quantum, error.
  observed,       ///< seen.
};

/// An error_code that can cross a process boundary: categories are addresses.
struct plain_error {
  enum class domain : std::uint8_t { none, system, sluice };
  domain where = domain::none;
  int value = 0;

  plain_error() noexcept = default;
  explicit plain_error(const error_code& error) noexcept : value(error.value()) {
    if (error) where = error.category() == sluice_category() ? domain::sluice : domain::system;
  }
  explicit operator error_code() const noexcept {
    switch (where) {
      case domain::none: break;
      case domain::system: return {value, boost::system::system_category()};
      case domain::sluice: return {value, sluice_category()};
    }
    return {};
  }
};

/// What the acting side has to say: backend_listener's calls as values. It crosses a process
/// boundary, so it has no bool: one that is neither true nor false is undefined behaviour.
struct report {
  static constexpr std::size_t longest_why = 159;

  report_kind kind{};
  plain_error error;
  process_id target{};
  gpu_id gpu{};
  queue_info queue;
  capabilities acting{};
  std::uint8_t fell_back = 0;  ///< Not 0: it did.
  double offline_share = 1;
  duration quantum{};
  observation seen;
  batch_result result{};
  std::array<char, longest_why + 1> why{};  ///< Ends with a zero; what is longer is cut.

  void set_why(std::string_view words) noexcept { why[words.copy(why.data(), longest_why)] = '\0'; }
  std::string_view words() const noexcept { return why.data(); }
};
static_assert(std::is_trivially_copyable_v<report>);

/// The answer to a batch that was not performed, the same for all of its queues.
inline report unperformed(const batch& work, outcome of_all, int driver_errno) {
  report made;
  made.kind = report_kind::completed;
  made.target = work.target;
  made.gpu = work.gpu;
  made.result.id = work.id;
  made.result.target = work.target;
  made.result.gpu = work.gpu;
  made.result.kind = work.kind;
  made.result.count = work.count;
  made.result.driver_errno = driver_errno;
  made.result.queues = work.queues;
  made.result.outcomes.fill(of_all);
  made.result.started = made.result.finished = clock::now();
  return made;
}

/// Calls the member of `listener` that `what` stands for.
inline void deliver(const report& what, backend_listener& listener) {
  switch (what.kind) {
    case report_kind::attached:
      if (const auto why = what.words(); !why.empty()) listener.attach_refused(what.target, why);
      listener.attached(what.target, error_code{what.error});
      break;
    case report_kind::queue_added: listener.queue_added(what.queue); break;
    case report_kind::queue_removed: listener.queue_removed(what.target, what.queue.id); break;
    case report_kind::completed: listener.completed(what.result); break;
    case report_kind::detached: listener.detached(what.target); break;
    case report_kind::gpu_lost: listener.gpu_lost(what.gpu); break;
    case report_kind::acts_by: listener.acts_by(what.acting, what.fell_back != 0); break;
    case report_kind::reserved:
      listener.reserved(what.gpu, what.offline_share, error_code{what.error});
      break;
    case report_kind::quantum_set:
      listener.quantum_set(what.target, what.gpu, what.quantum, error_code{what.error});
      break;
    case report_kind::observed: listener.observed(what.seen); break;
  }
}

/// What a driver does to its targets. Within one target everything happens in order.
///
/// Threading: one thread at a time. It blocks no signal and installs no handler.
/// Lifetime:  destruction resumes everything and lets go of every target.
/// Cost:      submit(), flush() and next() neither allocate nor lock; nothing here waits for the
///            driver but stop().
class acting_side {
 public:
  virtual ~acting_side() = default;

  /// Readable when next() may have something; next() makes it unreadable. Always the same.
  virtual int ready_fd() const noexcept = 0;
  /// Takes one report. The first says what it acts by. \return false when there is none.
  virtual bool next(report& out) = 0;

  /// Begins to manage a process; an `attached` report answers.
  /// \return errc::busy when it is managed, errc::not_managed for this process itself, or the
  ///         system's error.
  [[nodiscard]] virtual result<void> attach(process_id target, pid_t pid,
                                            std::uint64_t start_time) = 0;
  /// Lets go of it, after the batch in flight if there is one; everything of it runs then. A
  /// `detached` report answers. \return errc::unknown_target.
  [[nodiscard]] virtual result<void> detach(process_id target) = 0;
  /// A `completed` report answers, exactly one; for an empty batch without a driver call, after
  /// the first queues of the target.
  /// \return errc::busy while a batch of this target is in flight or it is not attached yet,
  ///         errc::unknown_target when it is not managed.
  [[nodiscard]] virtual result<void> submit(const batch& work) = 0;
  /// What was submitted goes out now at the latest.
  virtual void flush() noexcept {}

  /// As backend::reserve(), answered by a `reserved` report.
  [[nodiscard]] virtual result<void> reserve(gpu_id gpu, double offline_share) {
    (void)gpu;
    (void)offline_share;
    return errc::not_supported;
  }
  /// As backend::set_quantum(), answered by a `quantum_set` report.
  [[nodiscard]] virtual result<void> set_quantum(process_id target, gpu_id gpu, duration length) {
    (void)target;
    (void)gpu;
    (void)length;
    return errc::not_supported;
  }

  /// Looks every `every` at the work of this process, which need not be attached, and reports it as
  /// `observed` with observation_kind::pointers_seen: the state of each of its GPUs after the first
  /// look, then only what changed. Replaces the interval of earlier calls, which may be that of all
  /// processes: the host wants the same one of all. Zero ends it for this process. Only called
  /// where `acts_by` has capability::read_backlog. The host may name any process: a driver reads
  /// only what belongs to it. It ends by itself with the process.
  ///
  /// A driver looks on a thread of its own, so that no look delays a lane or a call of this class.
  /// It bounds how often it looks. What next() has not taken yet, a newer look replaces; packets
  /// are added up.
  /// \return errc::full for more than most_followed processes, errc::not_managed where the agent's
  ///         own rules do not take the process for online, errc::not_supported, or the system's
  ///         error. After one, a driver may try again by itself, until `every` is zero.
  [[nodiscard]] virtual result<void> follow(pid_t pid, std::uint64_t start_time, duration every) {
    (void)pid;
    (void)start_time;
    (void)every;
    return errc::not_supported;
  }

  /// SIGCHLD came in, for a side that wants to hear of it. One signal may stand for many children.
  virtual void children_changed() noexcept {}
  /// Looks for calls that the driver does not answer: their GPUs become `gpu_lost` reports.
  /// \return when to call again.
  virtual time_point check(time_point now) {
    (void)now;
    return never;
  }
  /// Whether something stays suspended that the driver refuses to resume, and that only the end of
  /// this process frees: the owner should end. ready_fd() becomes readable with it.
  virtual bool stranded() const noexcept { return false; }
  /// Resumes everything and lets go of every target, waiting `at_most`. Reports not taken are
  /// dropped. \return false when a call does not come back: then only the end of the process helps.
  virtual bool stop(duration at_most) = 0;
};

/// Which driver an agent acts on, and how: what acting_driver::set() takes
/// (sluice/agent/acting_driver.hpp).
struct acting_choice {
  std::string driver{};
  std::map<std::string, std::string> settings{};
};

}  // namespace sluice
#pragma GCC visibility pop
