#pragma once
/// \file
/// The policy port: a pure function of snapshots. It never performs I/O, reads a clock, blocks, or
/// allocates per event; the same snapshots give the same decisions.

#include <cstdint>
#include <span>
#include <string_view>

#include "sluice/ids.hpp"
#include "sluice/time.hpp"
#include "sluice/world.hpp"

namespace sluice {

enum class event_kind : std::uint8_t {
  online_begin,  ///< `count` busy periods began on `gpu`.
  online_end,    ///< `count` busy periods ended on `gpu`.
};

struct event {
  event_kind kind{};
  gpu_id gpu{};
  client_id client{};
  std::uint32_t count = 1;
  time_point at{};
};

/// One consistent picture, taken at the start of a reactor turn.
struct snapshot {
  time_point now{};                   ///< Constant during the turn; the only clock a policy has.
  std::uint64_t turn = 0;             ///< Increases by one per call.
  std::span<const event> events;      ///< In order of arrival; may be empty (a wake-up).
  std::span<const group_id> changed;  ///< Groups that are new, changed queues, GPUs or state, or
                                      ///< whose declaration expired. Gone groups are not listed.
  const world& table;
};

/// Where a policy says what it wants. A declaration stands until the policy replaces it, until its
/// expiry, or until the policy is removed; a group without one runs.
class decision_sink {
 public:
  /// Wants every queue of the group suspended, until `until` (the configuration's max_suspend caps
  /// the time off: then the group runs for min_run, is listed in `changed`, and may be held again).
  virtual void hold(group_id group, time_point until) = 0;
  /// Wants the group to run.
  virtual void run(group_id group) = 0;
  /// Asks for a turn at or after `when`. Of several asked times the earliest is met, once; then
  /// none is pending until the policy asks again.
  virtual void wake_at(time_point when) = 0;

 protected:
  ~decision_sink() = default;
};

/// Threading: reactor thread only, never concurrently with itself.
/// Errors:    a policy that throws, or takes longer than the configured limit three times, is
///            removed: everything runs, and the scheduler says so once.
class policy {
 public:
  virtual ~policy() = default;
  /// Stable, changes when behaviour changes.
  virtual std::string_view name() const noexcept = 0;
  virtual void decide(const snapshot& seen, decision_sink& out) = 0;
};

}  // namespace sluice
