#pragma once
/// \file
/// The scheduler without threads, descriptors or a clock of its own: one step() is one turn. What
/// scheduler wraps; tests and simulations in virtual time drive it themselves.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "sluice/backend.hpp"
#include "sluice/breaker.hpp"
#include "sluice/client_host.hpp"
#include "sluice/config.hpp"
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
  ~scheduler_core();
  scheduler_core(const scheduler_core&) = delete;
  scheduler_core& operator=(const scheduler_core&) = delete;

  /// Who hears of breakers, within step() or observe(): as source::breaker_changed(). Between
  /// steps.
  void on_breaker(std::function<void(const breaker_change&)> hear);
  /// Starts the backend.
  [[nodiscard]] result<void> start();
  /// One item of what source number `source` (0 to 31) saw. Between steps.
  void observe(unsigned source, const observation& seen);
  /// The same, for who has just read the core's clock: many at once need it but once.
  void observe(unsigned source, const observation& seen, time_point now);
  /// Source number `source` had to drop so many. Between steps.
  void overflowed(unsigned source, std::uint64_t dropped) noexcept;
  /// Source number `source` is about to say everything again. Between steps.
  void resyncing(unsigned source) noexcept;
  /// One turn. \return when the next is due at the latest.
  time_point step();
  /// How often sources are to look at pointers, as the policy wants since the last step; zero: not
  /// at all. See source::poll_pointers().
  duration pointer_interval() const noexcept;
  /// Holds nothing from the next step on and attaches to nobody any more; idempotent.
  void begin_stop();
  /// Whether every queue is known to run and nothing is in flight.
  bool all_running() const noexcept;
  /// Stops the backend, answers everyone who waits, refuses new clients. Idempotent.
  void finish_stop();

  [[nodiscard]] result<online_client> register_client(client_options options);
  /// Clients of other processes. Between steps; register_client() is for those of this one.
  client_host& clients() noexcept;
  /// What client_host::look() does: a step, with all that belongs to one. Nothing at first.
  void on_look(std::function<void()> turn);
  /// As scheduler::rearm().
  void rearm(gpu_id which);
  /// As scheduler::set_policy().
  void set_policy(std::unique_ptr<policy> next);
  /// As scheduler::set_config().
  [[nodiscard]] result<void> set_config(const scheduler_config& next);
  scheduler_config config() const;
  statistics stats() const;
  /// What it knows. Between steps.
  picture look() const;
  /// stats() without the copy, on the stepping thread.
  const statistics& live_stats() const noexcept;

  /// The protocol that lets clients skip the system call while a step runs. Call awake() before a
  /// step; after it fall_asleep(), and step again at once when that returns false.
  /// wake_fd() is readable when somebody rang while asleep; clear_wake_fd() empties it.
  void awake() noexcept;
  bool fall_asleep() noexcept;
  int wake_fd() const noexcept;
  void clear_wake_fd() noexcept;
  /// Makes wake_fd() readable, asleep or not. Any thread.
  void wake() noexcept;
  /// As wake(), but only when asleep: after publishing something that a step will look at. Any
  /// thread.
  void ring() noexcept;

  /// The table as policies see it; valid until the next step or observation.
  const world& seen() const noexcept;

 private:
  class [[gnu::visibility("hidden")]] impl;
  explicit scheduler_core(std::unique_ptr<impl> body) noexcept;
  std::unique_ptr<impl> impl_;
};

}  // namespace sluice
#pragma GCC visibility pop
