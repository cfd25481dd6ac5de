#pragma once
/// \file
/// The façade that an embedding program constructs: one scheduler for one node.

#include <functional>
#include <memory>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/config.hpp"
#include "sluice/journal.hpp"
#include "sluice/online_client.hpp"
#include "sluice/picture.hpp"
#include "sluice/policy.hpp"
#include "sluice/reactor.hpp"
#include "sluice/recording.hpp"
#include "sluice/result.hpp"
#include "sluice/source.hpp"
#include "sluice/statistics.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

struct scheduler_options {
  /// Makes the policy that takes over when one was removed because it threw or was late; as
  /// core_options::fallback.
  std::function<std::unique_ptr<policy>()> fallback = nullptr;
  /// With a file: what comes in is recorded there, for `sluice replay`. Where the disk is too slow,
  /// lines are lost (statistics::lost_records), and nothing waits for it.
  record_options record = {};
  /// Hears what is seen, decided, told the driver and answered; nullptr: nobody. Outlives the
  /// scheduler.
  journal_sink* journal = nullptr;
  /// nullptr: the steady clock. Another one is for tests and simulations, with a reactor whose
  /// timers follow it; outlives the scheduler and its clients.
  const time_source* time = nullptr;
};

/// Watches sources and clients, asks the policy, and acts through the backend.
///
/// Threading: stop(), stopped(), register_client(), rearm(), set_policy(), set_config(), look() and
///            stats() from any thread. start() from the thread that created it; run() and
///            poll_once() from one thread at a time. With a hosted reactor the host's threads do
///            the work and run() returns at once.
/// Lifetime:  owns everything it is given. Destruction without stop() is safe: it stops the sources
///            and the backend there and then, which resumes everything. On a hosted reactor,
///            destroy it before the host's io_context.
/// Errors:    result<T>; nothing here throws.
class scheduler {
 public:
  /// \return errc::bad_config when config.problem() says so or record.buffer is out of its range;
  ///         errc::full for more than 31 sources; the system's error when record.file cannot be
  ///         written or no descriptor is left. record.file is as it was where the configuration or
  ///         the buffer is at fault.
  [[nodiscard]] static result<std::unique_ptr<scheduler>> create(
      scheduler_config config, std::unique_ptr<reactor> loop, std::unique_ptr<backend> driver,
      std::unique_ptr<policy> decider, std::vector<std::unique_ptr<source>> sources,
      scheduler_options options = {});
  virtual ~scheduler() = default;
  scheduler(const scheduler&) = delete;
  scheduler& operator=(const scheduler&) = delete;

  /// Starts backend and sources, once. May block for a few hundred milliseconds. On an error
  /// nothing stays started.
  /// \return errc::stopped when it was started before, or after stop(); else the first of their
  ///         errors.
  [[nodiscard]] virtual result<void> start() = 0;
  /// Turns until stop() has been obeyed.
  virtual void run() = 0;
  /// One round of what is ready, without blocking. \return whether there was anything.
  virtual bool poll_once() = 0;
  /// Asks for the end: everything is resumed, within stop_limit; then sources and backend stop.
  /// Returns at once; idempotent. The turn that obeys it, on the reactor's thread or the host's
  /// io_context, waits for the acting side to end: milliseconds, seconds if that hangs (with the
  /// agent at most 4, and the launch of one that is just being replaced).
  virtual void stop() noexcept = 0;
  /// Whether stop() has been obeyed.
  virtual bool stopped() const noexcept = 0;

  /// \return errc::stopped after stop().
  [[nodiscard]] virtual result<online_client> register_client(client_options options) = 0;
  /// Says that the GPU works again after a preemption on it failed, it was reset, or a driver call
  /// got stuck: it is used again from the next turn on. Nothing where it was in use.
  virtual void rearm(gpu_id which) = 0;
  /// Another policy from the next turn on; nullptr: none, everything runs. Processes, queues,
  /// clients and limits stay as they are. Declarations, wake-ups, reservations, quanta and pointer
  /// polling of the old one are forgotten, and every group is listed as changed in the new one's
  /// first turn: what both want held stays suspended throughout. The old one is destroyed on the
  /// reactor's thread, at the end of that turn. Returns at once; nothing after stop().
  virtual void set_policy(std::unique_ptr<policy> next) = 0;
  /// Other settings from the next turn on, all of them or none. Processes, queues, clients, holds
  /// and what groups were off stay known; limits that are tighter now hold at once. What has begun
  /// by the old ones (a wait before an attach, a backoff, a breaker's time) ends by them. A
  /// recording tells nothing of it.
  /// \return errc::bad_config when problem() says so; errc::not_supported when keep_fixed() would
  ///         change it; errc::stopped after stop(). Then the old ones stay.
  [[nodiscard]] virtual result<void> set_config(const scheduler_config& next) = 0;
  /// As they are, or will be from the next turn on.
  virtual scheduler_config config() const = 0;
  /// What it knows, as it is between two turns. Waits for the next turn, which this asks for and
  /// which copies it: some microseconds for each process. Never on the reactor's thread.
  /// \return errc::stopped unless it runs; errc::busy when `patience` is over.
  [[nodiscard]] virtual result<picture> look(duration patience) = 0;
  /// A copy, taken without disturbing the reactor (see statistics).
  virtual statistics stats() const = 0;

 protected:
  scheduler() = default;
};

}  // namespace sluice
#pragma GCC visibility pop
