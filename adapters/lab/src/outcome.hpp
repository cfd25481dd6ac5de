#pragma once
/// \file
/// What came of a recorded scheduler's decisions, or of a replayed one's.

#include "recording.hpp"

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/backend.hpp"
#include "sluice/ids.hpp"
#include "sluice/time.hpp"

namespace sluice::lab {

/// A driver call that a scheduler asked for.
struct call_decision {
  time_point at{};
  pid_t pid = 0;
  gpu_id gpu{};
  command_kind kind{};
  std::vector<driver_queue_id> queues;

  bool operator==(const call_decision&) const = default;
};

struct outcome_summary {
  struct group {
    std::string name;  ///< "pid 17" or "gang of pid 17".
    std::uint64_t preemptions = 0;
    duration managed{};  ///< Some process of it was attached.
    duration held{};     ///< Some queue of it was not known to run.
    duration longest_hold{};
  };
  std::uint64_t preemptions = 0;  ///< Times a group was taken off, over all groups.
  std::uint64_t suspends = 0;     ///< Queues, as resumes.
  std::uint64_t resumes = 0;
  std::uint64_t driver_calls = 0;
  std::uint64_t failures = 0;  ///< Queues whose command was not done.
  std::uint64_t refused = 0;   ///< Batches that the backend did not take.
  std::uint64_t forced_resumes = 0;
  std::uint64_t removals = 0;      ///< Policies that were removed for what they did.
  std::uint64_t replacements = 0;  ///< Policies that were replaced by the embedding program.
  std::vector<duration> to_off;    ///< Online arrival to offline off the GPU; sorted.
  std::vector<group> groups;       ///< In the order in which they were attached.
  std::vector<call_decision> decisions;

  duration longest_hold() const;
  duration held() const;
  duration managed() const;
};

outcome_summary summarize(const recording& of);

}  // namespace sluice::lab
