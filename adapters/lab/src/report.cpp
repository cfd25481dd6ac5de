#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace sluice::lab {
namespace {

constexpr double none = std::numeric_limits<double>::quiet_NaN();

double ms(duration value) { return std::chrono::duration<double, std::milli>(value).count(); }

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

/// For JSON.
std::string quoted(std::string_view text) {
  std::string made = "\"";
  for (const char each : text) {
    if (each == '"' || each == '\\') made += '\\';
    if (static_cast<unsigned char>(each) < 0x20) {
      made += fmt::format("\\u{:04x}", static_cast<unsigned>(each));
    } else {
      made += each;
    }
  }
  return made + '"';
}

/// For CSV: in quotes where it has to be.
std::string field(std::string_view text) {
  if (text.find_first_of(",\"\n") == std::string_view::npos) return std::string(text);
  std::string made = "\"";
  for (const char each : text) made += each == '"' ? std::string("\"\"") : std::string(1, each);
  return made + '"';
}

std::string setting_text(const study_spec& spec, const setting& where) {
  return fmt::format("{} | {} | load {:g} | offline {}", spec.profiles[where.profile].name,
                     spec.sources[where.source].name, spec.loads[where.load],
                     spec.offline[where.offline].name);
}

std::string csv_setting(const study_spec& spec, const cell& of) {
  return fmt::format("{},{},{:g},{},{}", field(spec.profiles[of.profile].name),
                     field(spec.sources[of.source].name), spec.loads[of.load],
                     field(spec.offline[of.offline].name), field(of.contender));
}

}  // namespace

const std::vector<metric>& metrics() {
  static const std::vector<metric> all{
      {"p50_ms", "p50", "latency of requests, ms", 1,
       [](const figures& f) { return ms(f.latency.p50); }, with_online},
      {"p90_ms", "p90", "ms", 1, [](const figures& f) { return ms(f.latency.p90); }, with_online},
      {"p99_ms", "p99", "ms", 1, [](const figures& f) { return ms(f.latency.p99); }, with_online},
      {"max_ms", "max", "ms", 1, [](const figures& f) { return ms(f.latency.max); }, with_online},
      {"ttft_p50_ms", "", "time to first token, ms", 1,
       [](const figures& f) { return ms(f.ttft.p50); }, by_tokens},
      {"ttft_p90_ms", "", "ms", 1, [](const figures& f) { return ms(f.ttft.p90); }, by_tokens},
      {"ttft_p99_ms", "ttft99", "ms", 1, [](const figures& f) { return ms(f.ttft.p99); },
       by_tokens},
      {"ttft_max_ms", "", "ms", 1, [](const figures& f) { return ms(f.ttft.max); }, by_tokens},
      {"itl_p50_ms", "", "inter-token latency, ms", 2,
       [](const figures& f) { return ms(f.itl.p50); }, by_tokens},
      {"itl_p90_ms", "", "ms", 2, [](const figures& f) { return ms(f.itl.p90); }, by_tokens},
      {"itl_p99_ms", "itl99", "ms", 1, [](const figures& f) { return ms(f.itl.p99); }, by_tokens},
      {"itl_max_ms", "", "ms", 1, [](const figures& f) { return ms(f.itl.max); }, by_tokens},
      {"slowdown_mean", "slower", "latency over that of running alone, mean over requests", 2,
       [](const figures& f) { return f.slowdown_mean; }, with_online},
      {"slowdown_p99", "", "the same, p99", 2, [](const figures& f) { return f.slowdown_p99; },
       with_online},
      {"request_misses", "miss%", "requests over their target, %", 2,
       [](const figures& f) { return 100 * f.misses[0]; }, with_target(span_kind::request)},
      {"ttft_misses", "ttft miss%", "%", 2, [](const figures& f) { return 100 * f.misses[1]; },
       with_target(span_kind::ttft)},
      {"itl_misses", "itl miss%", "%", 2, [](const figures& f) { return 100 * f.misses[2]; },
       with_target(span_kind::itl)},
      {"offline_percent", "offl%", "offline work done, % of running alone", 1,
       [](const figures& f) { return 100 * f.offline_share; }, with_offline},
      {"bound_percent", "bound%", "the most at this p99, proven", 1,
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
      {"switching_percent", "switch%", "time lost to switching: GPU time inside our calls, %", 2,
       [](const figures& f) { return 100 * f.switching; }, by_policy},
      {"disturbed_ms_per_s", "dist ms/s", "online work stood still for our calls, ms per second", 2,
       [](const figures& f) { return f.disturbed_ms; }, by_policy},
      {"disturbing_cycles_per_s", "dist/s", "our calls that met online work, per second", 2,
       [](const figures& f) { return f.disturbing_cycles; }, by_policy},
      {"starvation_ms", "starve",
       "longest time in which an offline process with work ran nothing, ms", 0,
       [](const figures& f) { return f.starvation_ms; }, with_offline},
      {"forced_resumes_per_s", "", "resumes by max_suspend or offline_floor, per second", 3,
       [](const figures& f) { return f.forced_resumes; }, by_policy},
      {"unfinished", "unfin", "requests not done at the drain limit", 0,
       [](const figures& f) { return f.unfinished; }, with_online},
      {"requests", "", "requests that arrived", 0, [](const figures& f) { return f.requests; },
       always},
  };
  return all;
}

std::vector<double> values_of(const metric& which, const cell& from) {
  std::vector<double> values;
  for (const figures& each : from.by_seed) {
    const double value = which.value(each);
    if (!std::isnan(value)) values.push_back(value);
  }
  return values;
}

std::string text_report(const study_spec& spec, const study& all) {
  std::string text;
  for (const setting& where : all.settings) {
    text += fmt::format(
        "\n{}\n  {}{}\n", setting_text(spec, where), where.arrivals,
        spec.seeds > 1 ? fmt::format("; {} seeds, mean and half of the 95 % interval", spec.seeds)
                       : "");
    std::vector<const metric*> columns;
    for (const metric& each : metrics()) {
      if (each.title.empty()) continue;
      // Nobody wants a column of zeros for what went well.
      const bool shown = std::any_of(where.cells.begin(), where.cells.end(), [&](const cell& one) {
        if (!each.applies(spec, one)) return false;
        const auto values = values_of(each, one);
        return each.key != "unfinished"
                   ? !values.empty()
                   : std::any_of(values.begin(), values.end(), [](double v) { return v > 0; });
      });
      if (shown) columns.push_back(&each);
    }
    std::vector<std::vector<std::string>> rows{{""}};
    for (const metric* const each : columns) rows[0].emplace_back(each->title);
    for (const cell& one : where.cells) {
      auto& row = rows.emplace_back(std::vector<std::string>{one.contender});
      const bool lower = std::any_of(one.by_seed.begin(), one.by_seed.end(),
                                     [](const figures& f) { return f.unfinished > 0; });
      for (const metric* const each : columns) {
        const auto values =
            each->applies(spec, one) ? values_of(*each, one) : std::vector<double>{};
        if (values.empty()) {
          row.emplace_back("-");
          continue;
        }
        const estimate got = estimate_of(values);
        const bool latency = each->key == "p50_ms" || each->key == "p90_ms" ||
                             each->key == "p99_ms" || each->key == "max_ms";
        std::string cell_text =
            fmt::format("{}{:.{}f}", lower && latency ? ">=" : "", got.mean, each->decimals);
        if (values.size() > 1)
          cell_text += fmt::format("+-{:.{}f}", got.half_width, each->decimals);
        row.push_back(std::move(cell_text));
      }
    }
    std::vector<std::size_t> widths(rows[0].size());
    for (const auto& row : rows) {
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    for (const auto& row : rows) {
      std::string line = fmt::format("  {:<{}}", row[0], widths[0]);
      for (std::size_t i = 1; i < row.size(); ++i) {
        line += fmt::format("  {:>{}}", row[i], widths[i]);
      }
      text += line + '\n';
    }
    if (!where.bound.empty()) {
      text += "  clairvoyant bound, offline % at p99:";
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

std::string json_report(const study_spec& spec, const study& all, std::string_view command) {
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
        quoted(spec.sources[where.source].name), spec.loads[where.load],
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
  return text + "]}\n";
}

void csv_requests(const study_spec& spec, const study& all,
                  const std::function<void(std::string_view)>& write) {
  write(
      "profile,arrivals,load,offline,policy,seed,request,gpu,arrival_ms,context_tokens,"
      "generated_tokens,latency_ms,ttft_ms,worst_itl_ms,alone_ms,finished\n");
  for (const setting& where : all.settings) {
    for (const cell& one : where.cells) {
      const std::string begin = csv_setting(spec, one);
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
      const std::string begin = csv_setting(spec, one);
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
