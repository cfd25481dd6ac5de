// sluice jobs: what sluice did to whom. Adds up what the daemon wrote when processes ended.

#include "job_lines.hpp"
#include "output.hpp"
#include "subcommand.hpp"
#include "table.hpp"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <istream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "sluice/duration_text.hpp"

namespace sluice::cli {

namespace {

namespace json = boost::json;
using namespace std::chrono_literals;
using observe::job_record;

struct jobs_options {
  std::string file = "/var/log/sluice/jobs";
  std::string since = "24h";
  std::string user;
  bool json = false;
};

CLI::Validator a_span() {
  return {
      [](std::string& given) -> std::string {
        const auto value = parse_duration(given);
        if (value && *value > 0s && *value <= 1'000'000h) return {};
        return fmt::format(
            "invalid duration '{}': expected more than 0s, up to 1000000h, such as 24h or 90min",
            printable(given));
      },
      ""};
}

/// "3 h 12 min", "41 min", "1.0 s", "12 ms".
std::string span_text(duration value) {
  const double seconds = std::chrono::duration<double>(value).count();
  const auto minutes = static_cast<std::int64_t>(std::llround(seconds / 60));
  if (seconds >= 3600) return fmt::format("{} h {} min", minutes / 60, minutes % 60);
  if (seconds >= 600) return fmt::format("{} min", minutes);
  if (seconds >= 1) return fmt::format("{:.1f} s", seconds);
  return fmt::format("{:.0f} ms", seconds * 1e3);
}

std::string share_of(const job_record& of) {
  return fmt::format("{:.1f} %", 100 * suspended_share(of));
}

std::string limits_of(const job_record& of) {
  std::string made;
  const auto add = [&](std::uint64_t count, std::string_view name) {
    if (count != 0) made += fmt::format("{}{} {}", made.empty() ? "" : ", ", name, count);
  };
  add(of.by_max_suspend, "max_suspend");
  add(of.by_offline_floor, "offline_floor");
  return made;
}

std::string gpus_of(const job_record& of) {
  std::string made;
  for (const gpu_id each : of.gpus)
    made += fmt::format("{}{}", made.empty() ? "" : ",", number(each));
  return made;
}

std::string sentence_of(const job_sum& sum) {
  const job_record& of = sum.whole;
  std::string made =
      fmt::format("{} ({}): {} wall", printable(of.group), printable(of.user), span_text(of.wall));
  if (sum.processes > 1) made += fmt::format(" in {} processes", sum.processes);
  made += fmt::format(", {}suspended {} ({}), {} times, longest {}",
                      of.observed ? "would have been " : "", span_text(of.suspended), share_of(of),
                      of.suspensions, span_text(of.longest));
  if (const std::string limits = limits_of(of); !limits.empty())
    made += "; resumes forced by limits: " + limits;
  if (of.simulated) made += "; on a simulated device";
  return made + "\n";
}

json::object json_of(const job_sum& sum, bool one) {
  const job_record& of = sum.whole;
  const auto seconds = [](duration value) { return std::chrono::duration<double>(value).count(); };
  json::object made;
  if (one) {
    made["pid"] = of.pid;
    made["start"] = of.start;
    made["command"] = of.command;
    made["role"] = to_string(of.what);
    made["end"] = to_string(of.end);
  } else {
    made["processes"] = sum.processes;
  }
  made["group"] = of.group;
  made["user"] = of.user;
  made["time"] = observe::to_text(of.time);
  json::array gpus;
  for (const gpu_id each : of.gpus) gpus.emplace_back(number(each));
  made["gpus"] = std::move(gpus);
  made["observed"] = of.observed;
  made["simulated"] = of.simulated;
  made["wall_s"] = seconds(of.wall);
  made["suspended_s"] = seconds(of.suspended);
  made["share"] = suspended_share(of);
  made["suspensions"] = of.suspensions;
  made["longest_s"] = seconds(of.longest);
  made["max_suspend"] = of.by_max_suspend;
  made["offline_floor"] = of.by_offline_floor;
  return made;
}

/// \return false: there is no such file.
bool read_lines(std::istream& from, job_book& into) {
  if (!from) return false;
  for (std::string line; std::getline(from, line);) into.read(line);
  return true;
}

template <class Sums>
void keep_user(Sums& sums, const std::string& user) {
  if (user.empty()) return;
  std::erase_if(sums, [&](const job_sum& each) { return each.whole.user != user; });
}

int show(const jobs_options& chosen) {
  const auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
  const auto since =
      now - std::chrono::floor<std::chrono::milliseconds>(*parse_duration(chosen.since));
  job_book book(since);
  if (chosen.file == "-") {
    read_lines(std::cin, book);
  } else {
    // What the daemon moved away comes first: it is older.
    std::ifstream before{chosen.file + ".1"};
    const bool moved = read_lines(before, book);
    std::ifstream file{chosen.file};
    const int error = errno;
    if (!read_lines(file, book) && !moved) {
      complain(fmt::format(
          "{}: cannot read the jobs file: {}; {}, or read the log: journalctl -u sluice | sluice "
          "jobs -",
          printable(chosen.file), std::strerror(error),
          error == ENOENT
              ? fmt::format("a daemon with jobs = \"{}\" in [daemon] creates this file with the "
                            "first job line; if jobs names another file, pass that file; if jobs "
                            "is \"log\", change it and restart the daemon",
                            printable(chosen.file))
              : "check its permissions, or pass the file that the key jobs in [daemon] names"));
      return exit_failed;
    }
  }
  auto processes = book.processes();
  auto groups = book.groups();
  keep_user(processes, chosen.user);
  keep_user(groups, chosen.user);
  if (book.damaged() != 0) complain(fmt::format("skipped {} malformed job lines", book.damaged()));
  if (chosen.json) {
    json::array jobs;
    json::array sums;
    for (const job_sum& each : processes) jobs.push_back(json_of(each, true));
    for (const job_sum& each : groups) sums.push_back(json_of(each, false));
    return print(json::value{{"since", observe::to_text(since)},
                             {"jobs", std::move(jobs)},
                             {"groups", std::move(sums)},
                             {"damaged", book.damaged()}})
               ? exit_done
               : exit_failed;
  }
  if (processes.empty())
    return print(fmt::format("no job lines in the last {}: the daemon writes a line when a process "
                             "ends, and every hour while the process runs\n",
                             chosen.since))
               ? exit_done
               : exit_failed;
  constexpr auto right = table::align::right;
  table shown({{"SUSPENDED", right},
               {"TIME", right},
               {"COUNT", right},
               {"LONGEST", right},
               {"WALL", right},
               {"PID", right},
               {"COMMAND", table::align::left, true},
               {"USER", table::align::left, true},
               {"JOB", table::align::left, true},
               {"ROLE"},
               {"GPUS", table::align::left, true},
               {"LAST SEEN"}});
  for (const job_sum& each : processes) {
    const job_record& of = each.whole;
    shown.add({share_of(of), span_text(of.suspended), std::to_string(of.suspensions),
               span_text(of.longest), span_text(of.wall), std::to_string(of.pid),
               printable(of.command), printable(of.user), printable(of.group),
               std::string{to_string(of.what)}, gpus_of(of),
               of.end == observe::job_end::ended ? "ended" : "running"});
  }
  std::string text = shown.text(terminal_width()) + "\n";
  for (const job_sum& each : groups)
    if (each.whole.suspensions != 0 || each.whole.suspended > 0s) text += sentence_of(each);
  return print(text) ? exit_done : exit_failed;
}

}  // namespace

subcommand add_jobs(CLI::App& program) {
  const auto chosen = std::make_shared<jobs_options>();
  auto* const command = program.add_subcommand("jobs", "Show how long jobs were suspended");
  command->footer(
      "Reads the jobs file of 'sluice run' ([daemon] jobs). The daemon writes a line\n"
      "when a process ends, and every hour while the process runs. To read the log:\n"
      "  journalctl -u sluice | sluice jobs -\n"
      "The times of a job are the sums over its processes.\n"
      "Exit code 0: done; 1: the file cannot be read; 2: invalid command line.");
  command->add_option("FILE", chosen->file, "Jobs file, read with FILE.1; '-' is standard input")
      ->capture_default_str();
  command->add_option("--since", chosen->since, "Only lines written in the last TIME")
      ->check(a_span())
      ->capture_default_str()
      ->type_name("TIME");
  command->add_option("--user", chosen->user, "Only processes of this user")->type_name("NAME");
  command->add_flag("--json", chosen->json, "Print one line of JSON");
  return {command, [chosen] { return show(*chosen); }};
}

}  // namespace sluice::cli
