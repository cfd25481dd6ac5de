#pragma once
/// \file
/// Keeps account of each process that uses a GPU: how long it ran, and how long it was kept off.

#include <cstdint>
#include <functional>
#include <map>
#include <set>

#include "sluice/journal.hpp"
#include "sluice/observe/job_record.hpp"
#include "sluice/observe/process_words.hpp"
#include "sluice/picture.hpp"

namespace sluice::observe {

struct accounts_options {
  /// Gets each line; must not throw.
  std::function<void(const job_record&)> write;
  process_reader read = read_process;
  bool observed = false;  ///< As job_record::observed.
  /// A process that goes on gets a line each time so much has passed.
  duration part_every = std::chrono::hours(1);
  /// Empty: the system's.
  std::function<wall_time()> wall = nullptr;
};

/// A process gets its line when it ends; one that goes on, every part_every and when the scheduler
/// ends. One without a role that was never seen with a queue, nor suspended, gets none. Where the
/// journal lost entries, a line may be missing, or say less than was.
///
/// Threading: one thread. Cost: one record of some 200 bytes for each process that is there.
class accounts {
 public:
  explicit accounts(accounts_options options);

  void hear(const journal_entry& entry);
  /// GPUs are known by this, and by what is suspended.
  void see(const picture& now);
  /// Where entries were lost: who is not in it has ended, and its sums hold for who is. What was
  /// heard before is older than it, what comes is newer.
  void mend(const picture& now);
  /// Whether there is somebody whose GPUs are not known, and see() may tell.
  bool curious() const noexcept { return !unknown_.empty(); }
  void tick(time_point now);
  /// No more of the scheduler that was heard until now: everybody left gets a line.
  void leave(time_point now);

 private:
  struct account {
    job_record part;  ///< Since the last line.
    time_point part_since{};
    time_point off_since = never;  ///< Or since the last line.
    time_point off_began = never;
    duration written{};  ///< Of suspended, in earlier lines.
    std::uint64_t written_count = 0;
    group_id group{};
    int looks = 0;  ///< That told nothing of its GPUs.
  };

  void write(account& which, time_point now, job_end why);
  void add_gpu(account& to, gpu_id which);
  void count_limit(const journal_entry& entry);
  void mend(account& which, const process_picture& seen, time_point now);
  /// The scheduler's own sums, which hold what the journal may have lost.
  static void mend(account& which, const journal_entry& gone);

  accounts_options options_;
  std::map<process_id, account> open_;
  std::set<process_id> unknown_;  ///< Of them, whose GPUs see() may tell.
  time_point next_part_ = never;
};

}  // namespace sluice::observe
