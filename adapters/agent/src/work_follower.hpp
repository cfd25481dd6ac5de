#pragma once
/// \file
/// Looks at the work of online processes, for acting_side::follow().

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "sluice/acting.hpp"
#include "sluice/agent/followed_process.hpp"
#include "sluice/agent/lane.hpp"
#include "sluice/os/unique_fd.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice::agent {

/// A thread of its own, so that no look delays anybody else. It starts with the first process.
///
/// Threading: follow() and next() belong to the owner of the acting side.
/// Lifetime:  the bell outlives it. Destruction waits for the look that is under way.
class work_follower {
 public:
  work_follower(follow_function make, const owner_bell& owner)
      : make_(std::move(make)), owner_(owner) {}
  ~work_follower();
  work_follower(const work_follower&) = delete;
  work_follower& operator=(const work_follower&) = delete;

  /// As acting_side::follow().
  [[nodiscard]] result<void> follow(pid_t pid, std::uint64_t start_time, duration every);
  /// Takes one report.
  bool next(report& out);

 private:
  struct place {
    gpu_id gpu{};
    online_work told{};
    time_point told_at{};
    std::uint64_t untold = 0;  ///< Submissions.
    bool ever_told = false;
  };
  struct followed {
    pid_t pid = 0;
    std::uint64_t start_time = 0;
    duration every{};
    std::unique_ptr<followed_process> process;
    time_point due{};
    std::vector<place> places;
  };
  struct order {
    pid_t pid = 0;
    std::uint64_t start_time = 0;
    duration every{};
    std::unique_ptr<followed_process> fresh;  ///< Null: only the interval changes.
  };
  void run();
  void take_orders();
  /// \return when the next look is due.
  time_point look(time_point now);
  void tell(followed& of, time_point now);

  const follow_function make_;
  const owner_bell& owner_;
  std::vector<std::pair<pid_t, std::uint64_t>> asked_;  ///< Of follow()'s thread.
  unique_fd wake_;
  std::thread worker_;
  std::atomic<bool> stopping_{false};

  std::mutex mutex_;
  std::vector<order> orders_;
  std::deque<report> reports_;  ///< One of each process and GPU, at most.

  // The worker's.
  std::vector<followed> all_;
  std::vector<followed_process::work> found_;
  bool told_ = false;
};

}  // namespace sluice::agent
