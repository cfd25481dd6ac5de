#include "sluice/observe/metrics.hpp"

#include "metrics_text.hpp"
#include "seconds.hpp"
#include "time_buckets.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

namespace sluice::observe {
namespace {

std::string name_of(gpu_id gpu) { return std::to_string(static_cast<std::uint32_t>(gpu)); }

constexpr std::array commands{command_kind::suspend, command_kind::resume};
constexpr std::string_view name_of(command_kind what) {
  return what == command_kind::suspend ? "suspend" : "resume";
}

constexpr std::array causes{breaker_cause::preemption_failed, breaker_cause::reset,
                            breaker_cause::stuck_call};
constexpr std::string_view name_of(breaker_cause why) {
  switch (why) {
    case breaker_cause::preemption_failed: return "preemption_failed";
    case breaker_cause::reset: return "reset";
    case breaker_cause::stuck_call: break;
  }
  return "stuck_call";
}

/// As a label: one word.
constexpr std::array rules{
    std::pair{journal_rule::policy, std::string_view{"policy"}},
    std::pair{journal_rule::expired, std::string_view{"expired"}},
    std::pair{journal_rule::no_policy, std::string_view{"no_policy"}},
    std::pair{journal_rule::max_suspend, std::string_view{"max_suspend"}},
    std::pair{journal_rule::offline_floor, std::string_view{"offline_floor"}},
    std::pair{journal_rule::not_manageable, std::string_view{"not_manageable"}},
    std::pair{journal_rule::refused, std::string_view{"refused"}},
    std::pair{journal_rule::not_offline, std::string_view{"not_offline"}},
    std::pair{journal_rule::stop, std::string_view{"stop"}},
    std::pair{journal_rule::peers, std::string_view{"peers"}}};

/// Times in one state, whose current one counts as well.
class stretch {
 public:
  void begin(time_point at) {
    if (since_ == never) since_ = at;
  }
  void end(time_point at) {
    if (since_ != never) total_ += std::max(at - since_, duration::zero());
    since_ = never;
  }
  bool open() const { return since_ != never; }
  duration until(time_point now) const {
    return total_ + (since_ == never ? duration::zero() : std::max(now - since_, duration::zero()));
  }

 private:
  time_point since_ = never;
  duration total_{};
};

struct per_command {
  time_buckets calls;
  std::uint64_t errors = 0;
  std::uint64_t queues = 0;
};

struct per_gpu {
  std::array<per_command, commands.size()> by_command;
  std::array<std::uint64_t, causes.size()> breakers{};
  std::uint64_t failed = 0;
  std::uint64_t invalid = 0;
  std::uint64_t gone = 0;
  time_buckets off;
  stretch busy;
};

struct per_group {
  std::uint64_t processes = 0;  ///< Now.
  std::uint64_t suspensions = 0;
  duration suspended{};
  std::uint64_t off = 0;  ///< Processes that are suspended now.
  std::uint64_t holds = 0;
  stretch held;         ///< While `off` is not 0.
  bool listed = false;  ///< On the page, once anything is to be said of it.
  duration shown{};     ///< At most: one that went on although it had ended is not taken back.
  duration held_shown{};
  time_point last{};
};

struct member {
  std::string group;
  role what = role::unmatched;
  stretch off;
  std::uint64_t suspensions = 0;
  duration suspended{};  ///< But for `off`.
};

}  // namespace

struct metrics::counts {
  std::map<gpu_id, per_gpu> gpus;
  std::map<std::string, per_group> groups;
  std::map<process_id, member> processes;
  std::array<std::uint64_t, rules.size()> let_go{};
  std::array<std::uint64_t, rules.size()> forced{};
  std::uint64_t held = 0;
  std::uint64_t missed = 0;
  time_buckets suspensions;
  span_targets targets{};
  std::array<std::uint64_t, span_kinds> late{};  ///< Spans, by span_kind.

  per_group& group(const std::string& name) { return groups[name]; }
  /// Under which name a group counts.
  std::string shown(const std::string& name) const {
    return groups.contains(name) || groups.size() < most_groups ? name : "other";
  }
  void begin_suspensions(member& of, std::uint64_t count) {
    group(of.group).suspensions += count;
    of.suspensions += count;
  }
  void begin_off(member& of, time_point since) {
    per_group& in = group(of.group);
    if (!of.off.open() && in.off++ == 0) {
      ++in.holds;
      in.held.begin(since);
    }
    of.off = {};
    of.off.begin(since);
  }
  void end_off(member& of, time_point at) {
    per_group& in = group(of.group);
    if (of.off.open() && --in.off == 0) in.held.end(at);
    of.off = {};
  }
  void end_suspension(member& of, duration length, time_point at) {
    per_group& in = group(of.group);
    in.suspended += length;
    in.last = at;
    suspensions.record(length);
    of.suspended += length;
    if (!of.off.open()) begin_off(of, at - length);
    end_off(of, at);
  }
  void drop(member& of, time_point at) {
    if (of.off.open()) end_suspension(of, of.off.until(at), at);
    per_group& in = group(of.group);
    --in.processes;
    in.last = at;
  }
};

metrics::metrics(process_reader read)
    : counts_(std::make_unique<counts>()), read_(std::move(read)) {}
metrics::~metrics() = default;

void metrics::aim(const span_targets& targets) { counts_->targets = targets; }

void metrics::hear(const journal_entry& entry) {
  counts& to = *counts_;
  const auto process = to.processes.find(entry.process);
  const auto rule = static_cast<std::size_t>(entry.why);
  switch (entry.kind) {
    case journal_kind::process: {
      if (process != to.processes.end()) {
        process->second.what = entry.what;
        break;
      }
      const std::string name = to.shown(read_(entry.pid, entry.start_time).group);
      to.processes[entry.process] = {.group = name, .what = entry.what, .off = {}};
      per_group& in = to.group(name);
      ++in.processes;
      in.last = entry.at;
      break;
    }
    case journal_kind::process_gone:
      if (process == to.processes.end()) break;
      to.drop(process->second, entry.at);
      to.processes.erase(process);
      break;
    case journal_kind::process_off:
      if (process == to.processes.end()) break;
      if (!process->second.off.open()) to.begin_off(process->second, entry.at);
      to.begin_suspensions(process->second, 1);
      break;
    case journal_kind::process_on:
      if (process == to.processes.end()) break;
      if (!process->second.off.open()) to.begin_suspensions(process->second, 1);  // that was lost
      to.end_suspension(process->second, entry.length, entry.at);
      break;
    case journal_kind::span_end:
      if (const auto kind = static_cast<std::size_t>(entry.span);
          kind < span_kinds && to.targets[kind] != duration{} && entry.length > to.targets[kind])
        ++to.late[kind];
      break;
    case journal_kind::held: ++to.held; break;
    case journal_kind::let_go:
      if (rule < rules.size()) ++to.let_go[rule];
      break;
    case journal_kind::forced:
      if (rule < rules.size()) ++to.forced[rule];
      break;
    case journal_kind::done: {
      per_gpu& on = to.gpus[entry.gpu];
      per_command& by = on.by_command[entry.command == command_kind::suspend ? 0 : 1];
      by.calls.record(entry.until - entry.since);
      if (entry.error != 0) ++by.errors;
      const auto not_done = static_cast<std::uint32_t>(entry.failed + entry.invalid + entry.gone);
      if (entry.error == 0) by.queues += entry.count - std::min(entry.count, not_done);
      on.failed += entry.failed;
      on.invalid += entry.invalid;
      on.gone += entry.gone;
      break;
    }
    case journal_kind::busy: to.gpus[entry.gpu].busy.begin(entry.at); break;
    case journal_kind::idle: to.gpus[entry.gpu].busy.end(entry.at); break;
    case journal_kind::off: to.gpus[entry.gpu].off.record(entry.length); break;
    case journal_kind::breaker_open:
      if (const auto cause = static_cast<std::size_t>(entry.cause); cause < causes.size())
        ++to.gpus[entry.gpu].breakers[cause];
      break;
    default: break;
  }
}

void metrics::missed(std::uint64_t entries) { counts_->missed += entries; }

void metrics::mend(const picture& now) {
  counts& to = *counts_;
  std::set<process_id> there;
  for (const group_picture& group : now.groups) {
    for (const process_picture& each : group.processes) {
      there.insert(each.id);
      hear({.kind = journal_kind::process,
            .what = each.what,
            .pid = each.pid,
            .process = each.id,
            .start_time = each.start_time,
            .at = now.at});
      member& of = to.processes.at(each.id);
      const duration current = each.off ? now.at - each.off_since : duration::zero();
      const duration lost = each.off_total - current - of.suspended;
      if (each.off_count > of.suspensions)
        to.begin_suspensions(of, each.off_count - of.suspensions);
      if (lost > duration::zero()) {
        time_point end = each.off ? each.off_since : now.at;
        if (of.off.open()) end = std::min(end, now.at - of.off.until(now.at) + lost);
        to.end_suspension(of, lost, end);
      }
      if (each.off)
        to.begin_off(of, each.off_since);
      else
        to.end_off(of, now.at);
    }
  }
  for (auto& [id, each] : to.processes)
    if (!there.contains(id)) to.drop(each, now.at);
  std::erase_if(to.processes, [&](const auto& each) { return !there.contains(each.first); });
  for (const gpu_picture& each : now.gpus) {
    stretch& busy = to.gpus[each.id].busy;
    if (each.busy)
      busy.begin(now.at);
    else
      busy.end(now.at);
  }
}

void metrics::begin_anew(time_point now) {
  for (auto& [id, each] : counts_->processes) counts_->drop(each, now);
  counts_->processes.clear();
  for (auto& [id, each] : counts_->gpus) each.busy.end(now);
}

void metrics::tick(time_point now) {
  std::erase_if(counts_->groups, [&](const auto& each) {
    return each.second.processes == 0 && now - each.second.last > forget_after;
  });
}

namespace {

/// Writes everything, in one order.
class page {
 public:
  page(metrics_form form, const metrics_moment& moment, time_point now)
      : text_(form), moment_(moment), now_(now) {}

  void of_node() {
    text_.family("sluice_build", metric_type::info, "Version of the running program.");
    text_.sample({{"version", SLUICE_VERSION}}, std::uint64_t{1});
    const auto flag = [this](std::string_view name, bool is, std::string_view help) {
      text_.family(name, metric_type::gauge, help);
      text_.sample({}, std::uint64_t{is ? 1U : 0U});
    };
    flag("sluice_owns_node", moment_.owns, "1 if this program owns the node, else 0.");
    flag("sluice_paused", moment_.paused, "1 if 'sluice pause' keeps all work running, else 0.");
    flag("sluice_driver_gone", moment_.driver_gone,
         "1 if the driver's files disappeared or became unreadable, else 0.");
    flag("sluice_gangs_disconnected", moment_.without_gangs,
         "1 if gangs on several nodes run because sluice-gangs is not connected, else 0.");
    flag(
        "sluice_enforces", moment_.enforces,
        "1 in mode enforce; 0 in mode observe, which counts suspends but does not carry them out.");
  }

  void of_statistics() {
    if (moment_.counted == nullptr) return;
    const statistics& from = *moment_.counted;
    for (const counter_row& each : counter_rows) {
      if (each.has_labels) continue;
      const std::uint64_t value = from.*each.of;
      text_.family("sluice_" + std::string{each.metric_name()},
                   each.kind == counter_kind::gauge ? metric_type::gauge : metric_type::counter,
                   each.help);
      if (each.unit == "ns")
        text_.sample({}, seconds(duration(static_cast<duration::rep>(value))));
      else
        text_.sample({}, value);
    }
    for (const histogram_row& each : histogram_rows) {
      if (each.has_labels) continue;
      text_.family("sluice_" + std::string{each.metric} + "_seconds", metric_type::histogram,
                   each.help);
      buckets_of({}, from.*each.of);
    }
    text_.family("sluice_span_seconds", metric_type::histogram,
                 "Request latency reported by clients.");
    for (std::size_t i = 0; i < span_kinds; ++i) {
      const auto kind = static_cast<span_kind>(i);
      buckets_of({{"span", to_string(kind)}}, from.span_length[i]);
    }
  }

  void of_targets(const span_targets& targets, std::span<const std::uint64_t> late) {
    text_.family("sluice_span_target_seconds", metric_type::gauge,
                 "Target of the policy: 99 % of the spans take at most this time.");
    for (std::size_t i = 0; i < span_kinds; ++i)
      if (targets[i] != duration{})
        text_.sample({{"span", to_string(static_cast<span_kind>(i))}}, seconds(targets[i]));
    text_.family("sluice_late_spans", metric_type::counter,
                 "Spans that took longer than the policy's target.");
    for (std::size_t i = 0; i < span_kinds; ++i)
      text_.sample({{"span", to_string(static_cast<span_kind>(i))}}, late[i]);
  }

  void of_picture() {
    if (moment_.seen == nullptr) return;
    const picture& seen = *moment_.seen;
    text_.family("sluice_scheduler", metric_type::info,
                 "Policy and backend in use, and whether the device is simulated.");
    text_.sample({{"policy", seen.policy},
                  {"backend", seen.backend},
                  {"simulated", moment_.simulated ? "true" : "false"}},
                 std::uint64_t{1});
    gauge_of_gpus("sluice_online_in_flight",
                  "Online busy periods in flight, as reported by clients.",
                  [](const gpu_picture& each) { return each.online_in_flight; });
    gauge_of_gpus("sluice_online_busy",
                  "1 if clients or queue pointers show online work in flight, else 0.",
                  [](const gpu_picture& each) { return each.busy ? 1U : 0U; });
    gauge_of_gpus("sluice_breaker_open",
                  "1 if the GPU's breaker is open and suspends are off, else 0.",
                  [](const gpu_picture& each) { return each.breaker_open ? 1U : 0U; });
    gauge_of_gpus("sluice_offline_queues_on",
                  "Offline queues that sluice can suspend and that run, or whose state is unknown.",
                  [](const gpu_picture& each) { return each.not_off; });
    queues(seen);
    text_.family("sluice_clients", metric_type::gauge, "Registered online clients.");
    text_.sample({}, std::uint64_t{seen.clients.size()});
  }

  template <class Gpus>
  void of_gpus(const Gpus& gpus) {
    text_.family(
        "sluice_driver_call_seconds", metric_type::histogram,
        "Duration of one driver call that suspends or resumes a process's queues on one GPU.");
    by_command(gpus, [this](labels with, const per_command& of) {
      text_.buckets(with, bound_words, of.calls.counts(), of.calls.all(), of.calls.sum());
    });
    text_.family("sluice_driver_call_errors", metric_type::counter,
                 "Driver calls that failed to suspend or resume.");
    by_command(gpus, [this](labels with, const per_command& of) { text_.sample(with, of.errors); });
    text_.family("sluice_queue_commands", metric_type::counter, "Queues suspended or resumed.");
    by_command(gpus, [this](labels with, const per_command& of) { text_.sample(with, of.queues); });
    text_.family("sluice_queue_failures", metric_type::counter,
                 "Queues that a command did not suspend or resume, by outcome.");
    for (const auto& [gpu, of] : gpus) {
      const std::string name = name_of(gpu);
      text_.sample({{"gpu", name}, {"outcome", "failed"}}, of.failed);
      text_.sample({{"gpu", name}, {"outcome", "invalid"}}, of.invalid);
      text_.sample({{"gpu", name}, {"outcome", "target_gone"}}, of.gone);
    }
    text_.family("sluice_arrival_to_off_seconds", metric_type::histogram,
                 "Time from an online arrival until all offline queues that sluice can suspend on "
                 "the GPU were suspended.");
    for (const auto& [gpu, of] : gpus)
      text_.buckets({{"gpu", name_of(gpu)}}, bound_words, of.off.counts(), of.off.all(),
                    of.off.sum());
    text_.family("sluice_online_busy_seconds", metric_type::counter,
                 "Time with online work in flight.");
    for (const auto& [gpu, of] : gpus)
      text_.sample({{"gpu", name_of(gpu)}}, seconds(of.busy.until(now_)));
    text_.family("sluice_breaker_opens", metric_type::counter,
                 "Number of times that a breaker opened, by cause.");
    for (const auto& [gpu, of] : gpus)
      for (std::size_t i = 0; i < causes.size(); ++i)
        text_.sample({{"gpu", name_of(gpu)}, {"cause", name_of(causes[i])}}, of.breakers[i]);
  }

  /// Who has the driver open and neither a role nor a queue does not use a GPU: the daemon and its
  /// agent, a monitor.
  template <class Groups, class Processes>
  void of_groups(Groups& groups, const Processes& processes) {
    std::set<process_id> with_queues;
    if (moment_.seen != nullptr)
      for (const group_picture& group : moment_.seen->groups)
        for (const process_picture& each : group.processes)
          if (!each.queues.empty()) with_queues.insert(each.id);
    std::map<std::string, std::uint64_t> users;
    for (const auto& [name, of] : groups)
      if (of.listed || of.suspensions != 0) users[name] = 0;
    std::map<std::string, duration> now_off;
    std::array<std::uint64_t, 3> by_role{};
    for (const auto& [id, each] : processes) {
      now_off[each.group] += each.off.until(now_);
      if (each.what == role::unmatched && !with_queues.contains(id)) continue;
      ++users[each.group];
      if (const auto what = static_cast<std::size_t>(each.what); what < by_role.size())
        ++by_role[what];
    }
    text_.family("sluice_group_processes", metric_type::gauge,
                 "Processes of the group that use a GPU.");
    for (const auto& [name, count] : users) text_.sample({{"group", name}}, count);
    text_.family("sluice_group_suspensions", metric_type::counter,
                 "Number of times that a process of the group was suspended.");
    for (const auto& [name, count] : users)
      text_.sample({{"group", name}}, groups.at(name).suspensions);
    text_.family("sluice_group_suspended_seconds", metric_type::counter,
                 "Time that processes of the group were suspended, summed over processes.");
    for (const auto& [name, count] : users) {
      auto& of = groups.at(name);
      of.listed = true;
      of.shown = std::max(of.shown, of.suspended + now_off[name]);
      text_.sample({{"group", name}}, seconds(of.shown));
    }
    text_.family("sluice_group_holds", metric_type::counter,
                 "Number of times that processes of the group were suspended. Suspensions that "
                 "overlap count once.");
    for (const auto& [name, count] : users) text_.sample({{"group", name}}, groups.at(name).holds);
    text_.family("sluice_group_held_seconds", metric_type::counter,
                 "Time in which at least one process of the group was suspended.");
    for (const auto& [name, count] : users) {
      auto& of = groups.at(name);
      of.held_shown = std::max(of.held_shown, of.held.until(now_));
      text_.sample({{"group", name}}, seconds(of.held_shown));
    }
    text_.family("sluice_processes", metric_type::gauge, "Processes that use a GPU, by role.");
    for (std::size_t i = 0; i < by_role.size(); ++i)
      text_.sample({{"role", to_string(static_cast<role>(i))}}, by_role[i]);
  }

  void of_decisions(std::uint64_t held, std::span<const std::uint64_t> let_go,
                    std::span<const std::uint64_t> forced) {
    counter("holds", "Number of times that the scheduler began to hold a group.", held);
    by_rule("sluice_releases", "Holds that ended, by reason.", let_go,
            [](journal_rule) { return true; });
    by_rule("sluice_forced_runs",
            "Number of times that a limit forced a held group to run, by limit.", forced,
            [](journal_rule each) {
              return each == journal_rule::max_suspend || each == journal_rule::offline_floor;
            });
  }

  void of_suspensions(const time_buckets& from) {
    text_.family("sluice_suspension_seconds", metric_type::histogram,
                 "Duration of one suspension of a process.");
    text_.buckets({}, bound_words, from.counts(), from.all(), from.sum());
  }

  template <class Number>
  void counter(std::string_view name, std::string_view help, Number value) {
    text_.family("sluice_" + std::string{name}, metric_type::counter, help);
    text_.sample({}, value);
  }

  std::string take() { return text_.take(); }

 private:
  void buckets_of(labels with, const histogram& of) {
    std::array<std::uint64_t, bounds.size()> counts{};
    const std::uint64_t all = of.counts_up_to(bounds, counts);
    text_.buckets(with, bound_words, counts, all, of.sum());
  }
  template <class Value>
  void gauge_of_gpus(std::string_view name, std::string_view help, Value value) {
    text_.family(name, metric_type::gauge, help);
    for (const gpu_picture& each : moment_.seen->gpus)
      text_.sample({{"gpu", name_of(each.id)}}, std::uint64_t{value(each)});
  }
  template <class Gpus, class Write>
  void by_command(const Gpus& gpus, Write write) {
    for (const auto& [gpu, of] : gpus)
      for (std::size_t i = 0; i < commands.size(); ++i)
        write({{"gpu", name_of(gpu)}, {"command", name_of(commands[i])}}, of.by_command[i]);
  }
  /// \param may what there can be: its zero as well, for increase() needs a value before the first.
  template <class May>
  void by_rule(std::string_view name, std::string_view help, std::span<const std::uint64_t> values,
               May may) {
    text_.family(name, metric_type::counter, help);
    for (const auto& [rule, word] : rules)
      if (const std::uint64_t value = values[static_cast<std::size_t>(rule)];
          value != 0 || may(rule))
        text_.sample({{"why", word}}, value);
  }
  void queues(const picture& seen) {
    struct states {
      std::uint64_t running = 0, suspended = 0, in_doubt = 0;
    };
    std::map<std::pair<gpu_id, role>, states> found;
    for (const group_picture& group : seen.groups)
      for (const process_picture& each : group.processes)
        for (const queues_on_gpu& on : each.queues) {
          states& to = found[{on.gpu, each.what}];
          const std::uint64_t all = std::uint64_t{on.compute} + on.others;
          to.suspended += on.suspended;
          to.in_doubt += on.in_doubt;
          to.running += all - std::min<std::uint64_t>(all, on.suspended + on.in_doubt);
        }
    text_.family("sluice_queues", metric_type::gauge, "Queues by GPU, role and state.");
    for (const auto& [key, of] : found) {
      const std::string gpu = name_of(key.first);
      const std::string_view what = to_string(key.second);
      text_.sample({{"gpu", gpu}, {"role", what}, {"state", "running"}}, of.running);
      text_.sample({{"gpu", gpu}, {"role", what}, {"state", "suspended"}}, of.suspended);
      text_.sample({{"gpu", gpu}, {"role", what}, {"state", "in_doubt"}}, of.in_doubt);
    }
  }

  metrics_text text_;
  const metrics_moment& moment_;
  time_point now_;
};

}  // namespace

std::string metrics::text(metrics_form form, const metrics_moment& moment, time_point now) const {
  counts& from = *counts_;
  // Each from its zero on.
  if (moment.seen != nullptr)
    for (const gpu_picture& each : moment.seen->gpus) from.gpus.try_emplace(each.id);
  page made(form, moment, now);
  made.of_node();
  made.of_picture();
  made.of_gpus(from.gpus);
  made.of_groups(from.groups, from.processes);
  made.of_suspensions(from.suspensions);
  made.of_decisions(from.held, from.let_go, from.forced);
  made.of_statistics();
  made.of_targets(from.targets, from.late);
  made.counter(
      "journal_lost",
      "Journal entries lost because the reader was too slow; other metrics do not include them.",
      from.missed);
  return made.take();
}

}  // namespace sluice::observe
