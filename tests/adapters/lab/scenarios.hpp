#pragma once
/// \file
/// Small scenarios whose answers can be worked out by hand, and random ones.

#include "experiment.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "sluice/lab/arrivals.hpp"
#include "sluice/policies/fixed_timeslice.hpp"

namespace sluice::lab::test {

using namespace std::chrono_literals;

/// Whether tests take their full form. Sanitizers make a simulation some 50 times slower; the
/// preset release runs these tests, too.
#ifdef SLUICE_SANITIZED
inline constexpr bool fast_build = false;
#else
inline constexpr bool fast_build = true;
#endif

inline sim::profile machine(std::uint32_t gpus = 1) {
  sim::profile made = sim::default_profile();
  const sim::gpu_profile first = made.gpus.front();
  for (std::uint32_t i = 1; i < gpus; ++i) {
    made.gpus.push_back(first);
    made.gpus.back().gpu_id += i;
  }
  return made;
}

/// Requests of 1000 context tokens and `tokens` generated ones, at 10 us and 1 ms each, beside
/// kernels of exactly 100 ms that fill the GPU. Of two numbers that would hide each other, each
/// is another one.
inline scenario known(const std::vector<duration>& at, std::uint32_t tokens = 0) {
  scenario made;
  made.machine = machine();
  made.work.window = 2s;
  for (const duration each : at) made.work.requests.push_back({each, 1000, tokens});
  made.costs = {10us, 1ms};
  made.service = service_kind::fifo;
  made.serving.drain_limit = 1h;
  made.offline.shape = shape_of(load_kind::long_kernels);
  made.offline.shape.lengths = {{1, 100ms, 100ms}};
  return made;
}

inline contender at_once() { return {"at once", arrangement::scheduled, make_at_once, 1}; }
inline contender timeslice(duration slice) {
  return {"timeslice", arrangement::scheduled,
          [slice] {
            return make_fixed_timeslice({slice, release_on::client_done});
          },
          1};
}

/// Holds and runs groups, reserves slots and sets quanta, as its dice say, and wakes itself up.
inline contender restless(std::uint64_t seed) {
  class policy_of_dice final : public policy {
   public:
    explicit policy_of_dice(std::uint64_t seed) : bits_(seed) {}
    std::string_view name() const noexcept override { return "restless"; }
    void decide(const snapshot& seen, decision_sink& out) override {
      for (const gpu_view& on : seen.table.gpus()) {
        for (const group_id id : on.offline) {
          if (bits_() % 3 == 0) out.run(id);
          if (on.can_set_quantum) out.set_quantum(id, 10us * (bits_() % 100));
          if (bits_() % 2 == 0) out.hold(id, seen.now + duration(bits_() % 400'000'000));
        }
        if (on.can_reserve && bits_() % 4 == 0) {
          out.reserve(on.id, 0.25 * static_cast<double>(bits_() % 5));
        }
      }
      out.wake_at(seen.now + 1ms + duration(bits_() % 300'000'000));
    }

   private:
    std::mt19937_64 bits_;
  };
  return {"restless", arrangement::scheduled,
          [seed] { return std::make_unique<policy_of_dice>(seed); }, 1};
}

/// Takes offline work off only to end the kernel that has come between two steps.
inline contender cutter() {
  class policy_that_cuts final : public policy {
   public:
    std::string_view name() const noexcept override { return "cutter"; }
    void decide(const snapshot& seen, decision_sink& out) override {
      if (seen.events.empty()) return;
      for (const gpu_view& on : seen.table.gpus()) {
        if (on.online_in_flight == 0) continue;
        for (const group_id id : on.offline) out.hold(id, seen.now + 1ms);
      }
    }
  };
  return {"cutter", arrangement::scheduled, [] { return std::make_unique<policy_that_cuts>(); }, 1};
}

/// Anything that the command line can make, of a few seconds.
inline scenario any_scenario(std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  const auto one_in = [&](std::uint64_t n) { return bits() % n == 0; };
  scenario made;
  made.machine = machine(one_in(3) ? 1 + static_cast<std::uint32_t>(bits() % 4) : 1);
  made.machine.batch_commands = one_in(3);
  if (one_in(4)) {
    for (auto& each : made.machine.gpus) each.scheduler = sim::queue_scheduler::mes;
  }
  if (seed % 5 == 0) {
    for (auto& each : made.machine.gpus) each.time_sliced = true;
  }
  switch (bits() % 3) {
    case 0: made.work = poisson(seed, 5s, 1 + static_cast<double>(bits() % 40)); break;
    case 1: made.work = bursty(seed, 5s, {}); break;
    default: made.work = generate(seed, 5s); break;
  }
  made.costs = scale_to_load(made.work, 0.1 + 0.1 * static_cast<double>(bits() % 8));
  made.service = one_in(3) ? service_kind::fifo : service_kind::continuous;
  made.serving.drain_limit = 20s;
  if (one_in(4)) made.serving.decode_occupancy = 1;
  made.offline.shape = shape_of(one_in(2) ? load_kind::training : load_kind::long_kernels);
  made.offline.processes = one_in(3) ? 2 : 1;
  load_shape& load = made.offline.shape;
  if (one_in(3)) load.kernels_per_step = 1 + static_cast<std::uint32_t>(bits() % 3);
  if (one_in(3)) {  // 5 to 100 %, by twentieths.
    load.occupancy_low = 0.05 * static_cast<double>(1 + bits() % 20);
    load.occupancy_high = std::max(load.occupancy_low, 0.05 * static_cast<double>(1 + bits() % 20));
  }
  if (one_in(4)) load.lengths = {{1, 20ms, 20ms}};
  if (load.kernels_per_step != 0 && one_in(2)) {
    made.offline.gang = true;
    made.offline.all_reduce = std::array{500us, 5000us, 20000us, 50000us}[bits() % 4];
    made.offline.all_reduce_occupancy = 0.25 * static_cast<double>(1 + bits() % 4);
  }
  if (one_in(4)) load.queues += 2;
  if (one_in(4)) {  // A gang that exchanges as long as it computes, or longer.
    const duration kernel = std::array{1ms, 5ms, 20ms}[bits() % 3];
    load = {.kernels_per_step = 1, .lengths = {{1, kernel, kernel}}};
    made.offline.gang = true;
    made.offline.all_reduce = kernel * (1 + bits() % 4);
    made.offline.all_reduce_occupancy = one_in(2) ? 0.25 : 0.5;
  }
  made.offline_seed = seed;
  if (one_in(3)) made.limits.max_suspend = duration(20ms) * (1 + bits() % 20);
  if (one_in(4)) made.costs = scale_to_load(made.work, 0.9 + 0.1 * static_cast<double>(bits() % 4));
  if (one_in(4)) made.servers_on = 1;
  return made;
}

}  // namespace sluice::lab::test
