#include "study.hpp"

#include "bound.hpp"
#include "units.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <numeric>
#include <thread>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "sluice/duration_text.hpp"

namespace sluice::lab {
namespace {

using namespace std::chrono_literals;

/// One scenario with what all its contenders are measured against.
struct base {
  scenario what;
  run_result online_alone;
  run_result offline_alone;
  std::unique_ptr<clairvoyant> bound;
  double alone_rate() const {
    return seconds(offline_alone.offline_work) / seconds(offline_alone.stretch);
  }
  double share(duration work, duration stretch) const {
    return seconds(work) / seconds(stretch) / alone_rate();
  }
};

/// Calls `work(i)` for each i below `count`, on so many threads.
template <class Work>
void for_each_index(std::size_t count, std::uint32_t threads, const Work& work) {
  std::atomic<std::size_t> next{0};
  const auto loop = [&] {
    for (std::size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::jthread> others;
  for (std::uint32_t i = 1; i < std::min<std::size_t>(threads, count); ++i) {
    others.emplace_back(loop);
  }
  loop();
}

percentiles percentiles_of_sorted(const std::vector<duration>& sorted) {
  if (sorted.empty()) return {};
  const auto rank = [&](double percent) {
    const double position = std::ceil(percent / 100.0 * static_cast<double>(sorted.size()));
    return sorted[static_cast<std::size_t>(std::max(position, 1.0)) - 1];
  };
  return {rank(50), rank(90), rank(99), sorted.back()};
}

double share_over(const std::vector<duration>& values, std::optional<duration> limit) {
  if (!limit || values.empty()) return 0;
  return static_cast<double>(std::count_if(values.begin(), values.end(),
                                           [&](duration each) { return each > *limit; })) /
         static_cast<double>(values.size());
}

/// Of requests in the order of their arrival.
bool is_growing(const std::vector<duration>& latencies) {
  constexpr std::size_t fewest = 100;  // Of fewer, a burst looks like it.
  if (latencies.size() < fewest) return false;
  const auto middle = latencies.begin() + static_cast<std::ptrdiff_t>(latencies.size() / 2);
  return percentiles_of({middle, latencies.end()}).p50 >
         percentiles_of({latencies.begin(), middle}).p99;
}

thread_local std::string in_progress;

figures figures_of(const run_result& run, const base& alone, const targets& limits) {
  figures made;
  const double stretch = seconds(run.stretch);
  const auto gpus = static_cast<double>(alone.what.machine.gpus.size() * alone.what.nodes);
  std::vector<duration> latencies, firsts;
  for (const served& each : run.requests) {
    latencies.push_back(each.what.latency);
    made.in_flight += seconds(each.what.latency);
    if (!each.what.finished) ++made.unfinished;
    if (each.what.ttft > 0ns) firsts.push_back(each.what.ttft);
  }
  made.growing = is_growing(latencies);
  made.requests = static_cast<double>(latencies.size());
  made.in_flight /= seconds(alone.what.work.window);
  made.latency = percentiles_of(latencies);
  made.ttft = percentiles_of(firsts);
  made.itl = percentiles_of_sorted(run.gaps);
  using index = std::size_t;
  made.misses[index(span_kind::request)] =
      share_over(latencies, limits.limit[index(span_kind::request)]);
  made.misses[index(span_kind::ttft)] = share_over(firsts, limits.limit[index(span_kind::ttft)]);
  made.misses[index(span_kind::itl)] = share_over(run.gaps, limits.limit[index(span_kind::itl)]);

  // Requests are the same ones, in the same order.
  std::vector<double> slower;
  const auto& others = alone.online_alone.requests;
  for (std::size_t i = 0; i < std::min(run.requests.size(), others.size()); ++i) {
    if (others[i].what.latency > 0ns) {
      slower.push_back(seconds(run.requests[i].what.latency) / seconds(others[i].what.latency));
    }
  }
  if (!slower.empty()) {
    made.slowdown_mean =
        std::accumulate(slower.begin(), slower.end(), 0.0) / static_cast<double>(slower.size());
    std::sort(slower.begin(), slower.end());
    const double rank = std::ceil(0.99 * static_cast<double>(slower.size()));
    made.slowdown_p99 = slower[static_cast<std::size_t>(rank) - 1];
  }

  made.offline_busy = seconds(run.offline_work) / stretch;
  made.offline_share = alone.alone_rate() > 0 ? made.offline_busy / alone.alone_rate() : 0;
  made.suspends = static_cast<double>(run.suspends) / stretch;
  made.driver_calls = static_cast<double>(run.driver_calls) / stretch;
  made.switching = seconds(run.switching) / stretch / gpus;
  made.disturbed_ms = seconds(run.disturbed) * 1e3 / stretch;
  made.disturbing_cycles = static_cast<double>(run.disturbing_cycles) / stretch;
  made.starvation_ms = seconds(run.longest_starvation) * 1e3;
  made.forced_resumes = static_cast<double>(run.forced_resumes) / stretch;
  made.left_suspended = static_cast<double>(run.left_suspended);
  made.conserved = run.conserved;
  return made;
}

/// From the p99 of running alone on. A share is of a stretch, and who takes longer to be done has
/// more time without online work in it: the curve is of the longest stretch, and of each row's own
/// at the row's p99, so that no row has a bound above it.
/// \param rows at their p99; their bounds.
std::vector<bound_point> curve(const base& of, duration longest,
                               const std::vector<bound_point>& rows) {
  std::vector<duration> alone;
  for (const served& each : of.online_alone.requests) alone.push_back(each.what.latency);
  const duration first = percentiles_of(std::move(alone)).p99;
  std::vector<bound_point> points;
  if (first <= 0ns || of.alone_rate() <= 0) return points;
  constexpr int steps_per_double = 4, doublings = 8;
  for (int i = 0; i <= steps_per_double * doublings; ++i) {
    const auto p99 =
        std::chrono::round<duration>(std::chrono::duration<double, std::nano>(first) *
                                     std::exp2(static_cast<double>(i) / steps_per_double));
    points.push_back({p99, of.share(of.bound->work(p99, longest), longest)});
  }
  points.insert(points.end(), rows.begin(), rows.end());
  std::sort(points.begin(), points.end(), [](const bound_point& a, const bound_point& b) {
    return std::tie(a.p99, b.offline_share) < std::tie(b.p99, a.offline_share);
  });
  double most = 0;
  for (bound_point& each : points) {
    each.offline_share = most = std::max(most, each.offline_share);
  }
  points.erase(
      std::unique(points.begin(), points.end(),
                  [](const bound_point& a, const bound_point& b) { return a.p99 == b.p99; }),
      points.end());
  return points;
}

/// What a reader of percentiles has to know of how many requests there are.
std::string remark_on_requests(const std::vector<figures>& by_seed) {
  std::string made;
  const auto empty = std::count_if(by_seed.begin(), by_seed.end(),
                                   [](const figures& f) { return f.requests <= 0; });
  if (static_cast<std::size_t>(empty) == by_seed.size()) {
    return fmt::format(
        "; no request arrived{}, so no latencies are reported; use a longer --duration",
        by_seed.size() > 1 ? " in any seed" : "");
  }
  if (empty > 0) {
    made += fmt::format("; {} of the {} seeds {} no request and {} excluded from latencies", empty,
                        by_seed.size(), empty == 1 ? "has" : "have", empty == 1 ? "is" : "are");
  }
  if (std::any_of(by_seed.begin(), by_seed.end(),
                  [](const figures& f) { return f.requests > 0 && f.requests < 100; })) {
    made += "; with fewer than 100 requests, p99 is the maximum";
  }
  return made;
}

/// And what to do about it.
std::string why_nothing_is_done(const offline_spec& of, duration wake_up, duration stretch) {
  const duration pause = wake_up + (of.shape.kernels_per_step != 0 ? of.shape.gap_high : 0ns);
  if (of.gang && pause < stretch) {
    return "the ranks of a gang occupy compute units until all of them have begun, so gangs can "
           "block each other; reduce processes or all_reduce_occupancy";
  }
  return fmt::format(
      "its host pauses for up to {} after a kernel (--wake-up plus gap_high); reduce these times "
      "or use a longer --duration",
      to_text(pause));
}

/// What is compared with the same requests on the same node running alone.
std::vector<contender> on_one_node(const study_spec& spec, double split) {
  std::vector<contender> made;
  made.push_back({"no scheduler", arrangement::unscheduled, {}, 1});
  made.push_back({"SIGSTOP", arrangement::stopped, {}, 1});
  made.push_back({fmt::format("static split {:.0f}/{:.0f}", 100 * split, 100 * (1 - split)),
                  arrangement::static_split,
                  {},
                  split});
  made.push_back({"suspend at once", arrangement::scheduled, make_at_once, 1});
  made.insert(made.end(), spec.policies.begin(), spec.policies.end());
  return made;
}

std::string named(const std::string& what, const router_spec& by) { return what + " + " + by.name; }

/// All but the first router's "online alone". A router that asks for offline work is left out where
/// it would do as least_loaded does.
std::vector<contender> behind_routers(const study_spec& spec, double split) {
  std::vector<contender> made;
  const auto add = [&](const contender& what, const router_spec& by) {
    made.push_back(what);
    made.back().name = named(what.name, by);
    made.back().router = by;
  };
  for (const router_spec& by : spec.routers) {
    if (&by != &spec.routers.front() && !by.sees_offline())
      add({"online alone", arrangement::online_alone, {}, 1}, by);
  }
  for (const router_spec& by : spec.routers) {
    if (by.sees_offline()) continue;
    add({fmt::format("exclusive nodes {:.0f} %", 100 * split), arrangement::exclusive, {}, split},
        by);
  }
  for (const router_spec& by : spec.routers) {
    if (by.by != routing::suspended_first)
      add({"no scheduler", arrangement::unscheduled, {}, 1}, by);
  }
  if (spec.policies.empty()) {
    for (const router_spec& by : spec.routers) {
      add({"suspend at once", arrangement::scheduled, make_at_once, 1}, by);
    }
  }
  for (const contender& each : spec.policies) {
    for (const router_spec& by : spec.routers) add(each, by);
  }
  return made;
}

}  // namespace

double split_for(double load) {
  return std::clamp(std::round((load + (1 - load) / 2) * 20) / 20, 0.05, 0.95);
}

checked<study> run_study(const study_spec& spec) {
  study made;
  for (std::size_t p = 0; p < spec.profiles.size(); ++p) {
    for (std::size_t a = 0; a < spec.sources.size(); ++a) {
      for (std::size_t o = 0; o < spec.offline.size(); ++o) {
        for (std::size_t l = 0; l < spec.loads.size(); ++l) {
          made.settings.push_back({p, a, l, o, spec.loads[l], {}, {}, {}});
        }
      }
    }
  }
  const auto scenario_of = [&](const setting& where, std::uint64_t seed) {
    scenario one = spec.common;
    one.machine = spec.profiles[where.profile].what;
    one.work = spec.sources[where.source].make(seed);
    one.costs = spec.costs
                    ? *spec.costs
                    : scale_to_load(one.work, spec.loads[where.load] *
                                                  static_cast<double>(one.servers() * one.nodes));
    one.offline = spec.offline[where.offline].what;
    one.offline_seed = seed;
    return one;
  };

  if (spec.costs) {
    for (setting& each : made.settings) {
      const scenario first = scenario_of(each, spec.first_seed);
      each.share =
          load_of(first.work, first.costs) / static_cast<double>(first.servers() * first.nodes);
    }
  }

  // Whose runs without suspends those of a setting are; most often its own.
  const auto same_as = [&](std::size_t s) {
    const std::size_t p = made.settings[s].profile;
    const std::size_t other = spec.profiles[p].same_but_for_suspends.value_or(p);
    return s - (p - other) * (made.settings.size() / spec.profiles.size());
  };

  // First what everything is compared with, then everything else.
  std::vector<base> bases(made.settings.size() * spec.seeds);
  for_each_index(bases.size() * 2, spec.threads, [&](std::size_t i) {
    base& one = bases[i / 2];
    const std::size_t s = i / 2 / spec.seeds;
    scenario what = scenario_of(made.settings[s], spec.first_seed + i / 2 % spec.seeds);
    const bool own = same_as(s) == s;
    if (i % 2 == 0) {
      const router_spec by = spec.routers.empty() ? router_spec{} : spec.routers.front();
      if (own) one.online_alone = simulate(what, {"", arrangement::online_alone, {}, 1, by});
    } else {
      if (own) one.offline_alone = simulate(what, {"", arrangement::offline_alone, {}, 1});
      one.what = std::move(what);
    }
  });
  for (std::size_t b = 0; b < bases.size(); ++b) {
    const std::size_t s = b / spec.seeds, other = same_as(s);
    if (other == s) {
      made.runs += 2;
      continue;
    }
    const base& from = bases[other * spec.seeds + b % spec.seeds];
    bases[b].online_alone = from.online_alone;
    bases[b].offline_alone = from.offline_alone;
  }

  for (std::size_t b = 0; b < bases.size(); ++b) {
    if (bases[b].alone_rate() <= 0) {
      const auto& [name, offline] = spec.offline[made.settings[b / spec.seeds].offline];
      const duration stretch = bases[b].offline_alone.stretch;
      return failure(fmt::format(
          "{}: this offline load completes no work in {:.3f} s, even alone: {}", name,
          seconds(stretch), why_nothing_is_done(offline, spec.common.wake_up, stretch)));
    }
  }

  const bool fleet = spec.common.nodes > 1;
  std::vector<std::vector<contender>> who(made.settings.size());
  std::vector<std::pair<std::size_t, std::size_t>> jobs;  // Base, contender.
  for (std::size_t s = 0; s < made.settings.size(); ++s) {
    setting& where = made.settings[s];
    const double split = spec.split.value_or(split_for(where.share));
    who[s] = fleet ? behind_routers(spec, split) : on_one_node(spec, split);
    const auto add = [&](const std::string& name, arrangement how) {
      where.cells.push_back({where.profile,
                             where.source,
                             where.load,
                             where.offline,
                             name,
                             how,
                             std::vector<figures>(spec.seeds),
                             {},
                             {},
                             {}});
    };
    add(fleet ? named("online alone", spec.routers.front()) : "online alone",
        arrangement::online_alone);
    for (const contender& each : who[s]) add(each.name, each.how);
    for (cell& each : where.cells) {
      each.runs.resize(spec.seeds);
      each.alone.resize(spec.seeds);
    }
    for (std::size_t k = 0; k < spec.seeds; ++k) {
      for (std::size_t c = 0; c < who[s].size(); ++c) jobs.emplace_back(s * spec.seeds + k, c);
    }
  }
  const auto taken_over = [&](std::size_t i) {
    const std::size_t s = jobs[i].first / spec.seeds;
    return same_as(s) != s && who[s][jobs[i].second].how != arrangement::scheduled;
  };
  std::vector<duration> stretches(jobs.size());
  for_each_index(jobs.size(), spec.threads, [&](std::size_t i) {
    if (taken_over(i)) return;
    const auto [b, c] = jobs[i];
    const std::size_t s = b / spec.seeds, k = b % spec.seeds;
    const contender& one = who[s][c];
    cell& into = made.settings[s].cells[c + 1];
    in_progress = fmt::format("{}, {}", text_of(spec, made.settings[s]), one.name);
    run_result run = simulate(bases[b].what, one, {spec.keep_decisions});
    in_progress.clear();
    into.by_seed[k] = figures_of(run, bases[b], spec.limits);
    stretches[i] = run.stretch;
    run.gaps.clear();
    run.gaps.shrink_to_fit();
    if (!spec.keep_requests) {
      run.requests.clear();
      run.requests.shrink_to_fit();
    }
    into.runs[k] = std::move(run);
  });
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (!taken_over(i)) {
      ++made.runs;
      continue;
    }
    const auto [b, c] = jobs[i];
    const std::size_t s = b / spec.seeds, k = b % spec.seeds, other = same_as(s);
    // Every setting has as many contenders, so that the other's job is as far from its first.
    stretches[i] = stretches[i - (s - other) * spec.seeds * who[s].size()];
    const cell& from = made.settings[other].cells[c + 1];
    made.settings[s].cells[c + 1].by_seed[k] = from.by_seed[k];
    made.settings[s].cells[c + 1].runs[k] = from.runs[k];
  }

  // Then the bound, at the p99 and over the stretch that each had. It says nothing of whoever did
  // not finish the requests, and does not know of compute units that are set aside, or of a router.
  for_each_index(fleet ? 0 : bases.size(), spec.threads, [&](std::size_t b) {
    base& one = bases[b];
    const std::size_t s = b / spec.seeds, k = b % spec.seeds;
    setting& where = made.settings[s];
    duration longest = one.online_alone.stretch;
    struct question {
      figures* of;
      duration stretch;
      bool suspends;
    };
    std::vector<question> asked;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      cell& each = where.cells[jobs[i].second + 1];
      if (jobs[i].first != b || each.how == arrangement::static_split) continue;
      if (each.by_seed[k].unfinished > 0 || one.alone_rate() <= 0) continue;
      longest = std::max(longest, stretches[i]);
      asked.push_back({&each.by_seed[k], stretches[i], each.how != arrangement::stopped});
    }
    one.bound = std::make_unique<clairvoyant>(one.what, longest);
    for (const question& each : asked) {
      each.of->bound = one.share(each.suspends ? one.bound->work(each.of->latency.p99, each.stretch)
                                               : one.bound->room(each.stretch),
                                 each.stretch);
    }
    if (k == 0) {
      std::vector<bound_point> rows;
      for (const question& each : asked) {
        if (each.suspends) rows.push_back({each.of->latency.p99, *each.of->bound});
      }
      where.bound = curve(one, longest, rows);
    }
    one.bound.reset();
  });

  for (std::size_t s = 0; s < made.settings.size(); ++s) {
    setting& where = made.settings[s];
    for (std::size_t k = 0; k < spec.seeds; ++k) {
      base& from = bases[s * spec.seeds + k];
      cell& alone = where.cells.front();
      alone.by_seed[k] = figures_of(from.online_alone, from, spec.limits);
      for (cell& each : where.cells) {
        if (!spec.keep_requests) break;
        for (const served& row : from.online_alone.requests) {
          each.alone[k].push_back(row.what.latency);
        }
      }
      for (cell& each : where.cells) {
        each.faults.add(each.runs[k].faults);
        if (!each.by_seed[k].conserved) {
          return failure(fmt::format(
              "{}: kernels were lost or ran twice; this is a bug in sluice, please report it",
              each.contender));
        }
        if (each.by_seed[k].left_suspended > 0) {
          return failure(
              fmt::format("{}: {} queues remained suspended at the end; this is a bug in sluice, "
                          "please report it",
                          each.contender, each.by_seed[k].left_suspended));
        }
      }
      if (spec.keep_requests) alone.runs[k] = std::move(from.online_alone);
    }
    for (cell& each : where.cells) {
      if (!each.removed()) continue;
      each.by_seed.assign(spec.seeds, {});
      each.runs.assign(spec.seeds, {});
    }
    const base& first = bases[s * spec.seeds];
    const token_totals sum = totals(first.what.work);
    where.arrivals = fmt::format(
        "{} requests in {:.1f} s, {} context tokens ({:.3f} us each), {} generated tokens ({:.3f} "
        "us each)",
        first.what.work.requests.size(), seconds(first.what.work.window), sum.context,
        first.what.costs.prefill.count() / 1e3, sum.generated,
        first.what.costs.decode.count() / 1e3);
    where.arrivals += remark_on_requests(where.cells.front().by_seed);
  }
  return made;
}

std::string text_of(const study_spec& spec, const setting& where) {
  return fmt::format("{} | {} | load {:g} | offline {}", spec.profiles[where.profile].name,
                     spec.sources[where.source].name, where.share,
                     spec.offline[where.offline].name);
}

std::string_view run_in_progress() noexcept { return in_progress; }

std::vector<std::string> overloaded_of(const study_spec& spec, const study& all) {
  std::vector<std::string> made;
  for (const setting& where : all.settings) {
    const bool grows = std::any_of(where.cells.begin(), where.cells.end(), [](const cell& each) {
      return each.how == arrangement::unscheduled &&
             std::any_of(each.by_seed.begin(), each.by_seed.end(),
                         [](const figures& run) { return run.growing; });
    });
    if (!grows) continue;
    made.push_back(fmt::format(
        "{}: without a scheduler, requests arrived faster than they were served, and their queue "
        "grew until the end. The longer the run, the longer the latency of 'no scheduler': "
        "compare with 'online alone', or reduce --load",
        text_of(spec, where)));
  }
  return made;
}

std::vector<std::string> removed_of(const study& all) {
  std::vector<std::string> made;
  for (const setting& where : all.settings) {
    for (const cell& each : where.cells) {
      if (!each.removed()) continue;
      auto text = fmt::format("{}: the policy was removed during a run: {}", each.contender,
                              each.faults.removed_for);
      if (std::find(made.begin(), made.end(), text) == made.end()) made.push_back(std::move(text));
    }
  }
  return made;
}

estimate estimate_of(const std::vector<double>& values) {
  if (values.empty()) return {};
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  if (values.size() == 1) return {mean, 0};
  double squares = 0;
  for (const double each : values) squares += (each - mean) * (each - mean);
  // Two-sided 95 % quantiles of Student's t, by degrees of freedom.
  constexpr double quantiles[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                                  2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                                  2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                                  2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
  const std::size_t freedom = values.size() - 1;
  // Beyond the table, to three digits (Cornish and Fisher's first terms).
  const auto f = static_cast<double>(freedom);
  const double t = freedom <= std::size(quantiles) ? quantiles[freedom - 1]
                                                   : 1.959964 + 2.372 / f + 2.823 / (f * f);
  return {mean, t * std::sqrt(squares / (n - 1) / n)};
}

}  // namespace sluice::lab
