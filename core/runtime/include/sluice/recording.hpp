#pragma once
/// \file
/// A recording: everything that came in to a scheduler from outside, when, and what the driver made
/// of what it was told. `sluice replay` (adapters/lab) drives other policies with it.
///
/// A file of lines, each one JSON object: text, so that grep, jq and a pager read it, and that a
/// file cut short by a crash is whole up to its last line. `t` and all other times are nanoseconds
/// of the scheduler's clock since `clock_ns`; other durations are nanoseconds, too. Fields that are
/// zero, none or false are left out. `is` says what the line is:
///
///   recording  the first line. version: recording_version; within one, fields are only ever
///              added; clock_ns: the steady clock (time since boot, as a rule) of t = 0; device: as
///              record_options says;
///              policy: its name; policy_text: as record_options says; backend; own_pid; config:
///              all of scheduler_config.
///   seen       an observation of `source` (31: of the backend): what (observation_kind), pid,
///              start, role, group, priority, gpu, queue, type (uapi number), work, count,
///              shows_work, at, until (of gang_heard, and of breaker_kept; left out: never). Times
///              `at` of nothing are left out.
///   overflow   source dropped `count` observations, which it will repeat.
///   client     id, name, gpus (left out: all of them), target_request, target_ttft, target_itl
///              (nanoseconds): registered.
///   work       client, begun, ended: its counters; first: when the oldest begin since the line
///              before began; withdrawn.
///   mark       client, span, request, begins, at.
///   rearm      gpu: the embedding program said that it works again.
///   policy     name (left out: none): replaced, by the embedding program or (removed: true)
///              because of what it did.
///   attach     process (the scheduler's number of it), pid, start; error, category where it was
///              refused at once.
///   attached   process; error, category where it failed.
///   detach     process; error, category likewise.
///   detached   process: its session is over, asked for or not.
///   queue      process, queue, gpu, type (0 compute, 1 copy), incarnation, fault: of a session.
///   queue_gone process, queue.
///   batch      id, process, gpu, kind (suspend, resume), queues: handed to the backend; error,
///              category where it was refused.
///   done       id, process, gpu, kind, started, finished: the driver call; errno; queues; outcomes
///              (left out: all done).
///   reserve    gpu, share; error, category where it was refused at once.
///   reserved   gpu, share; error, category: the answer, or that it could not be kept up.
///   quantum    process, gpu, length (left out: the driver's default); error, category where it was
///              refused at once.
///   quantum_set process, gpu, length; error, category: as of reserved.
///   acts_by    mechanism, can (bits of `capability`), fell_back.
///   gpu_lost   gpu. lost, restored: the acting side.
///   off        gpu, after: from an online arrival until its last offline queue was off.
///   forced     count: groups made to run by max_suspend or the offline floor.
///   turn       a turn at t took in the lines since the one before; due: where it was asked for,
///              and came late. Turns without any lines are left out.
///   gap        `count` lines were lost here, because the writer did not keep up.
///   stop       the scheduler was told to stop.
///   end        the last line; a file without it was cut short.

#include <cstddef>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)
namespace sluice {

/// Other versions are refused. 2: quanta, capabilities, and queues without words of one
/// driver.
inline constexpr int recording_version = 2;

/// Where a recording goes. For files there is record_options::file.
///
/// Threading: the thread that steps the scheduler. Lifetime: outlives the scheduler_core.
class record_sink {
 public:
  /// Takes one line, with its newline. Never blocks, never allocates once warm.
  /// \return false when there is no room: the line is lost, counted, and said in a `gap`.
  virtual bool put(std::string_view line) noexcept = 0;
  /// A turn with lines in it has ended.
  virtual void pass_on() noexcept {}

 protected:
  ~record_sink() = default;
};

/// What is recorded, beside what happens.
struct record_options {
  /// Written anew, by a thread of its own; what was there is FILE.1 then (kept_file.hpp). Empty:
  /// nothing is recorded.
  std::string file = {};
  /// The policy as `sluice replay --policy` takes it ("fixed_timeslice:slice=5ms"), so that the
  /// same one can be replayed without naming it; load_policy() gives it. Empty: not known.
  std::string policy = {};
  /// What the scheduler drives, for reports: "simulated", a machine's name. Empty: not known.
  std::string device = {};
  /// Bytes that wait for the writer at most; a turn under load makes some hundreds. 4 KiB to 1 GiB.
  std::size_t buffer = std::size_t{4} << 20;
};

}  // namespace sluice
#pragma GCC visibility pop
