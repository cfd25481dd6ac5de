#pragma once
/// \file
/// One command on many nodes at once.

#include <string>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::cli {

struct remote_run {
  std::string out;      ///< Its standard output.
  std::string problem;  ///< Why it did not succeed, printable; empty: it exited with 0.
};

/// Runs `ssh... NODE command` for each node, at most 64 at a time.
///
/// Blocks until all have ended; a run that takes longer than `limit` is killed.
/// Threading: any thread. Lifetime: keeps nothing.
/// \param ssh the program and its first arguments.
/// \return in the order of `nodes`.
std::vector<remote_run> run_on(const std::vector<std::string>& nodes,
                               const std::vector<std::string>& ssh, const std::string& command,
                               duration limit);

}  // namespace sluice::cli
