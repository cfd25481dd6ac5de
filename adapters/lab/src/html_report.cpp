#include "html_report.hpp"

#include "report.hpp"
#include "units.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "sluice/duration_text.hpp"

namespace sluice::lab {
namespace {

using namespace std::chrono_literals;

/// Of the seeds with requests: the others have no point.
page::estimate estimated(const cell& from, const std::function<double(const figures&)>& value) {
  std::vector<double> values;
  for (const figures& each : from.by_seed) {
    if (each.requests > 0) values.push_back(value(each));
  }
  const auto [mean, half_width] = estimate_of(values);
  return {mean, half_width};
}

/// Spans of all seeds' requests; zeros, which are spans that never were, left out.
page::distribution distribution_of(const setting& where, std::string title,
                                   std::optional<duration> target,
                                   duration served_request::*which) {
  page::distribution made{std::move(title), {}, target};
  for (std::size_t i = 0; i < where.cells.size(); ++i) {
    std::vector<duration> samples;
    for (const run_result& run : where.cells[i].runs) {
      for (const served& each : run.requests) {
        if (each.what.*which > 0ns) samples.push_back(each.what.*which);
      }
    }
    if (samples.empty()) continue;
    const std::size_t number = samples.size();
    made.lines.push_back({i, number, page::quantiles_of(std::move(samples))});
  }
  return made;
}

page::frontier trade_of(const study_spec& spec, const setting& where) {
  page::frontier made{"Online latency and offline work",
                      "p99 latency of online requests",
                      "Offline work, relative to offline work alone",
                      {},
                      {},
                      {},
                      {}};
  for (std::size_t i = 0; i < where.cells.size(); ++i) {
    const cell& one = where.cells[i];
    const auto p99 = estimated(one, [](const figures& f) { return ms(f.latency.p99); });
    if (p99.mean <= 0) continue;
    if (one.how == arrangement::online_alone) {
      made.alone_ms = p99.mean;
      continue;
    }
    page::frontier::point point{i,
                                one.contender,
                                p99,
                                estimated(one, [](const figures& f) { return f.offline_share; }),
                                std::any_of(one.by_seed.begin(), one.by_seed.end(),
                                            [](const figures& f) { return f.unfinished > 0; }),
                                {}};
    if (std::all_of(one.by_seed.begin(), one.by_seed.end(),
                    [](const figures& f) { return f.bound || f.requests <= 0; })) {
      point.most = estimated(one, [](const figures& f) { return *f.bound; }).mean;
    }
    made.points.push_back(std::move(point));
  }
  for (const bound_point& each : where.bound) {
    made.bound.emplace_back(ms(each.p99), each.offline_share);
  }
  made.bound_title = fmt::format(
      "upper bound of offline work for policies that suspend (measured time: the longest of all "
      "rows{})",
      spec.seeds > 1 ? fmt::format("; seed {}", spec.first_seed) : "");
  return made;
}

page::table shown(const study_spec& spec, const setting& where) {
  page::table made;
  const report_table from = table_of(spec, where);
  for (const metric* const each : from.columns) {
    made.columns.push_back({std::string(each->title), std::string(each->help)});
  }
  for (std::size_t i = 0; i < where.cells.size(); ++i) {
    auto& row = made.rows.emplace_back();
    row.who = i;
    row.name = where.cells[i].contender + (where.cells[i].removed() ? " (removed)" : "");
    for (const auto& [mean, half_width] : from.rows[i]) {
      row.cells.push_back(
          {mean == "-" ? "" : mean, half_width.empty() ? "" : "\xC2\xB1 " + half_width});
    }
  }
  return made;
}

// --- When what happened --------------------------------------------------------------------------

/// How many requests are waiting or served by a server.
std::vector<page::timeline::level> in_flight(const run_result& run, std::uint32_t server) {
  std::vector<std::pair<duration, int>> changes;
  for (const served& each : run.requests) {
    if (each.server != server) continue;
    changes.emplace_back(each.what.arrived, 1);
    if (each.what.finished) changes.emplace_back(each.what.arrived + each.what.latency, -1);
  }
  std::sort(changes.begin(), changes.end());
  std::vector<page::timeline::level> made;
  std::int64_t now = 0;
  for (const auto& [at, change] : changes) {
    now += change;
    if (!made.empty() && made.back().at == at) made.pop_back();
    made.push_back({at, static_cast<std::uint32_t>(now)});
  }
  return made;
}

/// What a process's queues on one GPU did, from all driver calls of a run.
std::vector<page::timeline::interval> queue_states(const run_result& run, std::uint32_t process,
                                                   duration end) {
  std::vector<page::timeline::interval> made;
  using page::state;
  duration since = -run.zero.time_since_epoch();
  std::uint32_t suspended = 0;
  const auto until = [&](duration at, state what) {
    if (at > since) made.push_back({since, at, what});
    since = std::max(since, at);
  };
  const auto resting = [&] { return suspended > 0 ? state::suspended : state::runs; };
  for (const driver_decision& each : run.decisions) {
    if (each.process != process) continue;
    const bool suspends = each.kind == command_kind::suspend;
    until(each.decided - run.zero, resting());
    until(each.started - run.zero, state::waits);
    until(each.finished - run.zero, suspends ? state::suspending : state::resuming);
    if (suspends) {
      suspended += each.queues;
    } else {
      suspended -= std::min(suspended, each.queues);
    }
  }
  until(end, resting());
  return made;
}

/// Driver calls on one GPU; what went in one call stands once.
std::vector<page::timeline::interval> calls_on(const run_result& run, gpu_id on) {
  std::vector<page::timeline::interval> made;
  for (const driver_decision& each : run.decisions) {
    if (each.on != on) continue;
    made.push_back(
        {each.started - run.zero, each.finished - run.zero,
         each.kind == command_kind::suspend ? page::state::suspending : page::state::resuming});
  }
  const auto key = [](const auto& one) { return std::tuple(one.from, one.to, one.what); };
  std::sort(made.begin(), made.end(),
            [&](const auto& a, const auto& b) { return key(a) < key(b); });
  made.erase(std::unique(made.begin(), made.end(),
                         [&](const auto& a, const auto& b) { return key(a) == key(b); }),
             made.end());
  return made;
}

page::timeline::track track_of(const study_spec& spec, const setting& where, std::size_t who) {
  const cell& one = where.cells[who];
  const run_result& run = one.runs.front();
  const auto& gpus = spec.profiles[where.profile].what.gpus;
  const offline_spec& offline = spec.offline[where.offline].what;
  page::timeline::track made{who, {}, {}};
  if (one.how == arrangement::unscheduled) made.note = "offline work is never suspended";
  const auto named = [&](std::size_t gpu, std::string what) {
    return gpus.size() > 1 ? fmt::format("GPU {}: {}", gpu, what) : what;
  };
  for (std::uint32_t i = 0; i < gpus.size(); ++i) {
    auto& online = made.lanes.emplace_back();
    online.name = named(i, "online");
    online.levels = in_flight(run, i);
    for (const served& each : run.requests) {
      if (each.server == i) online.instants.push_back(each.what.arrived);
    }
    if (one.how != arrangement::scheduled) continue;
    for (std::uint32_t p = 0; p < offline.processes; ++p) {
      auto& lane = made.lanes.emplace_back();
      lane.name = named(i, offline.gang            ? fmt::format("rank of gang {}", p + 1)
                           : offline.processes > 1 ? fmt::format("offline {}", p + 1)
                                                   : "offline");
      // As they are numbered: all GPUs' first ones, then all second ones.
      lane.intervals =
          queue_states(run, p * static_cast<std::uint32_t>(gpus.size()) + i, run.stretch);
    }
    auto& calls = made.lanes.emplace_back();
    calls.name = named(i, "driver calls");
    calls.intervals = calls_on(run, gpu_id{gpus[i].gpu_id});
  }
  return made;
}

/// Marks of a timeline within a window, each some 25 bytes of the page.
std::size_t marks_within(const page::timeline& all, duration begin, duration end) {
  std::size_t number = 0;
  for (const auto& track : all.tracks) {
    for (const auto& lane : track.lanes) {
      const auto inside = [&](duration at) { return at >= begin && at < end; };
      number += static_cast<std::size_t>(
          std::count_if(lane.intervals.begin(), lane.intervals.end(),
                        [&](const auto& each) { return each.from < end && each.to > begin; }) +
          std::count_if(lane.levels.begin(), lane.levels.end(),
                        [&](const auto& each) { return inside(each.at); }) +
          std::count_if(lane.instants.begin(), lane.instants.end(), inside));
    }
  }
  return number;
}

/// The window of that length, from an arrival on, in which most requests come.
duration busiest_begin(const std::vector<served>& requests, duration length) {
  std::size_t best = 0, most = 0, last = 0;
  for (std::size_t first = 0; first < requests.size(); ++first) {
    while (last < requests.size() &&
           requests[last].what.arrived < requests[first].what.arrived + length) {
      ++last;
    }
    if (last - first > most) {
      most = last - first;
      best = first;
    }
  }
  return requests[best].what.arrived;
}

std::optional<page::timeline> events_of(const study_spec& spec, const setting& where,
                                        std::size_t most_marks) {
  const auto& requests = where.cells.front().runs.front().requests;
  if (requests.empty()) return {};
  page::timeline made;
  for (std::size_t i = 0; i < where.cells.size(); ++i) {
    const arrangement how = where.cells[i].how;
    if (how == arrangement::stopped || how == arrangement::static_split) continue;
    if (where.cells[i].removed()) continue;
    made.tracks.push_back(track_of(spec, where, i));
  }
  // As long as the page stays light.
  for (duration length = 10s;; length /= 2) {
    const duration first = busiest_begin(requests, length);
    made.begin = std::max<duration>(0ns, first - length / 50);
    made.end = made.begin + length;
    if (length < 1ms || marks_within(made, made.begin, made.end) <= most_marks) break;
  }
  made.caption = fmt::format("Timeline: the busiest {} s of seed {}, beginning at {:.3f} s",
                             seconds(made.end - made.begin), spec.first_seed, seconds(made.begin));
  return made;
}

page::section section_of(const study_spec& spec, const setting& where, std::size_t most_marks) {
  page::section made;
  made.facets = {{"profile", spec.profiles[where.profile].name},
                 {"arrivals", spec.sources[where.source].name},
                 {"offline", spec.offline[where.offline].name},
                 {"load", fmt::format("{:g}", where.share)}};
  made.summary = where.arrivals;
  for (const cell& each : where.cells) {
    for (const std::string& said : remarks_on(each)) {
      made.summary += fmt::format(". {}: {}", each.contender, said);
    }
  }
  const auto limit = [&](span_kind which) {
    return spec.limits.limit[static_cast<std::size_t>(which)];
  };
  if (auto trade = trade_of(spec, where); !trade.points.empty()) made.trade = std::move(trade);
  made.distributions.push_back(distribution_of(
      where, "Latency of requests", limit(span_kind::request), &served_request::latency));
  if (spec.common.service == service_kind::continuous) {
    made.distributions.push_back(distribution_of(where, "Time to first token",
                                                 limit(span_kind::ttft), &served_request::ttft));
    made.distributions.push_back(distribution_of(where, "Longest wait for a token, per request",
                                                 limit(span_kind::itl),
                                                 &served_request::worst_itl));
  }
  made.figures = shown(spec, where);
  made.events = events_of(spec, where, most_marks);
  return made;
}

// --- Sweeps --------------------------------------------------------------------------------------

/// Where preempting begins to pay, as the number of a column.
double column_of(const sweep_grid& grid, const break_even& where) {
  constexpr double beyond = std::numeric_limits<double>::infinity();
  switch (where.where) {
    case pays::unknown: return std::numeric_limits<double>::quiet_NaN();
    case pays::always: return -beyond;
    case pays::never: return beyond;
    case pays::from: break;
  }
  const auto& kernels = grid.kernels;
  const auto after = std::upper_bound(kernels.begin(), kernels.end(), where.kernel);
  if (after == kernels.begin() || after == kernels.end()) {
    return after == kernels.begin() ? 0 : static_cast<double>(kernels.size() - 1);
  }
  const auto before = std::prev(after);
  return static_cast<double>(before - kernels.begin()) +
         std::log(seconds(where.kernel) / seconds(*before)) /
             std::log(seconds(*after) / seconds(*before));
}

std::string ratio_text(double value) { return fmt::format("{:.{}f}", value, value < 10 ? 2 : 0); }

/// What all contenders but "no scheduler" make of each point, the highest cost on top.
page::heat_maps maps_of(const sweep_grid& grid,
                        const std::function<page::heat_maps::field(const sweep_point&)>& field_of) {
  page::heat_maps made;
  made.x_title = "length of every offline kernel";
  made.y_title = fmt::format("cost factor (x1: suspend {}, resume {})", to_text(grid.suspend_cost),
                             to_text(grid.resume_cost));
  made.line_title =
      "break-even: right of this line, suspending at once shortens online p99 by more than 1 %";
  for (const duration each : grid.kernels) made.columns.push_back(to_text(each));
  for (std::size_t f = grid.cost_factors.size(); f-- > 0;) {
    made.rows.push_back(fmt::format("x{:g}", grid.cost_factors[f]));
    made.line.push_back(column_of(grid, grid.line[f]));
  }
  for (std::size_t i = 0; i < grid.rows.size(); ++i) {
    const sweep_row& row = grid.rows[i];
    if (row.how == arrangement::unscheduled) continue;
    // Rows are all contenders but the first, which is online alone.
    page::heat_maps::map map{i + 1, row.contender, {}};
    for (std::size_t f = grid.cost_factors.size(); f-- > 0;) {
      for (std::size_t k = 0; k < grid.kernels.size(); ++k) {
        const sweep_point& point = row.points[grid.at(f, k)];
        if (std::isnan(point.p99_ms)) {
          map.fields.push_back(
              {{},
               "",
               row.contender +
                   (std::isnan(point.offline_share) ? "\nremoved" : "\nno request arrived")});
          continue;
        }
        auto field = field_of(point);
        field.detail = fmt::format("{}\nkernels of {}, costs x{:g}\np99 {:.1f} ms", row.contender,
                                   to_text(grid.kernels[k]), grid.cost_factors[f], point.p99_ms);
        if (point.p99_ratio) {
          field.detail +=
              fmt::format(", {} times the p99 without a scheduler", ratio_text(*point.p99_ratio));
        }
        field.detail +=
            fmt::format("\noffline work {:.1f} % of offline work alone", 100 * point.offline_share);
        if (row.how == arrangement::scheduled) {
          field.detail += fmt::format("\n{:.2f} queues suspended per second", point.suspends);
        }
        map.fields.push_back(std::move(field));
      }
    }
    made.maps.push_back(std::move(map));
  }
  return made;
}

page::section section_of(const sweep_grid& grid) {
  page::section made;
  made.facets = {{"profile", grid.profile},
                 {"arrivals", grid.arrivals},
                 {"offline", grid.offline},
                 {"load", fmt::format("{:g}", grid.load)}};
  made.summary = "Results of each policy for all suspend costs and all lengths of offline kernels.";
  auto& latency = made.grids.emplace_back(maps_of(grid, [](const sweep_point& point) {
    page::heat_maps::field field;
    if (!point.p99_ratio || *point.p99_ratio <= 0) return field;
    field.shade = std::clamp(std::log(*point.p99_ratio) / std::log(4.0), -1.0, 1.0);
    field.text = ratio_text(*point.p99_ratio);
    return field;
  }));
  latency.title = "Online p99, relative to no scheduler";
  latency.help = "below 1: online work is faster";
  latency.good = "0.25 or less";
  latency.middle = "1";
  latency.bad = "4 or more";
  auto& offline = made.grids.emplace_back(maps_of(grid, [](const sweep_point& point) {
    page::heat_maps::field field;
    field.shade = -std::min(point.offline_share, 1.0);
    field.text = fmt::format("{:.0f}%", 100 * point.offline_share);
    return field;
  }));
  offline.title = "Offline work, relative to offline work alone";
  offline.good = "100 %";
  offline.middle = "0 %";
  return made;
}

std::vector<std::string> notes(const study_spec& spec, bool sweep) {
  std::vector<std::string> made{
      "sluice lab generated this page. It ran the real scheduler core and the real policies in "
      "virtual time on a model of the GPU and its driver. Nothing was measured on AMD hardware. "
      "adapters/lab/README.md lists the assumptions."};
  if (sweep) {
    made.emplace_back(
        "A field has no number if requests were incomplete at the drain limit. To get all figures "
        "of each point, run the same command with --json.");
  } else {
    made.emplace_back(
        "The bound is the highest share of offline work that a scheduler could reach at a given "
        "online p99, if it knew all arrivals and kernels in advance. The bound may be out of "
        "reach. It does not apply to static splits. The curve shows the bound for the first seed "
        "and the longest measured time of all rows. The column bound% has the bound of each row, "
        "for the measured time of that row.");
    made.emplace_back(
        "The latency of a request that was incomplete at the drain limit is its age at that "
        "limit.");
  }
  if (spec.seeds > 1) {
    made.push_back(fmt::format("{} seeds: the figures are means{}.", spec.seeds,
                               sweep ? ""
                                     : ", with half of the 95 % confidence interval (Student's t); "
                                       "percentile curves combine the requests of all seeds"));
  }
  return made;
}

/// Costs as of a profile of that name.
std::pair<std::string, std::string> fact_of(const std::string& name, duration suspend,
                                            duration resume, const sim::profile& machine) {
  return {name, fmt::format("{} GPU{}, suspend {}, resume {} ({})", machine.gpus.size(),
                            machine.gpus.size() == 1 ? "" : "s", to_text(suspend), to_text(resume),
                            machine.batch_commands ? "batch commands" : "debug trap")};
}

}  // namespace

page::document page_of(const study_spec& spec, const study& all, std::string_view command,
                       const std::vector<sweep_grid>& grids) {
  page::document made;
  made.title = grids.empty() ? "sluice lab: policies compared" : "sluice lab: when suspending pays";
  made.notice = "Simulated. No number on this page was measured on hardware.";
  made.command = command;
  made.notes = notes(spec, !grids.empty());
  if (all.settings.empty()) return made;

  for (const sweep_grid& each : grids) {
    const auto& machine = spec.profiles[all.settings[each.settings.front()].profile].what;
    auto fact = fact_of(each.profile, each.suspend_cost, each.resume_cost, machine);
    if (std::find(made.facts.begin(), made.facts.end(), fact) == made.facts.end()) {
      made.facts.push_back(std::move(fact));
    }
  }
  for (const auto& each : spec.profiles) {
    if (!grids.empty()) break;
    const auto& gpu = each.what.gpus.front();
    const bool batch = each.what.batch_commands;
    made.facts.push_back(fact_of(each.name, batch ? gpu.batch_unmap_cost : gpu.suspend_cost,
                                 batch ? gpu.batch_remap_cost : gpu.resume_cost, each.what));
  }
  made.facts.emplace_back("seeds", spec.seeds == 1 ? fmt::format("{}", spec.first_seed)
                                                   : fmt::format("{} to {}", spec.first_seed,
                                                                 spec.first_seed + spec.seeds - 1));
  made.facts.emplace_back("runs", fmt::format("{}", all.runs));

  // Every setting has the same ones in the same order; only the split's name differs.
  for (const cell& each : all.settings.front().cells) {
    made.actors.push_back(
        {each.how == arrangement::static_split ? "static split" : each.contender, true});
  }
  for (std::size_t i = made.actors.size() - spec.policies.size(); i < made.actors.size(); ++i) {
    made.actors[i].reference = false;
  }
  for (const sweep_grid& each : grids) made.sections.push_back(section_of(each));
  if (!grids.empty()) return made;
  // Some 1.5 MB for all timelines together.
  const std::size_t marks = std::clamp<std::size_t>(60000 / all.settings.size(), 500, 20000);
  for (const setting& each : all.settings) made.sections.push_back(section_of(spec, each, marks));
  return made;
}

std::string html_report(const study_spec& spec, const study& all, std::string_view command,
                        const std::vector<sweep_grid>& grids) {
  return page::render(page_of(spec, all, command, grids));
}

}  // namespace sluice::lab
