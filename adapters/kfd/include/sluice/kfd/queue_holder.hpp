#pragma once
/// \file
/// Blocking calls to suspend and resume queues by hand: for tools and the C API. A scheduler wants
/// a backend instead, which never waits.

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/kfd/device.hpp"
#include "sluice/kfd/roots.hpp"
#include "sluice/queue_holder.hpp"
#include "sluice/result.hpp"
#include "sluice/time.hpp"

namespace sluice::kfd {

/// As queue_holder::reason_of().
std::string reason_of(command_kind kind, const queue_order& order);

/// Holds processes: attaches to each on its first use, by a lane of its own (lanes.hpp), and keeps
/// the session until release(). Whatever is in doubt runs: a call that gets no answer in time, or a
/// queue that fails, ends with everything of that process resumed.
///
/// Threading: any thread; calls about one process wait for each other. It has one thread of its
///            own, with every signal blocked, and one for each process it holds.
/// Process:   must not call waitpid(-1) or wait(), which would take the stops of the targets. Not
///            for use in a forked child. Its death resumes everything.
/// Lifetime:  the destructor resumes everything and waits for it, as long as the driver makes it.
/// Cost:      see debug_session: attaching and releasing each cost everyone on the GPUs a runlist
///            cycle or two, a change() one for each process and GPU.
class queue_holder final : public sluice::queue_holder {
 public:
  /// \return nothing, and `why`, when the device cannot be opened or is too old.
  [[nodiscard]] static std::unique_ptr<queue_holder> open(const roots& where, hold_failure& why);
  ~queue_holder() override;

  /// Attaches if that was not done yet, and waits for the list of queues.
  /// \return ESRCH: no such process, or it does not use the driver (as may_be_listed() tells) and
  ///         was not touched; EPERM: it may not be held, or cannot be, now or ever; EINVAL: it is
  ///         this process; ETIMEDOUT.
  hold_failure attach(pid_t pid, time_point deadline) override;

  /// The queues of a process that is held, by id; empty where it is not, or not any more.
  std::vector<held_queue> queues(pid_t pid) const override;
  /// Queues that a reset killed while their process was held, and that are gone since. The next
  /// change() that resumes one fails with EIO (reset) and removes it from this list. A suspend
  /// fails with ENOENT.
  std::vector<driver_queue_id> buried(pid_t pid) const;
  bool holds(pid_t pid) const override;
  std::vector<pid_t> held() const;

  /// Suspends or resumes, in one driver call for each process and GPU, processes in parallel. Of
  /// resume orders, those for a process that is not held are ESRCH: nothing is attached for them.
  /// \return the first order's failure, if any; each order has its own.
  hold_failure change(command_kind kind, std::span<queue_order> orders,
                      time_point deadline) override;

  /// Resumes everything of the process and lets go of it.
  /// \return ESRCH: it is not held; ETIMEDOUT: not yet, it happens when the driver call returns;
  ///         EIO: the driver refuses (see stranded()), or a queue that is suspended is dead, or a
  ///         GPU of the process failed or was reset while it was held and no call has reported
  ///         that: then it is let go, but what it ran there is lost.
  hold_failure release(pid_t pid, time_point deadline) override;

  /// What befell GPUs of the processes held since the last call, in order. Resets are heard of
  /// where the driver gives SMI events, from the first attach() to a process of that GPU on.
  std::vector<gpu_failure> take_gpu_failures() override;

  /// The driver keeps queues suspended that it refuses to resume, and refuses to end their session.
  /// Only the end of this process frees them: end it.
  bool stranded() const override;

  std::string reason_of(command_kind kind, const queue_order& order) const override;
  std::string why_ended(pid_t pid) const override;
  std::string words_of_fault(std::uint64_t fault) const override;

  const device& node() const noexcept;

 private:
  class impl;
  explicit queue_holder(std::unique_ptr<impl> state);
  std::unique_ptr<impl> impl_;
};

}  // namespace sluice::kfd
