#pragma once
/// \file
/// What a scheduler saw, decided and did, as tracks over time (trace_file.hpp).

#include <functional>
#include <memory>
#include <string_view>

#include "sluice/journal.hpp"
#include "sluice/observe/process_words.hpp"
#include "sluice/observe/trace_file.hpp"
#include "sluice/picture.hpp"
#include "sluice/time.hpp"

namespace sluice::observe {

struct timeline_options {
  process_reader read = read_process;
  /// Of a scheduler that only observes: what it shows as suspended would have been.
  bool observed = false;
  /// Whether the device is, asked when the first row is written. Empty: it is not.
  std::function<bool()> simulated = nullptr;
};

/// One row of tracks for each GPU (online work; preemption, from an arrival until all offline
/// queues are off), each process that is acted on (decisions; its session; whether it is off; by
/// GPU the state of its queues and the driver calls), each client (requests, work in flight), and
/// the scheduler. Arrows lead from online work to the suspends that made room for it, and from a
/// suspend to the resume that ended it. Spans between two tokens (itl) are left out: too many.
///
/// A stretch is written when it ends, or in finish(): of a program that is killed those that are
/// open then are missing. Times are whole microseconds since the first entry of the file. A file
/// that is nearly full is followed by another one (trace_file::turn_over()): what is open ends in
/// the one and begins in the other, and each is whole by itself.
///
/// Threading: one thread. Lifetime: the file outlives it. Memory: some hundred bytes for each
/// process, GPU and client that is there.
class timeline {
 public:
  explicit timeline(trace_file& to, timeline_options options = {});
  ~timeline();
  timeline(const timeline&) = delete;
  timeline& operator=(const timeline&) = delete;

  void hear(const journal_entry& entry);
  /// A marker: so many entries of the journal were lost here.
  void missed(std::uint64_t entries);
  /// As accounts::mend(): stretches whose end was lost end here.
  void mend(const picture& now);
  /// Ends what is open: no more of the scheduler that was heard until now.
  void finish(time_point now);

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace sluice::observe
