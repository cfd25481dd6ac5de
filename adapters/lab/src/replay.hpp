#pragma once
/// \file
/// A recording played to another policy, or to the same one, through the real scheduler_core in
/// virtual time.

#include "policy_watch.hpp"
#include "recording.hpp"

#include <cstdint>
#include <memory>
#include <optional>

#include "sluice/lab/checked.hpp"
#include "sluice/policy.hpp"
#include "sluice/time.hpp"

namespace sluice::lab {

struct replay_options {
  /// Of calls on whose kind the recording has none to take the time from.
  std::optional<duration> suspend_cost, resume_cost;
};

struct replayed {
  recording run;                ///< What a recorder beside the replayed scheduler wrote down.
  std::uint64_t calls = 0;      ///< Driver calls that were made...
  std::uint64_t estimated = 0;  ///< ...and those of them for which no recorded one was left...
  std::uint64_t given = 0;      ///< ...and of these those that took what the options say.
  policy_faults faults;
  /// The policy asks for the pointers of online queues, and the recording has none.
  bool misses_pointers = false;
  std::uint64_t unattached =
      0;  ///< Attaches to processes that were never attached to when recorded.
};

/// Plays it, open-loop: online work begins and ends, processes and queues come and go when they
/// did.
///
/// Every driver call, attach and detach is answered as it was: the n-th suspend (or resume) of a
/// process on a GPU takes as long as its n-th recorded one, waiting included, and has its outcome.
/// Beyond those it takes what the median of the GPU's took, else that of all GPUs, else what the
/// options say, and is done. Submitted batches are never refused.
///
/// The n-th quantum of a process on a GPU is answered as its n-th recorded one, further ones as its
/// last. A process without any is answered as another one on that GPU, accepted if any was.
///
/// Threading: any thread; replays share nothing. The same input gives the same result everywhere.
/// Errors: one sentence, when a call's time is known from nowhere.
checked<replayed> replay(const recording& what, std::unique_ptr<policy> decider,
                         const replay_options& options = {});

}  // namespace sluice::lab
