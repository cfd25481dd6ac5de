// The fault matrix in virtual time: the scheduler's core, a scripted driver, and the two leases by
// which host and agent watch each other, each cell at three moments of a preemption.

#include "cells.hpp"
#include "core_bench.hpp"
#include "lease.hpp"

#include <optional>

#include <gtest/gtest.h>

#include "sluice/policies/pointer_polling.hpp"

namespace sluice::test::virtual_test {
namespace {

using namespace std::chrono_literals;
using tests::core_bench;
using tests::gpu_a;
using tests::q;

enum class moment : std::uint8_t { suspending, held, resuming };
constexpr std::array moments{moment::suspending, moment::held, moment::resuming};
constexpr std::string_view word(moment when) {
  constexpr std::array words{"while_suspending", "while_held", "while_resuming"};
  return words[static_cast<std::size_t>(when)];
}

constexpr duration lease_length = 100ms;
// As often as host and agent look at each other.
constexpr duration tick_interval = lease_length / 4;
constexpr duration beat_interval = lease_length / 5;
constexpr duration call = 5ms;        // each driver call
constexpr duration own_work = 200ms;  // as promised
constexpr duration stuck_after = 3s;  // lanes_options
constexpr duration relaunch = 100ms;  // agent_backend's first pause
constexpr duration next_look = 1s;    // discovery's

constexpr pid_t stayer = 100;
constexpr pid_t victim = 101;
constexpr pid_t peer = 102;
constexpr pid_t server = 103;
constexpr std::uint64_t gang_key = 7;

/// Host, agent and driver, and whether each of them lives and runs.
class virtual_node {
 public:
  explicit virtual_node(const combination& what)
      : what_(what),
        bench_(config_for(what), make_pointer_polling()),
        host_lease_(lease_length, beat_interval, bench_.time.now()),
        heartbeat_(lease_length, tick_interval, bench_.time.now()) {
    bench_.driver.act_by(by_batch(what.how) ? testing::batched_calls : testing::single_calls);
    bench_.driver.set_delay(call);
    bench_.show_work(gpu_a);
    bench_.create(stayer, role::offline, gpu_a, {0});
    switch (what.who) {
      case party::offline: bench_.create(victim, role::offline, gpu_a, {0}); break;
      case party::gang:
        bench_.create(victim, role::offline, gpu_a, {0}, gang_key);
        bench_.create(peer, role::offline, gpu_a, {0}, gang_key);
        break;
      case party::online: bench_.create(server, role::online, gpu_a, {0}); break;
      default: break;
    }
    if (what.who != party::online) client_ = bench_.client({gpu_a});
    run_for(3s);
  }

  void begin() {
    if (client_) {
      client_->begin();
    } else {
      bench_.see_pointers(server, gpu_a, online_work::waiting, 1);
    }
  }
  void end() {
    if (client_) {
      client_->end();
    } else if (!server_gone_) {
      bench_.see_pointers(server, gpu_a, online_work::finished);
    }
  }

  bool held(pid_t pid) const { return bench_.driver.suspended(pid, q(0)); }
  std::size_t suspended() const { return bench_.driver.suspended_count(); }
  bool calls_in_flight() const { return bench_.driver.in_flight() != 0; }
  std::vector<pid_t> offline() const {
    std::vector<pid_t> all{stayer};
    if (what_.who == party::offline && !victim_gone_) all.push_back(victim);
    if (what_.who == party::gang) {
      all.push_back(peer);
      if (!victim_gone_) all.push_back(victim);
    }
    return all;
  }

  void run_for(duration span) {
    const time_point end = bench_.time.now() + span;
    while (bench_.time.now() < end) tick();
  }
  /// \return after how long the condition held.
  std::optional<duration> run_until(duration limit, const std::function<bool()>& condition) {
    const time_point begin = bench_.time.now();
    while (!condition()) {
      if (bench_.time.now() - begin >= limit) return {};
      tick();
    }
    return bench_.time.now() - begin;
  }

  void inflict();
  void recover();
  std::size_t agents() const { return agents_; }
  bool host_lives() const { return host_lives_; }
  statistics stats() const { return bench_.stats(); }

 private:
  static scheduler_config config_for(const combination& what) {
    auto config = tests::quick_config();
    config.attach_after = 50ms;
    config.attach_at_latest = 100ms;
    config.breaker_after = 1;
    config.max_suspend = effect_of(what) == effect::max_suspend ? 1s : 60s;
    return config;
  }

  /// A millisecond of everybody's life, at the paces of agent_backend and sluice-agent.
  void tick() {
    const time_point now = bench_.time.now();
    const bool host_runs = host_lives_ && !host_stopped_;
    const bool agent_runs = agent_lives_ && !agent_stopped_;
    if (host_runs) {
      bench_.step();
      if (in_agent(what_.how)) watch_agent(now);
    }
    if (in_agent(what_.how) && agent_runs) watch_host(now);
    if (agent_lives_ && agent_ends_at_ <= now) release(now);
    if (later_ && later_at_ <= now) std::exchange(later_, {})();
    bench_.time.advance(1ms);
  }

  void watch_agent(time_point now) {
    if (now - lease_renewed_ >= tick_interval) lease_renewed_ = now;
    if (!agent_lives_) {
      if (now < relaunch_at_ || device_gone_) return;
      agent_lives_ = true;
      agent_stopped_ = false;
      agent_ends_at_ = never;
      ++agents_;
      host_lease_ = agent::lease{lease_length, beat_interval, now};
      heartbeat_ = agent::lease{lease_length, tick_interval, now};
      beat_ = lease_renewed_ = now;
      bench_.driver.restore();
      return;
    }
    heartbeat_.renew(beat_, now);
    if (heartbeat_.lapsed(now)) end_agent(now);  // killed
  }
  void watch_host(time_point now) {
    if (now - beat_ >= beat_interval) beat_ = now;
    host_lease_.renew(lease_renewed_, now);
    if (!host_lives_ || host_lease_.lapsed(now)) end_agent(now);
  }

  /// With it everything runs, once the calls in flight are over.
  void end_agent(time_point now) {
    if (agent_ends_at_ != never) return;
    agent_ends_at_ = calls_in_flight() ? std::max(now, bench_.driver.next_answer()) : now;
  }
  void release(time_point now) {
    bench_.driver.lose();
    agent_lives_ = false;
    agent_ends_at_ = never;
    relaunch_at_ = now + relaunch;
  }
  void end_victim() {
    victim_gone_ = true;
    bench_.driver.end_session(victim);
    bench_.see_kind(observation_kind::queue_gone, victim, q(0));
    bench_.see_kind(observation_kind::process_gone, victim);
    // A gang that is not whole is left alone.
    if (what_.who == party::gang) bench_.see(peer, role::unmatched, gang_key);
  }
  void end_server() {
    server_gone_ = true;
    bench_.see_kind(observation_kind::queue_gone, server, q(0));
    bench_.see_kind(observation_kind::process_gone, server);
  }
  void do_later(duration after, std::function<void()> what) {
    later_at_ = bench_.time.now() + after;
    later_ = std::move(what);
  }

  const combination what_;
  core_bench bench_;
  std::optional<online_client> client_;
  agent::lease host_lease_;  // the agent's
  agent::lease heartbeat_;   // the host's
  time_point lease_renewed_{};
  time_point beat_{};
  bool host_lives_ = true;
  bool host_stopped_ = false;
  bool agent_lives_ = true;
  bool agent_stopped_ = false;
  bool device_gone_ = false;
  bool victim_gone_ = false;
  bool server_gone_ = false;
  std::size_t agents_ = 1;
  time_point agent_ends_at_ = never;
  time_point relaunch_at_{};
  time_point later_at_ = never;
  std::function<void()> later_;
};

void virtual_node::inflict() {
  const bool lasts =
      what_.what == fault::stop || what_.what == fault::descriptors || what_.what == fault::slow;
  const time_point now = bench_.time.now();
  switch (what_.who) {
    case party::client:
      // A core is seen at the next look for one.
      if (!lasts) do_later(what_.what == fault::core ? 20ms : 0ms, [this] { client_.reset(); });
      break;
    case party::online:
      if (what_.what == fault::exec) {
        do_later(next_look, [this] { end_server(); });
      } else if (!lasts && what_.what != fault::core) {
        end_server();
      }
      break;
    case party::offline:
    case party::gang:
      if (what_.what == fault::exec) {
        bench_.driver.remove_queue(victim, q(0));
        bench_.see_kind(observation_kind::queue_gone, victim, q(0));
        victim_gone_ = true;
      } else if (!lasts) {
        end_victim();
      }
      break;
    case party::host:
      if (what_.what == fault::stop || what_.what == fault::core) {
        host_stopped_ = true;
      } else if (what_.what == fault::slow) {
        host_stopped_ = true;
        do_later(50ms, [this] { host_stopped_ = false; });
      } else if (!lasts) {
        host_lives_ = false;
        if (!in_agent(what_.how)) release(now);
      }
      break;
    case party::agent:
      if (what_.what == fault::stop) {
        agent_stopped_ = true;
      } else if (what_.what == fault::slow) {
        agent_stopped_ = true;
        do_later(50ms, [this] { agent_stopped_ = false; });
      } else if (what_.what == fault::exit || what_.what == fault::kill) {
        end_agent(now);
      }
      break;
    case party::device:
      if (what_.what == fault::stop) {
        bench_.driver.hold_answers(true);
        do_later(stuck_after, [this] { bench_.driver.lose_gpu(gpu_a); });
      } else if (!lasts) {
        device_gone_ = true;
        release(now);
      } else if (what_.what == fault::slow) {
        bench_.driver.set_delay(10 * call);
      }
      break;
    case party::guardian:
    case party::pair:
    case party::unit: FAIL() << "not in virtual time";
  }
}

void virtual_node::recover() {
  host_stopped_ = agent_stopped_ = false;
  bench_.driver.hold_answers(false);
}

struct virtual_cell {
  combination what;
  moment when{};
};

class VirtualFaultMatrix : public ::testing::TestWithParam<virtual_cell> {
 protected:
  VirtualFaultMatrix() : node_(GetParam().what) {}

  bool all(bool held) const {
    const auto some = node_.offline();
    return std::all_of(some.begin(), some.end(),
                       [&](pid_t pid) { return node_.held(pid) == held; });
  }
  /// That the offline processes run at the latest then, whatever of the calls is in flight.
  void expect_running_within(duration bound) {
    const auto taken = node_.run_until(bound + 10 * call, [this] { return all(false); });
    EXPECT_TRUE(taken) << "not within " << bound / 1ms << " ms";
  }
  void prepare() {
    node_.begin();
    if (GetParam().when == moment::suspending) {
      ASSERT_TRUE(node_.run_until(own_work, [this] { return node_.calls_in_flight(); }));
      return;
    }
    ASSERT_TRUE(node_.run_until(own_work, [this] { return all(true); }));
    node_.run_for(50ms);
    if (GetParam().when == moment::held) return;
    node_.end();
    ASSERT_TRUE(node_.run_until(own_work, [this] { return node_.calls_in_flight(); }));
  }

  virtual_node node_;
};

TEST_P(VirtualFaultMatrix, OfflineRunsAgainInTime) {
  prepare();
  if (HasFatalFailure()) return;
  const effect then = effect_of(GetParam().what);
  const bool over = GetParam().when == moment::resuming;  // the online work
  node_.inflict();
  switch (then) {
    case effect::ends:
    case effect::releases: expect_running_within(own_work); break;
    case effect::is_looked_up: expect_running_within(over ? own_work : next_look + own_work); break;
    case effect::lease: expect_running_within(lease_length + own_work); break;
    case effect::max_suspend: expect_running_within(1s + own_work); break;
    case effect::breaks:
      EXPECT_TRUE(node_.run_until(own_work, [this] { return !node_.held(peer); }));
      node_.run_for(own_work);
      EXPECT_EQ(node_.held(stayer), !over);
      EXPECT_FALSE(node_.held(peer));
      break;
    case effect::goes_on:
      node_.run_for(own_work);
      EXPECT_TRUE(all(!over));
      EXPECT_EQ(node_.agents(), 1U) << "a false alarm";
      break;
    case effect::stays:
      if (over) break;  // as it was, whatever that is
      node_.run_for(10 * lease_length);
      EXPECT_TRUE(node_.held(stayer) || GetParam().when == moment::suspending);
      break;
    case effect::calls:
      if (!over) node_.end();
      node_.run_for(stuck_after + 100ms);
      EXPECT_EQ(node_.stats().open_breakers.value(), 1U);
      break;
    case effect::gone:
      node_.run_for(1s);
      EXPECT_EQ(node_.suspended(), 0U);
      return;
    case effect::next_agent:
    case effect::rescue:
    case effect::same: FAIL();
  }
  // What lasted is over, and so is the online work: nothing stays suspended.
  node_.recover();
  node_.end();
  if (node_.host_lives()) expect_running_within(own_work);
  node_.run_for(1s);
  EXPECT_EQ(node_.suspended(), 0U);
}

std::vector<virtual_cell> all_cells() {
  std::vector<virtual_cell> all;
  for (const combination& what : all_combinations()) {
    for (const moment when : moments) all.push_back({what, when});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cells, VirtualFaultMatrix, ::testing::ValuesIn(all_cells()),
                         [](const auto& each) {
                           return name_of(each.param.what) + "_" +
                                  std::string{word(each.param.when)};
                         });

}  // namespace
}  // namespace sluice::test::virtual_test
