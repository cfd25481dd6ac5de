#include "status_json.hpp"

#include "numbers.hpp"
#include "words.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <string_view>
#include <vector>

#include <boost/json.hpp>
#include <spdlog/fmt/fmt.h>

#include "sluice/duration_text.hpp"

namespace sluice {
namespace {

namespace json = boost::json;

double ms(duration value) { return std::chrono::duration<double, std::milli>(value).count(); }

/// "12:00:01" here.
std::string clock_text(const wall_moment& now, time_point at) {
  const std::time_t seconds = now.unix_ms(at) / 1000;
  std::tm parts{};
  if (::localtime_r(&seconds, &parts) == nullptr) return "?";
  return fmt::format("{:02}:{:02}:{:02}", parts.tm_hour, parts.tm_min, parts.tm_sec);
}

/// For people; null where the journal has not told of it yet.
json::value group_number(const history& past, group_id id) {
  const auto* const known = past.find(id);
  return known == nullptr ? json::value(nullptr) : json::value(known->number);
}

std::string group_words(const history& past, group_id id) {
  const auto* const known = past.find(id);
  return known == nullptr ? "a new group" : fmt::format("group g{}", known->number);
}

json::value time_or_null(const wall_moment& now, time_point at) {
  return at == never || at == time_point{} ? json::value(nullptr) : json::value(now.unix_ms(at));
}

std::string_view text_of(run_state value) {
  switch (value) {
    case run_state::running: return "running";
    case run_state::suspending: return "suspending";
    case run_state::suspended: return "suspended";
    case run_state::resuming: return "resuming";
    case run_state::mixed: break;
  }
  return "mixed";
}

std::string_view text_of(online_work value) {
  switch (value) {
    case online_work::unknown: return "unknown";
    case online_work::waiting: return "waiting";
    case online_work::consumed: return "consumed";
    case online_work::finished: return "finished";
    case online_work::running: break;
  }
  return "running";
}

std::string_view text_of(attach_picture value) {
  switch (value) {
    case attach_picture::none: return "none";
    case attach_picture::attaching: return "attaching";
    case attach_picture::attached: return "attached";
    case attach_picture::detaching: break;
  }
  return "detaching";
}

std::string_view text_of(history::outcome value) {
  switch (value) {
    case history::outcome::pending: return "pending";
    case history::outcome::done: return "done";
    case history::outcome::partly: return "partly";
    case history::outcome::failed: return "failed";
    case history::outcome::refused: return "refused";
    case history::outcome::unknown: break;
  }
  return "unknown";
}

std::string_view text_of(journal_kind value) {
  switch (value) {
    case journal_kind::held: return "held";
    case journal_kind::let_go: return "let_go";
    case journal_kind::forced: return "forced";
    case journal_kind::attach: return "attach";
    case journal_kind::detach: return "detach";
    default: return "mend";
  }
}

json::object histogram_json(const histogram& of) {
  return {{"count", of.count()},
          {"p50_ms", ms(of.percentile(50))},
          {"p99_ms", ms(of.percentile(99))},
          {"max_ms", ms(of.max())}};
}

json::object statistics_json(const statistics& of) {
  json::object made;
  json::object failures;
  json::object limits;  // No failures: what the limits are there for.
  for (const counter_row& each : counter_rows) {
    json::object& to = each.place == counter_place::failure ? failures
                       : each.place == counter_place::limit ? limits
                                                            : made;
    to[each.name] = (of.*each.of).value();
  }
  made["failures"] = std::move(failures);
  made["limits"] = std::move(limits);
  for (const histogram_row& each : histogram_rows) made[each.name] = histogram_json(of.*each.of);
  return made;
}

/// Of what can be lately: the window, or less where the history began later.
double share(duration part, const history& past, time_point now, std::size_t places = 1) {
  const duration window = std::min(last_minute::window(now), now - past.began());
  if (window <= duration::zero() || places == 0) return 0;
  const double whole = static_cast<double>(window.count()) * static_cast<double>(places);
  return std::clamp(static_cast<double>(part.count()) / whole, 0.0, 1.0);
}

/// A number of queues.
class queue_sum {
 public:
  /// \param count one of the counts of `on`.
  void add(const queues_on_gpu& on, std::uint32_t count) {
    known_ = known_ && (!on.unlisted || count == 0);
    sum_ += count;
  }
  /// null: it is unknown, because the driver does not list some of the queues.
  json::value number_or_null() const { return known_ ? json::value(sum_) : json::value(nullptr); }

 private:
  std::uint64_t sum_ = 0;
  bool known_ = true;
};

struct queue_count {
  queue_sum online;
  queue_sum offline;
  queue_sum suspended;
  queue_sum in_doubt;
};

std::map<gpu_id, queue_count> count_queues(const picture& seen) {
  std::map<gpu_id, queue_count> counts;
  for (const group_picture& group : seen.groups) {
    for (const process_picture& process : group.processes) {
      for (const queues_on_gpu& on : process.queues) {
        queue_count& here = counts[on.gpu];
        if (process.what == role::online) here.online.add(on, on.compute);
        if (process.what == role::offline) here.offline.add(on, on.compute);
        here.suspended.add(on, on.suspended);
        here.in_doubt.add(on, on.in_doubt);
      }
    }
  }
  return counts;
}

json::object gpu_json(const gpu_picture& gpu, const queue_count& queues, const history& past,
                      const node_view* memory, const wall_moment& now) {
  json::object made{
      {"gpu_id", number(gpu.id)},
      {"slots", gpu.slots == 0 ? json::value(nullptr) : json::value(gpu.slots)},
      {"online_queues", queues.online.number_or_null()},
      {"offline_queues", queues.offline.number_or_null()},
      {"suspended_queues", queues.suspended.number_or_null()},
      {"in_doubt_queues", queues.in_doubt.number_or_null()},
      {"not_off_queues", gpu.not_off},
      {"online_in_flight", gpu.online_in_flight},
      {"online_work", text_of(gpu.work)},
      {"online_waiting", gpu.online_waiting},
      {"online_waiting_since_unix_ms", time_or_null(now, gpu.online_waiting_since)},
      {"online_running_since_unix_ms", time_or_null(now, gpu.online_running_since)},
      {"busy", gpu.busy},
      {"last_begin_unix_ms", time_or_null(now, gpu.last_begin)},
      {"last_end_unix_ms", time_or_null(now, gpu.last_end)},
      {"suspend_cost_ms", ms(gpu.suspend_cost)},
      {"resume_cost_ms", ms(gpu.resume_cost)},
      {"breaker_open", gpu.breaker_open},
      {"breaker_until_unix_ms",
       gpu.breaker_open ? time_or_null(now, gpu.breaker_until) : json::value(nullptr)}};
  const auto cause = gpu.breaker_open ? past.breaker_cause_of(gpu.id) : std::nullopt;
  made["breaker_cause"] = cause ? json::value(words_of_cause(*cause)) : json::value(nullptr);
  const auto times = past.times_of(gpu.id, now.steady);
  made["busy_share"] = share(times.busy_lately, past, now.steady);
  made["suspended_share"] = share(times.suspended_lately, past, now.steady);
  made["gained_ms"] = ms(times.gained);
  json::value total(nullptr);
  json::value used(nullptr);
  made["ordinal"] = nullptr;
  made["pci"] = nullptr;
  if (memory != nullptr) {
    if (const auto bytes = memory->used_vram(gpu.id)) used = *bytes;
    if (const auto* const board = memory->find(gpu.id)) {
      if (board->vram) total = *board->vram;
      made["ordinal"] = board->ordinal;
      made["pci"] = board->pci;
    }
  }
  made["vram_bytes"] = std::move(total);
  made["vram_used_bytes"] = std::move(used);
  return made;
}

std::string name_of(const process_picture& process, const history& past) {
  const auto* const known = past.find(process.id);
  return known != nullptr ? known->command : std::string();
}

const roles::role_reason* reason_of(const process_picture& process, const beside_picture& beside) {
  if (beside.roles == nullptr) return nullptr;
  const auto found = beside.roles->find({process.pid, process.start_time});
  // One of another role is older than the picture, or younger.
  return found != beside.roles->end() && found->second.is == process.what ? &found->second
                                                                          : nullptr;
}

/// Who traces the process, where that may be what keeps it from being attached; else empty.
std::string blocker_of(const process_picture& process, const beside_picture& beside) {
  if (beside.node == nullptr || process.attach != attach_picture::none ||
      process.attach_failures == 0)
    return {};
  for (const auto& each : beside.node->processes)
    if (each.pid == process.pid && each.start_time == process.start_time && each.tracer != 0)
      return words_of_tracer(each.tracer);
  return {};
}

/// Of the last attach; empty: it did not fail.
std::string attach_failure(const process_picture& process, const history& past,
                           const beside_picture& beside) {
  const auto* const known = past.find(process.id);
  std::string text = known != nullptr ? known->attach_failure : std::string();
  if (!text.empty() && !process.attach_why.empty()) text = printable(process.attach_why);
  if (const std::string by = blocker_of(process, beside); !by.empty())
    text += (text.empty() ? "" : ": ") + ("traced by " + by);
  return text;
}

json::object process_json(const process_picture& process, const std::string& name,
                          const history& past, const beside_picture& beside,
                          const wall_moment& now) {
  const roles::role_reason* const reason = reason_of(process, beside);
  const std::string by = blocker_of(process, beside);
  json::array queues;
  for (const queues_on_gpu& on : process.queues) {
    const auto count = [&on](std::uint32_t value) {
      queue_sum sum;
      sum.add(on, value);
      return sum.number_or_null();
    };
    queues.push_back(
        json::object{{"gpu_id", number(on.gpu)},
                     {"compute", count(on.compute)},
                     {"others", on.unlisted ? json::value(nullptr) : json::value(on.others)},
                     {"suspended", count(on.suspended)},
                     {"in_doubt", count(on.in_doubt)}});
  }
  return {{"pid", process.pid},
          {"start_time", process.start_time},
          {"command", name},
          {"role", to_string(process.what)},
          {"role_rule", reason != nullptr ? json::value(to_string(reason->rule)) : nullptr},
          {"role_bar", reason != nullptr ? json::value(to_string(reason->bar)) : nullptr},
          {"role_why", reason != nullptr ? json::value(to_text(*reason)) : nullptr},
          {"priority", process.priority},
          {"own", process.own},
          {"attach", text_of(process.attach)},
          {"attach_refused", process.attach_refused},
          {"attach_failures", process.attach_failures},
          {"attach_failure", attach_failure(process, past, beside)},
          {"attach_blocked_by", by.empty() ? json::value(nullptr) : json::value(by)},
          {"attach_again_unix_ms", process.attach == attach_picture::none
                                       ? time_or_null(now, process.attach_again)
                                       : json::value(nullptr)},
          {"seen_since_unix_ms", now.unix_ms(process.seen_since)},
          {"off", process.off},
          {"off_since_unix_ms",
           process.off ? json::value(now.unix_ms(process.off_since)) : json::value(nullptr)},
          {"off_count", process.off_count},
          {"off_ms", ms(process.off_total)},
          {"off_longest_ms", ms(process.off_longest)},
          {"queues", std::move(queues)}};
}

std::vector<gpu_id> gpus_of(const group_picture& group) {
  std::vector<gpu_id> all;
  for (const auto& process : group.processes)
    for (const auto& on : process.queues)
      if (on.compute != 0 && std::find(all.begin(), all.end(), on.gpu) == all.end())
        all.push_back(on.gpu);
  std::sort(all.begin(), all.end());
  return all;
}

json::object group_json(const group_picture& group, const history::loss& lost, const history& past,
                        const beside_picture& beside, const wall_moment& now) {
  const auto on = gpus_of(group);
  queue_sum queues;
  queue_sum suspended;
  std::size_t places = 0;
  std::string name;
  bool one_name = true;
  json::array processes;
  for (const auto& process : group.processes) {
    for (const auto& each : process.queues) {
      queues.add(each, each.compute);
      suspended.add(each, each.suspended);
      if (each.compute != 0) ++places;
    }
    const std::string of_process = name_of(process, past);
    if (processes.empty()) name = of_process;
    one_name = one_name && of_process == name;
    processes.push_back(process_json(process, of_process, past, beside, now));
  }
  if (!one_name) name += ",...";
  if (group.processes.size() > 1) name = fmt::format("{} x{}", name, group.processes.size());

  duration gained{};
  duration gained_lately{};
  const auto* const known = past.find(group.id);
  if (group.what == role::online && known != nullptr) {
    for (const gpu_id each : on) {
      const auto by = past.gained_by(*known, each, now.steady);
      gained += by.all;
      gained_lately += by.lately;
    }
  }
  json::array gpus;
  for (const gpu_id each : on) gpus.push_back(number(each));
  return {
      {"group", group_number(past, group.id)},
      {"group_id", number(group.id)},
      {"role", to_string(group.what)},
      {"gang", group.gang},
      {"nodes", std::max(group.nodes, 1U)},
      {"peers_answer", group.nodes >= 2 ? json::value(group.peers_answer) : json::value(nullptr)},
      {"name", name},
      {"state", text_of(group.actual)},
      {"state_since_unix_ms", time_or_null(now, group.state_since)},
      {"manageable", group.manageable},
      {"wanted_off", group.wanted_off},
      {"wanted_until_unix_ms",
       group.wanted_off ? time_or_null(now, group.wanted_until) : json::value(nullptr)},
      {"must_run_at_unix_ms", time_or_null(now, group.must_run_at)},
      {"held", group.held},
      {"forced", group.forced},
      {"gpus", std::move(gpus)},
      {"compute_queues", queues.number_or_null()},
      {"suspended_queues", suspended.number_or_null()},
      {"lost_ms", ms(lost.all)},
      {"lost_share", share(lost.lately, past, now.steady, places)},
      {"gained_ms", ms(gained)},
      {"gained_share", share(gained_lately, past, now.steady, on.size())},
      {"processes", std::move(processes)}};
}

/// Why not all of an offline group can be held.
std::string obstacle(const picture& seen, const group_picture& group, const history& past,
                     const beside_picture& beside, const wall_moment& now) {
  bool has_queues = false;
  for (const auto& process : group.processes) {
    const bool computes = std::any_of(process.queues.begin(), process.queues.end(),
                                      [](const auto& on) { return on.compute != 0; });
    has_queues = has_queues || computes;
    if (!computes || process.attach == attach_picture::attached) continue;
    if (process.attach == attach_picture::none &&
        (process.attach_refused || process.attach_failures != 0)) {
      const std::string failure = attach_failure(process, past, beside);
      return fmt::format(
          "sluice cannot attach to process {}{}{}{}{}", process.pid, failure.empty() ? "" : ": ",
          failure,
          process.attach_failures > 1 ? fmt::format(" ({} times in a row)", process.attach_failures)
                                      : "",
          process.attach_again > now.steady
              ? fmt::format("; next attempt at {}, in {}", clock_text(now, process.attach_again),
                            span_text(process.attach_again - now.steady))
              : "");
    }
    if (process.attach == attach_picture::attaching)
      return fmt::format("sluice is attaching to process {}", process.pid);
    if (process.attach == attach_picture::detaching)
      return fmt::format("sluice is detaching from process {}", process.pid);
    return fmt::format("sluice is not attached to process {}", process.pid);
  }
  for (const gpu_id id : gpus_of(group)) {
    for (const auto& gpu : seen.gpus) {
      if (gpu.id != id || !gpu.breaker_open) continue;
      const auto cause = past.breaker_cause_of(id);
      return fmt::format(
          "the breaker of GPU {} is open{}{}; 'sluice breaker rearm {}' closes it", number(id),
          cause ? " because " + std::string(words_of_cause(*cause)) : std::string(),
          gpu.breaker_until == never ? std::string()
                                     : ", until " + clock_text(now, gpu.breaker_until),
          number(id));
    }
  }
  if (group.nodes >= 2 && !group.peers_answer)
    return fmt::format("it is a gang on {} nodes, {}", group.nodes,
                       beside.without_gangs
                           ? "and sluice-gangs is not connected to this daemon; start it, and "
                             "restart the daemon if gang_across_nodes is new"
                           : "which do not all answer and agree; the log of sluice-gangs on this "
                             "node has the reason");
  return has_queues ? "some of its queues cannot be suspended" : "it has no compute queues";
}

const history::decision* last_of(const history& past, group_id group, journal_kind kind) {
  const auto* const known = past.find(group);
  if (known == nullptr) return nullptr;
  const auto found = std::find_if(known->decisions.rbegin(), known->decisions.rend(),
                                  [&](const auto& each) { return each.what == kind; });
  return found == known->decisions.rend() ? nullptr : &*found;
}

/// What is seen of online work there, beyond that there is some.
std::string seen_words(const picture& seen, const std::vector<gpu_id>& gpus) {
  const auto since = [&](time_point at) { return span_text(std::max(seen.at - at, duration{})); };
  std::string text;
  for (const gpu_picture& each : seen.gpus) {
    if (std::ranges::find(gpus, each.id) == gpus.end()) continue;
    std::string what;
    if (each.online_waiting_since != never) {
      what = "submissions pending for " + since(each.online_waiting_since);
      if (each.online_waiting != 0) what += fmt::format(", {} now", each.online_waiting);
    }
    if (each.online_running_since != never)
      what += fmt::format("{}kernels running for {}", what.empty() ? "" : "; ",
                          since(each.online_running_since));
    if (each.work == online_work::consumed)
      what = "submissions, but not their ends; if that lasts, the log has the reason";
    if (!what.empty()) text += fmt::format("{}seen: {}", text.empty() ? " (" : "; ", what);
  }
  return text.empty() ? text : text + ")";
}

std::string held_sentence(const picture& seen, const group_picture& group, const history& past,
                          const wall_moment& now) {
  const auto* const by = last_of(past, group.id, journal_kind::held);
  std::string text = seen.acts ? "is held" : "would be held";
  text += group.wanted_off ? " by policy " + seen.policy : " for its gang on another node";
  if (by != nullptr)
    text += fmt::format(" since {} ({})", clock_text(now, by->at), span_text(now.steady - by->at));
  // The policy can renew its hold up to that limit.
  const bool renewable = group.must_run_at - std::chrono::milliseconds(100) > group.wanted_until;
  const time_point end = renewable ? group.wanted_until : group.must_run_at;
  if (end > now.steady && end != never)
    text += fmt::format(", for at most {} more{}", span_text(end - now.steady),
                        renewable ? " unless the policy renews the hold" : " (max_suspend)");
  const std::string work = past.online_work_on(gpus_of(group), now.steady);
  if (!work.empty()) {
    text += ": " + work + seen_words(seen, gpus_of(group));
  } else if (by != nullptr && !by->event.empty()) {
    text += "; cause: " + by->event;
  }
  if (!seen.acts) return text + "; the daemon only observes and suspends nothing";
  if (group.actual != run_state::suspended)
    text += fmt::format("; its queues are {} now", text_of(group.actual));
  return text;
}

}  // namespace

std::int64_t wall_moment::unix_ms(time_point at) const noexcept {
  const auto there =
      wall + std::chrono::duration_cast<std::chrono::system_clock::duration>(at - steady);
  return std::chrono::duration_cast<std::chrono::milliseconds>(there.time_since_epoch()).count();
}

std::string_view unmarked_work(const picture& seen) noexcept {
  if (!seen.see_unmarked && !seen.polls_pointers) return "ignored";
  if (std::ranges::none_of(seen.gpus, &gpu_picture::can_see_work)) return "hidden";
  if (!seen.polls_pointers) return "unwatched";
  const bool hidden = std::ranges::any_of(
      seen.gpus, [](const gpu_picture& each) { return each.work == online_work::consumed; });
  return hidden ? "ends_hidden" : "seen";
}

json::object status_json(const picture& seen, const statistics& counted, const history& past,
                         const beside_picture& beside, const wall_moment& now) {
  const auto counts = count_queues(seen);
  json::array gpus;
  for (const auto& gpu : seen.gpus) {
    const auto found = counts.find(gpu.id);
    gpus.push_back(gpu_json(gpu, found == counts.end() ? queue_count{} : found->second, past,
                            beside.node, now));
  }
  json::array groups;
  const auto losses = past.losses(now.steady);
  for (const auto& group : seen.groups) {
    const auto lost = losses.find(group.id);
    groups.push_back(group_json(group, lost == losses.end() ? history::loss{} : lost->second, past,
                                beside, now));
  }
  json::array clients;
  for (const auto& client : seen.clients) {
    json::array on;
    for (const gpu_id each : client.gpus) on.push_back(number(each));
    std::string name = client.name;
    for (char& each : name)
      if (each < 0x20 || each >= 0x7f) each = '?';
    const auto* const known = past.find(client.id);
    const bool busy = !past.busy_gpus(client.id).empty();
    clients.push_back(json::object{
        {"client", number(client.id)},
        {"name", name},
        {"pid", known != nullptr && known->pid != 0 ? json::value(known->pid) : nullptr},
        {"gpus", std::move(on)},
        {"busy", busy},
        {"busy_since_unix_ms",
         busy && known != nullptr ? time_or_null(now, known->busy_since) : nullptr}});
  }
  return {{"gpus", std::move(gpus)},
          {"groups", std::move(groups)},
          {"clients", std::move(clients)},
          {"statistics", statistics_json(counted)},
          {"missed_journal_entries", past.missed_entries()}};
}

json::array spans_json(const history& past, const observe::span_targets& targets,
                       const wall_moment& now) {
  /// With fewer spans, one late span misses the target.
  constexpr std::uint64_t enough = 100;
  json::array made;
  for (std::size_t k = 0; k < span_kinds; ++k) {
    const auto kind = static_cast<span_kind>(k);
    const histogram lately = past.spans().of(kind, now.steady);
    const bool has_target = targets[k] != duration{};
    if (!has_target && lately.count() == 0) continue;
    json::object one = histogram_json(lately);
    one["span"] = to_string(kind);
    one["target_ms"] = has_target ? json::value(ms(targets[k])) : json::value(nullptr);
    one["kept"] = has_target && lately.count() >= enough
                      ? json::value(lately.percentile(99) <= targets[k])
                      : json::value(nullptr);
    made.push_back(std::move(one));
  }
  return made;
}

/// Whether online processes have compute queues on the group's GPUs, and the policy does not poll
/// them.
bool ignores_online_queues(const picture& seen, const group_picture& group) {
  const auto uses = [](const group_picture& some, gpu_id on) {
    return std::ranges::any_of(some.processes, [on](const process_picture& each) {
      return std::ranges::any_of(each.queues, [on](const queues_on_gpu& queues) {
        return queues.gpu == on && queues.compute != 0;
      });
    });
  };
  return !seen.polls_pointers && std::ranges::any_of(seen.gpus, [&](const gpu_picture& gpu) {
    return uses(group, gpu.id) && std::ranges::any_of(seen.groups, [&](const group_picture& other) {
             return other.what == role::online && uses(other, gpu.id);
           });
  });
}

state_now state_of_group(const picture& seen, const group_picture& group,
                         const process_picture* process, const history& past,
                         const beside_picture& beside, const std::optional<std::string>& paused,
                         const wall_moment& now) {
  std::string subject = group_words(past, group.id);
  if (process != nullptr) {
    const std::string name = name_of(*process, past);
    subject = fmt::format("process {}{}", process->pid, name.empty() ? "" : " (" + name + ")");
    if (group.processes.size() > 1)
      subject += fmt::format(" in {} of {} processes", group_words(past, group.id),
                             group.processes.size());
  }
  // Of a group the first member's: one of its role, for those may differ.
  std::string reason;
  for (const auto& each : group.processes) {
    if (process != nullptr ? &each != process : each.what != group.what) continue;
    if (const auto* const known = reason_of(each, beside)) reason = to_text(*known);
    break;
  }
  const auto say = [&](std::string state, const std::string& rest) {
    const bool said = state == "online" || state == "unmatched";
    return state_now{std::move(state), subject + " " + rest, said ? std::string() : reason};
  };
  if (process != nullptr && process->own) return say("own", "runs the scheduler and is never held");
  const role what = process != nullptr ? process->what : group.what;
  if (what == role::online)
    return say("online", "is running: it is " + (reason.empty() ? "online" : reason) +
                             ", and online work is never held" + seen_words(seen, gpus_of(group)));
  if (what == role::unmatched)
    return say("unmatched", "is running: " + (reason.empty() ? "it has no role" : reason) +
                                "; sluice does not suspend it");
  if (group.held)
    return say(seen.acts ? "held" : "would_be_held", held_sentence(seen, group, past, now));
  if (!seen.backend_up) return say("unmanaged", "is not managed now: the agent is restarting");
  if (seen.stopping) return say("runs", "is running: the scheduler is stopping");
  if (paused)
    return say("runs", "is running: the node is paused" + (paused->empty() ? "" : ": " + *paused));
  if (group.forced) {
    const auto* const by = last_of(past, group.id, journal_kind::forced);
    return say("forced",
               fmt::format("is running: {} forced it to run{}",
                           by != nullptr ? to_string(by->rule) : "a limit",
                           by != nullptr ? " at " + clock_text(now, by->at) : std::string()));
  }
  if (!group.manageable)
    return say("unmanaged",
               "is running and cannot be held: " + obstacle(seen, group, past, beside, now));
  if (seen.policy.empty()) return say("runs", "is running: no policy is active");
  if (group.wanted_off)
    return say("unmanaged",
               "is running: policy " + seen.policy +
                   " requested a hold, but the driver did not suspend some of its queues");
  return say("runs", "is running: policy " + seen.policy + " is not holding it" +
                         (ignores_online_queues(seen, group)
                              ? "; this policy detects only work that clients announce"
                              : ""));
}

std::string client_sentence(const history& past, pid_t pid, const wall_moment& now) {
  std::string names;
  std::string busy;
  for (const client_id id : past.clients_of(pid)) {
    const auto* const client = past.find(id);
    names += (names.empty() ? "'" : ", '") + client->name + "'";
    std::string where;
    for (const gpu_id gpu : past.busy_gpus(id))
      where += fmt::format("{}{}", where.empty() ? "" : ", ", number(gpu));
    if (!where.empty())
      busy += fmt::format("; '{}' has been busy on GPU {} for {}", client->name, where,
                          span_text(now.steady - client->busy_since));
  }
  if (names.empty()) return {};
  return fmt::format(
      "process {} is a client ({}), and has no queues; while the client is busy, sluice holds "
      "offline work{}",
      pid, names, busy.empty() ? "; it is idle now" : busy);
}

json::array decisions_json(const history::known_group& group, const history& past,
                           const wall_moment& now) {
  json::array all;
  const auto& events = past.node_events();
  auto event = events.begin();
  const auto put_events = [&](time_point before) {
    for (; event != events.end() && event->at < before; ++event) {
      if (group.decisions.empty() || event->at < group.decisions.front().at) continue;
      all.push_back(json::object{
          {"decision", "node"}, {"time_unix_ms", now.unix_ms(event->at)}, {"event", event->text}});
    }
  };
  for (const auto& each : group.decisions) {
    put_events(each.at);
    json::array commands;
    for (const auto& told : each.commands) {
      commands.push_back(json::object{
          {"command", told.kind == command_kind::suspend ? "suspend" : "resume"},
          {"pid", told.pid},
          {"gpu_id", number(told.gpu)},
          {"queues", told.queues},
          {"outcome", text_of(told.ended)},
          {"ms", told.ended == history::outcome::pending ? json::value(nullptr)
                                                         : json::value(ms(told.length))},
          {"errno", told.error},
          {"failed", told.failed},
          {"invalid", told.invalid},
          {"gone", told.gone},
          {"text", told.text}});
    }
    json::object made{
        {"decision", text_of(each.what)},
        {"time_unix_ms", now.unix_ms(each.at)},
        {"event", each.event},
        {"rule", to_string(each.rule)},
        {"policy", each.policy},
        {"until_unix_ms",
         each.what == journal_kind::held ? time_or_null(now, each.until) : json::value(nullptr)},
        {"commands", std::move(commands)},
        {"more_commands", each.more_commands}};
    if (each.what == journal_kind::attach || each.what == journal_kind::detach) {
      made["pid"] = each.pid;
      made["outcome"] = text_of(each.ended);
      made["text"] = each.text;
    }
    all.push_back(std::move(made));
  }
  put_events(never);
  return all;
}

}  // namespace sluice
