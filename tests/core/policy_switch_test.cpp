// Another policy while the scheduler runs, and what follows a policy that misbehaves.

#include "core_bench.hpp"

#include <poll.h>

#include <atomic>
#include <cmath>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

namespace sluice::tests::policy_switch_test {
namespace {

/// Holds every offline group that it hears of.
void hold_changed(const snapshot& seen, decision_sink& out) {
  for (const group_id id : seen.changed) {
    if (const auto* one = seen.table.find(id); one != nullptr && one->what == role::offline) {
      out.hold(id, never);
    }
  }
}
std::unique_ptr<policy> holder() { return make_policy(hold_changed); }
std::unique_ptr<policy> idler() {
  return make_policy([](const snapshot&, decision_sink&) {});
}

/// No limit forces anything within these tests, unless they wait for it.
scheduler_config patient_config() {
  auto config = quick_config();
  config.max_suspend = 60s;
  return config;
}

/// Three offline processes on two GPUs, held by the first policy.
class Switch : public ::testing::Test {
 protected:
  Switch() : bench_(patient_config(), holder()) {
    bench_.create(100, role::offline, gpu_a, {0, 1});
    bench_.create(200, role::offline, gpu_a, {0});
    bench_.create(300, role::offline, gpu_b, {0});
    bench_.attach_all();
  }

  core_bench bench_;
};

TEST_F(Switch, LetsWhatBothWantHeldStaySuspended) {
  ASSERT_EQ(bench_.driver.suspended_count(), 4U);
  const auto before = bench_.stats();
  bench_.core->set_policy(holder());
  bench_.run_for(1s);
  EXPECT_EQ(bench_.driver.suspended_count(), 4U);
  EXPECT_EQ(bench_.stats().resumes, before.resumes);
  EXPECT_EQ(bench_.stats().driver_calls, before.driver_calls);
}

TEST_F(Switch, ResumesWhatTheNewOneDoesNotWantInTheSameTurn) {
  ASSERT_EQ(bench_.driver.suspended_count(), 4U);
  bench_.core->set_policy(make_policy([](const snapshot& seen, decision_sink& out) {
    for (const group_id id : seen.changed) {
      const auto* const one = seen.table.find(id);
      if (one->gpus.front() == gpu_b) out.hold(id, never);
    }
  }));
  bench_.driver.hold_answers(true);
  const auto submitted = bench_.driver.submitted();
  bench_.step();
  EXPECT_EQ(bench_.driver.submitted(), submitted + 2);  // The resumes of 100 and 200.
  bench_.driver.hold_answers(false);
  bench_.settle();
  EXPECT_EQ(bench_.driver.suspended_count(), 1U);
  EXPECT_TRUE(bench_.driver.suspended(300, q(0)));
}

TEST_F(Switch, ListsEveryGroupInTheFirstTurnAndOnlyThere) {
  std::vector<std::size_t> listed;
  bench_.core->set_policy(make_policy([&](const snapshot& seen, decision_sink& out) {
    listed.push_back(seen.changed.size());
    hold_changed(seen, out);
  }));
  bench_.step();
  ASSERT_EQ(listed.size(), 1U);
  EXPECT_EQ(listed[0], 3U);
  bench_.run_for(1s);
  EXPECT_EQ(listed.size(), 1U);
}

TEST_F(Switch, ToNoneLetsEverythingRun) {
  ASSERT_EQ(bench_.driver.suspended_count(), 4U);
  bench_.core->set_policy(nullptr);
  bench_.settle();
  EXPECT_EQ(bench_.driver.suspended_count(), 0U);
  bench_.core->set_policy(holder());
  bench_.settle();
  EXPECT_EQ(bench_.driver.suspended_count(), 4U);
}

TEST_F(Switch, KeepsProcessesClientsAndLimits) {
  auto client = bench_.client({gpu_a});
  client.begin();
  bench_.settle();
  const auto before = bench_.stats();
  std::uint32_t in_flight = 0;
  bench_.core->set_policy(make_policy([&](const snapshot& seen, decision_sink& out) {
    in_flight = seen.table.find(gpu_a)->online_in_flight;
    hold_changed(seen, out);
  }));
  bench_.settle();
  EXPECT_EQ(in_flight, 1U);
  EXPECT_EQ(bench_.stats().attaches, before.attaches);
  EXPECT_EQ(bench_.stats().detaches, 0U);
  // The time off goes on counting from when they were suspended, not from the switch.
  bench_.run_for(30s);
  bench_.core->set_policy(holder());
  bench_.run_for(31s);
  EXPECT_EQ(bench_.stats().forced_resumes, 3U);
}

TEST_F(Switch, ForgetsWakeUpsOfTheOldOne) {
  int late = 0;
  bench_.core->set_policy(make_policy([&](const snapshot& seen, decision_sink& out) {
    ++late;
    out.wake_at(seen.now + 5s);
  }));
  bench_.step();
  bench_.core->set_policy(idler());
  bench_.step();
  const int before = late;
  bench_.run_for(20s);
  EXPECT_EQ(late, before);
}

TEST_F(Switch, TakesTheLastOfSeveralAndDestroysAllOthers) {
  struct counted final : policy {
    explicit counted(int& alive) : alive_(alive) { ++alive_; }
    ~counted() override { --alive_; }
    std::string_view name() const noexcept override { return "counted"; }
    void decide(const snapshot&, decision_sink&) override {}
    int& alive_;
  };
  int alive = 0;
  for (int i = 0; i < 5; ++i) bench_.core->set_policy(std::make_unique<counted>(alive));
  EXPECT_EQ(alive, 1);
  bench_.step();
  EXPECT_EQ(alive, 1);
  bench_.core->set_policy(holder());
  bench_.step();
  EXPECT_EQ(alive, 0);
  bench_.core->finish_stop();
  bench_.core->set_policy(std::make_unique<counted>(alive));
  EXPECT_EQ(alive, 0);
}

TEST_F(Switch, TakesBackReservationsThatTheNewOneDoesNotRepeat) {
  bench_.driver.act_by(testing::batched_calls);
  bench_.settle();
  const auto reserve = [&](std::vector<std::pair<gpu_id, double>> what) {
    bench_.core->set_policy(
        make_policy([what = std::move(what)](const snapshot& seen, decision_sink& out) {
          hold_changed(seen, out);
          for (const auto& [gpu, share] : what) out.reserve(gpu, share);
        }));
    const auto before = bench_.driver.reservations().size();
    bench_.settle();
    const auto& all = bench_.driver.reservations();
    return std::vector(all.begin() + static_cast<std::ptrdiff_t>(before), all.end());
  };
  using shares = std::vector<std::pair<gpu_id, double>>;
  EXPECT_EQ(reserve({{gpu_a, 0.25}, {gpu_b, 0.5}}), (shares{{gpu_a, 0.25}, {gpu_b, 0.5}}));
  EXPECT_EQ(reserve({{gpu_b, 0.75}}), (shares{{gpu_a, 1}, {gpu_b, 0.75}}));
  EXPECT_EQ(reserve({{gpu_b, -3}}), (shares{{gpu_b, 0}}));
  EXPECT_EQ(reserve({{gpu_b, std::nan("")}}), (shares{{gpu_b, 1}}));
  EXPECT_EQ(reserve({}), (shares{}));
}

TEST_F(Switch, StartsToListenAnew) {
  auto client = bench_.client();
  std::uint64_t token = 0;
  // Whether a mark of a token, or of a request, wakes the sleeping scheduler.
  const auto wakes = [&](span_kind kind) {
    bench_.core->awake();
    bench_.settle();
    while (!bench_.core->fall_asleep()) bench_.step();
    bench_.core->clear_wake_fd();
    client.begin_span(kind, ++token);
    pollfd bell{bench_.core->wake_fd(), POLLIN, 0};
    return poll(&bell, 1, 0) == 1;
  };
  bench_.core->set_policy(make_policy([](const snapshot&, decision_sink& out) {
    out.listen(span_kind::itl, true);
    out.listen(span_kind::request, false);
  }));
  EXPECT_TRUE(wakes(span_kind::itl));
  EXPECT_FALSE(wakes(span_kind::request));
  bench_.core->set_policy(idler());
  EXPECT_FALSE(wakes(span_kind::itl));
  EXPECT_TRUE(wakes(span_kind::request));
  bench_.core->set_policy(nullptr);
  EXPECT_FALSE(wakes(span_kind::request));
}

/// Whatever calls are under way when they come, and however many come at once.
TEST(SwitchRandom, LeavesSuspendedWhatTheLastOneWantsAndNothingElse) {
  constexpr unsigned processes = 5;
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    core_bench bench(patient_config(), idler());
    for (unsigned i = 0; i < processes; ++i) {
      // Its number of queues tells the policy which it is.
      const auto pid = static_cast<pid_t>(100 + i);
      bench.see(pid, role::offline);
      for (unsigned queue = 0; queue <= i; ++queue)
        bench.create_queue(pid, q(queue), i % 2 == 0 ? gpu_a : gpu_b);
    }
    auto client = bench.client({gpu_a});
    bench.attach_all();
    client.begin();
    bench.driver.set_delay(3ms);
    for (int round = 0; round < 20; ++round) {
      unsigned wanted = 0;
      for (auto switches = 1 + random() % 4; switches != 0; --switches) {
        wanted = random() % (1U << processes);
        bench.core->set_policy(make_policy([wanted](const snapshot& seen, decision_sink& out) {
          for (const group_id id : seen.changed) {
            if ((wanted >> (seen.table.find(id)->queues - 1) & 1U) != 0) out.hold(id, never);
          }
        }));
        bench.run_for(std::chrono::microseconds(random() % 5000));
      }
      bench.run_for(20ms);
      for (unsigned i = 0; i < processes; ++i) {
        for (unsigned queue = 0; queue <= i; ++queue) {
          ASSERT_EQ(bench.driver.suspended(static_cast<pid_t>(100 + i), q(queue)),
                    (wanted >> i & 1U) != 0)
              << "process " << i << ", queue " << queue << ", round " << round;
        }
      }
    }
    EXPECT_EQ(bench.stats().attaches, processes);
    EXPECT_EQ(bench.stats().detaches, 0U);
    EXPECT_EQ(bench.core->seen().find(gpu_a)->online_in_flight, 1U);
    EXPECT_EQ(bench.driver.misuses(), 0U);
  }
}

TEST_F(Switch, FromAnyThreadTakesEffect) {
  std::atomic<bool> stop{false};
  std::atomic<int> turns{0};
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) {
      bench_.core->set_policy(make_policy([&](const snapshot& seen, decision_sink& out) {
        turns.fetch_add(1);
        hold_changed(seen, out);
      }));
    }
    stop = true;
  });
  while (!stop) bench_.step();
  other.join();
  bench_.settle();
  EXPECT_GT(turns.load(), 0);
  EXPECT_EQ(bench_.driver.suspended_count(), 4U);
  EXPECT_EQ(bench_.driver.misuses(), 0U);
}

TEST_F(Switch, AfterTheBeginningOfTheEndChangesNothing) {
  bench_.core->begin_stop();
  bench_.core->set_policy(holder());
  bench_.settle();
  EXPECT_EQ(bench_.driver.suspended_count(), 0U);
  EXPECT_TRUE(bench_.core->all_running());
  EXPECT_GT(bench_.step(), bench_.time.now());
}

// After an ejection -----------------------------------------------------------------------------

class Successor : public ::testing::Test {
 protected:
  void build(std::function<std::unique_ptr<policy>()> fallback) {
    bench_.emplace(patient_config(), make_policy([this](const snapshot& seen, decision_sink& out) {
                     hold_changed(seen, out);
                     out.wake_at(seen.now + 1h);
                     if (broken_) throw std::runtime_error("as it was told");
                   }),
                   std::move(fallback));
    bench_->create(100, role::offline, gpu_a, {0});
    bench_->create(200, role::offline, gpu_b, {0});
    bench_->attach_all();
    ASSERT_EQ(bench_->driver.suspended_count(), 2U);
  }
  /// A turn in which the policy throws.
  time_point break_it() {
    broken_ = true;
    auto client = bench_->client({gpu_a});
    client.begin();
    return bench_->step();
  }

  bool broken_ = false;
  std::optional<core_bench> bench_;
};

TEST_F(Successor, TakesOverInTheTurnAfterEverythingWasResumed) {
  int turns = 0;
  build([&] {
    return make_policy([&](const snapshot& seen, decision_sink& out) {
      if (turns++ == 0) {
        EXPECT_EQ(seen.changed.size(), 2U);
      }
      for (const group_id id : seen.changed) {
        if (seen.table.find(id)->gpus.front() == gpu_b) out.hold(id, never);
      }
    });
  });
  const auto resumes = bench_->stats().resumes;
  EXPECT_FALSE(bench_->core->look().policy_is_fallback);
  const auto next = break_it();
  EXPECT_EQ(bench_->stats().policy_ejections, 1U);
  EXPECT_TRUE(bench_->core->look().policy_is_fallback);
  EXPECT_EQ(turns, 0);
  EXPECT_LE(next, bench_->time.now());  // Its turn is due.
  bench_->settle();
  EXPECT_EQ(bench_->stats().resumes, resumes + 2);
  EXPECT_GT(turns, 0);
  EXPECT_FALSE(bench_->driver.suspended(100, q(0)));
  EXPECT_TRUE(bench_->driver.suspended(200, q(0)));
}

TEST_F(Successor, HasNoSuccessorItself) {
  int made = 0;
  build([&] {
    ++made;
    return make_policy([](const snapshot& seen, decision_sink& out) {
      hold_changed(seen, out);
      throw 42;
    });
  });
  break_it();
  bench_->run_for(1s);
  EXPECT_EQ(made, 1);
  EXPECT_EQ(bench_->stats().policy_ejections, 2U);
  EXPECT_EQ(bench_->driver.suspended_count(), 0U);
  EXPECT_EQ(bench_->core->look().policy, "");
  EXPECT_FALSE(bench_->core->look().policy_is_fallback);
  // A policy that an operator sets has one again.
  bench_->core->set_policy(make_policy([](const snapshot&, decision_sink&) { throw 43; }));
  bench_->run_for(1s);
  EXPECT_EQ(made, 2);
  EXPECT_EQ(bench_->stats().policy_ejections, 4U);
}

TEST_F(Successor, ThatCannotBeMadeLetsEverythingRun) {
  build([]() -> std::unique_ptr<policy> { throw std::runtime_error("no such thing"); });
  break_it();
  bench_->run_for(1s);
  EXPECT_EQ(bench_->stats().policy_ejections, 1U);
  EXPECT_EQ(bench_->driver.suspended_count(), 0U);
}

TEST_F(Successor, OfNothingLetsEverythingRun) {
  build([]() -> std::unique_ptr<policy> { return nullptr; });
  break_it();
  bench_->run_for(1s);
  EXPECT_EQ(bench_->driver.suspended_count(), 0U);
}

TEST_F(Successor, TakesBackTheReservations) {
  build({});
  bench_->driver.act_by(testing::batched_calls);
  bench_->core->set_policy(make_policy([this](const snapshot&, decision_sink& out) {
    out.reserve(gpu_a, 0.5);
    if (broken_) throw 42;
  }));
  bench_->settle();
  using shares = std::vector<std::pair<gpu_id, double>>;
  EXPECT_EQ(bench_->driver.reservations().back(), (shares::value_type{gpu_a, 0.5}));
  break_it();
  EXPECT_EQ(bench_->stats().policy_ejections, 1U);
  EXPECT_EQ(bench_->driver.reservations().back(), (shares::value_type{gpu_a, 1}));
}

}  // namespace
}  // namespace sluice::tests::policy_switch_test
