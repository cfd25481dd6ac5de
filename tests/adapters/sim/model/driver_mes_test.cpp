/// The MES generation (gfx11, gfx12): one firmware command for each queue, and nobody else notices.

#include "driver.hpp"
#include "driver_bench.hpp"
#include "three_queues.hpp"

namespace sluice::sim::test::driver_mes_test {
namespace {

using ids_result = driver_bench::ids_result;

profile mes_profile() {
  auto node = default_profile();
  node.gpus[0].scheduler = queue_scheduler::mes;
  node.gpus[0].suspend_cost = 2ms;
  node.gpus[0].resume_cost = 3ms;
  node.gpus[0].cycle_cost = 1ms;
  return node;
}

class DriverMes : public three_queues {
 protected:
  DriverMes() : three_queues{mes_profile()} {}
};

TEST_F(DriverMes, MarksEachIdAndPaysForMappingsThatChangeOnly) {
  const auto begin = b.planned.now();
  EXPECT_EQ(b.suspend({0, 1, 2, 9}), (ids_result{2, {0, invalid | 1, 2, invalid | 9}}));
  EXPECT_EQ(cycles(), 1);
  EXPECT_EQ(b.planned.now() - begin, 2ms);
  EXPECT_EQ(suspended(), 2);
}

TEST_F(DriverMes, SuspendingTwiceCostsNothing) {
  EXPECT_EQ(b.suspend({2}), (ids_result{1, {2}}));
  EXPECT_EQ(cycles(), 0);
}

TEST_F(DriverMes, ASuccessDoesNotClearTheMaskOnSkippedQueues) {
  EXPECT_EQ(b.suspend({0, 1}, new_bit), (ids_result{1, {0, invalid | 1}}));
  EXPECT_EQ(b.suspend({1}), (ids_result{0, {invalid | 1}}));
  EXPECT_EQ(cycles(), 1);
}

TEST_F(DriverMes, ResumeAddsWhatWasTakenOff) {
  const auto begin = b.planned.now();
  EXPECT_EQ(b.resume({0, 2, 9}), (ids_result{2, {0, 2, invalid | 9}}));
  EXPECT_EQ(cycles(), 1);
  EXPECT_EQ(b.planned.now() - begin, 3ms);
  EXPECT_EQ(suspended(), 0);
}

TEST_F(DriverMes, EveryQueueIsACommandOfItsOwn) {
  b.snapshot(new_bit);
  const auto begin = b.planned.now();
  EXPECT_EQ(b.suspend({0, 1, 2}).result, 3);
  EXPECT_EQ(b.planned.now() - begin, 4ms);
  auto args = b.resume_args(0);
  args.resume_queues.queue_array_ptr = 0;
  EXPECT_EQ(b.trap(args), 3);
  EXPECT_EQ(b.planned.now() - begin, 13ms);
  EXPECT_EQ(cycles(), 5);
}

// The driver takes the queue off the GPU, but not before the packets in front of it have run.
TEST_F(DriverMes, ABrokenPacketStopsItsQueueWhereItIs) {
  for (int i = 0; i < 4; ++i) b.publish(app, 0, {.length = 10ms});
  b.machine.memory(app).put(queue_area + 128, std::uint16_t{5});  // A barrier, the third.
  b.run_for(1s);
  EXPECT_EQ(b.process_stat(app, "broken_queues"), 1);
  EXPECT_EQ(b.read_index(app, 0), 2U);
  EXPECT_EQ(completed(), 2);
}

TEST_F(DriverMes, AFailingRemoveLeavesTheQueueRunningAndEndsTheWalk) {
  b.snapshot(new_bit);
  b.sim->fail_next_cycle(gpu_id(), 1s, driver::after_failure::goes_on);
  // The walk is newest first: 1, then 2, then 0.
  EXPECT_EQ(b.suspend({0, 1, 2}), (ids_result{0, {invalid | 0, error | invalid | 1, invalid | 2}}));
  EXPECT_EQ(suspended(), 2) << "the driver believes it suspended it";
  b.publish(app, 1, {.length = 1ms});
  b.run_for(1s);
  EXPECT_EQ(completed(), 1) << "it is still mapped";
  EXPECT_EQ(b.resume({1}), (ids_result{1, {1}}));
  EXPECT_EQ(cycles(), 0) << "nothing had changed";
  EXPECT_EQ(suspended(), 1);
}

TEST_F(DriverMes, AFailingAddIsMarkedAndEndsTheWalk) {
  ASSERT_EQ(b.suspend({0}).result, 1);
  b.sim->fail_next_cycle(gpu_id(), 1s, driver::after_failure::goes_on);
  EXPECT_EQ(b.resume({0, 2}), (ids_result{0, {invalid | 0, error | invalid | 2}}));
}

TEST_F(DriverMes, OthersRunOnUndisturbed) {
  ASSERT_EQ(b.create_queue(other, 0), 0);
  b.publish(other, 0, {.length = 100ms});
  b.publish(app, 0, {.length = 100ms});
  b.run_for(10ms);
  const auto begin = b.planned.now();
  ASSERT_EQ(b.suspend({0}).result, 1);
  b.run_for(200ms - (b.planned.now() - begin));
  EXPECT_EQ(completed(other), 1);
  EXPECT_EQ(completed(), 0) << "its kernel is saved";
  EXPECT_EQ(b.process_stat(other, "disturbed_ns"), 0);
  EXPECT_EQ(b.process_stat(other, "busy_ns"), 100'000'000);
  ASSERT_EQ(b.resume({0}).result, 1);
  b.run_for(200ms);
  EXPECT_EQ(completed(), 1);
  EXPECT_EQ(b.process_stat(app, "kernels_started"), 1);
  EXPECT_EQ(b.process_stat(app, "busy_ns"), 100'000'000);
}

TEST_F(DriverMes, TheGracePeriodIsIgnored) {
  auto args = b.suspend_args(1);
  b.put_ids({0});
  args.suspend_queues.grace_period = 1000;
  const auto begin = b.planned.now();
  EXPECT_EQ(b.trap(args), 1);
  EXPECT_EQ(b.planned.now() - begin, 2ms);
}

TEST_F(DriverMes, DestroyWaitsForTheResume) {
  const auto pending = b.begin(app, uapi::AMDKFD_IOC_DESTROY_QUEUE,
                               uapi::kfd_ioctl_destroy_queue_args{.queue_id = 2, .pad = 0});
  b.run_for(1s);
  EXPECT_FALSE(pending->result.has_value());
  EXPECT_EQ(b.resume({2}).result, 1);
  EXPECT_EQ(b.finish(*pending), 0);
}

TEST_F(DriverMes, TheEndOfTheSessionResumesEverything) {
  ASSERT_EQ(b.suspend({0}).result, 1);
  b.publish(app, 0, {.length = 1ms});
  b.publish(app, 2, {.length = 1ms});
  b.run_for(1s);
  ASSERT_EQ(completed(), 0);
  ASSERT_EQ(b.disable(), 0);
  b.run_for(1s);
  EXPECT_EQ(completed(), 2);
}

TEST_F(DriverMes, AnExitTakesItsQueuesOff) {
  b.publish(app, 0, {.length = 10s});
  b.run_for(1s);
  b.machine.exit(app);
  b.sim->reap();
  b.run_for(1s);
  EXPECT_EQ(b.process_stat(app, "queues"), 0);
  EXPECT_EQ(completed(), 0);
}

// More queues than HQDs: the firmware rotates them as a runlist does.
TEST(DriverMesOversubscribed, GoesOnRotatingWhileCommandsComeAndGo) {
  auto node = mes_profile();
  node.gpus[0].hqd_slots = 2;
  driver_bench b{node};
  for (const pid_t pid : {app, scheduler, other}) b.open(pid);
  ASSERT_EQ(b.runtime_enable(app), 0);
  b.machine.trace(app, scheduler);
  ASSERT_EQ(b.enable(), 0);
  for (unsigned i = 0; i < 5; ++i) ASSERT_EQ(b.create_queue(app, i), static_cast<int>(i));
  b.snapshot(new_bit);
  for (unsigned i = 0; i < 5; ++i) b.publish(app, i, {.length = 30ms, .waves = 1});
  for (int round = 0; round < 200; ++round) {
    ASSERT_EQ(b.suspend({4}).result, 1);
    b.run_for(7ms);
    ASSERT_EQ(b.resume({4}).result, 1);
    b.run_for(7ms);
  }
  EXPECT_EQ(b.process_stat(app, "kernels_completed"), 5);
  EXPECT_EQ(b.process_stat(app, "kernels_started"), 5);
}

// MES reads the write pointer by an address of its own, and the driver pins the page for it.
TEST_F(DriverMes, TakesNoWritePointerInMemoryOfTheProcess) {
  constexpr std::uint64_t pointers = 0x7f0000000000;
  auto args = b.queue_args(3);
  args.write_pointer_address = pointers;
  b.map_area(app, 3);
  const auto handle = b.map_memory(app, 0, pointers, 0x1000, uapi::KFD_IOC_ALLOC_MEM_FLAGS_USERPTR);
  EXPECT_EQ(b.create_queue(app, args), -EPERM);
  EXPECT_EQ(b.unmap_memory(app, 0, handle), 0) << "the failed call kept nothing";
  args.write_pointer_address = b.queue_args(3).write_pointer_address;
  EXPECT_EQ(b.create_queue(app, args), 3);
}

}  // namespace
}  // namespace sluice::sim::test::driver_mes_test
