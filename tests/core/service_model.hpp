#pragma once
/// \file
/// One GPU in virtual time, coarse but honest about what preemption costs: a first-come-first-
/// served online server, one offline process, and a whole scheduler_core between them.

#include "core_bench.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace sluice::tests {

struct service_options {
  duration window = 600s;
  double rate = 5;                 ///< Requests a second, on average.
  bool bursty = false;             ///< Two states: four times the rate for 1 s, little for 3 s.
  duration work = 60ms;            ///< GPU time of a request when it is alone, on average...
  duration online_kernel = 2ms;    ///< ...in kernels of this length.
  duration offline_kernel = 20ms;  ///< Takes the whole GPU, as an online kernel does.
  duration call = 5ms;             ///< Driver time of a suspend, and of a resume.
  std::uint64_t seed = 1;
  scheduler_config config = quick_config();
};

struct service_outcome {
  std::vector<duration> latencies;  ///< Sorted.
  double offline = 0;               ///< Work done, as a share of running alone.
  std::uint64_t suspends = 0;
  duration percentile(double part) const {
    return latencies.empty() ? duration{}
                             : latencies[static_cast<std::size_t>(
                                   part * static_cast<double>(latencies.size() - 1))];
  }
};

/// Online and offline kernels take turns while both may run (so online work goes at the share that
/// its kernels have of such a pair), and an arrival at an idle server first waits for the rest of
/// an offline kernel. Otherwise each has the GPU for itself.
inline service_outcome serve(const service_options& how, std::unique_ptr<policy> decider) {
  core_bench bench(how.config, std::move(decider));
  constexpr pid_t pid = 100;
  bench.create(pid, role::offline, gpu_a, {1});
  bench.attach_all();
  bench.driver.keep_batches(false);
  bench.driver.set_delay(how.call);
  auto client = bench.client({gpu_a});

  // Two, so that the same requests come whatever the policy does.
  std::mt19937_64 random(how.seed);
  std::mt19937_64 stalls(how.seed);
  const auto uniform = [](auto& from) {
    return (static_cast<double>(from() >> 11) + 0.5) * 0x1p-53;
  };
  const auto exponential = [&](double mean) { return -mean * std::log(uniform(random)); };
  const auto seconds = [](double value) {
    return duration(static_cast<std::int64_t>(value * 1e9));
  };
  struct request {
    time_point arrived;
    std::uint64_t number;
    double left;  // Nanoseconds.
  };
  std::deque<request> waiting;
  service_outcome seen;
  const double k = static_cast<double>(how.offline_kernel.count());
  const double o = static_cast<double>(how.online_kernel.count());
  double offline_done = 0;
  double stall = 0;
  std::uint64_t numbers = 0;
  const time_point start = bench.time.now();
  const time_point end = start + how.window;
  bool burst = false;
  time_point phase_end = start;
  const auto next_arrival = [&](time_point from) {
    if (!how.bursty) return from + seconds(exponential(1 / how.rate));
    for (;;) {
      if (from >= phase_end) {
        burst = !burst;
        phase_end = from + seconds(exponential(burst ? 1 : 3));
      }
      // 4 x the rate for a quarter of the time, less what the quiet phases have.
      const double rate = burst ? 3.4 * how.rate : 0.2 * how.rate;
      const time_point at = from + seconds(exponential(1 / rate));
      if (at < phase_end) return at;
      from = phase_end;
    }
  };
  time_point arrival = next_arrival(start);
  time_point due = bench.step();
  while (bench.time.now() < end) {
    const bool shared = !bench.driver.suspended(pid, q(1));
    const double online_rate = shared ? o / (o + k) : 1;
    time_point next = std::min({arrival, due, bench.driver.next_answer(), end});
    if (!waiting.empty()) {
      const double need = (shared ? stall : 0) + waiting.front().left / online_rate;
      next = std::min(next, bench.time.now() + duration(static_cast<std::int64_t>(need) + 1));
    }
    next = std::max(next, bench.time.now() + 1us);
    double passed = static_cast<double>((next - bench.time.now()).count());
    bench.time.advance_to(next);
    if (waiting.empty()) {
      offline_done += shared ? passed : 0;
    } else {
      if (!shared) stall = 0;
      const double stalled = std::min(stall, passed);
      stall -= stalled;
      waiting.front().left -= (passed - stalled) * online_rate;
      if (shared) offline_done += stalled + (passed - stalled) * (1 - online_rate);
      if (waiting.front().left <= 0) {
        const request done = waiting.front();
        waiting.pop_front();
        seen.latencies.push_back(next - done.arrived);
        client.end_span(span_kind::request, done.number);
        client.end();
      }
    }
    if (next >= arrival) {
      if (waiting.empty() && shared) stall = uniform(stalls) * k;
      waiting.push_back({next, ++numbers, exponential(static_cast<double>(how.work.count()))});
      client.begin();
      client.begin_span(span_kind::request, numbers);
      arrival = next_arrival(next);
    }
    due = bench.step();
  }
  for (const request& left : waiting) seen.latencies.push_back(end - left.arrived);
  std::sort(seen.latencies.begin(), seen.latencies.end());
  seen.offline = offline_done / static_cast<double>(how.window.count());
  seen.suspends = bench.stats().suspends;
  EXPECT_EQ(bench.driver.misuses(), 0U);
  return seen;
}

}  // namespace sluice::tests
