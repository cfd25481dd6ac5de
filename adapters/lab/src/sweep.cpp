#include "sweep.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "sluice/duration_text.hpp"

namespace sluice::lab {
namespace {

using namespace std::chrono_literals;

/// As profile files have it: the driver's preemption timeout.
constexpr duration longest_cost = 9s;

struct cost_member {
  const char* name;
  duration sim::gpu_profile::*which;
};
constexpr std::array scaled_costs{
    cost_member{"suspend_cost", &sim::gpu_profile::suspend_cost},
    cost_member{"resume_cost", &sim::gpu_profile::resume_cost},
    cost_member{"suspend_cost_p99", &sim::gpu_profile::suspend_cost_p99},
    cost_member{"resume_cost_p99", &sim::gpu_profile::resume_cost_p99},
    cost_member{"batch_unmap_cost", &sim::gpu_profile::batch_unmap_cost},
    cost_member{"batch_remap_cost", &sim::gpu_profile::batch_remap_cost}};

constexpr double no_number = std::numeric_limits<double>::quiet_NaN();

sweep_point point_of(const cell& without, const cell& with) {
  const auto mean_where = [&](const auto& counts, const auto& value) {
    std::vector<double> values;
    for (std::size_t k = 0; k < with.by_seed.size(); ++k) {
      if (!counts(with.by_seed[k])) continue;
      values.push_back(value(without.by_seed[k], with.by_seed[k]));
    }
    return values.empty() ? no_number : estimate_of(values).mean;
  };
  const auto mean = [&](const auto& value) {
    return mean_where([](const figures&) { return true; }, value);
  };
  const auto has_requests = [](const figures& f) { return f.requests > 0; };
  const auto no_ratio = [&](const figures& f) {
    return has_requests(f) && (f.unfinished > 0 || f.latency.p99 <= 0ns);
  };
  const auto any = [&](const cell& of) {
    return std::any_of(of.by_seed.begin(), of.by_seed.end(), no_ratio);
  };
  using ms = std::chrono::duration<double, std::milli>;
  sweep_point made;
  if (with.removed()) return {no_number, {}, no_number, no_number, no_number, no_number};
  made.p99_ms = mean_where(
      has_requests, [](const figures&, const figures& f) { return ms(f.latency.p99).count(); });
  if (!std::isnan(made.p99_ms) && !any(without) && !any(with)) {
    made.p99_ratio = mean_where(has_requests, [](const figures& alone, const figures& f) {
      return ms(f.latency.p99) / ms(alone.latency.p99);
    });
  }
  made.offline_share = mean([](const figures&, const figures& f) { return f.offline_share; });
  made.suspends = mean([](const figures&, const figures& f) { return f.suspends; });
  made.online_saved =
      mean([](const figures& alone, const figures& f) { return alone.in_flight - f.in_flight; });
  made.offline_lost = mean(
      [](const figures& alone, const figures& f) { return alone.offline_busy - f.offline_busy; });
  return made;
}

void read_rows(sweep_grid& grid, const study& all) {
  const std::vector<cell>& first = all.settings[grid.settings.front()].cells;
  const auto number_of = [&](auto&& is) {
    return static_cast<std::size_t>(std::find_if(first.begin(), first.end(), is) - first.begin());
  };
  const std::size_t without =
      number_of([](const cell& one) { return one.how == arrangement::unscheduled; });
  // Of those that have a policy the first is "suspend at once".
  const std::size_t at_once =
      number_of([](const cell& one) { return one.how == arrangement::scheduled; });
  for (std::size_t c = without; c < first.size(); ++c) {
    sweep_row& row = grid.rows.emplace_back();
    row.contender = first[c].contender;
    row.how = first[c].how;
    for (const std::size_t s : grid.settings) {
      const auto& cells = all.settings[s].cells;
      row.points.push_back(point_of(cells[without], cells[c]));
    }
  }
  const sweep_row& judged = grid.rows[at_once - without];
  for (std::size_t f = 0; f < grid.cost_factors.size(); ++f) {
    std::vector<std::optional<double>> ratios;
    for (std::size_t k = 0; k < grid.kernels.size(); ++k) {
      ratios.push_back(judged.points[grid.at(f, k)].p99_ratio);
    }
    grid.line.push_back(begins_to_pay(grid.kernels, ratios));
  }
  for (sweep_row& row : grid.rows) {
    for (std::size_t f = 0; f < grid.cost_factors.size(); ++f) {
      for (std::size_t k = 0; k < grid.kernels.size(); ++k) {
        const break_even& line = grid.line[f];
        const double suspends = row.points[grid.at(f, k)].suspends;
        if (line.where == pays::unknown || line.pays_beside(grid.kernels[k])) continue;
        if (std::isnan(suspends)) continue;
        row.suspends_beyond = std::max(row.suspends_beyond.value_or(0), suspends);
      }
    }
  }
}

}  // namespace

checked<study_spec> spread(const study_spec& asked, const sweep_axes& axes) {
  study_spec made = asked;
  made.profiles.clear();
  made.offline.clear();
  for (const auto& each : asked.profiles) {
    const std::size_t first = made.profiles.size();
    for (const double factor : axes.cost_factors) {
      auto& scaled = made.profiles.emplace_back(each);
      scaled.name = fmt::format("{} costs x{:g}", each.name, factor);
      if (factor != axes.cost_factors.front()) scaled.same_but_for_suspends = first;
      for (sim::gpu_profile& gpu : scaled.what.gpus) {
        for (const auto& [name, which] : scaled_costs) {
          const auto cost = std::chrono::duration<double, std::nano>(gpu.*which) * factor;
          if (cost > longest_cost) {
            return failure(
                fmt::format("--sweep-cost {:g}: {} of profile {} would be {:.1f} s; the "
                            "limit is 9 s, the driver's preemption timeout; use a smaller factor",
                            factor, name, each.name, cost / 1s));
          }
          gpu.*which = std::chrono::round<duration>(cost);
        }
      }
    }
  }
  for (const auto& each : asked.offline) {
    for (const duration kernel : axes.kernels) {
      auto& fixed = made.offline.emplace_back(each);
      fixed.name = fmt::format("{} kernels {}", each.name, to_text(kernel));
      fixed.what.shape.lengths = {{1, kernel, kernel}};
    }
  }
  return made;
}

std::vector<sweep_grid> grids_of(const study_spec& asked, const sweep_axes& axes,
                                 const study& all) {
  const std::size_t factors = axes.cost_factors.size(), kernels = axes.kernels.size();
  std::vector<sweep_grid> made;
  for (std::size_t p = 0; p < asked.profiles.size(); ++p) {
    for (std::size_t a = 0; a < asked.sources.size(); ++a) {
      for (std::size_t o = 0; o < asked.offline.size(); ++o) {
        for (std::size_t l = 0; l < asked.loads.size(); ++l) {
          sweep_grid& grid = made.emplace_back();
          grid.profile = asked.profiles[p].name;
          grid.arrivals = asked.sources[a].name;
          grid.offline = asked.offline[o].name;
          const sim::profile& machine = asked.profiles[p].what;
          const sim::gpu_profile& gpu = machine.gpus.front();
          grid.suspend_cost = machine.batch_commands ? gpu.batch_unmap_cost : gpu.suspend_cost;
          grid.resume_cost = machine.batch_commands ? gpu.batch_remap_cost : gpu.resume_cost;
          grid.cost_factors = axes.cost_factors;
          grid.kernels = axes.kernels;
          grid.settings.resize(factors * kernels);
          for (std::size_t s = 0; s < all.settings.size(); ++s) {
            const setting& one = all.settings[s];
            if (one.profile / factors != p || one.source != a || one.offline / kernels != o ||
                one.load != l) {
              continue;
            }
            grid.settings[grid.at(one.profile % factors, one.offline % kernels)] = s;
            grid.load = one.share;
          }
          read_rows(grid, all);
        }
      }
    }
  }
  return made;
}

break_even begins_to_pay(const std::vector<duration>& kernels,
                         const std::vector<std::optional<double>>& ratios) {
  break_even made;
  std::optional<std::size_t> above;  // The shortest length that pays, as all that are longer.
  for (std::size_t k = kernels.size(); k-- > 0;) {
    if (!ratios[k]) continue;
    if (*ratios[k] < pays_below) {
      above = k;
      continue;
    }
    made.where = pays::never;
    if (!above) return made;
    const double x0 = std::log(static_cast<double>(kernels[k].count()));
    const double x1 = std::log(static_cast<double>(kernels[*above].count()));
    const double y0 = std::log(*ratios[k] / pays_below);
    const double y1 = std::log(*ratios[*above] / pays_below);
    made.where = pays::from;
    made.kernel = std::chrono::round<duration>(
        std::chrono::duration<double, std::nano>(std::exp(x0 + (x1 - x0) * y0 / (y0 - y1))));
    return made;
  }
  made.where = above ? pays::always : pays::unknown;
  return made;
}

}  // namespace sluice::lab
