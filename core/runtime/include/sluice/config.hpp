#pragma once
/// \file
/// The scheduler's settings, their defaults and ranges, and how to read them from a TOML file.

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "sluice/result.hpp"
#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// A plain value; copy it, change fields, ask problem().
struct scheduler_config {
  /// Longest time for which an offline group stays suspended, whatever the policy wants. Runs that
  /// are shorter than min_run pay back only their share of it: time off adds up between them.
  /// 1 ms to 141 s: with the 9 s that a driver call may take, an offline process stands still for
  /// at most 150 s, half of the 300 s after which the first frameworks give up on a worker.
  duration max_suspend = std::chrono::seconds(1);
  /// How long a group runs after that before it may be suspended again. 1 ms to 60 s.
  duration min_run = std::chrono::milliseconds(100);
  /// Share of every floor_window in which an offline group runs. 0 (none) to 0.9.
  double offline_floor = 0.05;
  /// 100 ms to 1 h, and long enough to suspend for min_run within it.
  duration floor_window = std::chrono::seconds(10);
  /// How long an offline process has owned a compute queue before we attach. 0 to 1 h.
  duration attach_after = std::chrono::seconds(2);
  /// When we attach even though online work is in flight: an attach may delay it for a
  /// moment, waiting much longer costs it whole offline kernels. attach_after to 1 h. What was
  /// attached when the acting side died does not wait for either.
  duration attach_at_latest = std::chrono::seconds(3);
  /// A begin without an end stops counting after this time: between one and two of it where a
  /// client's busy periods overlap, for begins are matched with ends in order. So does a span, up
  /// to a 64th of it later: raise it where requests take that long. 1 ms to 24 h.
  duration max_busy = std::chrono::seconds(60);
  /// Wait after a failed driver command or attach, doubled up to 64 times. 1 ms to 10 min.
  duration failure_backoff = std::chrono::seconds(1);
  /// How many preemptions may fail in hardware on a GPU (the unmap timed out, the firmware did not
  /// answer) before sluice leaves it and its reset domain alone. The driver resets a GPU after the
  /// first. 1 to 1000.
  std::size_t breaker_after = 1;
  /// After which time it is used again without an operator's word; 0: never. 0 to 365 days. Over a
  /// restart only with a source that keeps breakers (make_breaker_keeper()).
  duration breaker_rearm = std::chrono::hours(24);
  /// A policy that takes longer than this three times within a minute is removed. Wall time, so a
  /// busy machine counts against it: leave room. 10 us to 10 s.
  duration policy_time_limit = std::chrono::milliseconds(50);
  /// How long stop() waits for resumes before it leaves them to the backend's stop(). 0 to 60 s.
  duration stop_limit = std::chrono::seconds(5);
  /// Observations per inbox: more than a full resync of a node has. 16 to 1048576.
  std::size_t inbox_capacity = 16384;
  /// Whether an offline process's copy queues are suspended with its compute queues. They are its
  /// copies, which go on otherwise; suspended, they stall the threads that wait for a copy.
  bool suspend_copy_queues = false;
  /// Whether the work of online processes without a client is looked at, where driver or sources
  /// can see it, and counts as requests: each lasts from a submission until nothing has been under
  /// way for a time that is learnt. Costs up to 20,000 looks a second while there is such work and
  /// something offline.
  bool see_unmarked = false;

  /// \return one line that names key, value and range of the first setting out of its range; empty
  ///         when there is none.
  [[nodiscard]] std::string problem() const;

  /// Gives the settings that cannot change while a scheduler runs (inbox_capacity,
  /// suspend_copy_queues) the values that they have in `running`.
  /// \return one sentence that names those that differed; empty when none did.
  [[nodiscard]] std::string keep_fixed(const scheduler_config& running);

  bool operator==(const scheduler_config&) const = default;
};

/// Reads the table [scheduler] of a TOML file: the keys are the fields above, durations are strings
/// with a unit ("250ms"; ns, us, ms, s, min, h). What the file does not name keeps its default.
/// Besides it the file may have the tables [policy] (load_policy()), [roles]
/// (roles::load_classification()) and [daemon] (load_daemon_config()), and no other: a slip is an
/// error.
/// \param message on failure, one line that names file, line, key and range.
/// \param others  tables that the file may have besides, such as a driver's.
/// \return errc::bad_config, or the system's error for a file that cannot be read.
[[nodiscard]] result<scheduler_config> load_config(const std::string& path, std::string& message,
                                                   const std::vector<std::string>& others = {});
/// The same.
/// \param problems on failure, one such line for every setting that is wrong is added.
[[nodiscard]] result<scheduler_config> load_config(const std::string& path,
                                                   std::vector<std::string>& problems,
                                                   const std::vector<std::string>& others = {});

}  // namespace sluice
#pragma GCC visibility pop
