// sluice replay: plays a recording of a scheduler to other policies in virtual time.

#include "replay.hpp"

#include "marks.hpp"
#include "outcome.hpp"
#include "output.hpp"
#include "policy_choice.hpp"
#include "report.hpp"
#include "subcommand.hpp"
#include "table.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "sluice/duration_text.hpp"
#include "sluice/lab/percentiles.hpp"

namespace sluice::cli {
namespace {

namespace json = boost::json;
using namespace std::chrono_literals;

constexpr const char* open_loop =
    "Replays are open-loop: online work begins and ends at its recorded times. Under another "
    "policy, the work would have ended earlier or later; a replay cannot show this.";

struct replay_options {
  std::string file;
  std::vector<std::string> policies;
  lab::replay_options costs;
  std::string csv_decisions;
  bool json = false;
};

struct row {
  std::string name;
  std::string what;  ///< "recorded", "replayed".
  lab::outcome_summary got;
  std::uint64_t calls = 0;
  std::uint64_t estimated = 0;
  std::string removed{};  ///< Why its policy was; its figures then say nothing of the policy.
};

double ms(duration value) { return std::chrono::duration<double, std::milli>(value).count(); }
double share(duration part, duration whole) {
  return whole > 0ns ? static_cast<double>(part.count()) / static_cast<double>(whole.count()) : 0;
}
std::string ms_text(duration value) { return fmt::format("{:.2f}", ms(value)); }

/// What a reader of the figures has to know.
std::vector<std::string> notes_on(const lab::recording& what,
                                  const lab::outcome_summary& recorded) {
  std::vector<std::string> notes{open_loop};
  if (what.why)
    notes.push_back(what.why->text + "; all results cover only the time before this line");
  if (recorded.replacements + recorded.removals != 0) {
    notes.push_back(fmt::format(
        "The recorded scheduler changed its policy {} times ({} of them because the policy was "
        "removed); a replay keeps one policy throughout",
        recorded.replacements + recorded.removals, recorded.removals));
  }
  if (recorded.refused != 0) {
    notes.push_back(
        fmt::format("The recorded backend refused {} batches, and the scheduler sent them again; a "
                    "replay accepts all batches",
                    recorded.refused));
  }
  return notes;
}

std::string removal(const std::string& name, const std::string& why) {
  return fmt::format("{}: the policy was removed during the replay: {}", name, why);
}

void add_notes(const std::string& name, const lab::replayed& got, std::vector<std::string>& notes) {
  if (got.estimated != got.given) {
    notes.push_back(
        fmt::format("{}: {} of {} driver calls had no recorded counterpart; the replay used the "
                    "median time for them",
                    name, got.estimated - got.given, got.calls));
  }
  if (got.given != 0) {
    notes.push_back(fmt::format(
        "{}: {} of {} driver calls used the time of --suspend-cost or --resume-cost: the recording "
        "has no calls of the same kind",
        name, got.given, got.calls));
  }
  if (got.misses_pointers) {
    notes.push_back(fmt::format(
        "{}: the policy reads the pointers of online queues, but the recording has no pointers; "
        "the policy detected no work by pointers",
        name));
  }
  if (got.unattached != 0) {
    notes.push_back(fmt::format(
        "{}: {} attaches failed because the recorded scheduler never attached to the process; "
        "these processes kept running",
        name, got.unattached));
  }
  if (!got.faults.removed_for.empty()) notes.push_back(removal(name, got.faults.removed_for));
  if (got.faults.any_ignored()) {
    notes.push_back(fmt::format("{}: ignored: {}", name, got.faults.ignored_text()));
  }
}

std::string text_of(const lab::recording& what, const std::vector<row>& rows,
                    const std::vector<std::string>& notes, std::size_t width) {
  std::string text = fmt::format(
      "{}: {:.3f} s under {}, backend {}; device: {}\n", printable(what.name),
      std::chrono::duration<double>(what.end - what.base).count(),
      printable(what.policy_text.empty() ? (what.policy.empty() ? "no policy" : what.policy)
                                         : what.policy_text),
      printable(what.backend),
      what.device.empty() ? "unknown (simulated or real)" : printable(what.device));
  using align = table::align;
  table all({{"POLICY", align::left, true},
             {"PREEMPTIONS", align::right},
             {"SUSPENDS", align::right},
             {"RESUMES", align::right},
             {"CALLS", align::right},
             {"FAILED", align::right},
             {"FORCED", align::right},
             {"HELD%", align::right},
             {"LONGEST", align::right},
             {"OFF-P50", align::right},
             {"OFF-P99", align::right}});
  for (const row& each : rows) {
    if (!each.removed.empty()) {
      std::vector<std::string> empty(11, "-");
      empty.front() = printable(each.name);
      all.add(std::move(empty));
      continue;
    }
    const auto off = lab::percentiles_of(each.got.to_off);
    const bool any = !each.got.to_off.empty();
    all.add({printable(each.name), std::to_string(each.got.preemptions),
             std::to_string(each.got.suspends), std::to_string(each.got.resumes),
             std::to_string(each.got.driver_calls), std::to_string(each.got.failures),
             std::to_string(each.got.forced_resumes),
             fmt::format("{:.1f}", 100 * share(each.got.held(), each.got.managed())),
             ms_text(each.got.longest_hold()), any ? ms_text(off.p50) : "-",
             any ? ms_text(off.p99) : "-"});
  }
  text += all.text(width);
  table groups({{"POLICY", align::left, true},
                {"GROUP", align::left},
                {"PREEMPTIONS", align::right},
                {"HELD", align::right},
                {"HELD%", align::right},
                {"LONGEST", align::right}});
  for (const row& each : rows) {
    if (!each.removed.empty()) continue;
    for (const auto& one : each.got.groups) {
      groups.add({printable(each.name), one.name, std::to_string(one.preemptions),
                  ms_text(one.held), fmt::format("{:.1f}", 100 * share(one.held, one.managed)),
                  ms_text(one.longest_hold)});
    }
  }
  if (!groups.empty()) text += "\n" + groups.text(width);
  text +=
      "\nTimes in ms. OFF: time from an online arrival until offline work is off the GPU. HELD%: "
      "held share of the attached time.\n";
  if (std::any_of(rows.begin(), rows.end(), [](const row& each) {
        return each.removed.empty() && !each.got.to_off.empty() && each.got.to_off.size() < 100;
      })) {
    text += "With fewer than 100 arrivals, OFF-P99 is the longest time.\n";
  }
  for (const std::string& each : notes) text += printable(each) + "\n";
  return text;
}

json::object json_of(const lab::recording& what, const std::vector<row>& rows,
                     const std::vector<std::string>& notes) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? json::value(nullptr) : json::value(printable(text));
  };
  json::array all;
  for (const row& each : rows) {
    if (!each.removed.empty()) {
      all.push_back(json::object{{"policy", printable(each.name)},
                                 {"what", each.what},
                                 {"removed", printable(each.removed)}});
      continue;
    }
    const auto off = lab::percentiles_of(each.got.to_off);
    const auto off_ms = [&](duration value) {
      return each.got.to_off.empty() ? json::value(nullptr) : json::value(ms(value));
    };
    json::array groups;
    for (const auto& one : each.got.groups) {
      groups.push_back(json::object{{"group", one.name},
                                    {"preemptions", one.preemptions},
                                    {"attached_ms", ms(one.managed)},
                                    {"held_ms", ms(one.held)},
                                    {"held_share", share(one.held, one.managed)},
                                    {"longest_hold_ms", ms(one.longest_hold)}});
    }
    all.push_back(json::object{{"policy", printable(each.name)},
                               {"what", each.what},
                               {"preemptions", each.got.preemptions},
                               {"suspends", each.got.suspends},
                               {"resumes", each.got.resumes},
                               {"driver_calls", each.got.driver_calls},
                               {"failed_commands", each.got.failures},
                               {"forced_resumes", each.got.forced_resumes},
                               {"held_share", share(each.got.held(), each.got.managed())},
                               {"longest_hold_ms", ms(each.got.longest_hold())},
                               {"arrivals_off", each.got.to_off.size()},
                               {"off_gpu_p50_ms", off_ms(off.p50)},
                               {"off_gpu_p99_ms", off_ms(off.p99)},
                               {"estimated_calls", each.estimated},
                               {"groups", std::move(groups)}});
  }
  json::array said;
  for (const std::string& each : notes) said.push_back(json::value(printable(each)));
  return {{"version", 1},
          {"file", printable(what.name)},
          {"device", text_or_null(what.device)},
          {"recorded_policy", text_or_null(what.policy)},
          {"recorded_policy_text", text_or_null(what.policy_text)},
          {"duration_ms", ms(what.end - what.base)},
          {"complete", !what.why.has_value()},
          {"missing_lines", what.why ? what.why->count : 0},
          {"rows", std::move(all)},
          {"notes", std::move(said)}};
}

std::string csv_of(const lab::recording& what, const std::vector<row>& rows) {
  std::string text = "policy,at_ms,pid,gpu,kind,queues\n";
  for (const row& each : rows) {
    if (!each.removed.empty()) continue;
    for (const lab::call_decision& one : each.got.decisions) {
      text +=
          fmt::format("{},{:.6f},{},{},{},{}\n", lab::csv_field(printable(each.name)),
                      ms(one.at - what.base), one.pid, number(one.gpu),
                      one.kind == command_kind::suspend ? "suspend" : "resume", one.queues.size());
    }
  }
  return text;
}

int run(const replay_options& asked) {
  const auto known = policies_for(asked.policies);
  if (known.has_error()) {
    complain(known.error().message);
    return exit_usage;
  }
  std::vector<std::pair<std::string, std::function<std::unique_ptr<policy>()>>> wanted;
  for (const std::string& each : asked.policies) {
    auto make = policy_maker(*known, each);
    if (make.has_error()) {
      complain(make.error().message);
      return exit_usage;
    }
    wanted.emplace_back(each, std::move(*make));
  }
  const auto read = lab::read_recording(asked.file);
  if (read.has_error()) {
    complain(read.error().message);
    return exit_failed;
  }
  const lab::recording& what = *read;
  for (const auto& [name, make] : wanted) {
    const std::string need = lab::unmet_need(*make(), lab::marks_in(what));
    if (need.empty()) continue;
    complain(fmt::format("--policy {} {}: {} has no such marks; choose another policy", name, need,
                         printable(asked.file)));
    return exit_usage;
  }
  if (const std::string wrong = problem_with_files({{"--csv-decisions", asked.csv_decisions}});
      !wrong.empty()) {
    complain(wrong);
    return exit_usage;
  }
  output_file csv(asked.csv_decisions);
  if (!csv.ready()) return exit_failed;
  // They log as live ones do; nobody shall take it for that.
  const marked_logs marked("in the replay", [] { return std::string_view{}; });

  std::vector<row> rows{{"as recorded", "recorded", lab::summarize(what)}};
  std::vector<std::string> notes = notes_on(what, rows.front().got);
  // By name only: a recording must not say which file this program loads.
  const auto own = policies_for({});
  if (what.policy_text.empty()) {
    notes.push_back(
        "The recording does not contain the parameters of its policy; to replay the policy, name "
        "it with --policy");
  } else if (auto make = policy_maker(*own, what.policy_text)) {
    wanted.insert(wanted.begin(), {"recorded policy, replayed", std::move(*make)});
  } else {
    notes.push_back(fmt::format(
        "The recorded policy is not built into this program; to replay it, add --policy {}",
        what.policy_text));
  }
  for (const auto& [name, make] : wanted) {
    const auto got = lab::replay(what, make(), asked.costs);
    if (got.has_error()) {
      complain(got.error().message);
      return exit_failed;
    }
    rows.push_back({name, "replayed", lab::summarize(got->run), got->calls, got->estimated,
                    got->faults.removed_for});
    add_notes(name, *got, notes);
  }
  if (!csv.write([&](const auto& write) { write(csv_of(what, rows)); })) return exit_failed;
  bool good = asked.json ? print(json::value(json_of(what, rows, notes)))
                         : print(text_of(what, rows, notes, terminal_width()));
  for (const row& each : rows) {
    if (each.removed.empty()) continue;
    complain(printable(removal(each.name, each.removed)));
    good = false;
  }
  return good ? exit_done : exit_failed;
}

}  // namespace

subcommand add_replay(CLI::App& program) {
  const auto chosen = std::make_shared<replay_options>();
  auto* const command =
      program.add_subcommand("replay", "Replay a recording under other policies in virtual time");
  command->footer(
      "The first row shows the recorded run. The second row shows a replay of the same\n"
      "policy. A replay is open-loop: online work begins and ends as recorded.\n"
      "A driver call takes as long as its recorded counterpart. A call without a\n"
      "counterpart takes the median time. If a policy fails, the replay removes the\n"
      "policy, its row is empty, and the exit code is 1.\n" +
      std::string{exit_codes});
  command->add_option("FILE", chosen->file, "Recording file")->required()->type_name("");
  command
      ->add_option("--policy", chosen->policies,
                   "Policy to replay, or a plugin file; may be repeated")
      ->type_name("NAME|FILE[:KEY=VALUE,...]")
      ->take_all();
  const auto cost = [&](const char* name, std::optional<duration>& into, const char* help) {
    command
        ->add_option_function<std::string>(
            name,
            [&into, name](const std::string& text) {
              const auto value = parse_duration(text);
              if (!value || *value < 0ns || *value > 1min) {
                throw CLI::ValidationError(
                    name, "invalid duration '" + text + "': expected 0ms to 1min, such as 5ms");
              }
              into = *value;
            },
            help)
        ->type_name("TIME");
  };
  cost("--suspend-cost", chosen->costs.suspend_cost,
       "Time of a suspend if the recording has no suspends");
  cost("--resume-cost", chosen->costs.resume_cost,
       "Time of a resume if the recording has no resumes");
  command
      ->add_option("--csv-decisions", chosen->csv_decisions,
                   "Write one CSV row per requested driver call")
      ->type_name("FILE");
  command->add_flag("--json", chosen->json, "Print one line of JSON");
  return {command, [chosen] { return run(*chosen); }};
}

}  // namespace sluice::cli
