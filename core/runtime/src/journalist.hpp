#pragma once
/// \file
/// What happens in the scheduler, as one stream of the journal's entries: each part puts one entry
/// where something happens, and the counters, the log, the recording and the journal read it.

#include "event_log.hpp"
#include "record_stream.hpp"

#include <cstdint>
#include <utility>

#include "sluice/journal.hpp"
#include "sluice/statistics.hpp"
#include "sluice/time.hpp"

namespace sluice::core {

/// What is no event is kept where it is known: the numbers of what there is now (processes, queues,
/// suspended_now), times that go on (forced_run_ns), what is timed within a turn (turn, decision),
/// and `begins` and the lengths of spans, of which there are too many for an entry each while
/// nobody but the counter reads it. What comes in is recorded apart: a replay needs all of it, in
/// its order.
///
/// Threading: reactor thread. Cost: an entry of some 200 bytes. On the hot path, put() one that
/// only the sink reads only when on().
class journalist {
 public:
  /// \param into nullptr: only what counts and the log hear. \param record nullptr: there is none.
  journalist(statistics& stats, const backend& driver, bool quiet, record_stream* record,
             journal_sink* into) noexcept
      : stats_(stats), log_(driver, quiet), record_(record), sink_(into) {}

  bool on() const noexcept { return sink_ != nullptr; }
  /// Of the entries from here on.
  void set_turn(std::uint64_t turn) noexcept { turn_ = turn; }
  /// \param words its `error` and `text` are the entry's, which needs to have neither.
  void put(const journal_entry& entry, time_point at, const entry_words& words = no_words) noexcept;
  /// The turn has ended.
  void pass_on() noexcept {
    if (std::exchange(news_, false)) sink_->pass_on();
  }

 private:
  void count(const journal_entry& entry) noexcept;

  statistics& stats_;
  event_log log_;
  record_stream* const record_;
  journal_sink* const sink_;
  std::uint64_t turn_ = 0;
  bool news_ = false;
};

}  // namespace sluice::core
