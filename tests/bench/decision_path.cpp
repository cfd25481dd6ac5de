// What the scheduler itself costs between an event and the batch for the driver, within one thread:
// no hop, and a driver that takes no time. One offline process with 8 queues is affected, however
// many there are beside it. The floors do the same to the same memory with nothing in between.

#include "inbox_queue.hpp"
#include "quick_world.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/policies/pointer_polling.hpp"

namespace sluice::bench {
namespace {

/// The distribution of what was timed one by one, as counters beside the mean.
class distribution {
 public:
  explicit distribution(benchmark::State& state) : state_(state) { taken_.reserve(1U << 20); }
  ~distribution() {
    if (taken_.empty()) return;
    std::sort(taken_.begin(), taken_.end());
    state_.counters["p50"] = at(0.5);
    state_.counters["p99"] = at(0.99);
  }
  distribution(const distribution&) = delete;
  distribution& operator=(const distribution&) = delete;

  void add(duration one) {
    state_.SetIterationTime(std::chrono::duration<double>(one).count());
    taken_.push_back(static_cast<double>(one.count()));
  }

 private:
  double at(double share) const {
    return taken_[static_cast<std::size_t>(share * static_cast<double>(taken_.size() - 1))];
  }

  benchmark::State& state_;
  std::vector<double> taken_;
};

std::uint32_t queues_of(const benchmark::State& state) {
  return static_cast<std::uint32_t>(state.range(0));
}

/// begin() by a client in the program, a turn, and the suspends have been handed over.
void begin_to_batch(benchmark::State& state, bool with_journal) {
  auto kept = journal::create();
  if (!kept) return state.SkipWithError("no journal");
  quick_world world(queues_of(state), make_fixed_timeslice({.slice = 1us}),
                    with_journal ? kept->get() : nullptr);
  std::array<journal_entry, 64> read;
  auto client = world.core->register_client({"bench", {shared_gpu}});
  if (!client) return state.SkipWithError("no client");
  world.step();
  distribution taken(state);
  for ([[maybe_unused]] const auto _ : state) {
    const auto before = world.driver.submitted();
    const time_point began = clock::now();
    client->begin();
    world.core->step();
    taken.add(clock::now() - began);
    if (world.driver.submitted() != before + 1) return state.SkipWithError("not suspended");
    world.step();
    client->end();
    world.step(10us);
    world.step(2s);  // Whatever it was off is forgiven.
    while ((*kept)->take(read) == read.size()) continue;
    if (world.driver.submitted() != before + 2) return state.SkipWithError("not resumed");
  }
}

/// What a source's thread saw: through the inbox, a turn, and the suspends have been handed over.
void inbox_to_batch(benchmark::State& state) {
  quick_world world(queues_of(state), make_pointer_polling({.linger = 0ns}));
  inbox box(1024, {.wake = [] {},
                   .on_reactor_thread = [] { return false; },
                   .deliver = [&](const observation& one,
                                  time_point now) { world.core->observe(0, one, now); }});
  world.step();
  distribution taken(state);
  observation seen = process_seen(serving_pid, role::online);
  seen.kind = observation_kind::pointers_seen;
  seen.gpu = shared_gpu;
  for ([[maybe_unused]] const auto _ : state) {
    const auto before = world.driver.submitted();
    seen.work = online_work::running;
    seen.count = 1;
    const time_point began = clock::now();
    seen.at = world.time.now();
    box.producer().push(seen);
    box.drain();
    world.core->step();
    taken.add(clock::now() - began);
    if (world.driver.submitted() != before + 1) return state.SkipWithError("not suspended");
    world.step();
    seen.work = online_work::finished;
    seen.count = 0;
    seen.at = world.time.now();
    box.producer().push(seen);
    box.drain();
    world.step(10us);
    world.step(2s);
    if (world.driver.submitted() != before + 2) return state.SkipWithError("not resumed");
  }
}

/// The same observation through the same inbox, and a batch of the same size to the same driver.
void floor_of_inbox_to_batch(benchmark::State& state) {
  struct nobody final : backend_listener {
    void attached(process_id, error_code) override {}
    void queue_added(const queue_info&) override {}
    void queue_removed(process_id, driver_queue_id) override {}
    void completed(const batch_result&) override {}
    void detached(process_id) override {}
    void gpu_lost(gpu_id) override {}
    void lost(error_code) override {}
    void restored() override {}
  } listener;
  test::instant_backend driver;
  if (!driver.start(listener)) return state.SkipWithError("the driver does not start");
  batch work;
  work.count = affected_queues;
  observation heard;
  inbox box(1024, {.wake = [] {},
                   .on_reactor_thread = [] { return false; },
                   .deliver = [&](const observation& one, time_point) { heard = one; }});
  distribution taken(state);
  observation seen = process_seen(serving_pid, role::online);
  for ([[maybe_unused]] const auto _ : state) {
    const time_point began = clock::now();
    seen.at = began;
    box.producer().push(seen);
    box.drain();
    work.gpu = heard.gpu;
    ++work.id;
    if (!driver.submit(work)) return state.SkipWithError("refused");
    taken.add(clock::now() - began);
    driver.drain();
  }
}

/// Suspends and resumes one after the other, with everything between them.
void serial_decisions(benchmark::State& state) {
  quick_world world(queues_of(state), make_fixed_timeslice({.slice = 1us}));
  auto client = world.core->register_client({"bench", {shared_gpu}});
  if (!client) return state.SkipWithError("no client");
  world.step();
  const auto before = world.driver.submitted();
  for ([[maybe_unused]] const auto _ : state) {
    client->begin();
    world.step();
    world.step();
    client->end();
    world.step(10us);
    world.step(2s);
  }
  const auto decisions = world.driver.submitted() - before;
  if (decisions != 2 * static_cast<std::uint64_t>(state.iterations()))
    return state.SkipWithError("one is missing");
  state.counters["per_second"] =
      benchmark::Counter(static_cast<double>(decisions), benchmark::Counter::kIsRate);
}

constexpr int few = 8;
constexpr int many = 4096;
BENCHMARK_CAPTURE(begin_to_batch, , false)
    ->Name("begin_to_batch")
    ->Arg(few)
    ->Arg(64)
    ->Arg(256)
    ->Arg(1024)
    ->Arg(many)
    ->UseManualTime();
BENCHMARK_CAPTURE(begin_to_batch, , true)
    ->Name("begin_to_batch_with_journal")
    ->Arg(few)
    ->UseManualTime();
BENCHMARK(inbox_to_batch)->Arg(few)->Arg(many)->UseManualTime();
BENCHMARK(floor_of_inbox_to_batch)->UseManualTime();
BENCHMARK(serial_decisions)->Arg(few)->Arg(many);

}  // namespace
}  // namespace sluice::bench

BENCHMARK_MAIN();
