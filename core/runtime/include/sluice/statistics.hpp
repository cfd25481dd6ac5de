#pragma once
/// \file
/// What a scheduler counted since it was created. Every number was measured, none is derived from a
/// model.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "sluice/histogram.hpp"
#include "sluice/policy.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// One object of about 140 KiB. A copy taken while the scheduler runs holds whole numbers, which
/// may be of slightly different moments. The counters come first: each needs a row in
/// `counter_rows`, and then is in the log, in status and in the metrics.
struct statistics {
  counter turns;

  counter processes;  ///< That use a GPU, known now; whatever their role, our own too.
  counter queues;     ///< Theirs, of all types, known now.

  counter suspends;      ///< Queues that were suspended.
  counter resumes;       ///< Queues that were resumed.
  counter driver_calls;  ///< Batches that were answered.
  counter invalid_outcomes;
  counter failed_outcomes;
  counter gone_outcomes;
  counter suspended_now;   ///< Queues that are not known to run.
  counter forced_resumes;  ///< Groups made to run by max_suspend or offline_floor.
  /// Nanoseconds for which groups ran by force although the policy wanted them held: what the
  /// limits cost online work.
  counter forced_run_ns;

  counter attaches;
  counter attach_failures;
  counter detaches;
  counter gpus_lost;      ///< Breakers opened, by a failed preemption, a stuck call or a reset.
  counter open_breakers;  ///< GPUs on which nothing is suspended for that reason, now.
  counter backend_restarts;
  counter mechanism_fallbacks;  ///< The better way to suspend failed; the next one is used.
  counter reservations;         ///< Shares of slots that the driver was told to keep to.
  counter failed_reservations;  ///< Shares that the driver refused, or no longer keeps to.
  counter quanta;               ///< Quanta that the driver was told to keep to.
  counter failed_quanta;        ///< Quanta that the driver refused, or no longer keeps to.
  counter policy_ejections;

  counter begins;              ///< Busy periods begun by clients.
  counter expired_begins;      ///< Begins that stopped counting after max_busy.
  counter expired_spans;       ///< Spans that did: nobody had ended them.
  counter abandoned_spans;     ///< Spans that were open when their client withdrew.
  counter clients_thrown_out;  ///< Of other processes: what their pages said could not be.
  counter lost_marks;  ///< Marks of spans that found too many others waiting, or made no sense.
  counter stray_ends;  ///< Marks that ended a span which was not open.
  counter inbox_overflows;  ///< Observations dropped; a resync mended it.
  counter resyncs;
  counter lost_records;  ///< Lines of the recording that the writer had no room for.

  histogram suspend_call;    ///< Driver time of one suspend batch.
  histogram resume_call;     ///< Driver time of one resume batch.
  histogram decision;        ///< Online begin to the batches it caused being handed over.
  histogram arrival_to_off;  ///< Online begin on a GPU to its last managed offline queue being off.
  histogram turn;            ///< Length of one turn.
  std::array<histogram, span_kinds> span_length;  ///< By span_kind: of the spans that ended.
};

enum class counter_kind : std::uint8_t { counter, gauge };

/// Where status and the line in the log show a counter.
enum class counter_place : std::uint8_t {
  always,   ///< In every line.
  other,    ///< In the line where it is not zero, like the next ones.
  failure,  ///< In status among the failures.
  limit,    ///< In status among the limits.
};

struct counter_row {
  counter statistics::*of;
  std::string_view name;  ///< That of the member.
  counter_place place;
  std::string_view help;
  std::string_view unit = {};  ///< "ns", or empty: it is a number of things.
  counter_kind kind = counter_kind::counter;
  /// In the metrics, where it is not `name`; without "sluice_" and "_total".
  std::string_view metric = {};
  /// The metric has labels, and is counted from the journal or a picture, in more detail.
  bool has_labels = false;

  constexpr std::string_view metric_name() const noexcept { return metric.empty() ? name : metric; }
};

/// All counters, in the order in which the log names them.
inline constexpr auto counter_rows = std::to_array<counter_row>({
    {&statistics::turns, "turns", counter_place::always, "Number of scheduler turns."},
    {.of = &statistics::begins,
     .name = "begins",
     .place = counter_place::always,
     .help = "Busy periods that clients began.",
     .metric = "online_begins"},
    {.of = &statistics::processes,
     .name = "processes",
     .place = counter_place::always,
     .help = "Processes that use a GPU.",
     .kind = counter_kind::gauge,
     .has_labels = true},
    {.of = &statistics::queues,
     .name = "queues",
     .place = counter_place::always,
     .help = "Queues of the processes that use a GPU.",
     .kind = counter_kind::gauge,
     .has_labels = true},
    {&statistics::attaches, "attaches", counter_place::always, "Number of attaches to processes."},
    {.of = &statistics::suspends,
     .name = "suspends",
     .place = counter_place::always,
     .help = "Queues suspended.",
     .metric = "queue_commands",
     .has_labels = true},
    {.of = &statistics::suspended_now,
     .name = "suspended_now",
     .place = counter_place::always,
     .help = "Queues that are not known to run.",
     .kind = counter_kind::gauge,
     .metric = "queues",
     .has_labels = true},
    {.of = &statistics::resumes,
     .name = "resumes",
     .place = counter_place::always,
     .help = "Queues resumed.",
     .metric = "queue_commands",
     .has_labels = true},
    {.of = &statistics::driver_calls,
     .name = "driver_calls",
     .place = counter_place::always,
     .help = "Driver calls that suspended or resumed queues.",
     .metric = "driver_call_seconds",
     .has_labels = true},
    {.of = &statistics::forced_resumes,
     .name = "forced_resumes",
     .place = counter_place::limit,
     .help = "Number of times that a limit forced a held group to run.",
     .metric = "forced_runs",
     .has_labels = true},
    {.of = &statistics::forced_run_ns,
     .name = "forced_run_ns",
     .place = counter_place::limit,
     .help =
         "Time in which groups ran because a limit (max_suspend, offline_floor) forced a resume.",
     .unit = "ns",
     .metric = "forced_run_seconds"},
    {.of = &statistics::open_breakers,
     .name = "open_breakers",
     .place = counter_place::other,
     .help = "GPUs whose breaker is open.",
     .kind = counter_kind::gauge,
     .metric = "breaker_open",
     .has_labels = true},
    {.of = &statistics::gpus_lost,
     .name = "gpus_lost",
     .place = counter_place::failure,
     .help = "Number of times that a breaker opened.",
     .metric = "breaker_opens",
     .has_labels = true},
    {.of = &statistics::failed_outcomes,
     .name = "failed_outcomes",
     .place = counter_place::failure,
     .help = "Queues that a command failed to suspend or resume.",
     .metric = "queue_failures",
     .has_labels = true},
    {.of = &statistics::invalid_outcomes,
     .name = "invalid_outcomes",
     .place = counter_place::failure,
     .help = "Queues in a command that the driver does not know.",
     .metric = "queue_failures",
     .has_labels = true},
    {.of = &statistics::gone_outcomes,
     .name = "gone_outcomes",
     .place = counter_place::other,
     .help = "Queues in a command whose process had ended.",
     .metric = "queue_failures",
     .has_labels = true},
    {&statistics::attach_failures, "attach_failures", counter_place::failure,
     "Number of attaches that failed."},
    {&statistics::detaches, "detaches", counter_place::other, "Number of detaches from processes."},
    {&statistics::backend_restarts, "backend_restarts", counter_place::failure,
     "Number of agent restarts."},
    {&statistics::mechanism_fallbacks, "mechanism_fallbacks", counter_place::failure,
     "Number of fallbacks from the preferred suspend mechanism."},
    {&statistics::reservations, "reservations", counter_place::other,
     "Slot reservations that the driver accepted."},
    {&statistics::failed_reservations, "failed_reservations", counter_place::failure,
     "Reservations that the driver refused or stopped enforcing."},
    {&statistics::quanta, "quanta", counter_place::other, "Quanta that the driver accepted."},
    {&statistics::failed_quanta, "failed_quanta", counter_place::failure,
     "Quanta that the driver refused or stopped enforcing."},
    {&statistics::policy_ejections, "policy_ejections", counter_place::failure,
     "Policies removed because they threw an exception or exceeded policy_time_limit."},
    {&statistics::expired_begins, "expired_begins", counter_place::failure,
     "Busy periods that clients did not end within max_busy."},
    {&statistics::expired_spans, "expired_spans", counter_place::failure,
     "Spans that clients did not end within max_busy."},
    {&statistics::abandoned_spans, "abandoned_spans", counter_place::other,
     "Spans that were open when their client disconnected."},
    {&statistics::clients_thrown_out, "clients_thrown_out", counter_place::failure,
     "Clients disconnected because of invalid shared-memory contents."},
    {&statistics::lost_marks, "lost_marks", counter_place::failure,
     "Begins and ends of spans lost because a client's buffer was full, or invalid."},
    {&statistics::stray_ends, "stray_ends", counter_place::failure,
     "Ends of spans that had no begin."},
    {&statistics::inbox_overflows, "inbox_overflows", counter_place::failure,
     "Observations lost because an inbox was full; a resync follows each loss."},
    {&statistics::resyncs, "resyncs", counter_place::other,
     "Number of times that a source sent its whole state again."},
    {&statistics::lost_records, "lost_records", counter_place::failure,
     "Lines missing in the recording because the disk was too slow."},
});

struct histogram_row {
  histogram statistics::*of;
  std::string_view name;  ///< That of the member.
  std::string_view help;
  /// In the metrics, without "sluice_" and "_seconds".
  std::string_view metric;
  bool has_labels = false;  ///< As counter_row::has_labels.
};

/// All histograms but those of spans.
inline constexpr auto histogram_rows = std::to_array<histogram_row>({
    {&statistics::turn, "turn", "Duration of a scheduler turn.", "turn"},
    {&statistics::decision, "decision",
     "Time from an online begin until the scheduler issued the commands for it.", "decision"},
    {&statistics::arrival_to_off, "arrival_to_off",
     "Time from an online arrival until all offline queues on the GPU were suspended.",
     "arrival_to_off", true},
    {&statistics::suspend_call, "suspend_call", "Duration of one driver call that suspends.",
     "driver_call", true},
    {&statistics::resume_call, "resume_call", "Duration of one driver call that resumes.",
     "driver_call", true},
});

namespace detail {
template <class Rows>
consteval bool has_each_once(const Rows& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t k = 0; k < i; ++k)
      if (rows[i].of == rows[k].of || rows[i].name == rows[k].name) return false;
  return true;
}
}  // namespace detail
static_assert(detail::has_each_once(counter_rows) &&
                  counter_rows.size() * sizeof(counter) == offsetof(statistics, suspend_call),
              "each counter has one row in counter_rows");
static_assert(detail::has_each_once(histogram_rows) &&
                  histogram_rows.size() * sizeof(histogram) ==
                      offsetof(statistics, span_length) - offsetof(statistics, suspend_call),
              "each histogram has one row in histogram_rows");

}  // namespace sluice
#pragma GCC visibility pop
