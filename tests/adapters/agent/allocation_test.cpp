/// What a batch costs in allocations, once warm: none, on either side of the backend port.

#include "backend_loop.hpp"
#include "counted_allocations.hpp"
#include "offline_target.hpp"
#include "simulated_device.hpp"

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/kfd/driver.hpp"
#include "sluice/kfd/in_process_backend.hpp"

namespace sluice::allocation_test {
namespace {

using namespace std::chrono_literals;

constexpr process_id target_id{1};

/// Remembers in place: the listener under test conditions must not allocate either.
class counter final : public backend_listener {
 public:
  int attachments = 0;
  int queues = 0;
  int completions = 0;
  int done = 0;

 private:
  void attached(process_id, error_code error) override { attachments += error ? 0 : 1; }
  void queue_added(const queue_info&) override { ++queues; }
  void queue_removed(process_id, driver_queue_id) override { --queues; }
  void completed(const batch_result& result) override {
    ++completions;
    for (std::size_t index = 0; index < result.count; ++index)
      done += result.outcomes[index] == outcome::done ? 1 : 0;
  }
  void detached(process_id) override {}
  void gpu_lost(gpu_id) override {}
  void lost(error_code) override {}
  void restored() override {}
};

template <class Condition>
bool turn_until(backend& what, Condition holds) {
  const time_point end = clock::now() + 10s;
  while (!holds() && clock::now() < end) {
    what.tick(clock::now());
    pollfd ready{what.ready_fd(), POLLIN, 0};
    ::poll(&ready, 1, 5);
    what.drain();
  }
  return holds();
}

void expect_no_allocations(backend& what, const test::offline_target& target) {
  counter heard;
  ASSERT_TRUE(what.start(heard));
  ASSERT_TRUE(what.attach(target_id, target.pid(), target.start_time()));
  ASSERT_TRUE(turn_until(what, [&] { return heard.queues == 2; }));
  batch work;
  work.target = target_id;
  work.gpu = gpu_id{51110};
  work.count = 2;
  work.queues[0] = driver_queue_id{0};
  work.queues[1] = driver_queue_id{1};
  const auto act = [&](command_kind kind) {
    work.id += 1;
    work.kind = kind;
    const int before = heard.completions;
    return what.submit(work).has_value() &&
           turn_until(what, [&] { return heard.completions == before + 1; });
  };
  constexpr int warm_up = 3;
  constexpr int measured = 50;
  for (int round = 0; round < warm_up; ++round)
    ASSERT_TRUE(act(command_kind::suspend) && act(command_kind::resume));
  const test::counted_allocations counted;
  for (int round = 0; round < measured; ++round)
    ASSERT_TRUE(act(command_kind::suspend) && act(command_kind::resume));
  EXPECT_EQ(counted.so_far(), 0U);
  EXPECT_EQ(heard.done, 4 * (warm_up + measured));
}

class Allocations : public ::testing::Test {
 protected:
  Allocations()
      : device_({.profile = test::profile_text("",
                                               "suspend_cost = \"200us\"\n"
                                               "resume_cost = \"200us\"\n"
                                               "cycle_cost = \"200us\"\n")}),
        target_(device_.roots(), {.queues = 2}) {}
  void SetUp() override { ASSERT_TRUE(target_.says('r')); }

  test::simulated_device device_;
  test::offline_target target_;
};

TEST_F(Allocations, AreNotMadeByABatchInProcess) {
  const auto backend = kfd::make_in_process_backend({.roots = device_.roots(), .owner_lock = ""});
  expect_no_allocations(*backend, target_);
}

TEST_F(Allocations, AreNotMadeByABatchThroughTheAgent) {
  const auto backend = agent::make_agent_backend({.driver = kfd::acting({.where = device_.roots()}),
                                                  .agent_path = SLUICE_AGENT_PROGRAM,
                                                  .owner_lock = ""});
  expect_no_allocations(*backend, target_);
}

}  // namespace
}  // namespace sluice::allocation_test
