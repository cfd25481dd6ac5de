#include "demo_page.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "sluice/lab/page.hpp"

namespace demo {
namespace {

namespace page_of = sluice::lab::page;
using sluice::duration;

/// By their places in document::actors.
enum who : std::size_t { offline_alone, online_alone, unscheduled, scheduled };

double milliseconds(duration value) {
  return std::chrono::duration<double, std::milli>(value).count();
}

std::string latency_text(const online_run& run, duration value) {
  return run.requests == 0
             ? ""
             : fmt::format("{}{:.1f}", run.unfinished > 0 ? "\u2265 " : "", milliseconds(value));
}

page_of::table::row row(std::size_t which, const online_run* online, const offline_run* offline,
                        double alone) {
  page_of::table::row made{.who = which, .name = {}, .cells = {}};
  for (duration percentiles::*const each :
       {&percentiles::p50, &percentiles::p90, &percentiles::p99, &percentiles::max})
    made.cells.push_back(
        {online == nullptr ? "" : latency_text(*online, online->latency.*each), {}});
  made.cells.push_back({online == nullptr || online->unfinished == 0
                            ? ""
                            : fmt::format("{} of {}", online->unfinished, online->requests),
                        {}});
  if (offline == nullptr) {
    made.cells.resize(made.cells.size() + 3);
    return made;
  }
  made.cells.push_back({fmt::format("{:.1f}", offline->kernels_per_second()), {}});
  made.cells.push_back(
      {alone > 0 ? fmt::format("{:.2f}", offline->kernels_per_second() / alone) : "", {}});
  made.cells.push_back({fmt::format("{:.1f} %", 100 * offline->gpu_share()), {}});
  return made;
}

page_of::table figures_of(const load_report& from) {
  const double alone = from.offline_alone.kernels_per_second();
  return {.columns = {{"p50, ms", "50 % of the online requests took at most this time."},
                      {"p90, ms", "90 % of the online requests took at most this time."},
                      {"p99, ms", "99 % of the online requests took at most this time."},
                      {"max, ms", "Latency of the slowest online request."},
                      {"unfinished",
                       "Online requests without an answer when the run ended. Their "
                       "latencies are lower bounds."},
                      {"offline kernels/s", "Offline kernels completed per second."},
                      {"of alone",
                       "Offline kernels per second, relative to the offline process alone."},
                      {"offline GPU time", "Share of the time in which an offline kernel ran."}},
          .rows = {row(offline_alone, nullptr, &from.offline_alone, alone),
                   row(online_alone, &from.online_alone, nullptr, alone),
                   row(unscheduled, &from.unscheduled, &from.unscheduled_offline, alone),
                   row(scheduled, &from.scheduled, &from.scheduled_offline, alone)}};
}

page_of::distribution latencies_of(const load_report& from) {
  page_of::distribution made{"Latency of online requests", {}, {}};
  const auto add = [&](std::size_t which, const online_run& run) {
    if (!run.samples.empty())
      made.lines.push_back({which, run.samples.size(), page_of::quantiles_of(run.samples)});
  };
  add(online_alone, from.online_alone);
  add(unscheduled, from.unscheduled);
  add(scheduled, from.scheduled);
  return made;
}

std::optional<page_of::frontier> trade_of(const load_report& from) {
  const double alone = from.offline_alone.kernels_per_second();
  page_of::frontier made{.title = "Online latency and offline work",
                         .x_title = "p99 latency of online requests",
                         .y_title = "Offline work, relative to offline work alone",
                         .points = {},
                         .bound = {},
                         .bound_title = {},
                         .alone_ms = {}};
  const auto add = [&](std::size_t which, const online_run& online, const offline_run& offline) {
    if (!(milliseconds(online.latency.p99) > 0)) return;
    made.points.push_back({.who = which,
                           .name = {},
                           .latency_ms = {milliseconds(online.latency.p99), 0},
                           .throughput = {offline.kernels_per_second() / alone, 0},
                           .at_least = online.unfinished > 0,
                           .most = {}});
  };
  if (!(alone > 0)) return {};
  add(unscheduled, from.unscheduled, from.unscheduled_offline);
  add(scheduled, from.scheduled, from.scheduled_offline);
  if (made.points.empty()) return {};
  if (milliseconds(from.online_alone.latency.p99) > 0)
    made.alone_ms = milliseconds(from.online_alone.latency.p99);
  return made;
}

std::string summary_of(const load_report& from) {
  const scheduler_report& by = from.scheduler;
  std::string made = fmt::format(
      "{}. Compared with no scheduler: {}. The scheduler suspended queues {} times, with {} driver "
      "calls for suspends and resumes. Driver time, p99: suspend {:.2f} ms, resume {:.2f} ms. Time "
      "from an online arrival until offline work was off the GPU, p99: {:.2f} ms. Kernels lost {}, "
      "repeated {}; queues still suspended at the end: {}.",
      description(from.load), latency_against(from.unscheduled, from.scheduled), by.suspends,
      by.driver_calls, milliseconds(by.suspend_p99), milliseconds(by.resume_p99),
      milliseconds(by.off_p99), from.offline_kernels.lost, from.offline_kernels.repeated,
      from.still_suspended);
  if (by.policy_ejections > 0) made += " THE POLICY WAS REMOVED in the scheduled run.";
  if (const std::string broken = from.broken_promise(); !broken.empty())
    made += " GUARANTEE VIOLATED: " + broken + '.';
  return made;
}

}  // namespace

std::string page(const page_head& head, const std::vector<load_report>& reports) {
  page_of::document made;
  made.title = "sluice demo: online and offline work on one GPU";
  made.notice = "The GPU is simulated (profile " + head.profile +
                "): times were measured on this machine, none on GPU hardware.";
  made.command = head.command;
  made.facts = {{"arrivals", head.arrivals}};
  if (!reports.empty()) {
    made.facts.emplace_back("scheduler", reports.front().scheduler.settings);
    made.facts.emplace_back("reactor", reports.front().scheduler.reactor);
  }
  made.actors = {{"offline alone", true},
                 {"online alone", true},
                 {"both, no scheduler", true},
                 {"both, scheduled", false}};
  for (const load_report& each : reports) {
    auto& section = made.sections.emplace_back();
    section.facets = {{"offline load", std::string(to_string(each.load))}};
    section.summary = summary_of(each);
    section.distributions.push_back(latencies_of(each));
    section.trade = trade_of(each);
    section.figures = figures_of(each);
  }
  made.notes = {
      "The rows online alone and offline alone show the best possible result of each program. The "
      "row without a scheduler shows a shared GPU without sluice."};
  if (std::ranges::any_of(reports, &load_report::gains_little))
    made.notes.emplace_back(why_it_gains_little);
  return page_of::render(made);
}

}  // namespace demo
