#include "bound.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace sluice::lab {
namespace {

double ns(duration value) { return static_cast<double>(value.count()); }

}  // namespace

clairvoyant::clairvoyant(const scenario& what) : what_(what) {
  const load_shape& load = what.offline.shape;
  const auto dealt = deal(what.work, what.machine.gpus.size());
  const double longest = ns(what.warm_up) + ns(what.work.window) + ns(what.serving.drain_limit);

  // The sequences of kernels, as long as the run could need them. Of a process that keeps its
  // queues filled a step is a kernel for each queue.
  std::vector<double> kernels;  // Of the first process, in order.
  double shortest = std::numeric_limits<double>::max();
  std::uint64_t seed = what.offline_seed;
  const std::size_t processes = what.offline.processes * what.machine.gpus.size();
  for (std::size_t p = 0; p < processes; ++p) {
    kernel_stream stream(load, seed++);
    sequence made;
    double serial = 0, waves = 0, elapsed = 0, work = 0;
    const auto push = [&] {
      made.serial.push_back(serial);
      made.waves.push_back(waves);
      made.elapsed.push_back(elapsed);
      made.work.push_back(work);
    };
    push();
    const std::uint32_t of_queue = std::max(load.kernels_per_step, 1u);
    const bool waits = load.kernels_per_step != 0;
    while (elapsed < longest) {
      double step_serial = 0, step_waves = 0;
      for (std::uint32_t q = 0; q < load.queues; ++q) {
        double sum = 0;
        for (std::uint32_t k = 0; k < of_queue; ++k) {
          const drawn_kernel one = stream.next();
          const double length = ns(one.length);
          sum += length;
          step_waves += length * one.occupancy;
          work += length;
          shortest = std::min(shortest, length);
          if (p == 0) kernels.push_back(length);
        }
        // Without a barrier between steps a queue may run ahead of the others: then the sum over
        // queues, shared out evenly, is all that is known of how long it takes.
        step_serial = waits ? std::max(step_serial, sum) : step_serial + sum / load.queues;
      }
      const double gap = waits ? ns(stream.next_gap()) + ns(what.wake_up) : 0;
      const double exchange = what.offline.gang ? ns(what.offline.all_reduce) : 0;
      serial += step_serial + exchange;
      waves += step_waves + exchange * what.offline.all_reduce_occupancy;
      elapsed += std::max(step_serial, step_waves) + exchange + gap;
      if (elapsed <= ns(what.warm_up)) made.latest_begin = made.serial.size();
      push();
    }
    sequences_.push_back(std::move(made));
  }

  const bool keeps_filled = load.kernels_per_step == 0 && load.depth >= 2;
  const bool excludes_decode = load.occupancy_low + what.serving.decode_occupancy > 1;
  const bool excludes_prefill = load.occupancy_low + what.serving.prefill_occupancy > 1;
  const bool has_gap = what.serving.host_gap + what.wake_up > duration::zero();
  needs_holds_ = what.service == service_kind::continuous && keeps_filled && excludes_decode &&
                 excludes_prefill && has_gap && !what.offline.gang;
  const sim::gpu_profile& shape = what.machine.gpus.front();
  if (shape.scheduler == sim::queue_scheduler::runlist) {
    switch_cost_ = what.by() == mechanism::batch_commands
                       ? ns(shape.batch_unmap_cost + shape.batch_remap_cost)
                       : ns(shape.suspend_cost + shape.resume_cost);
  }

  // The shortest run of so many consecutive kernels. With several queues or processes the order in
  // which kernels run is not the sequence's, so every one counts as the shortest.
  const bool one_queue = load.queues == 1 && processes == 1;
  std::vector<double> before(kernels.size() + 1);
  std::partial_sum(kernels.begin(), kernels.end(), before.begin() + 1);
  std::vector<double> shortest_run{0};
  const auto run_of = [&](std::size_t count) {
    while (shortest_run.size() <= count) {
      const std::size_t n = shortest_run.size();
      double least = shortest * static_cast<double>(n);
      if (one_queue && n < before.size()) {
        least = std::numeric_limits<double>::max();
        for (std::size_t i = n; i < before.size(); ++i) {
          least = std::min(least, before[i] - before[i - n]);
        }
      }
      shortest_run.push_back(least);
    }
    return shortest_run[count];
  };

  // Beyond this many steps a request is needy at any p99 of interest, and the exact sum of no use.
  constexpr std::size_t most_steps = 2000;
  for (std::size_t i = 0; i < dealt.size(); ++i) {
    for (const request& each : dealt[i].requests) {
      const double prefill = each.context_tokens * what.costs.prefill.count();
      const double decode = each.generated_tokens * what.costs.decode.count();
      if (excludes_prefill) exclusive_ += prefill;
      if (excludes_decode) exclusive_ += decode;
      waves_ += prefill * what.serving.prefill_occupancy + decode * what.serving.decode_occupancy;
      const std::size_t steps = std::max<std::size_t>(each.generated_tokens, 1);
      const double kept_away = needs_holds_ ? run_of(std::min(steps - 1, most_steps)) : 0;
      requests_.push_back(
          {each.at, static_cast<std::uint32_t>(i), prefill + decode, prefill + decode + kept_away});
    }
  }
}

double clairvoyant::lost(duration p99) const {
  if (!needs_holds_ || switch_cost_ <= 0 || requests_.empty()) return 0;
  const double p = ns(p99);
  std::vector<double> idle;  // Between needy requests, what one hold over it would waste.
  double sum = 0;
  const request_need* last = nullptr;
  double between = 0;  // GPU time of the requests since.
  for (const request_need& each : requests_) {
    if (last != nullptr && last->server != each.server) last = nullptr;
    // One whose own time is longer than p is late in any case: not among those that p99 counts on.
    const bool needy = each.alone > p && each.own <= p;
    if (!needy) {
      between += each.own;
      continue;
    }
    if (last != nullptr) {
      const double wasted = ns(each.at - last->at) - p - between;
      if (wasted > 0) {
        idle.push_back(wasted);
        sum += std::min(wasted, switch_cost_);
      }
    }
    last = &each;
    between = 0;
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

duration clairvoyant::work(duration p99, duration stretch) const {
  const auto gpus = static_cast<double>(what_.machine.gpus.size());
  const double s = ns(stretch);
  const load_shape& load = what_.offline.shape;
  const double gone = lost(p99);
  // Over all GPUs, then what each process can do of its own sequence.
  const double time = std::max(0.0, gpus * s - exclusive_ - gone);
  const double waves = std::max(0.0, gpus * s - waves_ - gone);
  double sum = 0;
  for (const sequence& each : sequences_) {
    double best = 0;
    for (std::size_t from = 0; from <= each.latest_begin && from < each.work.size(); ++from) {
      // The last step that still fits, and one more, which may be half done. Queues that do not
      // wait for each other may be ahead by what is in flight.
      std::size_t low = from, high = each.work.size() - 1;
      while (low < high) {
        const std::size_t middle = low + (high - low + 1) / 2;
        const bool fits = each.serial[middle] - each.serial[from] <= std::min(time, s) &&
                          each.waves[middle] - each.waves[from] <= waves &&
                          each.elapsed[middle] - each.elapsed[from] <= s;
        fits ? low = middle : high = middle - 1;
      }
      const std::size_t ahead = load.kernels_per_step == 0 && load.queues > 1 ? load.depth : 0;
      const std::size_t to = std::min(low + 1 + ahead, each.work.size() - 1);
      best = std::max(best, each.work[to] - each.work[from]);
    }
    sum += best;
  }
  sum = std::min(sum, waves / load.occupancy_low);
  sum = std::min(sum, time * load.queues * what_.offline.processes);
  return duration(std::llround(sum));
}

}  // namespace sluice::lab
