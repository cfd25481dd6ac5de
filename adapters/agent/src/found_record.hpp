#pragma once
/// \file
/// The records of what agents suspended, as commands see them.

#include <sys/types.h>

#include <string>
#include <vector>

#include "sluice/hold_book.hpp"
#include "sluice/result.hpp"

namespace sluice::agent {

/// A record at one moment.
struct found_record {
  std::string owner_lock{};  ///< The agent's.
  std::string path{};
  std::vector<hold> holds{};
  /// It has holds, and its agent and guardian have ended: until the next agent starts, only
  /// `sluice rescue` resumes the processes.
  bool is_orphaned = false;
  /// It has holds, and its agent has ended, but this guardian has it locked and is stopped: until
  /// it continues or ends, no process resumes them. 0: none that this user can see.
  pid_t stopped_guardian = 0;
  /// errc::not_supported if another version of sluice wrote it since the machine started; else the
  /// system's error, if it cannot be read.
  error_code error{};
};

/// Finds the records of the agent that has this lock, and of the agents that `sluice suspend` has
/// started beside it. A missing file is no record.
///
/// Threading: any. Cost: some system calls; reads at most 9 files.
[[nodiscard]] std::vector<found_record> find_records(const std::string& owner_lock);

}  // namespace sluice::agent
