#pragma once
/// \file
/// Looks at the work of online processes at a pace, and reports what changed. For the agent and for
/// the scheduler's process alike: whichever can see the work.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sluice/agent/followed_process.hpp"
#include "sluice/ids.hpp"
#include "sluice/observation.hpp"
#include "sluice/online_work.hpp"
#include "sluice/os/process_identity.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice::agent {

struct work_follower_options {
  std::string thread{};  ///< Its name; at most 15 characters.
  /// Least time between two reports of a process on a GPU. Zero: the follower reports each change
  /// of the state at once. Either way, it reports submissions to a GPU that has work anyway at most
  /// once in a millisecond.
  duration apart{};
  /// Least time between two looks at a process that had no work for a second: other processes wait
  /// for each look. Zero: it is looked at as often as they are.
  duration rest{};
  /// Called on the follower's thread with an observation of kind pointers_seen: the first of each
  /// GPU, and then what changed. `count` has all submissions since the last one that was accepted.
  /// \return false if it was refused: the follower reports the state at a later look.
  std::function<bool(const observation&)> report{};
  /// Called on the follower's thread after it reported something of a process. May be empty.
  std::function<void()> reported{};
};

/// A thread of its own, so that no look delays anything else. It starts with the first process.
/// Where a process shows no work any more, because it has ended or runs another program, its work
/// is reported as unknown; it is left once it has ended and that was accepted.
///
/// Threading: follow() and leave() belong to one thread; the others may be called on any. None of
///            them blocks.
/// Lifetime:  destruction waits for the look that is under way.
/// Cost:      a look of a process costs what its look() does; together they cost one system call
///            more. All processes share the thread: their looks follow each other. It allocates
///            only for new processes and GPUs.
class work_follower {
 public:
  explicit work_follower(work_follower_options how);
  ~work_follower();
  work_follower(const work_follower&) = delete;
  work_follower& operator=(const work_follower&) = delete;

  /// Looks at it at the pace, in the place of what it followed under the same identity: the first
  /// report is of everything.
  /// \return the system's error if no thread or descriptor can be had.
  [[nodiscard]] result<void> follow(const process_identity& who,
                                    std::unique_ptr<followed_process> process);
  void leave(const process_identity& who);
  /// How often to look at each process. Zero, as at the start: leaves all of them, and those that
  /// follow() adds meanwhile.
  void pace(duration every) noexcept;
  /// Reports everything again after the next look.
  void restate() noexcept { restate_.store(true); }

 private:
  struct place {
    gpu_id gpu{};
    online_work told{};
    std::uint32_t told_waiting = 0;
    time_point told_at{};
    std::uint64_t untold = 0;  ///< Submissions.
    bool ever_told = false;
  };
  struct followed {
    process_identity who{};
    std::unique_ptr<followed_process> process{};
    time_point due{};
    time_point last_work{};
    bool ended = false;
    std::vector<place> places{};
  };
  struct order {
    process_identity who{};
    std::unique_ptr<followed_process> process{};  ///< Null: leave it.
  };
  void run();
  void take_orders(time_point now);
  /// \return when the next look is due.
  time_point look(time_point now);
  /// Adds GPUs that were reported before and not found now, as unknown.
  void add_missing(const followed& of);
  void tell(followed& of, time_point now);

  const work_follower_options how_;
  const unique_fd wake_;
  std::atomic<duration::rep> every_{0};
  std::atomic<bool> restate_{false};
  std::atomic<bool> stopping_{false};
  std::thread worker_;

  std::mutex mutex_;
  std::vector<order> orders_;

  // The worker's.
  duration pace_{};
  std::vector<followed> all_;
  std::vector<followed_process::work> found_;
};

}  // namespace sluice::agent
#pragma GCC visibility pop
