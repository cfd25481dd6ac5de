// Every fault of the simulated device (injections.hpp) under every mechanism in virtual time: the
// scheduler's core above the device's driver, with nothing real but the code of these two.

#include "core_bench.hpp"
#include "device_view.hpp"
#include "driver_backend.hpp"
#include "injections.hpp"

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/policies/pointer_polling.hpp"
#include "sluice/scheduler_core.hpp"
#include "sluice/testing/manual_clock.hpp"

namespace sluice::test::virtual_injections_test {
namespace {

using sim::test::app;
using sim::test::other;

constexpr duration patience = 10s;
constexpr duration own_work = 200ms;
constexpr std::uint64_t start_time = 77;

/// Two offline processes with a queue each, always busy, and whoever suspends them.
class injected_node {
 public:
  explicit injected_node(mechanism_used how)
      : bench_(profile_of(how)), driver_(made_ready(), by_batch(how), in_agent(how)) {
    scheduler_config config;
    config.attach_after = 50ms;
    config.attach_at_latest = 100ms;
    config.max_suspend = 60s;
    config.offline_floor = 0;
    auto made = scheduler_core::create(config, driver_, make_pointer_polling(),
                                       {.time = &time_, .own_pid = 4242});
    EXPECT_TRUE(made);
    core_ = std::move(*made);
    EXPECT_TRUE(core_->start());
  }

  /// As discovery sees them.
  void show_processes() {
    for (const pid_t pid : {app, other}) {
      observe({.kind = observation_kind::process_seen, .what = role::offline, .pid = pid});
      observe({.kind = observation_kind::queue_seen,
               .type = queue_kind::compute,
               .pid = pid,
               .gpu = gpu_id{bench_.profile_.gpus[0].gpu_id}});
    }
    auto made = core_->register_client({"test", {}, 100ms});
    EXPECT_TRUE(made);
    client_.emplace(std::move(*made));
  }
  void control(std::string line) {
    const auto put = [&line](std::string_view word, const std::string& value) {
      if (const auto found = line.find(word); found != line.npos)
        line.replace(found, word.size(), value);
    };
    put("GPU", std::string{gpu});
    put("PID", std::to_string(app));
    std::string problem;
    EXPECT_EQ(bench_.sim->control(line, problem), 0) << line << ": " << problem;
  }

  void run_for(duration span) {
    const time_point end = time_.now() + span;
    while (time_.now() < end) turn();
  }
  /// \return after how long it held.
  std::optional<duration> run_until(duration limit, const std::function<bool()>& holds) {
    const time_point begin = time_.now();
    while (!holds()) {
      if (time_.now() - begin >= limit) return {};
      run_for(5ms);  // The driver's accounts are a text.
    }
    return time_.now() - begin;
  }
  void begin() { client_->begin(); }
  void end() { client_->end(); }

  std::size_t attached() const { return driver_.attached(); }
  bool held(pid_t pid) const { return off(pid) == 1; }
  bool runs(pid_t pid) const { return off(pid) == 0; }
  bool lives(pid_t pid) const { return !dead_.contains(pid); }
  bool breaker_is_open() const { return core_->stats().open_breakers.value() != 0; }
  std::uint64_t resets() const {
    constexpr std::string_view key = "\"resets\":";
    const std::string all = bench_.sim->stats_json();
    return std::strtoull(all.c_str() + all.find(key) + key.size(), nullptr, 10);
  }
  int restarts() const { return static_cast<int>(core_->stats().backend_restarts.value()); }
  int ends() const { return driver_.ends(); }

 private:
  static sim::profile profile_of(mechanism_used how) {
    auto node = sim::default_profile();
    node.batch_commands = by_batch(how);
    node.poll_busy = 5ms;  // Nothing is submitted later.
    node.gpus[0].suspend_cost = node.gpus[0].resume_cost = 2ms;
    return node;
  }
  sim::test::driver_bench& made_ready() {
    bench_.run_until(time_.now());
    for (const pid_t pid : {app, other}) {
      bench_.open(pid);
      EXPECT_EQ(bench_.runtime_enable(pid), 0);
      EXPECT_EQ(bench_.create_queue(pid, 0), 0);
      bench_.publish(pid, 0, {.length = 1h});
    }
    time_.advance_to(bench_.planned.now());
    return bench_;
  }
  std::uint64_t off(pid_t pid) const {
    return device_view::process(pid, bench_.sim->stats_json()).suspended_queues;
  }
  void observe(observation one) {
    one.start_time = start_time;
    one.at = time_.now();
    core_->observe(0, one);
  }
  /// A millisecond of everybody's life.
  void turn() {
    bench_.run_until(time_.now());
    for (const pid_t pid : std::exchange(bench_.machine.killed, {})) {
      if (!dead_.insert(pid).second) continue;
      bench_.machine.exit(pid);
      bench_.sim->reap();
      driver_.target_died(pid);
      observe({.kind = observation_kind::process_gone, .pid = pid});
    }
    // As discovery hears it, by SMI events.
    if (++turns_ % 10 == 0 && resets() != resets_) {
      resets_ = resets();
      observe({.kind = observation_kind::gpu_lost, .gpu = gpu_id{bench_.profile_.gpus[0].gpu_id}});
    }
    core_->step();
    time_.advance(1ms);
  }

  testing::manual_clock time_;
  sim::test::driver_bench bench_;
  driver_backend driver_;
  std::unique_ptr<scheduler_core> core_;
  std::optional<online_client> client_;
  std::set<pid_t> dead_;
  std::uint64_t resets_ = 0;
  std::uint64_t turns_ = 0;
};

class VirtualInjection : public ::testing::TestWithParam<case_of> {};

// The same steps as in injections_test.cpp.
TEST_P(VirtualInjection, EndsWithEverythingRunning) {
  const injection& what = *GetParam().what;
  injected_node node{GetParam().how};
  const duration bound = what.lasts + own_work + 100ms;
  const auto both_held = [&] { return node.held(app) && node.held(other); };
  const auto both_run = [&] { return node.runs(other) && (!node.lives(app) || node.runs(app)); };
  if (what.when == at::attach) node.control(std::string{what.line});
  node.show_processes();
  const std::size_t managed = what.what == then::refused ? 1 : 2;
  ASSERT_TRUE(node.run_until(patience, [&] { return node.attached() == managed; }));
  if (what.when == at::rest) {
    node.control(std::string{what.line});
    if (what.what == then::dead) {
      EXPECT_TRUE(node.run_until(patience, [&] { return node.breaker_is_open(); }));
    }
  }
  if (what.when == at::suspend) node.control(std::string{what.line});
  node.begin();
  switch (what.what) {
    case then::served:
    case then::faulted: EXPECT_TRUE(node.run_until(patience, both_held)); break;
    case then::refused:
      EXPECT_TRUE(node.run_until(patience, [&] { return node.held(other); }));
      EXPECT_FALSE(node.held(app));
      break;
    case then::killed:
      EXPECT_TRUE(node.run_until(patience, [&] { return !node.lives(app) && node.held(other); }));
      break;
    case then::left:
    case then::dead:
    case then::stuck:
      if (what.when == at::resume) {
        EXPECT_TRUE(node.run_until(patience, both_held));
        break;
      }
      EXPECT_TRUE(node.run_until(patience, [&] { return node.breaker_is_open(); }));
      EXPECT_TRUE(node.run_until(bound, both_run)) << "in flight";
      break;
  }
  if (what.when == at::resume) node.control(std::string{what.line});
  node.end();
  EXPECT_TRUE(node.run_until(bound, both_run)) << "after the online work";

  switch (what.what) {
    case then::served:
    case then::faulted:
      node.begin();
      EXPECT_TRUE(node.run_until(patience, both_held));
      node.end();
      EXPECT_TRUE(node.run_until(own_work, both_run));
      break;
    case then::refused:
    case then::killed:
      node.begin();
      EXPECT_TRUE(node.run_until(patience, [&] { return node.held(other); }));
      node.end();
      EXPECT_TRUE(node.run_until(own_work, both_run));
      break;
    case then::left:
    case then::stuck:
    case then::dead:
      EXPECT_TRUE(node.run_until(patience, [&] { return node.breaker_is_open(); }));
      node.begin();
      for (int i = 0; i < 20; ++i) {
        node.run_for(10ms);
        EXPECT_TRUE(both_run());
      }
      node.end();
      EXPECT_LE(node.resets(), 1U) << "one at most";
      break;
  }
  node.run_for(1s);
  EXPECT_TRUE(both_run());
  EXPECT_EQ(node.ends(), what.ends_agent ? 1 : 0) << "the acting process has ended";
  EXPECT_EQ(node.restarts(), what.ends_agent ? 1 : 0);
}

/// Without those that cannot be told from nothing here: there is nobody who asks for SMI events.
std::vector<case_of> cases() {
  auto all = all_cases();
  std::erase_if(all, [](const case_of& each) { return each.what->name == "smi_refused"; });
  return all;
}

INSTANTIATE_TEST_SUITE_P(OfTheDevice, VirtualInjection, ::testing::ValuesIn(cases()),
                         [](const auto& each) {
                           return std::string{each.param.what->name} + "_" +
                                  std::string{word(each.param.how)};
                         });

}  // namespace
}  // namespace sluice::test::virtual_injections_test
