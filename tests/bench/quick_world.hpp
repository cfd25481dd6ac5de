#pragma once
/// \file
/// A scheduler_core on an instant driver, with many offline processes, of which one shares its GPU
/// with online work.

#include "instant_backend.hpp"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "sluice/policy.hpp"
#include "sluice/scheduler_core.hpp"
#include "sluice/time.hpp"

namespace sluice::bench {

using namespace std::chrono_literals;

/// The real clock, which can be put forward.
class warped_clock final : public time_source {
 public:
  time_point now() const noexcept override { return clock::now() + ahead_; }
  void advance(duration by) noexcept { ahead_ += by; }

 private:
  duration ahead_{};
};

inline constexpr gpu_id shared_gpu{1};
inline constexpr pid_t affected_pid = 1000;
inline constexpr pid_t serving_pid = 900;
/// Of the one process that is affected, whatever else there is.
inline constexpr std::uint32_t affected_queues = 8;

inline scheduler_config bench_config() {
  scheduler_config config;
  config.attach_after = 0ns;
  config.attach_at_latest = 0ns;
  config.offline_floor = 0;
  config.min_run = 1ms;
  return config;
}

inline observation process_seen(pid_t pid, role what) {
  observation seen;
  seen.kind = observation_kind::process_seen;
  seen.pid = pid;
  seen.start_time = 1;
  seen.what = what;
  return seen;
}

inline observation queue_seen(pid_t pid, std::uint32_t number, gpu_id gpu) {
  observation seen;
  seen.kind = observation_kind::queue_seen;
  seen.pid = pid;
  seen.start_time = 1;
  seen.queue = driver_queue_id{number};
  seen.gpu = gpu;
  seen.type = queue_kind::compute;
  return seen;
}

/// Who has how many queues where: `queues` in all, of at most 64 processes on eight GPUs, of which
/// the affected one has affected_queues and is alone on its GPU.
template <class Add>
void each_process(std::uint32_t queues, Add&& add) {
  add(affected_pid, shared_gpu, affected_queues);
  std::uint32_t left = queues - affected_queues;
  const std::uint32_t others = std::min(63U, left / affected_queues);
  for (std::uint32_t i = 0; i < others; ++i) {
    const std::uint32_t mine = left / (others - i);
    left -= mine;
    add(affected_pid + 1 + static_cast<pid_t>(i), gpu_id{2 + i % 7}, mine);
  }
}

class quick_world {
 public:
  quick_world(std::uint32_t queues, std::unique_ptr<policy> decider,
              journal_sink* journal = nullptr) {
    each_process(queues,
                 [&](pid_t pid, gpu_id gpu, std::uint32_t count) { driver.add(pid, gpu, count); });
    auto made = scheduler_core::create(bench_config(), driver, std::move(decider),
                                       {.time = &time, .quiet = true, .journal = journal});
    if (!made) std::abort();
    core = std::move(*made);
    if (!core->start()) std::abort();
    core->observe(0, process_seen(serving_pid, role::online));
    core->observe(0, queue_seen(serving_pid, 0, shared_gpu));
    each_process(queues, [&](pid_t pid, gpu_id gpu, std::uint32_t count) {
      core->observe(0, {.kind = observation_kind::gpu_seen, .shows_work = true, .gpu = gpu});
      core->observe(0, process_seen(pid, role::offline));
      for (std::uint32_t number = 0; number < count; ++number)
        core->observe(0, queue_seen(pid, number, gpu));
    });
    for (int i = 0; i < 64; ++i) step(1ms);
    const group_view* const one = core->seen().find(core->seen().find(shared_gpu)->offline.front());
    if (one == nullptr || !one->manageable) std::abort();
  }

  void step(duration later = {}) {
    time.advance(later);
    core->step();
  }

  warped_clock time;
  test::instant_backend driver;
  std::unique_ptr<scheduler_core> core;
};

}  // namespace sluice::bench
