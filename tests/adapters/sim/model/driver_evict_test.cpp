/// What takes queues away without a debugger: eviction, CRIU's pause, a reset of the GPU.

#include "driver.hpp"
#include "driver_bench.hpp"
#include "three_queues.hpp"

#include <linux/capability.h>

#include <cerrno>

namespace sluice::sim::test::driver_evict_test {
namespace {

using ids_result = driver_bench::ids_result;

class DriverEvict : public three_queues {
 protected:
  explicit DriverEvict(profile node = default_profile()) : three_queues{std::move(node)} {}
  int update(std::uint32_t id, std::uint32_t percentage) {
    const auto created = b.queue_args(id);
    uapi::kfd_ioctl_update_queue_args args{.ring_base_address = created.ring_base_address,
                                           .queue_id = id,
                                           .ring_size = created.ring_size,
                                           .queue_percentage = percentage,
                                           .queue_priority = 7};
    return b.call(app, uapi::AMDKFD_IOC_UPDATE_QUEUE, args);
  }
  /// The device polls its queues' write indices: a kernel does not start at once.
  void run_until_started(std::int64_t kernels) {
    const auto deadline = b.planned.now() + 1s;
    while (b.process_stat(app, "kernels_started") < kernels && b.planned.now() < deadline) {
      b.run_until(*b.planned.next());
    }
    ASSERT_EQ(b.process_stat(app, "kernels_started"), kernels);
  }
  void evict() {
    ASSERT_EQ(b.sim->evict(app, 0), 0);
    b.run_for(10ms);
  }
  void restore() {
    ASSERT_EQ(b.sim->restore(app, 0), 0);
    b.run_for(10ms);
  }
};

TEST_F(DriverEvict, AnEvictedQueueDoesNotRunAndLosesNothing) {
  b.publish(app, 0, {.length = 50ms});
  b.run_for(10ms);
  evict();
  EXPECT_EQ(cycles(), 1) << "one cycle for all queues of the process";
  b.run_for(1s);
  EXPECT_EQ(completed(), 0);
  restore();
  b.run_for(100ms);
  EXPECT_EQ(completed(), 1);
  EXPECT_EQ(b.process_stat(app, "kernels_started"), 1);
  EXPECT_EQ(b.process_stat(app, "busy_ns"), 50'000'000);
}

TEST_F(DriverEvict, IsCounted) {
  evict();
  evict();
  EXPECT_EQ(cycles(), 1) << "the second one finds nothing to do";
  restore();
  b.publish(app, 0, {.length = 1ms});
  b.run_for(100ms);
  EXPECT_EQ(completed(), 0);
  restore();
  b.run_for(100ms);
  EXPECT_EQ(completed(), 1);
  restore();  // Once too often: nothing.
  EXPECT_EQ(cycles(), 1);
}

TEST_F(DriverEvict, ASuspensionOfAnEvictedQueueTakesEffectAtTheRestore) {
  evict();
  cycles();
  EXPECT_EQ(b.suspend({0}), (ids_result{1, {0}}));
  EXPECT_EQ(cycles(), 1) << "paid, though nothing changed";
  restore();
  b.publish(app, 0, {.length = 1ms});
  b.run_for(1s);
  EXPECT_EQ(completed(), 0);
  EXPECT_EQ(b.resume({0}), (ids_result{1, {0}}));
  b.run_for(1s);
  EXPECT_EQ(completed(), 1);
}

TEST_F(DriverEvict, ASuspendedQueueStaysInactiveThroughEvictRestoreAndUpdate) {
  b.publish(app, 2, {.length = 1ms});
  evict();
  restore();
  ASSERT_EQ(update(2, 100), 0);
  b.run_for(1s);
  EXPECT_EQ(completed(), 0);
  EXPECT_EQ(b.resume({2}).result, 1);
  b.run_for(1s);
  EXPECT_EQ(completed(), 1);
}

TEST_F(DriverEvict, APercentageOfZeroIsIndependentOfTheSuspension) {
  ASSERT_EQ(update(2, 0), 0);
  EXPECT_EQ(b.resume({2}).result, 1);
  b.publish(app, 2, {.length = 1ms});
  b.run_for(1s);
  EXPECT_EQ(completed(), 0);
  ASSERT_EQ(update(2, 100), 0);
  b.run_for(1s);
  EXPECT_EQ(completed(), 1);
}

TEST_F(DriverEvict, AQueueCreatedMeanwhileIsEvictedToo) {
  evict();
  ASSERT_EQ(b.create_queue(app, 3), 3);
  b.publish(app, 3, {.length = 1ms});
  b.run_for(1s);
  EXPECT_EQ(completed(), 0);
  restore();
  b.run_for(1s);
  EXPECT_EQ(completed(), 1);
}

TEST_F(DriverEvict, DestroyOfAnEvictedQueueDoesNotWait) {
  evict();
  const auto begin = b.planned.now();
  EXPECT_EQ(b.destroy_queue(app, 0), 0);
  EXPECT_LT(b.planned.now() - begin, 10ms);
}

TEST_F(DriverEvict, ItsTimeIsCounted) {
  EXPECT_EQ(b.sim->evicted_ms(app, gpu_id()), 0U);
  evict();
  b.run_for(1s);
  const auto so_far = b.sim->evicted_ms(app, gpu_id());
  EXPECT_GE(so_far, 1000U);
  restore();
  const auto total = b.sim->evicted_ms(app, gpu_id());
  EXPECT_GE(total, so_far);
  b.run_for(1s);
  EXPECT_EQ(b.sim->evicted_ms(app, gpu_id()), total);
}

TEST_F(DriverEvict, RefusesUnknownProcessesAndGpus) {
  EXPECT_EQ(b.sim->evict(9999, 0), -ESRCH);
  EXPECT_EQ(b.sim->evict(app, 4711), -ENODEV);
  EXPECT_EQ(b.sim->reset(4711), -ENODEV);
}

profile mes_node() {
  auto node = default_profile();
  node.gpus[0].scheduler = queue_scheduler::mes;
  return node;
}

class DriverEvictMes : public DriverEvict {
 protected:
  DriverEvictMes() : DriverEvict{mes_node()} {}
};

TEST_F(DriverEvictMes, IsOneCommandForEachActiveQueue) {
  b.publish(app, 0, {.length = 50ms});
  b.run_for(10ms);
  evict();
  EXPECT_EQ(cycles(), 2) << "two of three run, one is suspended";
  b.run_for(1s);
  EXPECT_EQ(completed(), 0);
  restore();
  EXPECT_EQ(cycles(), 2);
  b.run_for(1s);
  EXPECT_EQ(completed(), 1);
}

// --- CRIU ---

class DriverCriu : public DriverEvict {
 protected:
  DriverCriu() { b.machine.capabilities.insert({scheduler, CAP_CHECKPOINT_RESTORE}); }
  int criu(std::uint32_t op, pid_t tid = scheduler, pid_t whose = app) {
    uapi::kfd_ioctl_criu_args args{};
    args.op = op;
    const int result = b.call(tid, b.file(whose), uapi::AMDKFD_IOC_CRIU_OP, args);
    answer_ = args;
    return result;
  }
  uapi::kfd_ioctl_criu_args answer_{};
};

TEST_F(DriverCriu, PausesAndUnpausesTheWholeProcess) {
  b.publish(app, 0, {.length = 50ms});
  b.run_for(10ms);
  ASSERT_EQ(criu(uapi::KFD_CRIU_OP_PROCESS_INFO), 0);
  EXPECT_EQ(answer_.pid, static_cast<std::uint32_t>(app));
  EXPECT_EQ(answer_.num_devices, 1U);
  EXPECT_EQ(answer_.num_objects, 3U);
  EXPECT_EQ(answer_.num_bos, 9U) << "three of each queue";
  EXPECT_EQ(cycles(), 1);
  b.run_for(1s);
  EXPECT_EQ(completed(), 0);
  ASSERT_EQ(criu(uapi::KFD_CRIU_OP_UNPAUSE), 0);
  b.run_for(1s);
  EXPECT_EQ(completed(), 1);
  EXPECT_EQ(criu(uapi::KFD_CRIU_OP_UNPAUSE), -EINVAL);
}

TEST_F(DriverCriu, NeedsNoSessionNorARuntime) {
  b.machine.trace(other, scheduler);
  ASSERT_EQ(b.create_queue(other, 0), 0);
  b.publish(other, 0, {.length = 1ms});
  ASSERT_EQ(criu(uapi::KFD_CRIU_OP_PROCESS_INFO, scheduler, other), 0);
  b.run_for(1s);
  EXPECT_EQ(completed(other), 0);
}

TEST_F(DriverCriu, PausedTwiceItStaysStuckAfterOneUnpause) {
  ASSERT_EQ(criu(uapi::KFD_CRIU_OP_PROCESS_INFO), 0);
  ASSERT_EQ(criu(uapi::KFD_CRIU_OP_PROCESS_INFO), 0);
  ASSERT_EQ(criu(uapi::KFD_CRIU_OP_UNPAUSE), 0);
  b.publish(app, 0, {.length = 1ms});
  b.run_for(1s);
  EXPECT_EQ(completed(), 0);
  EXPECT_EQ(criu(uapi::KFD_CRIU_OP_UNPAUSE), -EINVAL);
}

TEST_F(DriverCriu, NobodyUndoesItWhenWhoPausedDies) {
  ASSERT_EQ(criu(uapi::KFD_CRIU_OP_PROCESS_INFO), 0);
  b.machine.exit(scheduler);
  b.sim->reap();
  b.publish(app, 0, {.length = 1ms});
  b.run_for(10s);
  EXPECT_EQ(completed(), 0);
}

TEST_F(DriverCriu, NeedsTheTracerAndTheCapability) {
  EXPECT_EQ(criu(uapi::KFD_CRIU_OP_PROCESS_INFO, other), -EBADF) << "not its tracer";
  b.machine.capabilities.clear();
  EXPECT_EQ(criu(uapi::KFD_CRIU_OP_PROCESS_INFO), -EACCES);
  EXPECT_EQ(criu(uapi::KFD_CRIU_OP_PROCESS_INFO, app), -EACCES) << "nor its owner";
  b.machine.capabilities.insert({scheduler, CAP_SYS_ADMIN});
  EXPECT_EQ(criu(uapi::KFD_CRIU_OP_PROCESS_INFO), 0);
  EXPECT_EQ(criu(99), -EINVAL);
}

TEST_F(DriverCriu, OtherCommandsStayTheOwnersOnTheTracersCopyOfTheDescriptor) {
  auto args = b.queue_args(3);
  EXPECT_EQ(b.call(scheduler, b.file(app), uapi::AMDKFD_IOC_CREATE_QUEUE, args), -EBADF);
}

// --- Reset ---

profile three_gpus() {
  auto node = default_profile();
  node.gpus.resize(3, node.gpus[0]);
  for (std::size_t i = 0; i < 3; ++i) {
    node.gpus[i].gpu_id += static_cast<std::uint32_t>(i);
    node.gpus[i].reset_time = 500ms;
  }
  node.gpus[0].hive_id = node.gpus[1].hive_id = 7;
  return node;
}

class DriverReset : public DriverEvict {
 protected:
  DriverReset() : DriverEvict{three_gpus()} {}
};

TEST_F(DriverReset, AFailedCycleResetsTheHiveAndStopsAllProcessesOnAllGpus) {
  ASSERT_EQ(b.create_queue(app, 3, 1), 3);
  ASSERT_EQ(b.create_queue(app, 4, 2), 4);
  for (const unsigned area : {0U, 3U, 4U}) b.publish(app, area, {.length = 10s});
  b.run_for(10ms);
  b.sim->fail_next_cycle(gpu_id(), 9s, driver::after_failure::reset);
  EXPECT_EQ(b.suspend({0}), (ids_result{0, {error | 0}}));
  b.run_for(20s);
  EXPECT_EQ(b.gpu_stat("resets", 0), 1);
  EXPECT_EQ(b.gpu_stat("resets", 1), 1);
  EXPECT_EQ(b.gpu_stat("resets", 2), 0);
  EXPECT_EQ(completed(), 0) << "not even the kernel of the third GPU ends";
  EXPECT_EQ(b.process_stat(app, "broken_queues"), 4) << "three of the first GPU, one of the second";
  b.publish(app, 1, {.length = 1ms});
  b.run_for(1s);
  EXPECT_EQ(completed(), 0) << "a queue that was reset never runs again";
  EXPECT_EQ(b.suspend({0}), (ids_result{1, {0}})) << "though its suspension succeeds";
  EXPECT_EQ(b.resume({0}), (ids_result{1, {0}}));
  ASSERT_EQ(b.destroy_queue(app, 0), 0);
  ASSERT_EQ(b.create_queue(app, 5), 0);
  b.publish(app, 5, {.length = 1ms});
  b.run_for(1s);
  EXPECT_EQ(completed(), 0) << "its new queues do not run";
  b.start(400);
  b.open(400);
  ASSERT_EQ(b.create_queue(400, 0), 0);
  b.publish(400, 0, {.length = 1ms});
  b.run_for(1s);
  EXPECT_EQ(completed(400), 1) << "those of a new process do";
}

TEST_F(DriverReset, EvictsOnceForTwoResetsAtTheSameTime) {
  ASSERT_EQ(b.create_queue(app, 3, 2), 3);
  ASSERT_EQ(b.sim->reset(gpu_id()), 0);
  ASSERT_EQ(b.sim->reset(gpu_id() + 2), 0);
  b.run_for(2s);
  EXPECT_EQ(b.gpu_stat("resets", 2), 1);
  ASSERT_EQ(b.sim->restore(app, 0), 0);
  b.run_for(10ms);
  const auto evicted = b.sim->evicted_ms(app, gpu_id() + 2);
  b.run_for(1s);
  EXPECT_EQ(b.sim->evicted_ms(app, gpu_id() + 2), evicted) << "one restore ends it";
}

// Symptom: broken_queues counted a queue again with every further reset.
TEST_F(DriverReset, AQueueIsLostOnce) {
  const auto queues = b.process_stat(app, "queues");
  for (int resets = 1; resets <= 2; ++resets) {
    ASSERT_EQ(b.sim->reset(gpu_id()), 0);
    b.run_for(2s);
    EXPECT_EQ(b.gpu_stat("resets", 0), resets);
    EXPECT_EQ(b.process_stat(app, "broken_queues"), queues);
  }
}

TEST_F(DriverReset, NobodyComesInMeanwhile) {
  ASSERT_EQ(b.sim->reset(gpu_id()), 0);
  b.run_for(100ms);
  b.start(400);
  file_id file = 0;
  EXPECT_EQ(b.sim->open(400, 0, file), -EAGAIN);
  b.run_for(1s);
  EXPECT_EQ(b.sim->open(400, 0, file), 0);
}

TEST_F(DriverReset, TellsTheOwnersByTheirEvents) {
  uapi::kfd_ioctl_create_event_args create{};
  create.event_type = uapi::KFD_IOC_EVENT_HW_EXCEPTION;
  ASSERT_EQ(b.call(app, uapi::AMDKFD_IOC_CREATE_EVENT, create), 0);
  uapi::kfd_event_data data{};
  data.event_id = create.event_id;
  b.machine.memory(app).put(scratch, data);
  uapi::kfd_ioctl_wait_events_args wait{};
  wait.events_ptr = scratch;
  wait.num_events = 1;
  wait.timeout = 5000;
  const auto pending = b.begin(app, uapi::AMDKFD_IOC_WAIT_EVENTS, wait);
  b.run_for(100ms);
  EXPECT_FALSE(pending->result.has_value());
  ASSERT_EQ(b.sim->reset(gpu_id()), 0);
  ASSERT_EQ(b.finish(*pending), 0);
  EXPECT_EQ(pending->args.wait_result, 0U);
}

TEST_F(DriverReset, NewestDriversUpdateNothingInAProcessThatLostAQueue) {
  ASSERT_EQ(b.sim->reset(gpu_id()), 0);
  b.run_for(2s);
  EXPECT_EQ(update(0, 50), 0);
  auto node = three_gpus();
  node.abi_minor = 19;
  driver_bench newest{node};
  newest.open(app);
  ASSERT_EQ(newest.create_queue(app, 0), 0);
  ASSERT_EQ(newest.sim->reset(gpu_id()), 0);
  newest.run_for(2s);
  uapi::kfd_ioctl_update_queue_args args{
      .ring_base_address = newest.queue_args(0).ring_base_address,
      .queue_id = 0,
      .ring_size = ring_bytes,
      .queue_percentage = 50,
      .queue_priority = 7};
  EXPECT_EQ(newest.call(app, uapi::AMDKFD_IOC_UPDATE_QUEUE, args), -EACCES);
}

TEST_F(DriverReset, ADestroyThatWaitsIsReleased) {
  b.sim->fail_next_cycle(gpu_id(), 1s, driver::after_failure::reset);
  EXPECT_EQ(b.resume({2}).ids, (std::vector<std::uint32_t>{error | 2}));
  b.run_for(5s);
  EXPECT_EQ(b.destroy_queue(app, 2), 0);
}

// --- Grace periods ---

TEST_F(DriverEvict, AGracePeriodLetsShortKernelsEnd) {
  // 255 units of 1000 clocks at 2100 MHz are 121.4 us.
  const auto suspend_with_grace = [this](std::uint32_t grace) {
    b.put_ids({0});
    auto args = b.suspend_args(1);
    args.suspend_queues.grace_period = grace;
    const auto begin = b.planned.now();
    EXPECT_EQ(b.trap(args), 1);
    return b.planned.now() - begin;
  };
  const auto cost = b.profile_.gpus[0].suspend_cost;
  EXPECT_EQ(suspend_with_grace(255), cost) << "nothing runs: nothing to wait for";
  ASSERT_EQ(b.resume({0}).result, 1);

  b.publish(app, 0, {.length = 100us});
  b.publish(app, 0, {.length = 100us});
  run_until_started(1);
  b.run_for(50us);
  EXPECT_EQ(suspend_with_grace(255), cost + 50us);
  EXPECT_EQ(completed(), 1) << "the one that ran has ended, the next has not begun";
  EXPECT_EQ(b.process_stat(app, "kernels_started"), 1);
  ASSERT_EQ(b.resume({0}).result, 1);

  b.run_for(10us);
  EXPECT_EQ(suspend_with_grace(21), cost + 10us) << "21'000 clocks, and then it is saved";
  EXPECT_EQ(completed(), 1);
  ASSERT_EQ(b.resume({0}).result, 1);
  b.run_for(1ms);
  EXPECT_EQ(completed(), 2);

  b.publish(app, 0, {.length = 10ms});
  run_until_started(3);
  EXPECT_EQ(suspend_with_grace(0), cost + 476ns) << "written as 1";
  ASSERT_EQ(b.resume({0}).result, 1);
  EXPECT_EQ(suspend_with_grace(0xffffffff), cost) << "no register write";
  ASSERT_EQ(b.resume({0}).result, 1);
  EXPECT_EQ(suspend_with_grace(0x102), cost + 952ns) << "the field has 8 bits";
}

// --- One debugged process per GPU; CU masks ---

profile gfx908() {
  auto node = default_profile();
  node.gpus[0].gfx_target_version = 90008;
  node.gpus[0].per_vmid_debug = false;
  node.gpus[0].vmids = 2;
  return node;
}

class DriverVmidCount : public three_queues {
 protected:
  DriverVmidCount() : three_queues{gfx908()} {}
};

TEST_F(DriverVmidCount, TheSessionTakesAVmidFromEverybody) {
  ASSERT_EQ(b.create_queue(other, 0), 0);
  b.publish(app, 0, {.length = 50ms});
  b.publish(other, 0, {.length = 50ms});
  const auto switches = b.gpu_stat("runlist_switches");
  b.run_for(1s);
  EXPECT_GT(b.gpu_stat("runlist_switches"), switches) << "two processes share one VMID";
  ASSERT_EQ(b.disable(), 0);
  const auto after = b.gpu_stat("runlist_switches");
  b.publish(app, 0, {.length = 50ms});
  b.publish(other, 0, {.length = 50ms});
  b.run_for(1s);
  EXPECT_EQ(b.gpu_stat("runlist_switches"), after);
}

profile gfx1100() {
  auto node = mes_node();
  node.gpus[0].gfx_target_version = 110000;
  return node;
}

class DriverCuMask : public ::testing::Test {
 protected:
  DriverCuMask() : b{gfx1100()} {
    for (const pid_t pid : {app, scheduler}) b.open(pid);
    EXPECT_EQ(b.runtime_enable(app), 0);
    b.machine.trace(app, scheduler);
    EXPECT_EQ(b.create_queue(app, 0), 0);
  }
  int mask(std::uint32_t bits, std::uint32_t value) {
    b.machine.memory(app).put(scratch, value);
    uapi::kfd_ioctl_set_cu_mask_args args{
        .queue_id = 0, .num_cu_mask = bits, .cu_mask_ptr = scratch};
    return b.call(app, uapi::AMDKFD_IOC_SET_CU_MASK, args);
  }
  std::uint32_t runtime_state() {
    return b.machine.memory(scheduler).get<uapi::kfd_runtime_info>(scratch).runtime_state;
  }
  driver_bench b;
};

TEST_F(DriverCuMask, WorkGroupProcessorsArePairs) {
  EXPECT_EQ(mask(32, 0x3), 0);
  EXPECT_EQ(mask(32, 0x7), -EINVAL);
  EXPECT_EQ(mask(32, 0x6), -EINVAL);
  EXPECT_EQ(mask(0, 0), -EINVAL);
  EXPECT_EQ(mask(33, 0x3), -EINVAL);
}

TEST_F(DriverCuMask, AndADebugSessionExcludeEachOtherOnGfx11_0) {
  ASSERT_EQ(mask(32, 0x3), 0);
  ASSERT_EQ(b.enable(), 0);
  EXPECT_EQ(runtime_state(), uapi::DBG_RUNTIME_STATE_ENABLED_BUSY);
  EXPECT_EQ(b.suspend({0}).result, -EPERM);
  EXPECT_EQ(mask(32, 0x3), 0);  // Nothing restricts the queue: the session has no effect.
}

TEST_F(DriverCuMask, IsRefusedWhileADebuggerRestrictsTheQueueOnGfx11_0) {
  ASSERT_EQ(b.enable(), 0);
  EXPECT_EQ(runtime_state(), uapi::DBG_RUNTIME_STATE_ENABLED);
  EXPECT_EQ(mask(32, 0x3), -EBUSY);
  EXPECT_EQ(mask(32, 0x1), -EBUSY);  // Before the mask is looked at.
  ASSERT_EQ(b.disable(), 0);
  EXPECT_EQ(mask(32, 0x3), 0);
}

TEST_F(DriverCuMask, AQueueWithGlobalWaveSyncCannotBeDebuggedOnGfx11_0) {
  uapi::kfd_ioctl_alloc_queue_gws_args args{
      .queue_id = 0, .num_gws = 64, .first_gws = 77, .pad = 0};
  ASSERT_EQ(b.call(app, uapi::AMDKFD_IOC_ALLOC_QUEUE_GWS, args), 0);
  EXPECT_EQ(args.first_gws, 0U);
  EXPECT_EQ(b.enable(), -EBUSY);
  args.num_gws = 0;
  ASSERT_EQ(b.call(app, uapi::AMDKFD_IOC_ALLOC_QUEUE_GWS, args), 0);
  EXPECT_EQ(b.enable(), 0);
}

TEST(DriverOldGpu, CannotBeDebugged) {
  auto node = default_profile();
  node.gpus[0].gfx_target_version = 80003;
  driver_bench b{node};
  for (const pid_t pid : {app, scheduler}) b.open(pid);
  b.machine.trace(app, scheduler);
  EXPECT_EQ(b.enable(), -ENODEV);
}

}  // namespace
}  // namespace sluice::sim::test::driver_evict_test
