#pragma once
/// \file
/// What people call a process.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace sluice::observe {

struct process_words {
  std::string command{};  ///< As in /proc/PID/comm; "?": it was gone before it could be asked.
  std::string user{};     ///< Name, or number where it has none.
  /// What it is a part of: "slurm:4242", "pod:<uid>", or else its command.
  std::string group{};
};

/// \param start_time as observation::start_time: a stranger with the same pid has no say.
using process_reader = std::function<process_words(pid_t pid, std::uint64_t start_time)>;

/// From /proc. Slurm's job and the pod are known by the cgroup; where the environment may be read,
/// the job by SLURM_JOB_ID too. Blocks for some file operations; any thread.
[[nodiscard]] process_words read_process(pid_t pid, std::uint64_t start_time);
/// For several readers of one journal: remembers the last one that it was asked for. One thread.
[[nodiscard]] process_reader reads_once(process_reader from = read_process);

/// "slurm:4242" or "pod:<uid>", from the text of /proc/PID/cgroup; empty: neither.
[[nodiscard]] std::string job_of_cgroups(std::string_view text);

}  // namespace sluice::observe
