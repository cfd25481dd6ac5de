#include "history.hpp"
#include "numbers.hpp"
#include "words.hpp"

#include <algorithm>

#include <spdlog/fmt/fmt.h>

namespace sluice {
namespace {

/// What came in one turn: the first so many are told.
constexpr std::size_t most_told = 3;

std::string on_gpu(gpu_id id) {
  return id == gpu_id::none ? "every GPU" : fmt::format("GPU {}", number(id));
}

}  // namespace

std::string history::online_work_on(const std::vector<gpu_id>& gpus, time_point now) const {
  std::string all;
  for (const gpu_id gpu : gpus) {
    const auto found = gpus_.find(gpu);
    if (found == gpus_.end() || !found->second.busy) continue;
    const book& on = found->second;
    std::string who;
    std::size_t told = 0;
    for (const auto& [client, periods] : on.in_flight) {
      if (told++ == most_told) break;
      who += (who.empty() ? "" : ", ") + client_words(client);
    }
    if (on.in_flight.size() > most_told)
      who += fmt::format(" and {} more", on.in_flight.size() - most_told);
    if (who.empty()) who = "online work";
    all += fmt::format("{}{} {} been busy on GPU {} for {}", all.empty() ? "" : ", ", who,
                       on.in_flight.size() > 1 ? "have" : "has", number(gpu),
                       span_text(now - on.busy_since));
  }
  return all;
}

std::string history::what_came() const {
  // What says who comes before what says only where.
  std::string all;
  std::size_t told = 0;
  std::size_t more = 0;
  for (const journal_entry& each : came_) {
    const auto names_it = [&](journal_kind kind) {
      return std::any_of(came_.begin(), came_.end(), [&](const journal_entry& other) {
        return other.kind == kind && (other.gpu == each.gpu || other.gpu == gpu_id::none);
      });
    };
    // Of a client on many GPUs once.
    const auto alike = [&](const journal_entry& other) {
      return other.kind == each.kind && other.client == each.client;
    };
    std::size_t gpus = 1;
    if (each.kind == journal_kind::begin || each.kind == journal_kind::end) {
      if (&*std::find_if(came_.begin(), came_.end(), alike) != &each) continue;
      gpus = static_cast<std::size_t>(std::count_if(came_.begin(), came_.end(), alike));
    }
    if (each.kind == journal_kind::busy && names_it(journal_kind::begin)) continue;
    if (each.kind == journal_kind::idle && names_it(journal_kind::end)) continue;
    if (told == most_told) {
      ++more;
      continue;
    }
    all += (told++ == 0 ? "" : ", ") + words_of(each);
    if (gpus > 1) all += fmt::format(" and {} more", gpus - 1);
  }
  if (more != 0) all += fmt::format(", and {} more events", more);
  return all;
}

std::string history::client_words(client_id which) const {
  const auto found = clients_.find(which);
  if (found == clients_.end()) return fmt::format("client {}", static_cast<std::uint64_t>(which));
  return fmt::format("client '{}'", found->second.name);
}

std::string history::process_words(const journal_entry& entry) const {
  const known_process* const one = find(entry.process);
  if (one == nullptr || one->command.empty()) return fmt::format("process {}", entry.pid);
  return fmt::format("process {} ({})", entry.pid, one->command);
}

std::string history::words_of(const journal_entry& entry) const {
  switch (entry.kind) {
    case journal_kind::process:
      return fmt::format("{} is {}", process_words(entry), to_string(entry.what));
    case journal_kind::process_gone: return process_words(entry) + " ended";
    case journal_kind::attached:
      return process_words(entry) + (entry.error != 0 ? " could not be attached" : " was attached");
    case journal_kind::detached: return process_words(entry) + " was detached";
    case journal_kind::client_gone:
      return fmt::format("client {} disconnected", static_cast<std::uint64_t>(entry.client));
    case journal_kind::begin:
      return fmt::format("{} began work on {}", client_words(entry.client), on_gpu(entry.gpu));
    case journal_kind::end:
      return fmt::format("{} ended work on {}", client_words(entry.client), on_gpu(entry.gpu));
    case journal_kind::span_begin:
      return fmt::format("{} began a {}", client_words(entry.client), to_string(entry.span));
    case journal_kind::span_end:
      return fmt::format("{} ended a {}", client_words(entry.client), to_string(entry.span));
    case journal_kind::span_abandoned:
      return fmt::format("{} abandoned a {}", client_words(entry.client), to_string(entry.span));
    case journal_kind::busy:
      return fmt::format("online work{} arrived on {}",
                         entry.pid != 0 ? " of " + process_words(entry) : "", on_gpu(entry.gpu));
    case journal_kind::idle: return "online work ended on " + on_gpu(entry.gpu);
    case journal_kind::policy: {
      const std::string name = printable(entry.words());
      return (entry.count != 0 ? "the policy was removed; " : "") +
             (name.empty() ? "no policy" : "policy " + name) + " is active now";
    }
    case journal_kind::breaker_open:
      return fmt::format("the breaker of {} opened: {}", on_gpu(entry.gpu),
                         words_of_cause(entry.cause));
    case journal_kind::breaker_closed:
      return fmt::format("the breaker of {} closed", on_gpu(entry.gpu));
    case journal_kind::acts_by:
      return fmt::format("the suspend mechanism is {} now", printable(entry.words()));
    case journal_kind::backend_lost:
      return fmt::format("the agent was lost: {}", printable(entry.words()));
    case journal_kind::backend_back: return "the agent is available again";
    case journal_kind::stop: return "the scheduler is stopping";
    default: return {};
  }
}

}  // namespace sluice
