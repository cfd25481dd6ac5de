// A long random history against the invariants that hold whatever happens.

#include "core_bench.hpp"

#include <unistd.h>

#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace sluice::tests {
namespace {

/// Draws like a policy written by an enemy: anything, at any time, for any group.
std::unique_ptr<policy> random_policy(std::mt19937_64& random) {
  return make_policy([&random](const snapshot& seen, decision_sink& out) {
    const auto wish = [&](group_id id) {
      switch (random() % 4) {
        case 0: out.hold(id, never); break;
        case 1: out.hold(id, seen.now + std::chrono::microseconds(random() % 100'000)); break;
        case 2: out.run(id); break;
        default: break;
      }
    };
    for (const group_id id : seen.changed) wish(id);
    for (const gpu_view& on : seen.table.gpus()) {
      for (const group_id id : on.offline) wish(id);
    }
    if (random() % 8 == 0) out.reserve(gpu_id{1}, 0.5);
    if (random() % 8 == 0) out.poll_pointers(std::chrono::milliseconds(random() % 2));
    if (random() % 3 == 0) out.wake_at(seen.now + std::chrono::microseconds(random() % 50'000));
  });
}

class history {
 public:
  explicit history(std::uint64_t seed) : random_(seed), bench_(config(), random_policy(random_)) {
    bench_.driver.set_delay(2ms);
    for (int i = 0; i < 3; ++i)
      clients_.push_back(bench_.client(random_() % 2 == 0 ? std::vector<gpu_id>{}
                                                          : std::vector{gpu(random_() % 3)}));
  }

  void play(int moves) {
    for (int i = 0; i < moves && !::testing::Test::HasFailure(); ++i) {
      move();
      bench_.run_for(std::chrono::microseconds(random_() % 20'000));
      check();
    }
  }

  void finish() {
    if (down_) bench_.driver.restore();
    bench_.settle();
    bench_.core->begin_stop();
    bench_.run_for(200s);  // The longest backoff of a resume that failed again and again.
    EXPECT_TRUE(bench_.core->all_running());
    EXPECT_EQ(bench_.stats().suspended_now, 0U);
    EXPECT_EQ(bench_.driver.suspended_count(), 0U);
    EXPECT_EQ(bench_.driver.misuses(), 0U);
    bench_.core->finish_stop();
  }

  std::uint64_t batches() const { return bench_.driver.submitted(); }

 private:
  static scheduler_config config() {
    auto made = quick_config();
    made.attach_after = 5ms;
    made.attach_at_latest = 50ms;
    made.max_suspend = 100ms;
    made.min_run = 10ms;
    made.floor_window = 1s;
    made.offline_floor = 0.1;
    made.failure_backoff = 10ms;
    made.max_busy = 500ms;
    return made;
  }
  static gpu_id gpu(std::uint64_t number) { return gpu_id{static_cast<std::uint32_t>(1 + number)}; }

  struct truth {
    role what{};
    std::set<driver_queue_id> queues;
  };

  void move() {
    const auto pid = static_cast<pid_t>(100 + random_() % 8);
    const auto id = q(static_cast<std::uint32_t>(random_() % 6));
    const bool alive = alive_.contains(pid);
    switch (random_() % 17) {
      case 0:
      case 1: {
        const auto what = static_cast<role>(random_() % 3);
        bench_.see(pid, what, random_() % 4 == 0 ? 1 + random_() % 2 : 0);
        alive_[pid].what = what;
        bench_.settle();
        break;
      }
      case 2:
      case 3:
      case 4: {
        if (!alive || alive_[pid].queues.contains(id)) break;
        bench_.create_queue(pid, id, gpu(random_() % 3),
                            random_() % 4 == 0 ? queue_type::sdma : queue_type::compute_aql);
        alive_[pid].queues.insert(id);
        break;
      }
      case 5: {
        if (!alive || !alive_[pid].queues.contains(id)) break;
        bench_.driver.remove_queue(pid, id);
        if (random_() % 2 == 0) bench_.see_kind(observation_kind::queue_gone, pid, id);
        alive_[pid].queues.erase(id);
        break;
      }
      case 6:
        if (!alive || random_() % 3 != 0) break;
        for (const auto each : alive_[pid].queues) bench_.driver.remove_queue(pid, each);
        bench_.see_kind(observation_kind::process_gone, pid);
        alive_.erase(pid);
        break;
      case 7: {
        const auto what = static_cast<outcome>(random_() % 3);
        if (alive) bench_.driver.script_outcome(pid, id, what, 1 + static_cast<int>(random_() % 2));
        break;
      }
      case 8:
        if (random_() % 10 != 0) break;
        down_ ? bench_.driver.restore() : bench_.driver.lose();
        down_ = !down_;
        break;
      case 9:
        if (alive && random_() % 4 == 0 && bench_.driver.attached(pid)) {
          bench_.driver.end_session(pid);
        }
        break;
      case 10: bench_.driver.script_attach(pid, errc::lost); break;
      case 11: {
        // Of any process, alive or not, on any GPU.
        observation seen;
        seen.kind = observation_kind::pointers_seen;
        seen.pid = pid;
        seen.start_time = start_time;
        seen.gpu = gpu(random_() % 3);
        seen.work = static_cast<online_work>(random_() % 5);
        seen.count = static_cast<std::uint32_t>(random_() % 3);
        seen.at = bench_.time.now();
        bench_.core->observe(0, seen);
        break;
      }
      case 12:
        bench_.core->set_policy(random_() % 3 == 0 ? nullptr : random_policy(random_));
        break;
      default: {
        auto& client = clients_[random_() % clients_.size()];
        random_() % 2 == 0 ? client.begin() : client.end();
      }
    }
  }

  void check() {
    // Rule one, against the driver's own books.
    for (const auto& [pid, one] : alive_) {
      if (one.what == role::offline) continue;
      for (const auto id : one.queues) {
        ASSERT_FALSE(bench_.driver.suspended(pid, id)) << "pid " << pid << " is not offline";
      }
      ASSERT_FALSE(bench_.driver.attached(pid)) << "pid " << pid << " is not offline";
    }
    ASSERT_EQ(bench_.driver.misuses(), 0U);
    const auto now = bench_.time.now();
    for (const gpu_view& on : bench_.core->seen().gpus()) {
      for (const group_id id : on.offline) {
        const group_view* const one = bench_.core->seen().find(id);
        ASSERT_NE(one, nullptr);
        ASSERT_EQ(one->what, role::offline);
        // max_suspend, and the calls that take its queues off and back.
        if (one->actual == run_state::suspended) {
          ASSERT_LE(now - one->state_since, 110ms);
        }
      }
    }
  }

  std::mt19937_64 random_;
  core_bench bench_;
  std::vector<online_client> clients_;
  std::map<pid_t, truth> alive_;
  bool down_ = false;
};

/// Never an online or unmatched queue suspended, never two batches for one target, and after stop
/// everything runs. SLUICE_TEST_SEED repeats one history.
TEST(Invariants, HoldThroughRandomHistories) {
  const char* const given = std::getenv("SLUICE_TEST_SEED");
  const std::uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  const std::uint64_t last = given != nullptr ? first : 40;
  std::uint64_t batches = 0;
  for (auto seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("SLUICE_TEST_SEED=" + std::to_string(seed));
    history one(seed);
    one.play(500);
    one.finish();
    batches += one.batches();
    if (::testing::Test::HasFailure()) {
      std::printf("failed with SLUICE_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
      break;
    }
  }
  if (given == nullptr) {
    EXPECT_GT(batches, 10'000U);  // Else the histories prove little.
  }
}

}  // namespace
}  // namespace sluice::tests
