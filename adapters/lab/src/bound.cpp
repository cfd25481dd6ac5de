#include "bound.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace sluice::lab {
namespace {

double ns(duration value) { return static_cast<double>(value.count()); }

/// A dual feasible function (Fekete and Schepers): what is above 1 - least counts as everything,
/// what is below `least` as nothing.
double weigh(double occupancy, double least) {
  if (occupancy > 1 - least) return 1;
  return occupancy < least ? 0 : occupancy;
}

/// The share of the wave slots that it is on the GPU of which it takes least: slots are whole.
double least_share(const sim::profile& machine, double occupancy) {
  double least = 1;
  for (const sim::gpu_profile& each : machine.gpus) {
    const auto slots = static_cast<double>(each.wave_slots());
    least = std::min(least, std::max(1.0, std::round(occupancy * slots)) / slots);
  }
  return least;
}

}  // namespace

clairvoyant::clairvoyant(const scenario& what, duration longest_stretch) : what_(what) {
  const load_shape& load = what.offline.shape;
  const auto dealt = deal(what.work, what.servers());
  const double longest = ns(what.warm_up) + ns(longest_stretch);
  const double of_kernels = least_share(what.machine, load.occupancy_low);
  const double of_exchange = least_share(what.machine, what.offline.all_reduce_occupancy);
  const double of_prefill = least_share(what.machine, what.serving.prefill_occupancy);
  const double of_decode = least_share(what.machine, what.serving.decode_occupancy);
  least_occupancy_ = of_kernels;

  // The sequences of kernels, as long as the run could need them. Queues that are kept filled take
  // theirs as they come to it, so that only of a single one the order is known.
  const bool waits = load.kernels_per_step != 0;
  std::vector<std::vector<double>> kernels;  // By process, in order.
  double shortest = std::numeric_limits<double>::max();
  const std::size_t processes = what.offline.processes * what.machine.gpus.size();
  for (std::size_t p = 0; (waits || load.queues == 1) && p < processes; ++p) {
    kernel_stream stream(load, kernel_seed(what.offline_seed, p));
    std::vector<double>& drawn = kernels.emplace_back();
    sequence made;
    by_part<double> serial{};
    double elapsed = 0, work = 0;
    by_weighing<double> waves{};
    const auto push = [&] {
      for (std::size_t i = 0; i < serial.size(); ++i) made.serial[i].push_back(serial[i]);
      for (std::size_t w = 0; w < waves.size(); ++w) made.waves[w].push_back(waves[w]);
      made.elapsed.push_back(elapsed);
      made.work.push_back(work);
    };
    push();
    const std::uint32_t of_queue = std::max(load.kernels_per_step, 1u);
    const double exchange = what.offline.gang ? ns(what.offline.all_reduce) : 0;
    while (elapsed < longest) {
      by_part<double> step{};  // Of the queue that takes longest.
      step[exchanges] = exchange;
      by_weighing<double> step_waves{};
      for (std::size_t w = 0; w < waves.size(); ++w) {
        step_waves[w] = exchange * weigh(of_exchange, weighings[w]);
      }
      for (std::uint32_t q = 0; q < load.queues; ++q) {
        double sum = 0;
        for (std::uint32_t k = 0; k < of_queue; ++k) {
          const drawn_kernel one = stream.next();
          const double length = ns(one.length);
          sum += length;
          for (std::size_t w = 0; w < waves.size(); ++w) {
            step_waves[w] += length * weigh(least_share(what.machine, one.occupancy), weighings[w]);
          }
          work += length;
          shortest = std::min(shortest, length);
          drawn.push_back(length);
        }
        step[kernels_alone] = std::max(step[kernels_alone], sum);
        // The first queue's end with it, while the others may still run.
        step[all] = std::max(step[all], q == 0 ? sum + exchange : sum);
      }
      const double gap = waits ? ns(stream.next_gap()) + ns(what.wake_up) : 0;
      for (std::size_t i = 0; i < serial.size(); ++i) serial[i] += step[i];
      for (std::size_t w = 0; w < waves.size(); ++w) waves[w] += step_waves[w];
      elapsed += std::max(step[all], *std::max_element(step_waves.begin(), step_waves.end())) + gap;
      if (elapsed <= ns(what.warm_up)) made.latest_begin = made.work.size();
      push();
    }
    sequences_.push_back(std::move(made));
  }

  // What runs always has somebody behind it: the host refills in time.
  const bool keeps_filled = load.kernels_per_step == 0 && load.depth >= 2 &&
                            (load.depth - 1) * shortest > ns(what.wake_up);
  by_part<double> narrowest{};
  narrowest[kernels_alone] = of_kernels;
  narrowest[exchanges] = of_exchange;
  narrowest[all] = what.offline.gang ? std::min(of_kernels, of_exchange) : of_kernels;
  const bool excludes_decode = of_kernels + of_decode > 1;
  const bool excludes_prefill = of_kernels + of_prefill > 1;
  const bool continuous = what.service == service_kind::continuous;
  // Batch commands come with reservations: another means, and one that no max_suspend ends.
  bool by_suspends_alone = !what.by().has(capability::batch_targets);
  double dearest = 0;
  switch_cost_ = std::numeric_limits<double>::max();
  for (const sim::gpu_profile& each : what.machine.gpus) {
    const double cost = ns(each.suspend_cost + each.resume_cost);
    switch_cost_ = std::min(switch_cost_, cost);
    dearest = std::max(dearest, cost);
    // With a slot for each of the two queues nobody takes turns.
    if (each.scheduler != sim::queue_scheduler::runlist || each.hqd_slots < 2) {
      by_suspends_alone = false;
    }
  }
  const bool one_queue = load.queues == 1 && what.offline.processes == 1 && !what.offline.gang;
  needs_holds_ = by_suspends_alone && one_queue && keeps_filled && excludes_decode &&
                 excludes_prefill && what.wake_up > duration::zero();
  gap_ = ns(what.wake_up);
  longest_hold_ = ns(what.limits.max_suspend + 2 * what.reaction) + 1e6 + dearest;

  shortest_run_ = {0, shortest};
  constexpr std::size_t longest_run = 512;
  for (std::size_t n = 2; needs_holds_ && n <= longest_run; ++n) {
    double least = std::numeric_limits<double>::max();
    for (const std::vector<double>& each : kernels) {
      double sum = 0;
      for (std::size_t i = 0; i < each.size(); ++i) {
        sum += each[i] - (i >= n ? each[i - n] : 0);
        if (i + 1 >= n) least = std::min(least, sum);
      }
    }
    if (least == std::numeric_limits<double>::max()) break;
    shortest_run_.push_back(least);
  }

  for (std::size_t i = 0; i < dealt.size(); ++i) {
    for (const request& each : dealt[i].requests) {
      // Kernels are whole nanoseconds: each is up to half of one short of its share.
      const auto at_least = [](double work, duration kernel, double pieces) {
        return std::max(0.0, work - (work / ns(kernel) + pieces) / 2);
      };
      const double prefill = at_least(each.context_tokens * what.costs.prefill.count(),
                                      what.serving.prefill_kernel, 1);
      const double decode = at_least(each.generated_tokens * what.costs.decode.count(),
                                     what.serving.decode_kernel, each.generated_tokens);
      for (std::size_t p = 0; p < narrowest.size(); ++p) {
        if (narrowest[p] + of_prefill > 1) exclusive_[p] += prefill;
        if (narrowest[p] + of_decode > 1) exclusive_[p] += decode;
      }
      for (std::size_t w = 0; w < waves_.size(); ++w) {
        waves_[w] +=
            prefill * weigh(of_prefill, weighings[w]) + decode * weigh(of_decode, weighings[w]);
      }
      const std::size_t steps = continuous ? std::max<std::size_t>(each.generated_tokens, 1) : 1;
      const double kept_away = needs_holds_ ? run_of(steps - 1) : 0;
      requests_.push_back({each.at, static_cast<std::uint32_t>(i), prefill + decode, decode,
                           prefill + decode + kept_away});
    }
  }

  if (needs_holds_) find_backlogs(dealt);
}

/// Busy periods as they would be if the server's gaps took no time.
void clairvoyant::find_backlogs(const std::vector<arrivals>& dealt) {
  const bool continuous = what_.service == service_kind::continuous;
  const auto at_most = [](double work, duration kernel) { return work + work / ns(kernel) + 1; };
  const double token = what_.costs.decode.count();
  const double of_batch = at_most(what_.serving.most_active * token + ns(what_.decode_step),
                                  what_.serving.decode_kernel);
  const std::size_t others = continuous ? what_.serving.most_active - 1 : 0;
  std::size_t number = 0;  // In requests_.
  for (std::size_t server = 0; server < dealt.size(); ++server) {
    double busy_until = 0;
    backlog* now = nullptr;
    double work = 0, in_steps = 0, longest_step = 0;
    std::vector<std::uint32_t> longest;  // Those with most tokens, of all before; descending.
    for (const request& each : dealt[server].requests) {
      const request_need& need = requests_[number++];
      if (now == nullptr || ns(each.at) >= busy_until) {
        now = &backlogs_.emplace_back();
        now->server = static_cast<std::uint32_t>(server);
        now->from = busy_until = ns(each.at);
        work = in_steps = longest_step = 0;
        longest.clear();
      }
      busy_until += need.own;
      work += need.own;
      if (continuous) {
        in_steps += need.decode;
        longest_step = of_batch;
      } else {
        in_steps += need.own;
        longest_step = std::max(
            longest_step, at_most(each.context_tokens * what_.costs.prefill.count(),
                                  what_.serving.prefill_kernel) +
                              at_most(each.generated_tokens * token, what_.serving.decode_kernel));
      }
      // Who came before was admitted before: all but the others of its last batch are finished.
      double undone = 0;
      for (const std::uint32_t tokens : longest) {
        if (tokens <= each.generated_tokens) break;
        undone += token * (tokens - each.generated_tokens);
      }
      now->requests.push_back({ns(each.at), work - undone, (in_steps - undone) / longest_step,
                               longest_hold_ / longest_step});
      longest.insert(
          std::upper_bound(longest.begin(), longest.end(), each.generated_tokens, std::greater<>()),
          each.generated_tokens);
      if (longest.size() > others) longest.pop_back();
    }
  }
}

double clairvoyant::run_of(std::size_t count) const {
  const std::size_t longest = shortest_run_.size() - 1;
  const std::size_t whole = count / longest;
  return static_cast<double>(whole) * shortest_run_.back() + shortest_run_[count % longest];
}

std::size_t clairvoyant::kernels_in(double time) const {
  time += 1e3;  // Sums are rounded.
  const std::size_t longest = shortest_run_.size() - 1;
  const double whole = std::floor(std::max(time, 0.0) / shortest_run_.back());
  const double rest = std::max(time, 0.0) - whole * shortest_run_.back();
  const auto beyond = std::upper_bound(shortest_run_.begin(), shortest_run_.end(), rest);
  return static_cast<std::size_t>(whole) * longest +
         static_cast<std::size_t>(beyond - shortest_run_.begin()) - 1;
}

double clairvoyant::lost_in_time(const backlog& since, const backlog::member& of,
                                 double p99) const {
  const double spare = of.at + p99 - since.from - of.work;
  const double idle = std::min(gap_, switch_cost_ / 2);
  double inside = 0, lost = 0;
  // What is lost inside is not to spare.
  for (int round = 0; round < 4; ++round) {
    const auto open = static_cast<double>(kernels_in(spare - inside)) + 1;
    const double suspends =
        std::max(0.0, std::ceil((of.steps - 1 - open) / (of.steps_in_hold + 1) - 1e-6));
    const double gaps = std::max(0.0, std::ceil(of.steps - 1e-6) - 1 - open - 2 * suspends);
    lost = switch_cost_ * suspends + idle * gaps;
    // The first suspend and the last resume may lie outside.
    inside = std::max(inside,
                      switch_cost_ * std::max(0.0, suspends - 2) + idle * std::max(0.0, gaps - 4));
  }
  return lost;
}

double clairvoyant::lost_to_backlogs(duration p99) const {
  const double p = ns(p99);
  struct window {
    std::uint32_t server = 0;
    double from = 0, to = 0;
    std::vector<double> lost;  ///< If so many of its requests are forgiven.
  };
  std::vector<window> windows;
  double most = 0;
  for (const backlog& each : backlogs_) {
    window made{each.server, each.from, 0, {}};
    for (const backlog::member& one : each.requests) {
      const double lost = lost_in_time(each, one, p);
      if (lost <= 0) continue;
      made.lost.push_back(lost);
      made.to = std::max(made.to, one.at + p);
    }
    if (made.lost.empty()) continue;
    std::sort(made.lost.begin(), made.lost.end(), std::greater<>());
    most = std::max(most, made.lost.front());
    made.lost.push_back(0);
    windows.push_back(std::move(made));
  }
  // A price for forgiving makes the windows independent; whatever the price, what they lose at
  // least, less what all that may be forgiven costs, is lost.
  const auto n = static_cast<double>(requests_.size());
  const double forgiven = n - std::ceil(0.99 * n);
  double best = 0;
  for (int step = 0; most / std::pow(1.5, step) > most / 1e4; ++step) {
    const double price = most / std::pow(1.5, step);
    // On each GPU the first suspend and the last resume may lie outside the stretch.
    double sum = 0;
    std::vector<double> until;  // Most that windows up to here, none over another, lose.
    std::size_t first = 0;      // Of this server.
    for (std::size_t i = 0; i < windows.size(); ++i) {
      const window& here = windows[i];
      if (i > 0 && here.server != windows[i - 1].server) {
        sum += std::max(0.0, until.back() - switch_cost_);
        first = i;
      }
      double lost = here.lost.front();
      for (std::size_t j = 1; j < here.lost.size(); ++j) {
        lost = std::min(lost, here.lost[j] + price * static_cast<double>(j));
      }
      // After the last one that is over; a hold may reach from that into this one.
      double with = lost;
      for (std::size_t before = i; before-- > first;) {
        const double apart = here.from - windows[before].to;
        if (apart < 0) continue;
        const bool near = apart < longest_hold_;
        with = std::max(with, until[before] + lost - (near ? switch_cost_ : 0));
        if (!near) break;
      }
      until.push_back(i > first ? std::max(until.back(), with) : with);
    }
    if (!until.empty()) sum += std::max(0.0, until.back() - switch_cost_);
    best = std::max(best, sum - price * forgiven);
  }
  return best;
}

double clairvoyant::lost(duration p99) const {
  return std::max(lost_between_needy(p99), lost_to_backlogs(p99));
}

double clairvoyant::lost_between_needy(duration p99) const {
  if (!needs_holds_ || requests_.empty()) return 0;
  const double p = ns(p99);

  // Of all chains of needy requests the one that loses most; any would do for a proof. Looking back
  // is cut short: what is so far apart loses a whole switch with somebody in between as well.
  struct link {
    double from = 0;  ///< Its arrival, less the GPU time of all before and itself.
    double to = 0;    ///< Its arrival, less the GPU time of all before.
    double best = 0;  ///< Lost by the best chain that ends here.
    std::ptrdiff_t before = -1;
    double idle = 0;  ///< Between `before` and here, what one hold over it would waste.
  };
  constexpr std::ptrdiff_t farthest = 64;
  std::vector<link> links;
  double gone = 0;
  std::ptrdiff_t first_of_server = 0, leader = -1;
  std::uint32_t server = requests_.front().server;
  for (const request_need& each : requests_) {
    const auto here = static_cast<std::ptrdiff_t>(links.size());
    if (each.server != server) {  // Its GPU's time is another's; the chain goes on at no loss.
      server = each.server;
      first_of_server = here;
      gone = 0;
    }
    const double to = ns(each.at) - gone;
    gone += each.own;
    // One whose own time is longer than p is late in any case: not among those that p99 counts on.
    if (each.alone <= p || each.own > p) continue;
    link made{ns(each.at) - gone, to, 0, leader, 0};
    if (leader >= 0) made.best = links[static_cast<std::size_t>(leader)].best;
    for (std::ptrdiff_t i = here - 1; i >= std::max(first_of_server, here - farthest); --i) {
      const link& other = links[static_cast<std::size_t>(i)];
      const double idle = to - other.from - p;
      if (idle <= 0) continue;
      const double sum = other.best + std::min(idle, switch_cost_);
      if (sum > made.best) {
        made.best = sum;
        made.before = i;
        made.idle = idle;
      }
    }
    links.push_back(made);
    if (leader < 0 || made.best >= links[static_cast<std::size_t>(leader)].best) leader = here;
  }
  if (leader < 0) return 0;
  double sum = links[static_cast<std::size_t>(leader)].best;
  std::vector<double> idle;
  for (auto i = leader; i >= 0; i = links[static_cast<std::size_t>(i)].before) {
    const double wasted = links[static_cast<std::size_t>(i)].idle;
    if (wasted > 0) idle.push_back(wasted);
  }

  const auto n = static_cast<double>(requests_.size());
  const auto forgiven = static_cast<std::size_t>(n - std::ceil(0.99 * n));
  sum -= static_cast<double>(forgiven) * switch_cost_;
  // Their work, spent where it saves most: in the shortest idle stretches.
  std::vector<double> own;
  for (const request_need& each : requests_) own.push_back(each.own);
  std::sort(own.begin(), own.end(), std::greater<>());
  double spend =
      std::accumulate(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(forgiven), 0.0);
  std::sort(idle.begin(), idle.end());
  for (const double each : idle) {
    if (spend <= 0) break;
    sum -= std::min(each, switch_cost_) * std::min(1.0, spend / each);
    spend -= each;
  }
  return std::max(sum, 0.0);
}

duration clairvoyant::most(double lost, duration stretch) const {
  const double s = ns(stretch);
  const double gpus_time = static_cast<double>(what_.machine.gpus.size()) * s;
  const load_shape& load = what_.offline.shape;
  const auto left = [&](double online) { return std::max(0.0, gpus_time - online - lost); };
  by_part<double> time{};
  for (std::size_t i = 0; i < time.size(); ++i) time[i] = left(exclusive_[i]);
  by_weighing<double> waves{};
  for (std::size_t w = 0; w < waves.size(); ++w) waves[w] = left(waves_[w]);

  // Over all GPUs.
  double most = time[kernels_alone] * load.queues * what_.offline.processes;
  for (std::size_t w = 0; w < waves.size(); ++w) {
    const double least = weigh(least_occupancy_, weighings[w]);
    if (least > 0) most = std::min(most, waves[w] / least);
  }
  if (sequences_.empty()) return duration(std::llround(most));

  // What each process can do of its own sequence: whole steps that fit, one that had begun before
  // the stretch, and one that is not done in it.
  double sum = 0;
  for (const sequence& each : sequences_) {
    double best = 0;
    const std::size_t last = each.work.size() - 1;
    for (std::size_t begun = 0; begun <= each.latest_begin && begun < last; ++begun) {
      const std::size_t from = begun + 1;
      std::size_t low = from, high = last;
      while (low < high) {
        const std::size_t middle = low + (high - low + 1) / 2;
        bool fits = each.elapsed[middle] - each.elapsed[from] <= s;
        for (std::size_t i = 0; i < time.size(); ++i) {
          fits = fits && each.serial[i][middle] - each.serial[i][from] <= time[i];
        }
        for (std::size_t w = 0; w < waves.size(); ++w) {
          fits = fits && each.waves[w][middle] - each.waves[w][from] <= waves[w];
        }
        fits ? low = middle : high = middle - 1;
      }
      best = std::max(best, each.work[std::min(low + 1, last)] - each.work[begun]);
    }
    sum += best;
  }
  return duration(std::llround(std::min(sum, most)));
}

}  // namespace sluice::lab
