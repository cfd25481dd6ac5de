#pragma once
/// \file
/// How long the processors of this machine stand still, one by one.

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::test {

/// How late each processor wakes a thread that sleeps for a millisecond and may run nowhere else.
/// Those of a virtual machine stop one by one, for up to a second: whoever runs there at the time
/// is held up, and a thread that may run anywhere sees nothing of it. Threading: any.
class processor_watch {
 public:
  processor_watch() {
    cpu_set_t ours;
    CPU_ZERO(&ours);
    ::sched_getaffinity(0, sizeof ours, &ours);
    for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &ours)) watched_.push_back(std::make_unique<processor>(cpu));
    }
  }
  /// The latest wake-up of all, since it began or the last call; sleeps that still last count.
  duration worst() {
    duration worst{};
    for (const auto& each : watched_) worst = std::max(worst, each->worst());
    return worst;
  }

  /// For how long the one that did so most stood still since it began, in stops of 5 ms and more.
  duration stopped() const {
    duration most{};
    for (const auto& each : watched_) most = std::max(most, each->stopped());
    return most;
  }

 private:
  static constexpr duration nap = std::chrono::milliseconds{1};
  static constexpr duration a_stop = std::chrono::milliseconds{5};

  class processor {
   public:
    explicit processor(std::size_t cpu)
        : thread_([this, cpu](const std::stop_token& stop) { run(cpu, stop); }) {}
    duration worst() {
      const duration before{worst_.exchange(0)};
      const time_point slept{duration{slept_.load()}};
      return std::max(before, clock::now() - slept - nap);
    }
    duration stopped() const { return duration{stopped_.load()}; }

   private:
    void run(std::size_t cpu, const std::stop_token& stop) {
      cpu_set_t only;
      CPU_ZERO(&only);
      CPU_SET(cpu, &only);
      ::pthread_setaffinity_np(::pthread_self(), sizeof only, &only);
      while (!stop.stop_requested()) {
        const time_point before = clock::now();
        slept_.store(before.time_since_epoch().count());
        std::this_thread::sleep_for(nap);
        const auto late = (clock::now() - before - nap).count();
        if (late > worst_.load()) worst_.store(late);
        if (late >= duration{a_stop}.count()) stopped_.fetch_add(late);
      }
    }
    std::atomic<duration::rep> worst_{0};
    std::atomic<duration::rep> stopped_{0};
    std::atomic<duration::rep> slept_{clock::now().time_since_epoch().count()};
    std::jthread thread_;
  };
  std::vector<std::unique_ptr<processor>> watched_;
};

}  // namespace sluice::test
