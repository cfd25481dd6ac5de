#include "client_ledger.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

namespace sluice::core {
namespace {

// Of clients that are not trusted. So many in flight fit a GPU's count with thousands of clients.
constexpr std::uint64_t most_in_flight = std::uint64_t{1} << 20;
// Between two looks: more than could be begun in the seconds that a turn may be late.
constexpr std::uint64_t most_begun = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t most_open_spans = 65'536;
// Looked at in one turn, of all of them together.
constexpr std::size_t most_marks = SLUICE_WORDS_MARKS;

}  // namespace

template <class Function>
void client_ledger::for_each_gpu(const client& one, Function&& call) {
  if (one.named.empty()) {
    for (std::size_t i = 0; i < table_.gpu_count(); ++i) call(table_.gpu_number(i));
  } else {
    for (const gpu_id id : one.gpus) call(*table_.find_gpu(id));
  }
}

void client_ledger::tell(const client& one, journal_kind kind, time_point now) noexcept {
  journal_entry entry{.kind = kind, .client = one.page->id};
  entry_words words;
  if (kind == journal_kind::client) {
    entry.pid = one.page->options.pid;
    words.text = one.page->options.name;
  }
  journal_.put(entry, now, words);
}

void client_ledger::tell_lost(const client& one, journal_kind kind, std::uint64_t count,
                              time_point now, bool again) noexcept {
  if (count == 0) return;
  journal_.put({.kind = kind,
                .count = static_cast<std::uint32_t>(count),
                .client = one.page->id,
                .length = config_.max_busy},
               now, {.name = one.page->options.name, .again = again});
}

client_view client_ledger::view_of(const client& one) noexcept {
  return {one.page->id, one.page->options.name, one.gpus, one.page->options.targets};
}

bool client_ledger::is_seen(const client& one) noexcept {
  return one.page->maker == client_page::made_by::scheduler;
}

pid_t client_ledger::pid_of(const client& one) const noexcept {
  return one.page->options.pid == 0 ? own_pid_ : one.page->options.pid;
}

bool client_ledger::has_news() const noexcept {
  if (desk_.has_arrivals() || desk_.has_new_waits()) return true;
  return std::any_of(clients_.begin(), clients_.end(), [](const client& one) {
    const sluice_client_words& words = *one.page->words;
    return load_word(words.begun) - one.base != one.begun ||
           load_word(words.ended) - one.base != one.ended ||
           one.page->withdrawn.load(std::memory_order_acquire) ||
           sluice_words_has_mark(&words, one.read) != 0;
  });
}

bool client_ledger::wants_room() const noexcept {
  const auto runs = [](const gpu* on) { return on != nullptr && on->not_off != 0; };
  return std::any_of(clients_.begin(), clients_.end(), [&](const client& one) {
    if (load_word(one.page->words->begun) - one.base == one.begun) return false;
    if (!one.named.empty()) {
      return std::any_of(one.gpus.begin(), one.gpus.end(),
                         [&](gpu_id id) { return runs(table_.find_gpu(id)); });
    }
    for (std::size_t i = 0; i < table_.gpu_count(); ++i) {
      if (runs(&table_.gpu_number(i))) return true;
    }
    return false;
  });
}

void client_ledger::count_on_new_gpus(time_point now, std::vector<event>& events) {
  for (auto fresh = table_.take_new_gpus(); fresh != 0; --fresh) {
    auto& view = table_.view_of(table_.gpu_number(table_.gpu_count() - fresh));
    for (const client& one : clients_) {
      if (!one.named.empty() || one.counted == 0) continue;
      const auto count = static_cast<std::uint32_t>(one.counted);
      view.online_in_flight += count;
      view.last_begin = now;
      events.push_back({event_kind::online_begin, view.id, one.page->id, count, now});
    }
  }
}

void client_ledger::look(time_point now, std::vector<event>& events) {
  for (const client& one : withdrawn_) {
    table_.remove_client(one.page->id);
    if (!is_seen(one)) seen_.client_left(pid_of(one));
    tell(one, journal_kind::client_gone, now);  // after what it did last
  }
  withdrawn_.clear();
  count_on_new_gpus(now, events);
  if (desk_.has_arrivals()) {
    for (auto& page : desk_.take_arrivals()) {
      client& one = clients_.emplace_back();
      one.named = page->options.gpus;
      std::sort(one.named.begin(), one.named.end());
      one.named.erase(std::unique(one.named.begin(), one.named.end()), one.named.end());
      for (const gpu_id id : one.named) table_.gpu_at(id);
      one.gpus = one.named;
      one.page = std::move(page);
      one.base = one.page->base;
      one.read = one.page->taken;
      one.lost_marks = one.page->lost;
      table_.add_client(view_of(one));
      if (!is_seen(one)) {
        seen_.client_came(pid_of(one));
        if (record_ != nullptr) record_->client(one.page->id, one.page->options);
      }
      tell(one, journal_kind::client, now);
    }
    // Room for what the rings can hold: a mark can be an end and a begin. Not anew for each client.
    const std::size_t most = 2 * std::size_t{SLUICE_WORDS_MARKS} * clients_.size();
    if (most > events.capacity()) events.reserve(std::max(most, 2 * events.capacity()));
    count_on_new_gpus(now, events);
  }
  next_ = never;
  marks_left_ = most_marks;
  with_marks_ = static_cast<std::size_t>(
      std::count_if(clients_.begin(), clients_.end(), [](const client& one) {
        return one.page->foreign && sluice_words_has_mark(one.page->words.get(), one.read) != 0;
      }));
  for (std::size_t i = 0; i < clients_.size();) {
    follow_gang(clients_[i], now, events);
    if (look_at(clients_[i], now, events)) {
      ++i;
    } else {
      withdrawn_.push_back(std::move(clients_[i]));
      if (&clients_[i] != &clients_.back()) clients_[i] = std::move(clients_.back());
      clients_.pop_back();
    }
  }
  last_look_ = now;
}

void client_ledger::follow_gang(client& one, time_point now, std::vector<event>& events) {
  if (one.named.empty() || is_seen(one)) return;
  const std::span<const gpu_id> gang = table_.online_gang_of(pid_of(one));
  const auto wanted = [&](gpu_id id) {
    return std::binary_search(one.named.begin(), one.named.end(), id) ||
           std::find(gang.begin(), gang.end(), id) != gang.end();
  };
  const auto count = static_cast<std::uint32_t>(one.counted);
  bool changed = false;
  for (std::size_t i = one.gpus.size(); i-- != 0;) {
    if (wanted(one.gpus[i])) continue;
    changed = true;
    if (count != 0) {
      auto& view = table_.view_of(*table_.find_gpu(one.gpus[i]));
      view.online_in_flight -= count;
      view.last_end = now;
      events.push_back({event_kind::online_end, view.id, one.page->id, count, now});
    }
    one.gpus.erase(one.gpus.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (const gpu_id id : gang) {
    if (std::find(one.gpus.begin(), one.gpus.end(), id) != one.gpus.end()) continue;
    one.gpus.push_back(id);
    changed = true;
    if (count == 0) continue;
    auto& view = table_.view_of(table_.gpu_at(id));
    view.online_in_flight += count;
    view.last_begin = now;
    events.push_back({event_kind::online_begin, view.id, one.page->id, count, now});
  }
  if (changed) table_.add_client(view_of(one));
}

bool client_ledger::look_at(client& one, time_point now, std::vector<event>& events) {
  client_page& page = *one.page;
  // In this order: every end that is seen then has its begin seen as well, and what a client did
  // before it withdrew is complete.
  bool withdrawn = page.withdrawn.load(std::memory_order_acquire);
  sluice_client_words& words = *page.words;
  std::uint64_t ended = load_word(words.ended) - one.base;
  std::uint64_t begun = load_word(words.begun) - one.base;
  if (const char* const why = page.foreign ? impossible(one, begun, ended) : nullptr) {
    throw_out(one, why, now);
    withdrawn = true;
    ended = one.ended;
    begun = one.begun;
  }
  const std::uint64_t ended_before = std::exchange(one.ended, ended);
  const time_point stamp{duration(__atomic_load_n(&words.first_unseen, __ATOMIC_RELAXED))};
  __atomic_store_n(&words.seen, begun + one.base, __ATOMIC_RELAXED);

  const std::uint64_t began = begun - std::exchange(one.begun, begun);
  if (record_ != nullptr && !is_seen(one) &&
      (began != 0 || one.ended != ended_before || withdrawn)) {
    record_->work(page.id, begun, one.ended, began != 0 ? stamp : time_point{}, withdrawn);
  }
  if (one.ended - one.excess_ends > begun) one.excess_ends = one.ended - begun;
  const std::uint64_t outstanding = begun - (one.ended - one.excess_ends);
  // Ends belong to what still counts first; only more ends than that are of begins written off.
  one.written_off = std::min(one.written_off, outstanding);
  const std::uint64_t before = one.counted;
  one.counted = outstanding - one.written_off;

  if (began != 0) {
    stats_.begins.add(began);
    const time_point at = std::clamp(stamp, std::min(last_look_, now), now);
    for_each_gpu(one, [&](gpu& each) {
      auto& view = table_.view_of(each);
      view.last_begin = std::max(view.last_begin, at);
      note_arrival(each, at);
      events.push_back(
          {event_kind::online_begin, each.id, page.id, static_cast<std::uint32_t>(began), at});
    });
  }

  // max_busy.
  const std::uint64_t settled = one.ended - one.excess_ends + one.written_off;
  if (one.counted == 0 || settled >= one.mark) {
    one.mark = one.counted == 0 ? settled : begun;
    one.mark_at = now;
  } else if (now >= one.mark_at + config_.max_busy) {
    const std::uint64_t expired = std::min(one.mark - settled, one.counted);
    one.written_off += expired;
    one.counted -= expired;
    tell_lost(one, journal_kind::begins_expired, expired, now, false);
    one.mark = begun;
    one.mark_at = now;
  }
  if (withdrawn) one.counted = 0;
  take_marks(one, withdrawn, now, events);
  settle_spans(one, withdrawn, now, events);

  if (const std::uint64_t ends = before + began - one.counted; ends != 0) {
    for_each_gpu(one, [&](gpu& each) {
      table_.view_of(each).last_end = now;
      events.push_back(
          {event_kind::online_end, each.id, page.id, static_cast<std::uint32_t>(ends), now});
    });
  }
  if (one.counted != before) {
    for_each_gpu(one, [&](gpu& each) {
      auto& in_flight = table_.view_of(each).online_in_flight;
      in_flight = static_cast<std::uint32_t>(in_flight + one.counted - before);
    });
  }
  if (page.remote != nullptr && (one.counted != 0) != (before != 0)) {
    page.remote->in_flight(one.counted != 0);
  }
  if (one.counted != 0) next_ = std::min(next_, one.mark_at + config_.max_busy);
  if (one.open.oldest() != never) next_ = std::min(next_, one.open.oldest() + config_.max_busy);
  return !withdrawn;
}

const char* client_ledger::impossible(const client& one, std::uint64_t begun,
                                      std::uint64_t ended) noexcept {
  if (begun < one.begun || ended < one.ended) return "its counters decreased";
  if (begun - one.begun > most_begun || ended - one.ended > most_begun) {
    return "its counters increased by an impossible number";
  }
  const std::uint64_t settled = ended - one.excess_ends;
  return begun > settled && begun - settled > most_in_flight
             ? "more than 1048576 busy periods are in flight"
             : nullptr;
}

void client_ledger::throw_out(client& one, const char* why, time_point now) {
  // Once: whoever has withdrawn in the same moment is gone anyway.
  if (one.page->withdrawn.exchange(true, std::memory_order_acq_rel)) return;
  journal_.put({.kind = journal_kind::client_thrown_out, .client = one.page->id}, now,
               {.text = why, .name = one.page->options.name});
  if (auto* const remote = std::exchange(one.page->remote, nullptr)) remote->thrown_out(why);
}

bool client_ledger::check_mark(const client& one, sluice_mark& mark, time_point now) const {
  if (mark.kind >= span_kinds) return false;
  if (!one.page->foreign) return true;
  mark.at = std::clamp(mark.at, (now - config_.max_busy).time_since_epoch().count(),
                       now.time_since_epoch().count());
  return true;
}

std::size_t client_ledger::share_of(const client& one, bool withdrawn) noexcept {
  // Of one that leaves all, for nobody comes back to the rest.
  if (!one.page->foreign || withdrawn) return SLUICE_WORDS_MARKS;
  return std::max<std::size_t>(1, marks_left_ / std::max<std::size_t>(1, with_marks_));
}

void client_ledger::take_marks(client& one, bool withdrawn, time_point now,
                               std::vector<event>& events) {
  const auto ended = [&](const open_spans::span& which, time_point at) {
    const duration length = std::max(at - which.begun, duration::zero());
    stats_.span_length[static_cast<std::size_t>(which.kind)].record(length);
    if (which.abandoned) return;  // The policy has forgotten it.
    events.push_back({.kind = event_kind::span_end,
                      .client = one.page->id,
                      .at = which.begun + length,
                      .span = which.kind,
                      .request = which.request,
                      .length = length});
  };
  // However fast they come. What is left keeps the scheduler awake (has_news()).
  const std::size_t share = share_of(one, withdrawn);
  std::size_t taken = 0;
  std::uint64_t senseless = 0;
  std::uint32_t stray_ends = 0;
  sluice_mark mark;
  while (taken < share && sluice_words_take(one.page->words.get(), &one.read, &mark) != 0) {
    ++taken;
    if (!check_mark(one, mark, now)) {
      ++senseless;
      continue;
    }
    const time_point at{duration(mark.at)};
    const auto kind = static_cast<span_kind>(mark.kind);
    if (record_ != nullptr && !is_seen(one)) {
      record_->mark(one.page->id, kind, mark.request, mark.begins != 0, at);
    }
    if (mark.begins == 0) {
      const auto open = one.open.end(kind, mark.request);
      open ? ended(*open, at) : void(++stray_ends);
      continue;
    }
    if (one.page->foreign && one.open.size() >= most_open_spans) {  // Nobody serves so many.
      tell_lost(one, journal_kind::spans_expired,
                abandon_spans(one, never - duration(1), duration(1), now, events), now, true);
      one.open = {};
    }
    if (const auto before = one.open.begin(kind, mark.request, at)) ended(*before, at);
    events.push_back({.kind = event_kind::span_begin,
                      .client = one.page->id,
                      .at = at,
                      .span = kind,
                      .request = mark.request});
  }
  if (one.page->foreign && taken != 0) {
    marks_left_ -= std::min(taken, marks_left_);
    with_marks_ -= with_marks_ != 0 ? 1 : 0;
  }
  const std::uint64_t lost = load_word(one.page->words->lost);
  if (lost > one.lost_marks || senseless != 0 || stray_ends != 0) {
    const std::uint64_t more = lost > one.lost_marks ? lost - one.lost_marks : 0;
    journal_.put({.kind = journal_kind::marks_dropped,
                  .count = stray_ends,
                  .client = one.page->id,
                  .number = more + senseless},
                 now);
  }
  one.lost_marks = lost;
}

std::uint64_t client_ledger::abandon_spans(client& one, time_point begun_by, duration grain,
                                           time_point now, std::vector<event>& events) {
  std::uint64_t count = 0;
  one.open.abandon(begun_by, grain, [&](const open_spans::span& which) {
    ++count;
    const duration length = std::max(now - which.begun, duration::zero());
    events.push_back({.kind = event_kind::span_abandoned,
                      .client = one.page->id,
                      .at = which.begun + length,
                      .span = which.kind,
                      .request = which.request,
                      .length = length});
  });
  return count;
}

void client_ledger::settle_spans(client& one, bool withdrawn, time_point now,
                                 std::vector<event>& events) {
  if (withdrawn) {
    tell_lost(one, journal_kind::spans_left,
              abandon_spans(one, never - duration(1), duration(1), now, events), now, false);
    return;
  }
  const auto expired =
      abandon_spans(one, now - config_.max_busy, config_.max_busy / 64, now, events);
  if (expired == 0) return;
  tell_lost(one, journal_kind::spans_expired, expired, now, std::exchange(one.said_expired, true));
}

}  // namespace sluice::core
