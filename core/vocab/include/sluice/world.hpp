#pragma once
/// \file
/// The queue table as policies see it: const, consistent for one turn, cheap to ask. What is added
/// here is missing in plugins until plugin.h, policy_plugin.hpp and the runtime's plugin_policy.cpp
/// have it, too.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "sluice/ids.hpp"
#include "sluice/online_work.hpp"
#include "sluice/role.hpp"
#include "sluice/span_kind.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// What a group's queues do right now, as far as the driver has answered.
enum class run_state : std::uint8_t {
  running,     ///< No queue of the group is suspended.
  suspending,  ///< A suspend is in flight.
  suspended,   ///< Every managed queue of the group is suspended.
  resuming,    ///< A resume is in flight.
  mixed,       ///< Some are, some are not (a partial outcome); the reconciler is mending it.
};

/// What is suspended together: a process, or a gang of processes with one group_key, on all its
/// GPUs. Those of a gang wait for each other, so it is held as a whole or not at all.
struct group_view {
  group_id id{};
  role what = role::unmatched;
  run_state actual = run_state::running;
  bool manageable = false;  ///< A hold can take effect: every process of it that has compute queues
                            ///< is attached, none of its GPUs is lost, and its peers on other
                            ///< nodes, if any, answer and can be held.
  std::uint8_t priority = 0;     ///< 0 to 15, the highest of its processes'; 0 where nothing
                                 ///< was said.
  std::uint32_t queues = 0;      ///< Managed queues: compute, and copy where that is asked for.
  std::span<const gpu_id> gpus;  ///< GPUs on which the group owns such queues...
  std::span<const std::uint32_t> queues_on;  ///< ...and how many on each, in the same order.
  time_point state_since{};                  ///< When `actual` last changed.
};

struct gpu_view {
  gpu_id id{};
  std::uint32_t online_in_flight = 0;  ///< Busy periods begun and not ended, over all clients.
  bool lost = false;                   ///< Preemption failed there: nothing on it is suspended.
  bool can_reserve = false;            ///< The driver takes decision_sink::reserve(). When that
                                       ///< changes, so has every group of `offline`.
  bool can_set_quantum = false;        ///< The driver takes decision_sink::set_quantum() there; not
                                       ///< known before something offline on it is attached. As
                                       ///< with can_reserve, `offline` has changed with it.
  bool can_see_work = false;           ///< Work of online processes without a client can be seen
                              ///< there: decision_sink::poll_pointers() makes `work` known.
                              ///< Known once something offline on it is manageable. As
                              ///< with can_reserve, `offline` has changed with it.
  std::uint32_t slots = 0;  ///< Hardware slots for compute queues; 0: not known.
  /// Median of the last driver calls that suspended and resumed on it; zero before the first.
  duration suspend_cost{};
  duration resume_cost{};
  /// What the pointers of online queues say, those of gangs that reach here included.
  online_work work = online_work::unknown;
  time_point last_move{};   ///< When write pointers of online queues last moved; epoch: never seen.
  time_point last_begin{};  ///< Epoch when there was none yet.
  time_point last_end{};    ///< Epoch when there was none yet.
  std::span<const group_id> offline;  ///< Offline groups with such queues on this GPU.
};

/// An online client, from its registration to the turn in which it is seen to have withdrawn.
struct client_view {
  client_id id{};
  std::string_view name;         ///< As it registered.
  std::span<const gpu_id> gpus;  ///< Where its work runs; empty: every GPU of the node.
  /// How long its spans should take at most, by span_kind, as it registered; zero: it did not say.
  std::array<duration, span_kinds> targets{};
};

/// Threading: reactor thread, during policy::decide() only. References and spans end with the call.
/// Cost: every query is O(1) and allocates nothing.
class world {
 public:
  virtual std::span<const gpu_view> gpus() const noexcept = 0;
  virtual const gpu_view* find(gpu_id id) const noexcept = 0;
  virtual const group_view* find(group_id id) const noexcept = 0;
  /// Also of the clients that events of this turn name and that have withdrawn in it.
  virtual const client_view* find(client_id id) const noexcept = 0;
  /// Where a client's work runs. Empty: on every GPU, as in client_options, or no such client.
  std::span<const gpu_id> gpus_of(client_id id) const noexcept {
    const client_view* const one = find(id);
    return one == nullptr ? std::span<const gpu_id>() : one->gpus;
  }

 protected:
  ~world() = default;
};

}  // namespace sluice
#pragma GCC visibility pop
