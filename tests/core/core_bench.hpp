#pragma once
/// \file
/// A scheduler_core on a manual clock with a scripted backend, and words for what a test does to
/// it.

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/scheduler_core.hpp"
#include "sluice/testing/manual_clock.hpp"
#include "sluice/testing/scripted_backend.hpp"

namespace sluice::tests {

using namespace std::chrono_literals;

inline constexpr gpu_id gpu_a{0xa};
inline constexpr gpu_id gpu_b{0xb};
inline constexpr std::uint64_t start_time = 77;

constexpr driver_queue_id q(std::uint32_t number) { return driver_queue_id{number}; }

/// A policy that does what the test's function says.
class function_policy final : public policy {
 public:
  using body = std::function<void(const snapshot&, decision_sink&)>;
  explicit function_policy(body decide) : decide_(std::move(decide)) {}
  std::string_view name() const noexcept override { return "function"; }
  void decide(const snapshot& seen, decision_sink& out) override { decide_(seen, out); }

 private:
  body decide_;
};

inline std::unique_ptr<policy> make_policy(function_policy::body decide) {
  return std::make_unique<function_policy>(std::move(decide));
}

/// Short times, so that tests read easily; the floor and the breaker are off unless a test wants
/// them.
inline scheduler_config quick_config() {
  scheduler_config config;
  config.attach_after = 2s;
  config.attach_at_latest = 10s;
  config.max_suspend = 1s;
  config.min_run = 100ms;
  config.offline_floor = 0;
  config.policy_time_limit = 10ms;
  config.breaker_after = 1000;  // breaker_test.cpp has its own
  return config;
}

class core_bench {
 public:
  explicit core_bench(scheduler_config config = quick_config(),
                      std::unique_ptr<policy> decider = make_fixed_timeslice({.slice = 20ms}),
                      std::function<std::unique_ptr<policy>()> fallback = {},
                      record_sink* record = nullptr, journal_sink* journal = nullptr)
      : driver(time) {
    auto made = scheduler_core::create(config, driver, std::move(decider),
                                       {.time = &time,
                                        .own_pid = 4242,
                                        .fallback = std::move(fallback),
                                        .record_into = record,
                                        .journal = journal});
    EXPECT_TRUE(made);
    core = std::move(*made);
    EXPECT_TRUE(core->start());
  }

  // What sources see.
  void see(pid_t pid, role what, std::uint64_t group_key = 0, unsigned source = 0) {
    observation one;
    one.kind = observation_kind::process_seen;
    one.what = what;
    one.pid = pid;
    one.start_time = start_time;
    one.group_key = group_key;
    core->observe(source, one);
  }
  void see_queue(pid_t pid, driver_queue_id id, gpu_id gpu, queue_kind type = queue_kind::compute,
                 unsigned source = 0) {
    observation one;
    one.kind = observation_kind::queue_seen;
    one.pid = pid;
    one.start_time = start_time;
    one.queue = id;
    one.gpu = gpu;
    one.type = type;
    core->observe(source, one);
  }
  void see_kind(observation_kind kind, pid_t pid = 0, driver_queue_id id = {},
                unsigned source = 0) {
    observation one;
    one.kind = kind;
    one.pid = pid;
    one.start_time = start_time;
    one.queue = id;
    core->observe(source, one);
  }
  /// What the pointers of a process's queues on a GPU say.
  void see_pointers(pid_t pid, gpu_id gpu, online_work work, std::uint32_t packets = 0) {
    observation one;
    one.kind = observation_kind::pointers_seen;
    one.pid = pid;
    one.start_time = start_time;
    one.gpu = gpu;
    one.work = work;
    one.count = packets;
    one.at = time.now();
    core->observe(0, one);
  }
  /// A source that shows the work of online processes on this GPU.
  void show_work(gpu_id gpu) {
    observation one;
    one.kind = observation_kind::gpu_seen;
    one.gpu = gpu;
    one.shows_work = true;
    core->observe(0, one);
  }
  /// A queue that both the sources and the driver know.
  void create_queue(pid_t pid, driver_queue_id id, gpu_id gpu,
                    queue_kind type = queue_kind::compute) {
    driver.add_queue(pid, id, gpu, type);
    see_queue(pid, id, gpu, type);
  }
  void create(pid_t pid, role what, gpu_id gpu, std::initializer_list<std::uint32_t> queues,
              std::uint64_t group_key = 0) {
    see(pid, what, group_key);
    for (const auto number : queues) create_queue(pid, q(number), gpu);
  }

  /// One turn.
  time_point step() { return next_ = core->step(); }
  /// Turns without any time passing, until nothing is left to be done now.
  void settle() {
    for (int i = 0; i < 8; ++i) step();
  }
  /// Time passes, with a turn whenever one is due or the driver answers, and at the end.
  void run_for(duration span) {
    const auto end = time.now() + span;
    step();
    for (;;) {
      const auto due = std::min(next_, driver.next_answer());
      if (due >= end) break;
      // A turn that is due now is taken now, but a core that always wants another would never end.
      time.advance_to(std::max(due, time.now() + (due <= time.now() ? 1us : 0us)));
      step();
    }
    time.advance_to(end);
    settle();
  }
  /// Until everything offline is attached.
  void attach_all() { run_for(3s); }

  /// \param pid 0: the embedding program's.
  online_client client(std::vector<gpu_id> gpus = {}, pid_t pid = 0) {
    auto made = core->register_client(
        {.name = "test", .gpus = std::move(gpus), .acquire_limit = 100ms, .pid = pid});
    EXPECT_TRUE(made);
    return std::move(*made);
  }

  const group_view* group_of(gpu_id gpu, std::size_t index = 0) const {
    const gpu_view* const on = core->seen().find(gpu);
    if (on == nullptr || on->offline.size() <= index) return nullptr;
    return core->seen().find(on->offline[index]);
  }
  statistics stats() const { return core->stats(); }

  testing::manual_clock time;
  testing::scripted_backend driver;
  std::unique_ptr<scheduler_core> core;

 private:
  time_point next_{};
};

/// With an offline process, 100, that has these queues on GPU a and is attached.
class attached_bench : public core_bench {
 public:
  explicit attached_bench(std::initializer_list<std::uint32_t> queues = {0},
                          scheduler_config config = quick_config())
      : core_bench(config) {
    create(100, role::offline, gpu_a, queues);
    attach_all();
  }
};

}  // namespace sluice::tests
