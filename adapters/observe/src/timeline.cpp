#include "sluice/observe/timeline.hpp"

#include "json_text.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <spdlog/fmt/fmt.h>

namespace sluice::observe {
namespace {

using std::chrono::floor;
using std::chrono::microseconds;

/// Rows that are no process have numbers that no process has; of a pid that comes again, too.
constexpr int first_own_row = 4'194'305;
/// Suspends on one GPU that wait to be told what they made room for, and stretches of online work
/// that are over while a driver call lasts.
constexpr std::size_t most_effects = 1024;
constexpr std::size_t most_over = 1024;

using microsecond = std::int64_t;

/// A row of the picture: a "process" with its "threads".
struct track {
  int row = 0;
  int number = 0;        ///< 0: there is none yet.
  microsecond last = 0;  ///< Where its last stretch ended: they do not overlap.
};

/// A point on a stretch, which arrows lead from and to.
struct point {
  int row = 0;
  int track = 0;
  microsecond at = 0;
};

enum class lane_state : std::uint8_t {
  unknown,
  suspending,
  suspended,
  in_doubt,
  resuming,
  running
};

constexpr std::string_view name_of(lane_state value) {
  switch (value) {
    case lane_state::suspending: return "suspending";
    case lane_state::suspended: return "suspended";
    case lane_state::in_doubt: return "in doubt";
    case lane_state::resuming: return "resuming";
    case lane_state::running: return "running";
    case lane_state::unknown: break;
  }
  return "";
}

/// Queues of one process on one GPU.
struct lane {
  track states;
  track calls;
  lane_state state = lane_state::unknown;
  time_point since{};
  std::uint64_t turn = 0;
  std::uint64_t room_for = 0;  ///< The gpu_row::period in which the suspend was handed over.
  point suspended_by{};        ///< row 0: by nothing that is shown.
};

struct process_row {
  int row = 0;
  pid_t pid = 0;
  std::string name;
  std::string group;
  role what = role::unmatched;
  track decisions;
  track session;
  track off;
  std::map<gpu_id, lane> lanes;
  time_point off_since = never;
  time_point attaching_since = never;
  time_point attached_since = never;
};

/// A suspend.
struct effect {
  point call{};
  std::uint64_t room_for = 0;  ///< As lane::room_for.
};

struct gpu_row {
  int row = 0;
  track online;
  track preemption;
  track breaker;
  time_point busy_since = never;
  std::uint64_t busy_turn = 0;
  std::uint64_t period = 0;  ///< Of online work: the one in flight, or the last one.
  std::deque<point> over;    ///< The last periods that are over; the newest, `period`, last.
  time_point begun = never;  ///< The first begin of the turn `begun_turn`.
  std::uint64_t begun_turn = 0;
  std::vector<effect> effects;  ///< Suspends that no arrow leads to yet.
};

struct client_row {
  int row = 0;
  std::string name;
  std::map<gpu_id, std::int64_t> in_flight;
};

}  // namespace

class timeline::impl {
 public:
  impl(trace_file& to, timeline_options options) : to_(to), options_(std::move(options)) {}

  void hear(const journal_entry& entry) {
    if (to_.error()) return;
    last_ = std::max(last_, entry.at);
    if (base_ == never) base_ = entry.at;
    switch (entry.kind) {
      case journal_kind::process: see_process(entry); break;
      case journal_kind::begin:
      case journal_kind::end: count(entry); break;
      case journal_kind::span_end:
      case journal_kind::span_abandoned: span(entry); break;
      case journal_kind::span_begin: break;
      case journal_kind::client: add_client(entry); break;
      case journal_kind::client_gone: clients_.erase(entry.client); break;
      case journal_kind::busy:
      case journal_kind::idle:
      case journal_kind::off:
      case journal_kind::breaker_open:
      case journal_kind::breaker_closed: hear_of_gpu(entry); break;
      case journal_kind::policy:
        note(entry.words().empty() ? "no policy: all work runs"
                                   : fmt::format("policy {}", entry.words()),
             entry);
        break;
      case journal_kind::acts_by:
        note(fmt::format("suspend mechanism: {}", entry.words()), entry);
        break;
      case journal_kind::backend_lost:
        note(fmt::format("backend lost: {}", entry.words()), entry);
        for (auto& [id, each] : processes_) end_session(each, entry.at);
        break;
      case journal_kind::backend_back: note("backend restored", entry); break;
      case journal_kind::stop: note("stop", entry); break;
      default: hear_of_process(entry); break;
    }
    if (to_.nearly_full()) turn_over();
  }

  void missed(std::uint64_t entries) {
    if (base_ == never || to_.error()) return;
    note(fmt::format("{} journal entries were lost here", entries), {.at = last_});
  }

  void mend(const picture& seen) {
    if (base_ == never || to_.error()) return;
    const time_point now = std::max(seen.at, last_);
    std::set<process_id> there;
    for (const group_picture& group : seen.groups) {
      for (const process_picture& each : group.processes) {
        there.insert(each.id);
        see_process({.kind = journal_kind::process,
                     .what = each.what,
                     .pid = each.pid,
                     .process = each.id,
                     .group = group.id,
                     .start_time = each.start_time,
                     .turn = seen.turns,
                     .at = now});
        mend(processes_.at(each.id), each, now, seen.turns);
      }
    }
    for (auto& [id, each] : processes_)
      if (!there.contains(id)) end(each, now);
    std::erase_if(processes_, [&](const auto& each) { return !there.contains(each.first); });
    for (const gpu_picture& each : seen.gpus) {
      if (!each.busy) {
        if (const auto found = gpus_.find(each.id); found != gpus_.end())
          end_busy(found->second, now);
      } else if (gpu_row& which = gpu_of(each.id); which.busy_since == never) {
        begin_busy(which, now, seen.turns);
      }
    }
    std::erase_if(clients_, [&](const auto& each) {
      return std::ranges::none_of(seen.clients,
                                  [&](const client_picture& one) { return one.id == each.first; });
    });
  }

  void finish(time_point now) {
    if (base_ == never || to_.error()) return;
    now = std::max(now, last_);
    for (auto& [id, each] : processes_) end(each, now);
    for (auto& [id, each] : gpus_) end_busy(each, now);
    processes_.clear();
    gpus_.clear();
    clients_.clear();
  }

 private:
  // Writing ---------------------------------------------------------------------------------------

  microsecond at(time_point when) const {
    return std::max<microsecond>(floor<microseconds>(when - base_).count(), 0);
  }

  /// {"ph":"X","pid":1,"tid":2,"ts":3,"name":"..."
  void begin_event(char what, int row, int number, microsecond when, std::string_view name) {
    text_.clear();
    fmt::format_to(std::back_inserter(text_), R"({{"ph":"{}","pid":{},"tid":{},"ts":{},"name":)",
                   what, row, number, when);
    append_quoted(text_, name);
  }
  void end_event() {
    text_ += '}';
    to_.add(text_);
  }
  template <class... Values>
  void more(fmt::format_string<Values...> form, Values&&... values) {
    fmt::format_to(std::back_inserter(text_), form, std::forward<Values>(values)...);
  }

  void name_row(int row, std::string_view name, int order) {
    begin_event('M', row, 0, 0, "process_name");
    text_ += R"(,"args":{"name":)";
    append_quoted(text_, name);
    text_ += '}';
    end_event();
    begin_event('M', row, 0, 0, "process_sort_index");
    more(R"(,"args":{{"sort_index":{}}})", order);
    end_event();
  }
  /// \param order below its row's others.
  void need(track& which, int row, std::string_view name, int order) {
    if (which.number != 0) return;
    which.row = row;
    which.number = ++tracks_;
    begin_event('M', row, which.number, 0, "thread_name");
    text_ += R"(,"args":{"name":)";
    append_quoted(text_, name);
    text_ += '}';
    end_event();
    begin_event('M', row, which.number, 0, "thread_sort_index");
    more(R"(,"args":{{"sort_index":{}}})", order);
    end_event();
  }

  /// A stretch, of a microsecond at least; it begins no earlier than the one before on its track
  /// ends. \return where it begins. end_event() is the caller's.
  point begin_slice(track& on, std::string_view kind, std::string_view name, time_point from,
                    time_point to) {
    const microsecond begin = std::max(at(from), on.last);
    on.last = std::max(at(to), begin + 1);
    begin_event('X', on.row, on.number, begin, name);
    more(R"(,"dur":{},"cat":"{}")", on.last - begin, kind);
    return {on.row, on.number, begin};
  }
  point slice(track& on, std::string_view kind, std::string_view name, time_point from,
              time_point to, std::uint64_t turn) {
    const point made = begin_slice(on, kind, name, from, to);
    more(R"(,"args":{{"turn":{}}})", turn);
    end_event();
    return made;
  }
  void mark(const track& on, std::string_view kind, std::string_view name,
            const journal_entry& entry) {
    begin_event('i', on.row, on.number, at(entry.at), name);
    more(R"(,"s":"t","cat":"{}","args":{{"turn":{}}})", kind, entry.turn);
    end_event();
  }
  /// Both ends lie on stretches that have been written.
  void arrow(std::string_view name, const point& from, const point& to) {
    if (to.at < from.at) return;
    ++arrows_;
    begin_event('s', from.row, from.track, from.at, name);
    more(R"(,"cat":"cause","id":{})", arrows_);
    end_event();
    begin_event('f', to.row, to.track, to.at, name);
    more(R"(,"cat":"cause","bp":"e","id":{})", arrows_);
    end_event();
  }
  /// What is open ends in this file, and begins in the next one, which knows its own rows alone.
  void turn_over() {
    for (auto& [id, each] : processes_) {
      if (each.row == 0) continue;
      if (each.off_since != never) {
        end_off(each, last_, 0);
        each.off_since = last_;
      }
      end_stretch(each, each.attaching_since, "attaching");
      end_stretch(each, each.attached_since, "attached");
      for (auto& [gpu, on] : each.lanes) {
        if (on.state == lane_state::unknown) continue;
        slice(on.states, "queues", name_of(on.state), on.since, last_, on.turn);
        on.since = last_;
      }
    }
    for (auto& [id, each] : gpus_) {
      if (each.busy_since == never) continue;
      end_busy(each, last_);
      each.busy_since = last_;
    }
    to_.turn_over();
    base_ = last_;
    rows_.clear();
    next_row_ = first_own_row;
    tracks_ = 0;
    scheduler_ = {};
    for (auto& [id, each] : gpus_) {
      each.row = 0;
      each.online = each.preemption = each.breaker = {};
      each.over.clear();
      each.effects.clear();
    }
    for (auto& [id, each] : gpus_) (void)gpu_of(id);
    for (auto& [id, each] : clients_) each.row = 0;
    for (auto& [id, each] : processes_) {
      if (std::exchange(each.row, 0) == 0) continue;
      each.decisions = each.session = each.off = {};
      show(each);
      for (auto& [gpu, on] : each.lanes) {
        on.states = on.calls = {};
        on.suspended_by = {};
        (void)lane_of(each, gpu);
      }
    }
  }
  void end_stretch(process_row& of, time_point& since, std::string_view name) {
    if (since == never) return;
    slice(of.session, "session", name, since, last_, 0);
    since = last_;
  }
  void note(std::string_view words, const journal_entry& entry) {
    if (scheduler_.number == 0) {
      const int row = new_row();
      std::string name = "scheduler";
      if (options_.observed) name += " (mode observe: sluice suspends nothing)";
      if (options_.simulated && options_.simulated()) name += ", on a simulated device";
      name_row(row, name, 0);
      need(scheduler_, row, "events", 0);
    }
    mark(scheduler_, "scheduler", words, entry);
  }
  int new_row() { return next_row_++; }

  // Processes -------------------------------------------------------------------------------------

  void see_process(const journal_entry& entry) {
    const auto [found, fresh] = processes_.try_emplace(entry.process);
    process_row& which = found->second;
    which.pid = entry.pid;
    if (fresh) {
      const process_words words = options_.read(entry.pid, entry.start_time);
      which.name = words.command;
      which.group = words.group;
    } else if (which.row != 0 && which.what != entry.what) {
      show(which);
      mark(which.decisions, "role", fmt::format("role: {}", to_string(entry.what)), entry);
    }
    which.what = entry.what;
  }

  /// From its first event on that is no mere sight of it.
  void show(process_row& which) {
    if (which.row != 0) return;
    which.row = which.pid > 0 && rows_.insert(which.pid).second ? which.pid : new_row();
    name_row(which.row,
             fmt::format("{} [{}] {}{}", which.name, which.pid, to_string(which.what),
                         which.group == which.name ? "" : ", " + which.group),
             2);
    need(which.decisions, which.row, "decisions", 0);
    need(which.session, which.row, "session", 1);
    need(which.off, which.row, "process", 2);
  }
  lane& lane_of(process_row& which, gpu_id gpu) {
    lane& made = which.lanes[gpu];
    const auto number = static_cast<std::uint32_t>(gpu);
    const int order = 3 + 2 * static_cast<int>(which.lanes.size());
    need(made.states, which.row, fmt::format("queues on GPU {}", number), order);
    need(made.calls, which.row, fmt::format("driver calls, GPU {}", number), order + 1);
    return made;
  }

  void hear_of_process(const journal_entry& entry) {
    const auto found = processes_.find(entry.process);
    if (found == processes_.end()) return;
    process_row& which = found->second;
    if (entry.kind == journal_kind::process_gone) {
      end(which, entry.at);
      processes_.erase(found);
      return;
    }
    show(which);
    switch (entry.kind) {
      case journal_kind::process_off: which.off_since = entry.at; break;
      case journal_kind::process_on: end_off(which, entry.at, entry.turn); break;
      case journal_kind::held: mark(which.decisions, "decision", "hold", entry); break;
      case journal_kind::let_go:
        mark(which.decisions, "decision", fmt::format("released: {}", to_string(entry.why)), entry);
        break;
      case journal_kind::forced:
        mark(which.decisions, "decision", fmt::format("forced to run: {}", to_string(entry.why)),
             entry);
        break;
      case journal_kind::attach:
        if (entry.error == 0)
          which.attaching_since = entry.at;
        else
          mark(which.session, "session", fmt::format("attach refused: {}", entry.words()), entry);
        break;
      case journal_kind::attached:
        if (which.attaching_since != never)
          slice(which.session, "session",
                entry.error == 0 ? "attaching" : fmt::format("attach failed: {}", entry.words()),
                std::exchange(which.attaching_since, never), entry.at, entry.turn);
        if (entry.error == 0) which.attached_since = entry.at;
        break;
      case journal_kind::detached: end_session(which, entry.at); break;
      case journal_kind::batch: hand_over(which, entry); break;
      case journal_kind::done: take_answer(which, entry); break;
      default: break;
    }
  }

  void set_state(lane& of, lane_state next, time_point when, std::uint64_t turn) {
    if (of.state == next) return;
    if (of.state != lane_state::unknown)
      slice(of.states, "queues", name_of(of.state), of.since, when, of.turn);
    of.state = next;
    of.since = when;
    of.turn = turn;
  }
  void hand_over(process_row& which, const journal_entry& entry) {
    lane& on = lane_of(which, entry.gpu);
    const gpu_row& at_work = gpu_of(entry.gpu);
    on.room_for = at_work.busy_since != never ? at_work.period : 0;
    if (entry.error != 0)
      mark(on.calls, "driver", fmt::format("refused: {}", entry.words()), entry);
    else
      set_state(
          on,
          entry.command == command_kind::suspend ? lane_state::suspending : lane_state::resuming,
          entry.at, entry.turn);
  }
  void take_answer(process_row& which, const journal_entry& entry) {
    lane& on = lane_of(which, entry.gpu);
    const bool suspend = entry.command == command_kind::suspend;
    const point call = begin_slice(on.calls, "driver",
                                   fmt::format("{} {} queue{}", suspend ? "suspend" : "resume",
                                               entry.count, entry.count == 1 ? "" : "s"),
                                   entry.since, entry.until);
    more(R"(,"args":{{"turn":{},"batch":{},"errno":{},"failed":{},"invalid":{},"gone":{}}})",
         entry.turn, entry.number, entry.error, entry.failed, entry.invalid, entry.gone);
    end_event();
    const auto not_done = static_cast<std::uint32_t>(entry.failed + entry.invalid + entry.gone);
    const bool done = entry.error == 0 && not_done < entry.count;
    lane_state next = suspend ? lane_state::suspended : lane_state::running;
    if (!done) next = suspend ? lane_state::running : lane_state::suspended;
    if (entry.failed != 0) next = lane_state::in_doubt;
    set_state(on, next, entry.until, entry.turn);
    if (!done) return;
    if (suspend) {
      on.suspended_by = call;
      lead_from_online(gpu_of(entry.gpu), {call, on.room_for});
    } else if (on.suspended_by.row != 0) {
      arrow("resumed by", std::exchange(on.suspended_by, {}), call);
    }
  }
  void end_off(process_row& which, time_point when, std::uint64_t turn) {
    if (which.off_since == never) return;
    slice(which.off, "process", "queues suspended or in doubt",
          std::exchange(which.off_since, never), when, turn);
  }
  void end_session(process_row& which, time_point when) {
    if (which.attached_since != never)
      slice(which.session, "session", "attached", std::exchange(which.attached_since, never), when,
            0);
    which.attaching_since = never;
    for (auto& [gpu, each] : which.lanes) {
      set_state(each, lane_state::unknown, when, 0);
      each.suspended_by = {};
    }
  }
  void mend(process_row& which, const process_picture& seen, time_point now, std::uint64_t turn) {
    if (seen.attach == attach_picture::none) end_session(which, now);
    if (!seen.off) end_off(which, now, turn);
    if (seen.off && which.off_since == never && which.row != 0) which.off_since = now;
    for (auto& [gpu, each] : which.lanes) {
      if (each.state == lane_state::unknown) continue;
      const auto on = std::ranges::find(seen.queues, gpu, &queues_on_gpu::gpu);
      const bool suspended = on != seen.queues.end() && on->suspended != 0;
      const bool in_doubt = on != seen.queues.end() && on->in_doubt != 0;
      // Of a command that is under way its answer will tell.
      if (in_doubt) continue;
      set_state(each, suspended ? lane_state::suspended : lane_state::running, now, turn);
      if (!suspended) each.suspended_by = {};
    }
  }
  void end(process_row& which, time_point when) {
    end_session(which, when);
    end_off(which, when, 0);
  }

  // GPUs ------------------------------------------------------------------------------------------

  gpu_row& gpu_of(gpu_id gpu) {
    gpu_row& which = gpus_[gpu];
    if (which.row != 0) return which;
    which.row = new_row();
    name_row(which.row, fmt::format("GPU {}", static_cast<std::uint32_t>(gpu)), 1);
    need(which.online, which.row, "online work", 0);
    need(which.preemption, which.row, "preemption", 1);
    need(which.breaker, which.row, "breaker", 2);
    return which;
  }
  void hear_of_gpu(const journal_entry& entry) {
    gpu_row& which = gpu_of(entry.gpu);
    switch (entry.kind) {
      case journal_kind::busy:
        if (which.busy_since != never) break;
        begin_busy(which,
                   which.begun_turn == entry.turn ? std::min(which.begun, entry.at) : entry.at,
                   entry.turn);
        break;
      case journal_kind::idle: end_busy(which, entry.at); break;
      case journal_kind::off:
        lead_from_arrival(
            which, slice(which.preemption, "preemption", "arrival until offline work is suspended",
                         entry.since, entry.until, entry.turn));
        break;
      case journal_kind::breaker_open:
        mark(which.breaker, "breaker", "opened: sluice suspends nothing on this GPU", entry);
        break;
      default: mark(which.breaker, "breaker", "closed", entry); break;
    }
  }
  void note_begin(gpu_row& which, const journal_entry& entry) {
    if (std::exchange(which.begun_turn, entry.turn) != entry.turn) which.begun = never;
    which.begun = std::min(which.begun, entry.since);
  }
  void begin_busy(gpu_row& which, time_point when, std::uint64_t turn) {
    which.busy_since = when;
    which.busy_turn = turn;
    ++which.period;
  }
  void end_busy(gpu_row& which, time_point when) {
    if (which.busy_since == never) return;
    which.over.push_back(slice(which.online, "online", "online work",
                               std::exchange(which.busy_since, never), when, which.busy_turn));
    if (which.over.size() > most_over) which.over.pop_front();
    std::erase_if(which.effects, [&](const effect& each) {
      if (each.room_for == which.period) arrow("makes room", which.over.back(), each.call);
      return each.room_for == which.period;
    });
  }
  /// From the online work that was in flight when it was handed over, once that stretch is written.
  /// Where none was, an arrival may have been the cause all the same, which is known when all is
  /// off.
  void lead_from_online(gpu_row& which, const effect& what) {
    const auto ago = static_cast<std::ptrdiff_t>(which.period - what.room_for);
    if (what.room_for == 0 || (ago == 0 && which.busy_since != never)) {
      if (which.effects.size() == most_effects) which.effects.erase(which.effects.begin());
      which.effects.push_back(what);
      return;
    }
    // The period in flight is none of those that are over.
    const auto back = which.busy_since != never ? ago : ago + 1;
    if (back <= std::ssize(which.over)) arrow("makes room", *(which.over.end() - back), what.call);
  }
  /// To the suspends since then; one before it made room for other work, or for none.
  void lead_from_arrival(gpu_row& which, const point& cause) {
    std::erase_if(which.effects, [&](const effect& each) {
      const bool leads = each.call.at >= cause.at;
      if (leads) arrow("makes room", cause, each.call);
      return leads || each.room_for == 0;
    });
  }

  // Clients ---------------------------------------------------------------------------------------

  client_row& client_of(client_id id, std::string_view name) {
    client_row& which = clients_[id];
    if (which.row != 0) return which;
    if (which.name.empty()) which.name = name;
    which.row = new_row();
    name_row(which.row, fmt::format("client {}", which.name), 1);
    return which;
  }
  void add_client(const journal_entry& entry) { client_of(entry.client, entry.words()); }
  void count(const journal_entry& entry) {
    client_row& which = client_of(entry.client, "?");
    std::int64_t& now = which.in_flight[entry.gpu];
    if (entry.kind == journal_kind::begin) note_begin(gpu_of(entry.gpu), entry);
    now += entry.kind == journal_kind::begin ? entry.count : -std::int64_t{entry.count};
    now = std::max<std::int64_t>(now, 0);  // where entries were lost
    begin_event('C', which.row, 0, at(entry.at),
                fmt::format("in flight, GPU {}", static_cast<std::uint32_t>(entry.gpu)));
    more(R"(,"args":{{"busy periods":{}}})", now);
    end_event();
  }
  void span(const journal_entry& entry) {
    if (entry.span == span_kind::itl) return;
    const client_row& which = client_of(entry.client, "?");
    const std::string_view name = to_string(entry.span);
    const microsecond begin = at(entry.since);
    ++spans_;
    begin_event('b', which.row, 0, begin, name);
    more(R"(,"cat":"span","id":{},"args":{{"request":{},"abandoned":{}}})", spans_, entry.number,
         entry.kind == journal_kind::span_abandoned);
    end_event();
    begin_event('e', which.row, 0, std::max(at(entry.until), begin), name);
    more(R"(,"cat":"span","id":{})", spans_);
    end_event();
  }

  trace_file& to_;
  timeline_options options_;
  std::string text_;
  time_point base_ = never;
  time_point last_{};
  int next_row_ = first_own_row;
  int tracks_ = 0;
  std::uint64_t arrows_ = 0;
  std::uint64_t spans_ = 0;
  std::set<pid_t> rows_;
  track scheduler_;
  std::map<process_id, process_row> processes_;
  std::map<gpu_id, gpu_row> gpus_;
  std::map<client_id, client_row> clients_;
};

timeline::timeline(trace_file& to, timeline_options options)
    : impl_(std::make_unique<impl>(to, std::move(options))) {}
timeline::~timeline() = default;

void timeline::hear(const journal_entry& entry) { impl_->hear(entry); }
void timeline::missed(std::uint64_t entries) { impl_->missed(entries); }
void timeline::mend(const picture& now) { impl_->mend(now); }
void timeline::finish(time_point now) { impl_->finish(now); }

}  // namespace sluice::observe
