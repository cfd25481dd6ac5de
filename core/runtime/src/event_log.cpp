#include "event_log.hpp"

#include "log.hpp"

#include <string>

#include "sluice/duration_text.hpp"

namespace sluice::core {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;

std::string_view words_of(breaker_cause why) {
  switch (why) {
    case breaker_cause::preemption_failed: return "failed preemption";
    case breaker_cause::reset: return "reset";
    case breaker_cause::stuck_call: break;
  }
  return "stuck driver call";
}

std::string or_for(time_point until, time_point now) {
  if (until == never) return {};
  // As exact as somebody wants to read it.
  using namespace std::chrono;
  duration left = until - now;
  if (left > hours(1))
    left = ceil<minutes>(left);
  else if (left > seconds(1))
    left = ceil<seconds>(left);
  return ", for at most " + to_text(left);
}

std::string_view words_of(command_kind what) {
  return what == command_kind::suspend ? "suspend" : "resume";
}

/// What the driver said of the call as a whole, when it did.
std::string refusal(int driver_errno) {
  if (driver_errno == 0) return {};
  return ": " + error_code{driver_errno, boost::system::system_category()}.message();
}

}  // namespace

void event_log::hear(const journal_entry& entry, const entry_words& words) noexcept {
  try {
    write(entry, words);
  } catch (...) {
    // Out of memory: the line is lost, the scheduler goes on.
  }
}

void event_log::write(const journal_entry& entry, const entry_words& words) {
  const auto gpu = static_cast<std::uint32_t>(entry.gpu);
  std::uint64_t unsaid = 0;
  switch (entry.kind) {
    case journal_kind::process_gone:
      if (quiet_ || entry.what != role::online || !online_gone_.allow(entry.at, unsaid)) break;
      log_line(log_level::info, log_part::scheduler, {{"pid", entry.pid}},
               "online process {} ended; its queues count as idle{}", entry.pid, left_out(unsaid));
      break;
    case journal_kind::forced: {
      // Who sees offline work run beside online work asks why.
      if (quiet_ || entry.count == 0 || !forced_.allow(entry.at, unsaid)) break;
      const std::string group = "g" + std::to_string(entry.number);
      log_line(log_level::info, log_part::scheduler,
               {{"pid", entry.pid},
                {"group", group},
                {"rule", to_string(entry.why)},
                {"times", unsaid + 1}},
               "process {} (group of {}): {} by the limit {}, against the decision of the policy, "
               "for at least {} ms{}",
               entry.pid, entry.count, backend_.acts() ? "resumed" : "would be resumed",
               to_string(entry.why), duration_cast<milliseconds>(entry.length).count(),
               left_out(unsaid));
      break;
    }
    case journal_kind::attach:
      if (words.error) write_attach_failure(entry, words);
      break;
    case journal_kind::attached:
      if (words.error) {
        write_attach_failure(entry, words);
      } else if (entry.count != 0 || entry.number != 0) {
        // Whoever read that it could not be managed, or that its session was ended, waits for this.
        log_line(log_level::warning, log_part::attach, {{"pid", entry.pid}},
                 "process {}: attached; sluice schedules it again", entry.pid);
      }
      break;
    case journal_kind::reattached:
      if (entry.count == entry.number) {
        log_line(log_level::warning, log_part::driver, {{"attached", entry.count}},
                 "backend {}: restored; {} processes attached again", backend_.name(), entry.count);
      } else {
        log_line(log_level::warning, log_part::driver, {{"attached", entry.count}},
                 "backend {}: restored; {} of {} processes attached again", backend_.name(),
                 entry.count, entry.number);
      }
      break;
    case journal_kind::batch:
      if (!words.error || !commands_.allow(entry.at, unsaid)) break;
      log_line(log_level::warning, log_part::driver,
               {{"pid", entry.pid}, {"gpu", entry.gpu}, {"queues", entry.count}},
               "process {}: the {} of {} queues on GPU {} was refused: {}{}", entry.pid,
               words_of(entry.command), entry.count, gpu, words.error.message(), left_out(unsaid));
      break;
    case journal_kind::done:
      if (entry.failed == 0 || entry.group == group_id::none || !commands_.allow(entry.at, unsaid))
        break;
      log_line(log_level::warning, log_part::driver,
               {{"pid", entry.pid},
                {"gpu", entry.gpu},
                {"queues", entry.count},
                {"failed", entry.failed},
                {"errno", entry.error}},
               "process {}: the {} of {} of {} queues on GPU {} failed{}; they are being "
               "resumed{}",
               entry.pid, words_of(entry.command), entry.failed, entry.count, gpu,
               refusal(entry.error), left_out(unsaid));
      break;
    case journal_kind::reserved:
    case journal_kind::reservation_ended: write_reservation(entry, words); break;
    case journal_kind::quantum:
    case journal_kind::no_quantum: write_quantum(entry, words); break;
    case journal_kind::client_thrown_out:
      if (!thrown_out_.allow(entry.at, unsaid)) break;
      log_line(log_level::warning, log_part::clients, {{"client", words.name}},
               "client '{}': disconnected: {}{}", words.name, words.text, left_out(unsaid));
      break;
    case journal_kind::begins_expired:
      if (!expired_begins_.allow(entry.at, unsaid)) break;
      log_line(
          log_level::warning, log_part::clients, {{"client", words.name}, {"expired", entry.count}},
          "client '{}': {} begin(s) without an end expired after {} s (max_busy) and no "
          "longer count as online work{}",
          words.name, entry.count, duration_cast<seconds>(entry.length).count(), left_out(unsaid));
      break;
    case journal_kind::spans_expired:
      if (words.again || !expired_spans_.allow(entry.at, unsaid)) break;
      log_line(
          log_level::warning, log_part::clients, {{"client", words.name}, {"expired", entry.count}},
          "client '{}': {} span(s) without an end expired after {} s (max_busy); later "
          "expiries are not logged, only counted (expired_spans){}",
          words.name, entry.count, duration_cast<seconds>(entry.length).count(), left_out(unsaid));
      break;
    case journal_kind::policy: write_policy(entry, words); break;
    case journal_kind::breaker_open:
      if (entry.count == 0) {
        log_line(log_level::warning, log_part::breaker, {{"gpu", entry.gpu}, {"open", 1}},
                 "GPU {}: the breaker was already open when this scheduler started; no queue on "
                 "this GPU is suspended until the breaker is re-armed{}",
                 gpu, or_for(entry.until, entry.at));
        break;
      }
      log_line(log_level::error, log_part::breaker,
               {{"gpu", entry.gpu}, {"open", 1}, {"why", words_of(entry.cause)}},
               "GPU {}: breaker opened after a {}{}; suspended queues are resumed (or lost, after "
               "a reset), and no queue on this GPU is suspended any more until the breaker is "
               "re-armed{}",
               gpu, words_of(entry.cause),
               entry.number == gpu ? "" : " on another GPU of its reset domain",
               or_for(entry.until, entry.at));
      break;
    case journal_kind::breaker_closed:
      log_line(log_level::warning, log_part::breaker, {{"gpu", entry.gpu}, {"open", 0}},
               "GPU {}: breaker closed: {}", gpu, words.text);
      break;
    case journal_kind::acts_by: {
      const bool fell_back = entry.count != 0;
      if (quiet_ && !fell_back) break;
      log_line(fell_back ? log_level::warning : log_level::info, log_part::driver,
               {{"mechanism", words.text}}, "backend {}: {} {}", backend_.name(),
               fell_back ? "fell back to the suspend mechanism" : "uses the suspend mechanism",
               words.text);
      break;
    }
    case journal_kind::backend_lost: {
      const std::string reason = words.error.message();
      log_line(log_level::error, log_part::driver, {{"error", reason}},
               "backend {}: lost ({}); suspending nothing more until the backend is restored",
               backend_.name(), reason);
      break;
    }
    default: break;
  }
}

void event_log::write_attach_failure(const journal_entry& entry, const entry_words& words) {
  std::uint64_t unsaid = 0;
  if (words.again || !attaches_.allow(entry.at, unsaid)) return;
  const std::string error = words.text.empty() ? words.error.message() : std::string{words.text};
  if (words.error == errc::not_managed) {
    log_line(log_level::warning, log_part::attach, {{"pid", entry.pid}, {"error", error}},
             "process {}: attach refused: {}; the process runs unscheduled; retrying every {} s{}",
             entry.pid, error, duration_cast<seconds>(entry.length).count(), left_out(unsaid));
    return;
  }
  log_line(log_level::warning, log_part::attach, {{"pid", entry.pid}, {"error", error}},
           "process {}: attach failed: {}; retrying in {} ms{}", entry.pid, error,
           duration_cast<milliseconds>(entry.length).count(), left_out(unsaid));
}

void event_log::write_policy(const journal_entry& entry, const entry_words& words) {
  const bool none = words.text.empty();
  const std::string_view next = none ? "none" : words.text;
  if (entry.count != 0) {
    log_line(log_level::error, log_part::policy, {{"policy", next}}, "policy {}: removed: {}; {}",
             words.name, words.why,
             none ? std::string("everything runs until another policy is set")
                  : "everything is resumed, and policy " + std::string(next) + " takes over");
  } else if (words.name == next) {
    // What its parameters are, whoever sets it knows.
    log_line(log_level::info, log_part::policy, {{"policy", next}}, "policy {}: recreated", next);
  } else if (!words.name.empty()) {
    log_line(log_level::info, log_part::policy, {{"policy", next}}, "policy {}: replaced by {}",
             words.name, next);
  }
}

void event_log::write_reservation(const journal_entry& entry, const entry_words& words) {
  const auto gpu = static_cast<std::uint32_t>(entry.gpu);
  const bool was_end = entry.kind == journal_kind::reservation_ended;
  const bool was_wanted = entry.count != 0;
  if (!words.error) {
    if (!words.again)
      log_line(log_level::warning, log_part::driver, {{"gpu", entry.gpu}},
               "GPU {}: the driver accepts slot reservations again", gpu);
    return;
  }
  std::uint64_t unsaid = 0;
  // A driver that never takes one there is nothing to warn of.
  if (words.again || (quiet_ && !was_wanted) || !reservations_.allow(entry.at, unsaid)) return;
  log_line(was_wanted ? log_level::warning : log_level::info, log_part::driver,
           {{"gpu", entry.gpu}}, "GPU {}: the driver {}: {}; {}{}{}", gpu,
           was_end ? "failed to end the slot reservation" : "refused the slot reservation",
           words.error.message(),
           was_end ? "retrying until it succeeds" : "policies suspend queues instead",
           entry.length != duration::zero() && !was_end ? "; retrying" : "", left_out(unsaid));
}

void event_log::write_quantum(const journal_entry& entry, const entry_words& words) {
  if (words.again) return;
  if (entry.kind == journal_kind::quantum && !words.error) {
    log_line(log_level::warning, log_part::driver, {{"pid", entry.pid}},
             "process {}: the driver accepts a quantum again", entry.pid);
    return;
  }
  std::uint64_t unsaid = 0;
  if (!quanta_.allow(entry.at, unsaid)) return;
  if (entry.kind == journal_kind::quantum) {
    log_line(log_level::warning, log_part::driver, {{"pid", entry.pid}},
             "process {}: the driver refused the quantum: {}; retrying{}", entry.pid,
             words.error.message(), left_out(unsaid));
  } else {
    log_line(log_level::warning, log_part::driver, {{"gpu", entry.gpu}},
             "GPU {}: the driver does not support a quantum; the policy's quantum has no effect{}",
             static_cast<std::uint32_t>(entry.gpu), left_out(unsaid));
  }
}

}  // namespace sluice::core
