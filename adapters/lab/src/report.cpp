#include "report.hpp"

#include "drawing.hpp"
#include "units.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sluice/duration_text.hpp"

namespace sluice::lab {
namespace {

constexpr double none = std::numeric_limits<double>::quiet_NaN();

using page::quoted;

bool always(const study_spec&, const cell&) { return true; }
bool with_online(const study_spec&, const cell& of) { return of.how != arrangement::offline_alone; }
bool with_offline(const study_spec&, const cell& of) { return of.how != arrangement::online_alone; }
bool by_tokens(const study_spec& spec, const cell& of) {
  return spec.common.service == service_kind::continuous && with_online(spec, of);
}
bool by_policy(const study_spec&, const cell& of) { return of.how == arrangement::scheduled; }
auto with_target(span_kind which) {
  return [which](const study_spec& spec, const cell& of) {
    return spec.limits.limit[static_cast<std::size_t>(which)].has_value() && with_online(spec, of);
  };
}

/// What only requests have: nothing where none came.
auto of_requests(double (*value)(const figures&)) {
  return [value](const figures& f) { return f.requests > 0 ? value(f) : none; };
}

/// The first column to the left, the others to the right.
std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    text += fmt::format("  {:<{}}", row[0], widths[0]);
    for (std::size_t i = 1; i < row.size(); ++i) text += fmt::format("  {:>{}}", row[i], widths[i]);
    text += '\n';
  }
  return text;
}

std::string csv_setting(const study_spec& spec, const setting& where, const cell& of) {
  return fmt::format("{},{},{:g},{},{}", csv_field(spec.profiles[of.profile].name),
                     csv_field(spec.sources[of.source].name), where.share,
                     csv_field(spec.offline[of.offline].name), csv_field(of.contender));
}

/// What a sweep says of a point.
struct sweep_figure {
  std::string_view key;  ///< In JSON and CSV.
  int decimals;          ///< In the table.
  double (*value)(const sweep_point&);
};
constexpr std::array sweep_figures{
    sweep_figure{"p99_ratio", 2, [](const sweep_point& p) { return p.p99_ratio.value_or(none); }},
    sweep_figure{"offline_percent", 1, [](const sweep_point& p) { return 100 * p.offline_share; }},
    sweep_figure{"suspends_per_s", 2, [](const sweep_point& p) { return p.suspends; }},
    sweep_figure{"online_saved", 3, [](const sweep_point& p) { return p.online_saved; }},
    sweep_figure{"offline_lost", 3, [](const sweep_point& p) { return p.offline_lost; }},
    sweep_figure{"p99_ms", 1, [](const sweep_point& p) { return p.p99_ms; }}};
constexpr std::span compared_figures = std::span(sweep_figures).first(3);
constexpr std::span exchanged_figures = std::span(sweep_figures).subspan(3, 2);

/// A block of columns for each figure, with a column for each kernel length; a row for each cost
/// factor, but one only for whoever suspends nothing.
std::string sweep_table(const sweep_grid& grid, std::span<const sweep_figure> figures,
                        const std::function<bool(const sweep_row&)>& shown) {
  std::vector<std::vector<std::string>> table{{"", "costs"}};
  const auto add_block = [&](const auto& text) {
    table.back().emplace_back("|");
    for (std::size_t k = 0; k < grid.kernels.size(); ++k) table.back().push_back(text(k));
  };
  for (std::size_t i = 0; i < figures.size(); ++i) {
    add_block([&](std::size_t k) { return to_text(grid.kernels[k]); });
  }
  for (const sweep_row& row : grid.rows) {
    if (!shown(row)) continue;
    const bool suspends = row.how == arrangement::scheduled;
    for (std::size_t f = 0; f < (suspends ? grid.cost_factors.size() : 1); ++f) {
      table.push_back({f == 0 ? row.contender : "",
                       suspends ? fmt::format("x{:g}", grid.cost_factors[f]) : "any"});
      for (const sweep_figure& figure : figures) {
        add_block([&](std::size_t k) -> std::string {
          const sweep_point& at = row.points[grid.at(f, k)];
          if (figure.key == "p99_ratio" && row.how == arrangement::unscheduled) {
            return std::isnan(at.p99_ms) ? "-" : fmt::format("{:.0f}ms", at.p99_ms);
          }
          const double value = figure.value(at);
          const bool silent = std::isnan(value) || (figure.key == "suspends_per_s" && !suspends);
          return silent ? "-" : fmt::format("{:.{}f}", value, figure.decimals);
        });
      }
    }
  }
  return aligned(table);
}

std::string_view to_string(pays where) {
  switch (where) {
    case pays::unknown: return "unknown";
    case pays::from: return "from";
    case pays::always: return "always";
    case pays::never: return "never";
  }
  return "unknown";
}

/// "[a,b]".
template <class Values, class Format>
std::string json_list(const Values& values, const Format& format) {
  std::string text;
  for (const auto& each : values) text += (text.empty() ? "[" : ",") + format(each);
  return text + ']';
}

/// A list for each cost factor, of one text for each kernel length.
template <class Format>
std::string json_matrix(const sweep_grid& grid, const Format& at) {
  std::vector<std::string> rows;
  for (std::size_t f = 0; f < grid.cost_factors.size(); ++f) {
    std::vector<std::string> row;
    for (std::size_t k = 0; k < grid.kernels.size(); ++k) row.push_back(at(grid.at(f, k)));
    rows.push_back(fmt::format("[{}]", fmt::join(row, ",")));
  }
  return fmt::format("[{}]", fmt::join(rows, ","));
}

std::string json_of(const sweep_grid& grid) {
  std::vector<double> kernels;
  for (const duration each : grid.kernels) kernels.push_back(ms(each));
  std::vector<std::string> line;
  for (const break_even& each : grid.line) {
    const bool within = each.where == pays::from;
    line.push_back(
        fmt::format("{{\"pays\":\"{}\"{}}}", to_string(each.where),
                    within ? fmt::format(",\"kernel_ms\":{:.6f}", ms(each.kernel)) : ""));
  }
  std::vector<std::string> rows;
  for (const sweep_row& row : grid.rows) {
    std::string text = fmt::format("{{\"name\":{}", quoted(row.contender));
    if (row.suspends_beyond) {
      text += fmt::format(",\"suspends_beyond_per_s\":{:.4f}", *row.suspends_beyond);
    }
    for (const sweep_figure& each : sweep_figures) {
      text += fmt::format(",\n    {}:{}", quoted(each.key),
                          json_matrix(grid, [&](std::size_t i) -> std::string {
                            const double value = each.value(row.points[i]);
                            return std::isnan(value) ? "null" : fmt::format("{:.4f}", value);
                          }));
    }
    rows.push_back(text + '}');
  }
  return fmt::format(
      "{{\"profile\":{},\"arrivals\":{},\"load\":{:g},\"offline\":{},\"suspend_ms\":{:g},"
      "\"resume_ms\":{:g},\n  \"cost_factors\":[{:g}],\"kernel_ms\":[{:g}],\n  \"settings\":{},\n  "
      "\"break_even\":[{}],\n  \"contenders\":[\n   {}]}}",
      quoted(grid.profile), quoted(grid.arrivals), grid.load, quoted(grid.offline),
      ms(grid.suspend_cost), ms(grid.resume_cost), fmt::join(grid.cost_factors, ","),
      fmt::join(kernels, ","),
      json_matrix(grid, [&](std::size_t i) { return std::to_string(grid.settings[i]); }),
      fmt::join(line, ","), fmt::join(rows, ",\n   "));
}

}  // namespace

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\n") == std::string_view::npos) return std::string(text);
  std::string made = "\"";
  for (const char each : text) made += each == '"' ? std::string("\"\"") : std::string(1, each);
  return made + '"';
}

const std::vector<metric>& metrics() {
  static const std::vector<metric> all{
      {"p50_ms", "p50", "request latency, p50, ms", 1,
       of_requests([](const figures& f) { return ms(f.latency.p50); }), with_online},
      {"p90_ms", "p90", "request latency, p90, ms", 1,
       of_requests([](const figures& f) { return ms(f.latency.p90); }), with_online},
      {"p99_ms", "p99", "request latency, p99, ms", 1,
       of_requests([](const figures& f) { return ms(f.latency.p99); }), with_online},
      {"max_ms", "max", "request latency, maximum, ms", 1,
       of_requests([](const figures& f) { return ms(f.latency.max); }), with_online},
      {"ttft_p50_ms", "", "time to first token, p50, ms", 1,
       of_requests([](const figures& f) { return ms(f.ttft.p50); }), by_tokens},
      {"ttft_p90_ms", "", "time to first token, p90, ms", 1,
       of_requests([](const figures& f) { return ms(f.ttft.p90); }), by_tokens},
      {"ttft_p99_ms", "ttft99", "time to first token, p99, ms", 1,
       of_requests([](const figures& f) { return ms(f.ttft.p99); }), by_tokens},
      {"ttft_max_ms", "", "time to first token, maximum, ms", 1,
       of_requests([](const figures& f) { return ms(f.ttft.max); }), by_tokens},
      {"itl_p50_ms", "", "inter-token latency, p50, ms", 2,
       of_requests([](const figures& f) { return ms(f.itl.p50); }), by_tokens},
      {"itl_p90_ms", "", "inter-token latency, p90, ms", 2,
       of_requests([](const figures& f) { return ms(f.itl.p90); }), by_tokens},
      {"itl_p99_ms", "itl99", "inter-token latency, p99, ms", 1,
       of_requests([](const figures& f) { return ms(f.itl.p99); }), by_tokens},
      {"itl_max_ms", "", "inter-token latency, maximum, ms", 1,
       of_requests([](const figures& f) { return ms(f.itl.max); }), by_tokens},
      {"in_flight", "",
       "mean number of requests in flight: sum of latencies, divided by the duration of the "
       "arrivals",
       3, [](const figures& f) { return f.in_flight; }, with_online},
      {"slowdown_mean", "slower", "latency relative to online work alone, mean over requests", 2,
       of_requests([](const figures& f) { return f.slowdown_mean; }), with_online},
      {"slowdown_p99", "", "latency relative to online work alone, p99 over requests", 2,
       of_requests([](const figures& f) { return f.slowdown_p99; }), with_online},
      {"request_misses", "miss%", "requests that exceed their target, %", 2,
       of_requests([](const figures& f) { return 100 * f.misses[0]; }),
       with_target(span_kind::request)},
      {"ttft_misses", "ttft miss%", "first tokens that exceed their target, %", 2,
       of_requests([](const figures& f) { return 100 * f.misses[1]; }),
       with_target(span_kind::ttft)},
      {"itl_misses", "itl miss%", "inter-token latencies that exceed their target, %", 2,
       of_requests([](const figures& f) { return 100 * f.misses[2]; }),
       with_target(span_kind::itl)},
      {"offline_percent", "offl%", "offline work completed, % of offline work alone", 1,
       [](const figures& f) { return 100 * f.offline_share; }, with_offline},
      {"bound_percent", "bound%", "upper bound of offline work at this p99, %", 1,
       [](const figures& f) { return f.bound ? 100 * *f.bound : none; }, with_offline},
      {"of_bound_percent", "of bound", "offline work, % of the bound", 1,
       [](const figures& f) {
         return f.bound && *f.bound > 0 ? 100 * f.offline_share / *f.bound : none;
       },
       with_offline},
      {"suspends_per_s", "susp/s", "queues suspended per second", 2,
       [](const figures& f) { return f.suspends; }, by_policy},
      {"driver_calls_per_s", "calls/s", "driver calls per second", 2,
       [](const figures& f) { return f.driver_calls; }, by_policy},
      {"switching_percent", "switch%", "GPU time spent in suspend and resume calls, %", 2,
       [](const figures& f) { return 100 * f.switching; }, by_policy},
      {"disturbed_ms_per_s", "dist ms/s",
       "online work stalled by suspends and resumes, ms per second", 2,
       [](const figures& f) { return f.disturbed_ms; }, by_policy},
      {"disturbing_cycles_per_s", "dist/s",
       "suspend and resume calls that stalled online work, per second", 2,
       [](const figures& f) { return f.disturbing_cycles; }, by_policy},
      {"starvation_ms", "starve",
       "longest time in which an offline process had pending work and did not run, ms", 0,
       [](const figures& f) { return f.starvation_ms; }, with_offline},
      {"forced_resumes_per_s", "", "resumes forced by max_suspend or offline_floor, per second", 3,
       [](const figures& f) { return f.forced_resumes; }, by_policy},
      {"unfinished", "unfin", "requests not complete at the drain limit", 0,
       [](const figures& f) { return f.unfinished; }, with_online},
      {"requests", "", "requests that arrived", 0, [](const figures& f) { return f.requests; },
       always},
  };
  return all;
}

std::vector<std::string> remarks_on(const cell& from) {
  std::vector<std::string> made;
  if (from.removed()) made.push_back("removed: " + from.faults.removed_for);
  if (from.faults.any_ignored()) made.push_back("ignored: " + from.faults.ignored_text());
  return made;
}

std::vector<double> values_of(const metric& which, const cell& from) {
  std::vector<double> values;
  for (const figures& each : from.by_seed) {
    const double value = which.value(each);
    if (!std::isnan(value)) values.push_back(value);
  }
  return values;
}

report_table table_of(const study_spec& spec, const setting& where) {
  report_table made;
  for (const metric& each : metrics()) {
    if (each.title.empty()) continue;
    // Nobody wants a column of zeros for what went well.
    const bool shown = std::any_of(where.cells.begin(), where.cells.end(), [&](const cell& one) {
      if (one.removed() || !each.applies(spec, one)) return false;
      const auto values = values_of(each, one);
      return each.key != "unfinished"
                 ? !values.empty()
                 : std::any_of(values.begin(), values.end(), [](double v) { return v > 0; });
    });
    if (shown) made.columns.push_back(&each);
  }
  for (const cell& one : where.cells) {
    auto& row = made.rows.emplace_back();
    const bool lower = std::any_of(one.by_seed.begin(), one.by_seed.end(),
                                   [](const figures& f) { return f.unfinished > 0; });
    for (const metric* const each : made.columns) {
      const bool says = !one.removed() && each->applies(spec, one);
      const auto values = says ? values_of(*each, one) : std::vector<double>{};
      if (values.empty()) {
        row.push_back({"-", {}});
        continue;
      }
      const estimate got = estimate_of(values);
      const bool latency = each->key == "p50_ms" || each->key == "p90_ms" ||
                           each->key == "p99_ms" || each->key == "max_ms";
      auto& field = row.emplace_back();
      field.mean = fmt::format("{}{:.{}f}", lower && latency ? ">=" : "", got.mean, each->decimals);
      if (values.size() > 1)
        field.half_width = fmt::format("{:.{}f}", got.half_width, each->decimals);
    }
  }
  return made;
}

std::string text_report(const study_spec& spec, const study& all) {
  std::string text;
  for (const setting& where : all.settings) {
    text += fmt::format(
        "\n{}\n  {}{}\n", text_of(spec, where), where.arrivals,
        spec.seeds > 1
            ? fmt::format("; {} seeds: mean +- half of the 95 % confidence interval", spec.seeds)
            : "");
    const report_table table = table_of(spec, where);
    std::vector<std::vector<std::string>> rows{{""}};
    for (const metric* const each : table.columns) rows[0].emplace_back(each->title);
    for (std::size_t i = 0; i < where.cells.size(); ++i) {
      auto& row = rows.emplace_back(std::vector<std::string>{where.cells[i].contender});
      for (const auto& [mean, half_width] : table.rows[i]) {
        row.push_back(half_width.empty() ? mean : mean + "+-" + half_width);
      }
    }
    text += aligned(rows);
    for (const cell& each : where.cells) {
      for (const std::string& said : remarks_on(each)) {
        text += fmt::format("  {}: {}\n", each.contender, said);
      }
    }
    if (!where.bound.empty()) {
      text += "  upper bound, offline % at p99:";
      double last = -1;
      for (const bound_point& each : where.bound) {
        if (100 * each.offline_share < last + 0.5) continue;
        last = 100 * each.offline_share;
        text += fmt::format("  {:.1f}% at {:.0f} ms", last, ms(each.p99));
      }
      text += '\n';
    }
  }
  return text;
}

std::string json_report(const study_spec& spec, const study& all, std::string_view command,
                        const std::vector<sweep_grid>& grids) {
  std::string text = fmt::format("{{\"command\":{},\"seeds\":{},\"first_seed\":{},\n\"metrics\":{{",
                                 quoted(command), spec.seeds, spec.first_seed);
  bool first = true;
  for (const metric& each : metrics()) {
    text += fmt::format("{}\n  {}:{}", std::exchange(first, false) ? "" : ",", quoted(each.key),
                        quoted(each.help));
  }
  text += "},\n\"settings\":[";
  first = true;
  for (const setting& where : all.settings) {
    text += fmt::format(
        "{}\n {{\"profile\":{},\"arrivals\":{},\"load\":{:g},\"offline\":{},\"work\":{},\n  "
        "\"bound\":[",
        std::exchange(first, false) ? "" : ",", quoted(spec.profiles[where.profile].name),
        quoted(spec.sources[where.source].name), where.share,
        quoted(spec.offline[where.offline].name), quoted(where.arrivals));
    for (std::size_t i = 0; i < where.bound.size(); ++i) {
      text += fmt::format("{}[{:.3f},{:.3f}]", i == 0 ? "" : ",", ms(where.bound[i].p99),
                          100 * where.bound[i].offline_share);
    }
    text += "],\n  \"contenders\":[";
    bool first_cell = true;
    for (const cell& one : where.cells) {
      text += fmt::format("{}\n   {{\"name\":{}", std::exchange(first_cell, false) ? "" : ",",
                          quoted(one.contender));
      if (one.removed()) {
        text += fmt::format(",\"removed\":{}}}", quoted(one.faults.removed_for));
        continue;
      }
      if (one.faults.any_ignored()) {
        text += fmt::format(",\"ignored\":{}", quoted(one.faults.ignored_text()));
      }
      for (const metric& each : metrics()) {
        if (!each.applies(spec, one)) continue;
        const auto values = values_of(each, one);
        if (values.empty()) continue;
        const estimate got = estimate_of(values);
        text += fmt::format(",{}:{{\"mean\":{:.4f},\"half_95\":{:.4f},\"values\":[",
                            quoted(each.key), got.mean, got.half_width);
        for (std::size_t i = 0; i < values.size(); ++i) {
          text += fmt::format("{}{:.4f}", i == 0 ? "" : ",", values[i]);
        }
        text += "]}";
      }
      text += '}';
    }
    text += "]}";
  }
  text += "]";
  for (std::size_t i = 0; i < grids.size(); ++i) {
    text += (i == 0 ? ",\n\"sweep\":[\n " : ",\n ") + json_of(grids[i]);
  }
  if (!grids.empty()) text += ']';
  return text + "}\n";
}

std::string text_sweep(const std::vector<sweep_grid>& grids) {
  std::string text;
  for (const sweep_grid& grid : grids) {
    text += fmt::format(
        "\n{} | {} | load {:g} | offline {}\n"
        "  rows: cost factor (x1: suspend {:g} ms, resume {:g} ms); columns: length of every "
        "offline kernel\n"
        "  online p99 relative to no scheduler | offline work, % of alone | queues suspended per "
        "second\n",
        grid.profile, grid.arrivals, grid.load, grid.offline, ms(grid.suspend_cost),
        ms(grid.resume_cost));
    text += sweep_table(grid, compared_figures, [](const sweep_row&) { return true; });
    text +=
        "  seconds per second of the run, relative to no scheduler: request latency saved | "
        "offline kernel time lost\n";
    text += sweep_table(grid, exchanged_figures,
                        [](const sweep_row& row) { return row.how == arrangement::scheduled; });
    text += fmt::format(
        "  break-even: suspending at once shortens online p99 by more than {:g} % if kernels "
        "are longer than\n   ",
        100 - 100 * pays_below);
    for (std::size_t f = 0; f < grid.cost_factors.size(); ++f) {
      const break_even& at = grid.line[f];
      text += fmt::format(" x{:g}: {};", grid.cost_factors[f],
                          at.where == pays::from ? fmt::format("{:.2g} ms", ms(at.kernel))
                                                 : std::string(to_string(at.where)));
    }
    text.back() = '\n';
    text += "  highest suspend rate (per second) at points where preempting does not pay\n";
    for (const sweep_row& row : grid.rows) {
      if (row.how != arrangement::scheduled) continue;
      text += fmt::format("    {}: {}\n", row.contender,
                          row.suspends_beyond ? fmt::format("{:.2f}", *row.suspends_beyond) : "-");
    }
  }
  return text;
}

void csv_sweep(const std::vector<sweep_grid>& grids,
               const std::function<void(std::string_view)>& write) {
  std::string header = "profile,arrivals,load,offline,policy,cost_factor,kernel_ms,pays";
  for (const sweep_figure& each : sweep_figures) header += fmt::format(",{}", each.key);
  write(header + '\n');
  for (const sweep_grid& grid : grids) {
    for (const sweep_row& row : grid.rows) {
      for (std::size_t f = 0; f < grid.cost_factors.size(); ++f) {
        for (std::size_t k = 0; k < grid.kernels.size(); ++k) {
          std::string line = fmt::format(
              "{},{},{:g},{},{},{:g},{:g},{:d}", csv_field(grid.profile), csv_field(grid.arrivals),
              grid.load, csv_field(grid.offline), csv_field(row.contender), grid.cost_factors[f],
              ms(grid.kernels[k]), grid.line[f].pays_beside(grid.kernels[k]));
          for (const sweep_figure& each : sweep_figures) {
            const double value = each.value(row.points[grid.at(f, k)]);
            line += std::isnan(value) ? "," : fmt::format(",{:.4f}", value);
          }
          write(line + '\n');
        }
      }
    }
  }
}

void csv_requests(const study_spec& spec, const study& all,
                  const std::function<void(std::string_view)>& write) {
  write(
      "profile,arrivals,load,offline,policy,seed,request,gpu,arrival_ms,context_tokens,"
      "generated_tokens,latency_ms,ttft_ms,worst_itl_ms,alone_ms,finished\n");
  for (const setting& where : all.settings) {
    for (const cell& one : where.cells) {
      const std::string begin = csv_setting(spec, where, one);
      for (std::size_t k = 0; k < one.runs.size(); ++k) {
        const auto& alone = one.alone[k];
        for (std::size_t i = 0; i < one.runs[k].requests.size(); ++i) {
          const served& row = one.runs[k].requests[i];
          write(fmt::format("{},{},{},{},{:.6f},{},{},{:.6f},{:.6f},{:.6f},{:.6f},{}\n", begin,
                            spec.first_seed + k, i, row.server, ms(row.what.arrived),
                            row.what.context_tokens, row.what.generated_tokens,
                            ms(row.what.latency), ms(row.what.ttft), ms(row.what.worst_itl),
                            i < alone.size() ? ms(alone[i]) : 0.0, row.what.finished ? 1 : 0));
        }
      }
    }
  }
}

void csv_decisions(const study_spec& spec, const study& all,
                   const std::function<void(std::string_view)>& write) {
  write(
      "profile,arrivals,load,offline,policy,seed,decided_ms,started_ms,finished_ms,gpu,process,"
      "command,queues,online_in_flight\n");
  for (const setting& where : all.settings) {
    for (const cell& one : where.cells) {
      const std::string begin = csv_setting(spec, where, one);
      for (std::size_t k = 0; k < one.runs.size(); ++k) {
        const run_result& run = one.runs[k];
        for (const driver_decision& row : run.decisions) {
          write(fmt::format("{},{},{:.6f},{:.6f},{:.6f},{},{},{},{},{}\n", begin,
                            spec.first_seed + k, ms(row.decided - run.zero),
                            ms(row.started - run.zero), ms(row.finished - run.zero),
                            static_cast<std::uint32_t>(row.on), row.process,
                            row.kind == command_kind::suspend ? "suspend" : "resume", row.queues,
                            row.online_in_flight));
        }
      }
    }
  }
}

}  // namespace sluice::lab
