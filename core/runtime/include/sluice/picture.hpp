#pragma once
/// \file
/// What a scheduler knows, copied out of one moment between two turns: for people who look at it.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/online_work.hpp"
#include "sluice/role.hpp"
#include "sluice/time.hpp"
#include "sluice/world.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// Queues of one process on one GPU.
struct queues_on_gpu {
  gpu_id gpu{};
  std::uint32_t compute = 0;
  std::uint32_t others = 0;     ///< Copy queues.
  std::uint32_t suspended = 0;  ///< Of all: suspended, as far as the driver has answered.
  std::uint32_t in_doubt = 0;   ///< Of all: not known to run, and not known to be suspended.
  bool unlisted = false;        ///< `compute` is 1, and stands for queues of unknown number.
};

enum class attach_picture : std::uint8_t {
  none,       ///< Runs as if sluice were not there.
  attaching,  ///< Asked for, not answered.
  attached,
  detaching,
};

struct process_picture {
  process_id id{};
  pid_t pid = 0;
  std::uint64_t start_time = 0;  ///< As observation::start_time.
  role what = role::unmatched;
  std::uint8_t priority = 0;
  bool own = false;  ///< The program that the scheduler runs in.
  attach_picture attach{};
  bool attach_refused = false;          ///< The last attach: it cannot be managed now.
  std::uint8_t attach_failures = 0;     ///< Attaches in a row that failed...
  std::string attach_why{};             ///< ...the driver's reason, where it has one...
  time_point attach_again{};            ///< ...and when the next is due, at the earliest.
  time_point seen_since{};              ///< When it was first seen.
  bool off = false;                     ///< Some queue of it is not known to run...
  time_point off_since{};               ///< ...since then.
  std::uint64_t off_count = 0;          ///< How often, the current time included...
  duration off_total{};                 ///< ...how long altogether, likewise...
  duration off_longest{};               ///< ...and at most, likewise.
  std::vector<queues_on_gpu> queues{};  ///< By GPU; those without queues are left out.
};

struct group_picture {
  group_id id{};
  std::uint64_t number = 0;  ///< As the journal's, and in the log: g1.
  role what = role::unmatched;
  bool gang = false;  ///< Held as one because something said that its processes belong together.
  run_state actual = run_state::running;
  time_point state_since{};
  std::uint32_t nodes = 0;    ///< Of a gang on several nodes, 2 or more.
  bool peers_answer = false;  ///< Of such a gang: the other nodes answer, and can hold it.
  bool manageable = false;    ///< As group_view::manageable.
  bool wanted_off = false;    ///< The policy wants it held...
  time_point wanted_until{};  ///< ...until then.
  /// When max_suspend forces it to run, whatever the policy wants; never: it is not off, or is
  /// forced to run already. offline_floor may force it before.
  time_point must_run_at = never;
  bool held = false;    ///< It is to be off: wanted, and no limit stands against it.
  bool forced = false;  ///< A limit makes it run.
  std::vector<process_picture> processes{};
};

struct gpu_picture {
  gpu_id id{};
  std::uint32_t slots = 0;             ///< As gpu_view::slots.
  std::uint32_t online_in_flight = 0;  ///< Busy periods of clients.
  online_work work = online_work::unknown;
  std::uint32_t online_waiting = 0;  ///< Online submissions that have not begun, where it is seen.
  /// Since when a process of those whose `work` is `waiting` has been so; never: there is none.
  time_point online_waiting_since = never;
  /// The same of `running`. One process may run while another waits, and `work` shows `waiting`.
  time_point online_running_since = never;
  bool can_see_work = false;  ///< As gpu_view's.
  bool busy = false;          ///< Online work is in flight, by clients or pointers.
  time_point last_begin{};
  time_point last_end{};
  duration suspend_cost{};  ///< As gpu_view's.
  duration resume_cost{};
  bool breaker_open = false;
  time_point breaker_until = never;  ///< When it closes by itself.
  std::uint32_t not_off = 0;  ///< Manageable offline queues that are not known to be suspended.
};

struct client_picture {
  client_id id{};
  std::string name{};
  std::vector<gpu_id> gpus{};  ///< Empty: every GPU.
};

struct picture {
  time_point at{};
  std::uint64_t turns = 0;
  std::string policy{};             ///< Its name; empty: none, everything runs.
  bool policy_is_fallback = false;  ///< The one that was set was removed for what it did.
  bool polls_pointers = false;  ///< Sources poll queue pointers, for the policy or see_unmarked.
  bool see_unmarked = false;    ///< As scheduler_config's. Polls only while something is offline.
  std::string backend{};        ///< Its name.
  bool acts = false;            ///< As backend::acts().
  bool backend_up = false;      ///< False between backend_listener's lost() and restored().
  bool stopping = false;
  std::vector<gpu_picture> gpus{};
  std::vector<group_picture> groups{};
  std::vector<client_picture> clients{};
};

}  // namespace sluice
#pragma GCC visibility pop
