#pragma once
/// \file
/// The scheduler without threads, descriptors or a clock of its own: one step() is one turn. What
/// scheduler wraps; tests and simulations in virtual time drive it themselves.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "sluice/backend.hpp"
#include "sluice/breaker.hpp"
#include "sluice/client_host.hpp"
#include "sluice/config.hpp"
#include "sluice/gang_state.hpp"
#include "sluice/journal.hpp"
#include "sluice/observation.hpp"
#include "sluice/online_client.hpp"
#include "sluice/picture.hpp"
#include "sluice/policy.hpp"
#include "sluice/recording.hpp"
#include "sluice/result.hpp"
#include "sluice/statistics.hpp"
#include "sluice/time.hpp"
#include "sluice/world.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// The number that a recording gives to what the backend observed: none of a source.
inline constexpr unsigned backend_source = 31;

struct core_options {
  /// nullptr: the steady clock. Outlives the core and every client of it; clients ask it from their
  /// own threads.
  const time_source* time = nullptr;
  /// Never attached to; 0: none.
  pid_t own_pid = 0;
  /// Makes the policy that takes over when another was removed for what it did; empty, or when it
  /// throws or gives nothing: everything runs. Called on the stepping thread, so it should not
  /// block. What it makes has no successor but by set_policy().
  std::function<std::unique_ptr<policy>()> fallback = nullptr;
  /// Does not log what the backend can do as it says so; for programs with many schedulers.
  bool quiet = false;
  /// What comes in is written there; nullptr: nowhere. Of `record` only policy and device count.
  record_sink* record_into = nullptr;
  record_options record = {};
  /// As scheduler_options::journal.
  journal_sink* journal = nullptr;
};

/// Threading: register_client(), rearm(), set_policy(), set_config(), config(), stats() and wake()
///            from any thread. All else from one thread at a time, and never from inside a policy's
///            or the backend's call.
/// Lifetime:  the backend outlives the core.
/// Errors:    result<T>; nothing here throws.
/// Cost:      a step costs what changed, not what exists, and allocates nothing unless something is
///            new: a process, a queue, a GPU, a client.
class scheduler_core {
 public:
  /// \return errc::bad_config when config.problem() says so.
  [[nodiscard]] static result<std::unique_ptr<scheduler_core>> create(
      const scheduler_config& config, backend& driver, std::unique_ptr<policy> decider,
      core_options options = {});
  virtual ~scheduler_core() = default;
  scheduler_core(const scheduler_core&) = delete;
  scheduler_core& operator=(const scheduler_core&) = delete;

  /// Who hears of breakers, within step() or observe(): as source::breaker_changed(). Between
  /// steps.
  virtual void on_breaker(std::function<void(const breaker_change&)> hear) = 0;
  /// Who hears, within step(), which processes mark their requests: as source::marks_requests().
  /// Between steps.
  virtual void on_marks(std::function<void(pid_t pid, bool so)> hear) = 0;
  /// Who hears, within step(), what is wanted of gangs on several nodes: as source::gang_changed().
  /// Between steps.
  virtual void on_gang(std::function<void(const gang_state&)> hear) = 0;
  /// Starts the backend.
  [[nodiscard]] virtual result<void> start() = 0;
  /// One item of what source number `source` (0 to 30) saw. Between steps.
  virtual void observe(unsigned source, const observation& seen) = 0;
  /// The same, for who has just read the core's clock: many at once need it but once.
  virtual void observe(unsigned source, const observation& seen, time_point now) = 0;
  /// Source number `source` had to drop so many. Between steps.
  virtual void overflowed(unsigned source, std::uint64_t dropped) noexcept = 0;
  /// Source number `source` is about to say everything again. Between steps.
  virtual void resyncing(unsigned source) noexcept = 0;
  /// One turn. \return when the next is due at the latest.
  virtual time_point step() = 0;
  /// How often sources are to look at pointers, as the policy wants since the last step; zero: not
  /// at all. See source::poll_pointers().
  virtual duration pointer_interval() const noexcept = 0;
  /// Holds nothing from the next step on and attaches to nobody any more; idempotent.
  virtual void begin_stop() = 0;
  /// Whether every queue is known to run and nothing is in flight.
  virtual bool all_running() const noexcept = 0;
  /// Stops the backend, answers everyone who waits, refuses new clients. Idempotent.
  virtual void finish_stop() = 0;

  [[nodiscard]] virtual result<online_client> register_client(client_options options) = 0;
  /// Clients of other processes. Between steps; register_client() is for those of this one.
  virtual client_host& clients() noexcept = 0;
  /// What client_host::look() does: a step, with all that belongs to one. Nothing at first.
  virtual void on_look(std::function<void()> turn) = 0;
  /// As scheduler::rearm().
  virtual void rearm(gpu_id which) = 0;
  /// As scheduler::set_policy().
  virtual void set_policy(std::unique_ptr<policy> next) = 0;
  /// As scheduler::set_config().
  [[nodiscard]] virtual result<void> set_config(const scheduler_config& next) = 0;
  virtual scheduler_config config() const = 0;
  virtual statistics stats() const = 0;
  /// What it knows. Between steps.
  virtual picture look() const = 0;
  /// stats() without the copy, on the stepping thread.
  virtual const statistics& live_stats() const noexcept = 0;

  /// The protocol that lets clients skip the system call while a step runs. Call awake() before a
  /// step; after it fall_asleep(), and step again at once when that returns false.
  /// wake_fd() is readable when somebody rang while asleep; clear_wake_fd() empties it.
  virtual void awake() noexcept = 0;
  virtual bool fall_asleep() noexcept = 0;
  virtual int wake_fd() const noexcept = 0;
  virtual void clear_wake_fd() noexcept = 0;
  /// Makes wake_fd() readable, asleep or not. Any thread.
  virtual void wake() noexcept = 0;
  /// As wake(), but only when asleep: after publishing something that a step will look at. Any
  /// thread.
  virtual void ring() noexcept = 0;

  /// The table as policies see it; valid until the next step or observation.
  virtual const world& seen() const noexcept = 0;

 protected:
  scheduler_core() = default;
  /// For who is behind this: only this class may make one.
  static online_client client_of(std::shared_ptr<client_page> page) noexcept {
    return online_client(std::move(page));
  }
};

}  // namespace sluice
#pragma GCC visibility pop
