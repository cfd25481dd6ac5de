// Clients on their own threads against a core that looks on and off.

#include "core_bench.hpp"

#include <poll.h>

#include <atomic>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

namespace sluice::tests::client_threads_test {
namespace {

/// A loop that blocks whenever the protocol lets it: a begin or an end that failed to wake it makes
/// this test run into its deadline.
class blocking_loop {
 public:
  blocking_loop(scheduler_core& core, const std::atomic<bool>& done) : core_(core), done_(done) {}

  /// \return false when it slept for ten seconds although not everything was done.
  bool run() {
    for (;;) {
      const bool last = done_.load(std::memory_order_acquire);
      core_.awake();
      core_.step();
      if (last) return true;
      if (!core_.fall_asleep()) continue;
      pollfd waiting{core_.wake_fd(), POLLIN, 0};
      if (poll(&waiting, 1, 10'000) == 0) return false;
      core_.clear_wake_fd();
    }
  }

 private:
  scheduler_core& core_;
  const std::atomic<bool>& done_;
};

TEST(ClientThreads, LoseNoBeginAndNoEnd) {
  constexpr int threads = 4;
  constexpr int cycles = 20'000;
  core_bench bench;
  auto client = bench.client({gpu_a});
  std::atomic<bool> done{false};
  std::thread all([&] {
    std::vector<std::thread> workers;
    for (int i = 0; i < threads; ++i) {
      workers.emplace_back([&] {
        for (int j = 0; j < cycles; ++j) {
          client.begin();
          client.end();
        }
      });
    }
    for (auto& one : workers) one.join();
    done.store(true, std::memory_order_release);
    bench.core->wake();
  });
  EXPECT_TRUE(blocking_loop(*bench.core, done).run());
  all.join();
  EXPECT_EQ(bench.stats().begins, static_cast<std::uint64_t>(threads) * cycles);
  EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 0U);
}

/// One begin at a time, and the next only when the scheduler has seen it: every one must wake it.
TEST(ClientThreads, WakeASleepingCoreEveryTime) {
  constexpr std::uint64_t cycles = 5'000;
  core_bench bench;
  auto client = bench.client({gpu_a});
  std::atomic<bool> done{false};
  std::thread worker([&] {
    for (std::uint64_t i = 1; i <= cycles; ++i) {
      const auto busy = client.busy();
      while (bench.stats().begins < i) std::this_thread::yield();
    }
    done.store(true, std::memory_order_release);
    bench.core->wake();
  });
  EXPECT_TRUE(blocking_loop(*bench.core, done).run());
  worker.join();
  EXPECT_EQ(bench.stats().begins, cycles);
}

TEST(ClientThreads, MayComeAndGoAtAnyTime) {
  constexpr int threads = 4;
  constexpr int lives = 100;  // Tens of milliseconds each under the thread sanitizer.
  core_bench bench;
  std::atomic<bool> done{false};
  std::thread all([&] {
    std::vector<std::thread> workers;
    for (int i = 0; i < threads; ++i) {
      workers.emplace_back([&] {
        for (int j = 0; j < lives; ++j) {
          auto client = bench.client({gpu_a});
          auto busy = client.busy();
          if (j % 2 == 0) busy.end();
        }
      });
    }
    for (auto& one : workers) one.join();
    done.store(true, std::memory_order_release);
    bench.core->wake();
  });
  EXPECT_TRUE(blocking_loop(*bench.core, done).run());
  all.join();
  EXPECT_EQ(bench.stats().begins, static_cast<std::uint64_t>(threads) * lives);
  EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 0U);
}

TEST(ClientThreads, OutliveTheCore) {
  online_client client;
  busy_token busy;
  {
    const steady_time time;
    testing::scripted_backend driver(time);
    auto core = scheduler_core::create({}, driver, make_fixed_timeslice());
    ASSERT_TRUE(core);
    client = *(*core)->register_client({"test", {}, 1s});
    busy = client.busy();
  }
  client.begin();
  client.end();
  busy.end();
  EXPECT_FALSE(busy);
}

}  // namespace
}  // namespace sluice::tests::client_threads_test
