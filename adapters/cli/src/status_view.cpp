#include "status_view.hpp"

#include "output.hpp"
#include "table.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <ctime>
#include <string_view>
#include <utility>

#include <boost/json.hpp>
#include <fmt/format.h>

namespace sluice::cli {

namespace {

namespace json = boost::json;

// What is not there, or of another kind, is nothing.

const json::value* find(const json::object& in, std::string_view key) {
  return in.if_contains(key);
}

double as_number(const json::value& of) {
  if (!of.is_number()) return 0;
  boost::system::error_code error;
  const auto value = of.to_number<double>(error);
  return error ? 0 : value;
}

double number_of(const json::object& in, std::string_view key) {
  const auto* const found = find(in, key);
  return found == nullptr ? 0 : as_number(*found);
}

std::uint64_t count_of(const json::object& in, std::string_view key) {
  const double value = number_of(in, key);
  return value > 0 && value < 1e18 ? static_cast<std::uint64_t>(value) : 0;
}

bool has(const json::object& in, std::string_view key) {
  const auto* const found = find(in, key);
  return found != nullptr && !found->is_null();
}

bool flag_of(const json::object& in, std::string_view key) {
  const auto* const found = find(in, key);
  return found != nullptr && found->is_bool() && found->as_bool();
}

std::string text_of(const json::object& in, std::string_view key) {
  const auto* const found = find(in, key);
  return found != nullptr && found->is_string() ? printable(found->as_string()) : std::string();
}

const json::object& object_of(const json::object& in, std::string_view key) {
  static const json::object none;
  const auto* const found = find(in, key);
  return found != nullptr && found->is_object() ? found->as_object() : none;
}

std::vector<const json::object*> objects_of(const json::object& in, std::string_view key) {
  std::vector<const json::object*> all;
  const auto* const found = find(in, key);
  if (found == nullptr || !found->is_array()) return all;
  for (const json::value& each : found->as_array())
    if (each.is_object()) all.push_back(&each.as_object());
  return all;
}

/// "5.3ms", "3.2s", "12m", "3h5m".
std::string span_text(double ms) {
  ms = std::clamp(ms, 0.0, 1e15);
  if (ms < 1000) return fmt::format("{:.{}f}ms", ms, ms < 100 ? 1 : 0);
  const double s = ms / 1000;
  if (s < 100) return fmt::format("{:.1f}s", s);
  const auto whole = static_cast<std::uint64_t>(s);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
  return fmt::format("{}d{:02}h", whole / 86400, whole / 3600 % 24);
}

std::string signed_span(char sign, double ms) {
  const std::string text = span_text(ms);
  return text == "0.0ms" ? "0" : sign + text;
}

std::string share_text(double share) { return fmt::format("{:.0f}%", share * 100); }

/// "-" where the number is unknown.
std::string number_text(const json::object& in, std::string_view key) {
  return has(in, key) ? std::to_string(count_of(in, key)) : "-";
}

std::string dash_if_zero(std::uint64_t value) { return value == 0 ? "-" : std::to_string(value); }

/// "12:00:01.123" here.
std::string clock_text(double unix_ms) {
  if (std::abs(unix_ms) > 1e15) return "?";
  const auto seconds = static_cast<std::time_t>(std::floor(unix_ms / 1000));
  std::tm parts{};
  if (::localtime_r(&seconds, &parts) == nullptr) return "?";
  return fmt::format("{:02}:{:02}:{:02}.{:03}", parts.tm_hour, parts.tm_min, parts.tm_sec,
                     static_cast<int>(unix_ms - static_cast<double>(seconds) * 1000));
}

std::string latency(const json::object& statistics, std::string_view key, std::string_view what) {
  const auto& one = object_of(statistics, key);
  if (count_of(one, "count") == 0) return {};
  return fmt::format("{} p50/p99 {:.2f}/{:.2f} ms", what, number_of(one, "p50_ms"),
                     number_of(one, "p99_ms"));
}

std::string failures(const json::object& statistics) {
  std::string all;
  for (const auto& [key, value] : object_of(statistics, "failures")) {
    const double count = as_number(value);
    if (count == 0) continue;
    std::string name(key);
    std::replace(name.begin(), name.end(), '_', ' ');
    if (count == 1) {
      if (const auto plural = name.find("s "); plural != name.npos)
        name.erase(plural, 1);
      else if (name.ends_with('s'))
        name.pop_back();
    }
    if (name.starts_with("gpu")) name.replace(0, 3, "GPU");
    all += fmt::format("{}{} {}", all.empty() ? "" : ", ", count, printable(name));
  }
  return all;
}

/// \param acts false: nothing is told the driver, so that what it shows as done would be.
std::string state_of(const json::object& group, bool acts) {
  const std::string state = text_of(group, "state");
  if (state == "orphaned" || state == "guardian-stopped") return state;
  if (flag_of(group, "held") && !acts) return "would be held";
  if (flag_of(group, "held")) return state == "suspended" ? "held" : "held, " + state;
  if (flag_of(group, "forced")) return "forced";
  if (text_of(group, "role") == "offline" && !flag_of(group, "manageable")) return "unmanaged";
  return acts ? state : "running";
}

bool acts(const json::object& status) {
  const auto& node = object_of(status, "node");
  return flag_of(node, "acts") || text_of(node, "mode") == "enforce";
}

/// As queues and hqds count them; the gpu_id where that is not known.
std::string gpu_text(const json::object& status, std::uint64_t gpu) {
  for (const json::object* each : objects_of(status, "gpus"))
    if (count_of(*each, "gpu_id") == gpu && has(*each, "ordinal"))
      return std::to_string(count_of(*each, "ordinal"));
  return std::to_string(gpu);
}

std::string group_name(const json::object& group) {
  return has(group, "group") ? fmt::format("g{}", count_of(group, "group")) : "-";
}

std::string gpus_text(const json::object& status, const json::object& group) {
  const auto* const found = find(group, "gpus");
  if (found == nullptr || !found->is_array() || found->as_array().empty()) return "-";
  const auto& all = found->as_array();
  if (all.size() > 1) return fmt::format("{} GPUs", all.size());
  const double id = as_number(all[0]);
  return id > 0 && id <= UINT32_MAX ? gpu_text(status, static_cast<std::uint32_t>(id)) : "-";
}

std::string pids_text(const json::object& group) {
  const auto processes = objects_of(group, "processes");
  if (processes.empty()) return "-";
  const auto first = count_of(*processes.front(), "pid");
  return processes.size() == 1 ? std::to_string(first)
                               : fmt::format("{}+{}", first, processes.size() - 1);
}

int role_rank(const json::object& group) {
  const std::string role = text_of(group, "role");
  return role == "offline" ? 0 : role == "online" ? 1 : 2;
}

bool matches(const json::object& group, const std::string& filter, bool enforced) {
  // Who only has the device open, as the scheduler's own programs, is shown to who asks for it.
  if (filter.empty())
    return role_rank(group) < 2 || !has(group, "compute_queues") ||
           count_of(group, "compute_queues") != 0;
  const auto holds = [&](const std::string& text) { return text.find(filter) != text.npos; };
  if (group_name(group) == filter || holds(text_of(group, "name")) ||
      holds(text_of(group, "role")) || holds(state_of(group, enforced)))
    return true;
  const auto processes = objects_of(group, "processes");
  return std::any_of(processes.begin(), processes.end(), [&](const json::object* each) {
    return std::to_string(count_of(*each, "pid")) == filter || holds(text_of(*each, "command"));
  });
}

/// Whether the command suspended no queue, and none is in doubt.
bool was_refused(const json::object& command) {
  const auto invalid = count_of(command, "invalid");
  return text_of(command, "outcome") == "refused" ||
         (invalid != 0 && invalid + count_of(command, "gone") >= count_of(command, "queues"));
}

/// Whether all commands of the decision that suspend were refused.
bool was_not_suspended(const json::object& decision) {
  bool refused = false;
  for (const json::object* each : objects_of(decision, "commands")) {
    if (text_of(*each, "command") != "suspend") continue;
    if (!was_refused(*each)) return false;
    refused = true;
  }
  return refused && count_of(decision, "more_commands") == 0;
}

std::string outcome_text(const json::object& command, bool acted) {
  const std::string outcome = text_of(command, "outcome");
  if (!acted)
    return fmt::format("would {} {} queue{} on GPU {}", text_of(command, "command"),
                       count_of(command, "queues"), count_of(command, "queues") == 1 ? "" : "s",
                       count_of(command, "gpu_id"));
  std::string text = fmt::format(
      "{} {} queue{} on GPU {}: ", text_of(command, "command"), count_of(command, "queues"),
      count_of(command, "queues") == 1 ? "" : "s", count_of(command, "gpu_id"));
  if (outcome == "done") return text + "done in " + span_text(number_of(command, "ms"));
  if (outcome == "pending") return text + "not finished";
  if (outcome == "unknown") return text + "result unknown";
  if (outcome == "refused") return text + "refused: " + text_of(command, "text");
  if (outcome == "failed") {
    const auto error = static_cast<int>(count_of(command, "errno"));
    // Of a process that shares its connection to the driver, for example.
    if (error == EPERM && was_refused(command))
      return text + "refused: sluice may not suspend this process; the daemon's log has the reason";
    return text + "failed: " + error_text(error);
  }
  if (was_refused(command))
    return text +
           "refused: the driver does not know these queues; the daemon's log may have the "
           "reason";
  return text + fmt::format(
                    "partly done in {}; queues: {} failed, {} unknown to the driver, {} whose "
                    "process has ended",
                    span_text(number_of(command, "ms")), count_of(command, "failed"),
                    count_of(command, "invalid"), count_of(command, "gone"));
}

/// Why a group is held, resumed or forced to run; of a rule that is not the policy's.
std::string rule_text(const std::string& rule) {
  if (rule == "expired") return "the hold that the policy requested expired";
  if (rule == "no policy") return "the policy that held it was replaced or removed";
  if (rule == "max_suspend") return "it reached the limit max_suspend";
  if (rule == "offline_floor") return "it reached the limit of offline_floor";
  if (rule == "not manageable")
    return "some of its queues cannot be suspended (not attached, or a breaker is open)";
  if (rule == "refused by the driver") return "the driver did not suspend some of its queues";
  if (rule == "not offline") return "its role is no longer offline";
  if (rule == "peers") return "as the other nodes of its gang";
  if (rule == "stop") return "the scheduler is stopping";
  return rule;
}

/// What was decided: held, let go or forced, and why.
std::string verdict_text(const json::object& decision, const std::string& what, bool acted) {
  const std::string rule = text_of(decision, "rule");
  const std::string policy = text_of(decision, "policy");
  if (rule == "policy" && what != "forced") {
    const bool held = what == "held";
    if (acted && held && was_not_suspended(decision))
      return (policy.empty() ? "the policy" : "policy " + policy) +
             " requested a suspend, but no queue was suspended";
    return (policy.empty() ? "the policy" : "policy " + policy) +
           (acted  ? held ? " suspended it" : " resumed it"
            : held ? " would suspend it"
                   : " would resume it");
  }
  std::string text = acted ? "" : "would be ";
  text += what == "held" ? "suspended" : what == "let_go" ? "resumed" : "forced to run";
  return text + ": " + rule_text(rule);
}

/// \param acted false: the daemon only observes.
std::string decision_text(const json::object& decision, bool acted) {
  const std::string what = text_of(decision, "decision");
  std::string event = text_of(decision, "event");
  if (what == "node") return event;
  if (what == "attach" || what == "detach") {
    std::string text =
        fmt::format("{}{} process {}", acted ? "" : "would ", what, count_of(decision, "pid"));
    const std::string outcome = text_of(decision, "outcome");
    if (what == "attach" && acted)
      text += ": " + (outcome == "done"      ? std::string("done")
                      : outcome == "pending" ? std::string("not finished")
                                             : outcome + ": " + text_of(decision, "text"));
    return text;
  }
  std::string text =
      what == "mend" ? "queue states corrected" : verdict_text(decision, what, acted);
  if (!event.empty()) text += (text.find(':') == text.npos ? ": " : "; ") + event;
  for (const json::object* each : objects_of(decision, "commands"))
    text += "; " + outcome_text(*each, acted);
  if (const auto more = count_of(decision, "more_commands"); more != 0)
    text += fmt::format("; and {} more commands", more);
  return text;
}

/// Of the spans of the last minutes.
std::string target_line(const json::object& spans) {
  std::string line = fmt::format("target: {} p99 {:.2f} of {:g} ms", text_of(spans, "span"),
                                 number_of(spans, "p99_ms"), number_of(spans, "target_ms"));
  line += has(spans, "kept") ? flag_of(spans, "kept") ? ", kept" : ", MISSED" : "";
  return line + fmt::format(" ({} spans in the last 5 to 10 minutes)", count_of(spans, "count"));
}

/// "kept", "missed:request,itl"; "?": too few spans to know; "-": the policy has no target.
std::string targets_text(const json::object& status) {
  std::string missed;
  bool any = false;
  bool unknown = false;
  for (const json::object* each : objects_of(status, "spans")) {
    if (!has(*each, "target_ms")) continue;
    any = true;
    unknown = unknown || !has(*each, "kept");
    if (has(*each, "kept") && !flag_of(*each, "kept"))
      missed += (missed.empty() ? "missed:" : ",") + text_of(*each, "span");
  }
  if (!missed.empty()) return missed;
  return !any ? "-" : unknown ? "?" : "kept";
}

/// What a fleet's table shows of a node, from the column STATE on: each a word, for awk.
std::vector<std::string> fleet_cells(const json::object& status) {
  const auto& node = object_of(status, "node");
  const bool enforces = text_of(node, "mode") == "enforce";
  const auto gpus = objects_of(status, "gpus");
  double busy = 0;
  std::string breakers;
  for (const json::object* each : gpus) {
    busy += number_of(*each, "busy_share") / static_cast<double>(gpus.size());
    if (flag_of(*each, "breaker_open"))
      breakers += (breakers.empty() ? "" : ",") + number_text(*each, "gpu_id");
  }
  std::size_t offline = 0;
  std::size_t held = 0;
  for (const json::object* each : objects_of(status, "groups")) {
    if (text_of(*each, "role") != "offline") continue;
    ++offline;
    if (flag_of(*each, "held")) ++held;
  }
  return {flag_of(node, "driver_gone")               ? "driver-gone"
          : has(node, "paused")                      ? "paused"
          : enforces && !flag_of(node, "backend_up") ? "no-agent"
                                                     : text_of(node, "mode"),
          std::to_string(gpus.size()),
          text_of(node, "driver"),
          text_of(node, "policy") + (flag_of(node, "policy_is_fallback") ? "(fallback)" : ""),
          share_text(busy),
          fmt::format("{}/{}", held, offline),
          targets_text(status),
          breakers.empty() ? "-" : breakers,
          text_of(node, "program_version")};
}

}  // namespace

std::string decider_words(const std::string& name, bool is_fallback, const std::string& asked_for) {
  if (name.empty())
    return "none: everything runs" + (asked_for.empty() ? "" : " (instead of " + asked_for + ")");
  if (!is_fallback) return name;
  return name + " (fallback" + (asked_for.empty() ? "" : ": " + asked_for + " was removed") + ")";
}

std::string_view role_words(std::string_view role, std::string_view bar) {
  if (role == "offline") return "offline";
  if (role == "online") return "online";
  if (bar == "released") return "released";
  return bar.starts_with("gang_") ? "gang" : "-";
}

std::string_view to_string(group_order value) {
  switch (value) {
    case group_order::role: return "role";
    case group_order::lost: return "time off";
    case group_order::state: return "state";
    case group_order::name: break;
  }
  return "name";
}

namespace {

std::string_view words_of_unmarked(std::string_view state) {
  if (state == "hidden") return "cannot be seen; run 'sluice doctor'";
  if (state == "unwatched") return "not looked at while nothing is offline";
  if (state == "ends_hidden") return "seen, but not all of its ends; if that lasts, see the log";
  return state == "seen" ? "seen" : "";
}

/// Whether there is an online program, and no client that could announce its work.
bool no_client_announces(const json::object& status) {
  return objects_of(status, "clients").empty() &&
         std::ranges::any_of(objects_of(status, "groups"), [](const json::object* group) {
           return text_of(*group, "role") == "online";
         });
}

}  // namespace

std::vector<std::string> node_lines(const json::object& status) {
  const auto& node = object_of(status, "node");
  const auto& statistics = object_of(status, "statistics");
  std::vector<std::string> lines;
  const bool enforces = text_of(node, "mode") == "enforce";
  const bool shadows = text_of(node, "policy").starts_with("shadow/");
  lines.push_back(fmt::format("sluice {}, process {} of user {}, mode {}, up {}{}{}",
                              text_of(node, "program_version"), count_of(node, "pid"),
                              count_of(node, "user"),
                              !enforces ? "observe (suspends nothing)"
                              : shadows ? "enforce (but policy shadow suspends nothing)"
                                        : "enforce",
                              span_text(number_of(node, "up_ms")),
                              flag_of(node, "simulated") ? ", on a simulated device" : "",
                              flag_of(node, "backend_up") ? "" : "; the agent is not running"));
  if (has(node, "paused")) {
    const std::string why = text_of(object_of(node, "paused"), "why");
    lines.push_back("PAUSED: everything runs" + (why.empty() ? "" : " (" + why + ")"));
  } else {
    const std::string full = text_of(node, "policy_text");
    const std::string name = text_of(node, "policy");
    const bool fallback = flag_of(node, "policy_is_fallback");
    const std::string kind = full.substr(0, full.find(':'));
    const bool asked_for = !fallback && !kind.empty() && name.starts_with(kind);
    std::string line = "policy " + (asked_for ? full : decider_words(name, fallback, full));
    if (has(node, "policy_by")) line += ", selected by " + text_of(node, "policy_by");
    lines.push_back(line);
  }
  const std::string unmarked = text_of(node, "unmarked_work");
  if (const std::string_view words = words_of_unmarked(unmarked); !words.empty())
    lines.push_back(fmt::format("online work without a client: {}", words));
  else if (unmarked == "ignored" && no_client_announces(status))
    lines.push_back(
        "online work without a client: ignored; set see_unmarked = true, or make the program a "
        "client");
  std::string times = latency(statistics, "decision", "online arrival to commands sent");
  if (const auto off =
          latency(statistics, "arrival_to_off", "online arrival to offline work off the GPU");
      !off.empty())
    times += (times.empty() ? "" : "; ") + off;
  lines.push_back(times.empty() ? "no decision yet" : times);
  std::string failed = failures(statistics);
  if (flag_of(node, "driver_gone"))
    failed = "the driver is gone: cannot read its files" + (failed.empty() ? "" : ", " + failed);
  lines.push_back("failures: " + (failed.empty() ? "none" : failed));
  for (const json::object* each : objects_of(status, "spans"))
    if (has(*each, "target_ms")) lines.push_back(target_line(*each));
  if (const auto forced = count_of(object_of(statistics, "limits"), "forced_resumes"); forced != 0)
    lines.push_back(
        fmt::format("limits: max_suspend or offline_floor {} offline groups to run {} times",
                    enforces ? "forced" : "would have forced", forced));
  return lines;
}

std::string gpu_table(const json::object& status, gpu_columns which, std::size_t width) {
  using enum table::align;
  std::vector<table::column> columns{{"GPU", right},   {"GPU_ID", right},     {"PCI"},
                                     {"SLOTS", right}, {"ONLINE", right},     {"OFFLINE", right},
                                     {"OFF", right},   {"STATE", left, true}, {"BACKLOG", right},
                                     {"BUSY%", right}, {"OFF%", right},       {"VRAM", right}};
  constexpr std::ptrdiff_t pci = 2;
  if (which == gpu_columns::few) columns.erase(columns.begin() + pci);
  table rows{std::move(columns)};
  for (const json::object* each : objects_of(status, "gpus")) {
    const json::object& gpu = *each;
    const std::string work = text_of(gpu, "online_work");
    std::string backlog = std::to_string(count_of(gpu, "online_in_flight"));
    if (work == "waiting") backlog += "+";
    if (work == "consumed") backlog += "?";
    std::string vram = "-";
    if (has(gpu, "vram_used_bytes")) vram = bytes_text(count_of(gpu, "vram_used_bytes"));
    if (has(gpu, "vram_bytes")) vram += "/" + bytes_text(count_of(gpu, "vram_bytes"));
    std::vector<std::string> cells{
        has(gpu, "ordinal") ? std::to_string(count_of(gpu, "ordinal")) : "-",
        std::to_string(count_of(gpu, "gpu_id")),
        has(gpu, "pci") ? text_of(gpu, "pci") : "-",
        dash_if_zero(count_of(gpu, "slots")),
        number_text(gpu, "online_queues"),
        number_text(gpu, "offline_queues"),
        number_text(gpu, "suspended_queues"),
        flag_of(gpu, "breaker_open") ? "BREAKER"
        : flag_of(gpu, "busy")       ? "online"
                                     : "free",
        backlog,
        share_text(number_of(gpu, "busy_share")),
        share_text(number_of(gpu, "suspended_share")),
        vram};
    if (which == gpu_columns::few) cells.erase(cells.begin() + pci);
    rows.add(std::move(cells));
  }
  return rows.text(width);
}

std::string group_table(const json::object& status, const std::string& filter, group_order order,
                        std::size_t width) {
  using enum table::align;
  auto groups = objects_of(status, "groups");
  std::erase_if(groups,
                [&](const json::object* each) { return !matches(*each, filter, acts(status)); });
  std::stable_sort(groups.begin(), groups.end(), [&](const json::object* a, const json::object* b) {
    switch (order) {
      case group_order::lost: return number_of(*a, "lost_share") > number_of(*b, "lost_share");
      case group_order::state: return flag_of(*a, "held") > flag_of(*b, "held");
      case group_order::name: return text_of(*a, "name") < text_of(*b, "name");
      case group_order::role: break;
    }
    return std::pair(role_rank(*a), count_of(*a, "group")) <
           std::pair(role_rank(*b), count_of(*b, "group"));
  });
  table rows{{{"GROUP"},
              {"ROLE"},
              {"PID", right},
              {"COMMAND", left, true},
              {"STATE", left, true},
              {"FOR", right},
              {"GPU", right},
              {"OFF", right},
              {"OFF%", right},
              {"GPU TIME", right}}};
  const double now = number_of(status, "time_unix_ms");
  for (const json::object* each : groups) {
    const json::object& group = *each;
    const std::string role = text_of(group, "role");
    const bool offline = role == "offline";
    const bool online = role == "online";
    const auto members = objects_of(group, "processes");
    const std::string bar = members.empty() ? "" : text_of(*members.front(), "role_bar");
    rows.add({group_name(group), std::string(role_words(role, bar)), pids_text(group),
              text_of(group, "name"), state_of(group, acts(status)),
              has(group, "state_since_unix_ms")
                  ? span_text(now - number_of(group, "state_since_unix_ms"))
                  : "-",
              gpus_text(status, group),
              has(group, "compute_queues")
                  ? fmt::format("{}/{}", number_text(group, "suspended_queues"),
                                count_of(group, "compute_queues"))
                  : "-",
              offline ? share_text(number_of(group, "lost_share")) : "-",
              offline  ? signed_span('-', number_of(group, "lost_ms"))
              : online ? signed_span('+', number_of(group, "gained_ms"))
                       : "-"});
  }
  return rows.text(width);
}

std::vector<suspended_count> suspended_counts(const json::object& status) {
  std::vector<suspended_count> all;
  if (!acts(status)) return all;
  for (const json::object* group : objects_of(status, "groups"))
    for (const json::object* process : objects_of(*group, "processes")) {
      if (text_of(*process, "attach") != "attached") continue;
      for (const json::object* on : objects_of(*process, "queues"))
        all.push_back({.pid = static_cast<pid_t>(count_of(*process, "pid")),
                       .start_time = count_of(*process, "start_time"),
                       .gpu = gpu_id{static_cast<std::uint32_t>(count_of(*on, "gpu_id"))},
                       .compute = count_of(*on, "compute"),
                       .others = count_of(*on, "others"),
                       .suspended = count_of(*on, "suspended"),
                       .in_doubt = count_of(*on, "in_doubt")});
    }
  return all;
}

std::string clients_line(const json::object& status) {
  std::string all;
  const auto clients = objects_of(status, "clients");
  constexpr std::size_t most = 8;
  const double now = number_of(status, "time_unix_ms");
  for (const json::object* each : clients) {
    if (each == clients[std::min(most, clients.size() - 1)] && clients.size() > most) {
      all += fmt::format(", and {} more", clients.size() - most);
      break;
    }
    all += (all.empty() ? "" : ", ") + text_of(*each, "name");
    if (has(*each, "pid")) all += fmt::format(" pid {}", count_of(*each, "pid"));
    if (flag_of(*each, "busy"))
      all += has(*each, "busy_since_unix_ms")
                 ? " busy for " + span_text(now - number_of(*each, "busy_since_unix_ms"))
                 : " busy";
  }
  return clients.empty() ? "clients: none" : fmt::format("clients: {} ({})", clients.size(), all);
}

std::vector<std::string> breaker_lines(const json::object& status) {
  std::vector<std::string> lines;
  const double now = number_of(status, "time_unix_ms");
  for (const json::object* each : objects_of(status, "gpus")) {
    if (!flag_of(*each, "breaker_open")) continue;
    const auto id = count_of(*each, "gpu_id");
    std::string line =
        fmt::format("breaker of GPU {} (gpu_id {}) is open", gpu_text(status, id), id);
    if (has(*each, "breaker_cause")) line += ": " + text_of(*each, "breaker_cause");
    line += "; sluice suspends nothing on this GPU";
    if (has(*each, "breaker_until_unix_ms")) {
      const double until = number_of(*each, "breaker_until_unix_ms");
      line += fmt::format(" until {} (in {})", clock_text(until), span_text(until - now));
    }
    lines.push_back(line +
                    fmt::format("; when the GPU works again, run 'sluice breaker rearm {}'", id));
  }
  return lines;
}

std::string status_text(const json::object& status, std::size_t width) {
  std::string text;
  for (const std::string& each : node_lines(status)) text += each + "\n";
  text += clients_line(status) + "\n";
  for (const std::string& each : breaker_lines(status)) text += each + "\n";
  text += "\n" + gpu_table(status, gpu_columns::all, width) + "\n" +
          group_table(status, "", group_order::role, width);
  return text;
}

std::string fleet_table(const std::vector<fleet_row>& nodes, std::size_t width) {
  using enum table::align;
  const std::vector<table::column> columns{
      {"NODE"},         {"STATE"},       {"GPUS", right}, {"DRIVER"},   {"POLICY", left, true},
      {"BUSY%", right}, {"HELD", right}, {"TARGET"},      {"BREAKERS"}, {"VERSION"}};
  table rows{columns};
  for (const fleet_row& each : nodes) {
    auto cells =
        each.problem.empty() ? fleet_cells(each.status) : std::vector<std::string>{"no-answer"};
    cells.insert(cells.begin(), printable(each.node));
    cells.resize(columns.size());
    std::ranges::replace(cells, "", "-");
    rows.add(std::move(cells));
  }
  return rows.text(width);
}

std::string why_text(const json::object& answer, std::size_t last) {
  const auto& why = object_of(answer, "why");
  const double now = number_of(answer, "time_unix_ms");
  std::string text = text_of(why, "sentence") + "\n";
  if (flag_of(why, "simulated")) text += "the device is simulated\n";
  const auto decisions = objects_of(why, "decisions");
  if (has(why, "role_why")) text += "role: " + text_of(why, "role_why") + "\n";
  if (decisions.empty() && text_of(why, "state") != "client")
    text += "no decisions about this process or group\n";
  const std::size_t left_out = last != 0 && decisions.size() > last ? decisions.size() - last : 0;
  if (left_out != 0)
    text += fmt::format("{} earlier decisions are not shown; --last 0 shows all\n", left_out);
  const auto* const acts = find(why, "acts");
  const bool acted = acts == nullptr || flag_of(why, "acts");
  for (std::size_t i = left_out; i < decisions.size(); ++i) {
    const json::object* const each = decisions[i];
    const double at = number_of(*each, "time_unix_ms");
    text += fmt::format("{}  {:>7} ago  {}\n", clock_text(at), span_text(now - at),
                        decision_text(*each, acted));
  }
  return text;
}

}  // namespace sluice::cli
