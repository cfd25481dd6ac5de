#include "journalist.hpp"

#include <array>

namespace sluice::core {
namespace {

/// Of those that a decision makes, none of which has a line in the log.
bool is_usual(const journal_entry& entry) noexcept {
  switch (entry.kind) {
    case journal_kind::process_off:
    case journal_kind::process_on:
    case journal_kind::held:
    case journal_kind::let_go:
    case journal_kind::begin:
    case journal_kind::end:
    case journal_kind::span_begin:
    case journal_kind::span_end:
    case journal_kind::busy:
    case journal_kind::idle:
    case journal_kind::off: return true;
    case journal_kind::done: return entry.failed == 0;
    default: return false;
  }
}

}  // namespace

void journalist::put(const journal_entry& entry, time_point at, const entry_words& words) noexcept {
  const bool usual = is_usual(entry);
  if (usual) {
    count(entry);
    if (record_ != nullptr && entry.kind == journal_kind::off)
      record_->off(entry.gpu, entry.length);
    if (sink_ == nullptr) return;
  }
  journal_entry whole = entry;
  whole.at = at;
  whole.turn = turn_;
  if (words.error) whole.error = words.error.value();
  if (!usual) {
    count(whole);
    log_.hear(whole, words);
  }
  if (sink_ == nullptr) return;
  if (words.error) {
    std::array<char, 128> room;
    whole.set_text(words.error.message(room.data(), room.size()));
  } else if (!words.text.empty()) {
    whole.set_text(words.text);
  }
  sink_->put(whole);
  news_ = true;
}

void journalist::count(const journal_entry& entry) noexcept {
  const bool failed = entry.error != 0;
  switch (entry.kind) {
    case journal_kind::forced: stats_.forced_resumes.add(); break;
    case journal_kind::attach:
      if (failed) stats_.attach_failures.add();
      break;
    case journal_kind::attached: (failed ? stats_.attach_failures : stats_.attaches).add(); break;
    case journal_kind::detach: stats_.detaches.add(); break;
    case journal_kind::done: {
      const bool suspend = entry.command == command_kind::suspend;
      stats_.driver_calls.add();
      (suspend ? stats_.suspend_call : stats_.resume_call).record(entry.until - entry.since);
      if (entry.group == group_id::none) break;
      const std::uint32_t not_done = std::uint32_t{entry.failed} + entry.invalid + entry.gone;
      (suspend ? stats_.suspends : stats_.resumes).add(entry.count - not_done);
      if (not_done == 0) break;
      stats_.failed_outcomes.add(entry.failed);
      stats_.invalid_outcomes.add(entry.invalid);
      stats_.gone_outcomes.add(entry.gone);
      break;
    }
    case journal_kind::off: stats_.arrival_to_off.record(entry.length); break;
    case journal_kind::reserved:
    case journal_kind::reservation_ended:
      if (failed)
        stats_.failed_reservations.add(entry.count);
      else if (entry.kind == journal_kind::reserved)
        stats_.reservations.add(entry.count);
      break;
    case journal_kind::quantum:
      if (failed)
        stats_.failed_quanta.add(entry.count);
      else if (entry.length > duration::zero())
        stats_.quanta.add();
      break;
    case journal_kind::no_quantum: stats_.failed_quanta.add(); break;
    case journal_kind::client_thrown_out: stats_.clients_thrown_out.add(); break;
    case journal_kind::begins_expired: stats_.expired_begins.add(entry.count); break;
    case journal_kind::spans_expired: stats_.expired_spans.add(entry.count); break;
    case journal_kind::spans_left: stats_.abandoned_spans.add(entry.count); break;
    case journal_kind::marks_dropped:
      stats_.lost_marks.add(entry.number);
      stats_.stray_ends.add(entry.count);
      break;
    case journal_kind::policy:
      if (entry.count != 0) stats_.policy_ejections.add();
      break;
    case journal_kind::breaker_open:
      stats_.open_breakers.add();
      stats_.gpus_lost.add(entry.count);
      break;
    case journal_kind::breaker_closed: stats_.open_breakers.subtract(1); break;
    case journal_kind::acts_by: stats_.mechanism_fallbacks.add(entry.count); break;
    case journal_kind::backend_back: stats_.backend_restarts.add(); break;
    case journal_kind::overflow: stats_.inbox_overflows.add(entry.number); break;
    case journal_kind::resync: stats_.resyncs.add(); break;
    default: break;
  }
}

}  // namespace sluice::core
