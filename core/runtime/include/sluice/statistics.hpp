#pragma once
/// \file
/// What a scheduler counted since it was created. Every number was measured, none is derived from a
/// model.

#include <array>

#include "sluice/histogram.hpp"
#include "sluice/policy.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// One object of about 140 KiB. A copy taken while the scheduler runs holds whole numbers, which
/// may be of slightly different moments.
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

}  // namespace sluice
#pragma GCC visibility pop
