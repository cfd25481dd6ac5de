/// SUSPEND_QUEUES and RESUME_QUEUES, byte for byte; what they cost, and what they do to DESTROY.

#include "driver.hpp"
#include "driver_bench.hpp"
#include "test_seed.hpp"
#include "three_queues.hpp"

#include <array>
#include <cstdlib>
#include <random>

namespace sluice::sim::test::driver_suspend_test {
namespace {

using ids_result = driver_bench::ids_result;

class DriverSuspend : public three_queues {
 protected:
  using three_queues::three_queues;
};

TEST_F(DriverSuspend, MarksEachIdWithWhatBecameOfIt) {
  EXPECT_EQ(b.suspend({0, 1, 2, 9}), (ids_result{2, {0, invalid | 1, 2, invalid | 9}}));
  EXPECT_EQ(cycles(), 1);
  EXPECT_EQ(suspended(), 2);
}

TEST_F(DriverSuspend, CountsAndPaysForAQueueThatIsSuspendedAlready) {
  EXPECT_EQ(b.suspend({2}), (ids_result{1, {2}}));
  EXPECT_EQ(cycles(), 1);
}

// The one trace that a suspension leaves when it is over.
TEST_F(DriverSuspend, IsCountedForGoodWheneverAQueueStops) {
  const auto count = [&](pid_t pid) { return b.process_stat(pid, "queue_suspends"); };
  EXPECT_EQ(count(app), 1);
  b.suspend({0, 1, 2, 9});
  EXPECT_EQ(count(app), 2) << "neither the new queue nor the suspended one";
  b.resume({0, 2});
  EXPECT_EQ(count(app), 2);
  b.suspend({0, 2});
  EXPECT_EQ(count(app), 4);
  b.machine.exit(app);
  b.sim->reap();
  b.run_for(1s);
  EXPECT_EQ(count(app), 4) << "of an exited process as well";
  EXPECT_EQ(count(scheduler), 0);
}

TEST_F(DriverSuspend, IsTimedWithoutABreak) {
  const auto longest = [&] { return duration{b.process_stat(app, "longest_suspension_ns")}; };
  b.resume({2});
  const auto before = longest();
  b.suspend({0});
  b.run_for(before + 1s);
  EXPECT_GE(longest(), before + 1s) << "while it goes on";
  b.suspend({0});
  b.run_for(1s);
  EXPECT_GE(longest(), before + 2s) << "to suspend again is no break";
  b.resume({0});
  const auto after = longest();
  for (int i = 0; i < 3; ++i) {
    b.suspend({0});
    b.run_for(after / 2);
    b.resume({0});
  }
  EXPECT_EQ(longest(), after) << "shorter ones do not add up";
}

TEST_F(DriverSuspend, DoesNothingToANewQueue) {
  EXPECT_EQ(b.suspend({1}), (ids_result{0, {invalid | 1}}));
  EXPECT_EQ(cycles(), 0);
}

TEST_F(DriverSuspend, LeavesDuplicatesInvalid) {
  EXPECT_EQ(b.suspend({0, 0}), (ids_result{1, {0, invalid | 0}}));
  EXPECT_EQ(cycles(), 1);
}

// Runlist generation: a successful cycle clears the mask on the new queues that it skipped.
TEST_F(DriverSuspend, ASuccessClearsTheMaskOnSkippedQueuesToo) {
  EXPECT_EQ(b.suspend({0, 1}, new_bit), (ids_result{1, {0, invalid | 1}}));
  EXPECT_EQ(b.suspend({1}), (ids_result{1, {1}}));
  EXPECT_EQ(cycles(), 2);
}

TEST_F(DriverSuspend, AnErrorBitInTheIdNeverMatches) {
  EXPECT_EQ(b.suspend({error | 0}), (ids_result{0, {invalid | error | 0}}));
  EXPECT_EQ(cycles(), 0);
}

TEST_F(DriverSuspend, AnInvalidBitInTheIdIsIgnored) {
  EXPECT_EQ(b.suspend({invalid | 0}), (ids_result{1, {0}}));
  EXPECT_EQ(cycles(), 1);
}

TEST_F(DriverSuspend, AFailingCycleMarksEverythingItTouchedAndChangedTheStateAlready) {
  b.sim->fail_next_cycle(gpu_id(), 9s, driver::after_failure::goes_on);
  const auto begin = b.planned.now();
  EXPECT_EQ(b.suspend({0, 1}), (ids_result{0, {error | 0, invalid | error | 1}}));
  EXPECT_EQ(b.planned.now() - begin, 9s);
  EXPECT_EQ(cycles(), 1);
  EXPECT_EQ(suspended(), 2) << "the driver believes it suspended it";
  EXPECT_EQ(b.resume({0}), (ids_result{1, {0}}));
  b.publish(app, 0, {.length = 1ms});
  b.run_for(1s);
  EXPECT_EQ(completed(), 1);
}

TEST_F(DriverSuspend, ResumeCountsAQueueThatWasNeverSuspended) {
  EXPECT_EQ(b.resume({0}), (ids_result{1, {0}}));
  EXPECT_EQ(cycles(), 1);
}

TEST_F(DriverSuspend, ResumeOfAnUnknownIdDoesNothing) {
  EXPECT_EQ(b.resume({9}), (ids_result{0, {invalid | 9}}));
  EXPECT_EQ(cycles(), 0);
}

TEST_F(DriverSuspend, ResumeWithoutAnArrayResumesEverything) {
  auto args = b.resume_args(0);
  args.resume_queues.queue_array_ptr = 0;
  args.resume_queues.num_queues = 77;
  EXPECT_EQ(b.trap(args), 3);
  EXPECT_EQ(cycles(), 1);
  EXPECT_EQ(suspended(), 0);
}

TEST_F(DriverSuspend, AFailingResumeMarksWithoutInvalid) {
  b.sim->fail_next_cycle(gpu_id(), 9s, driver::after_failure::goes_on);
  EXPECT_EQ(b.resume({2, 9}), (ids_result{0, {error | 2, invalid | 9}}));
}

TEST_F(DriverSuspend, ABeforeEnableIsEINVALAndTouchesNothing) {
  ASSERT_EQ(b.disable(), 0);
  cycles();
  EXPECT_EQ(b.suspend({0}), (ids_result{-EINVAL, {0}}));
  EXPECT_EQ(cycles(), 0);
}

TEST_F(DriverSuspend, WithoutTheTargetsRuntimeIsEPERMAndTouchesNothing) {
  const auto pending =
      b.begin(app, uapi::AMDKFD_IOC_RUNTIME_ENABLE, uapi::kfd_ioctl_runtime_enable_args{});
  b.run_for(1s);
  ASSERT_EQ(b.send_runtime_event(), 0);
  cycles();
  EXPECT_EQ(b.suspend({0}), (ids_result{-EPERM, {0}}));
  EXPECT_EQ(cycles(), 0);
}

TEST_F(DriverSuspend, FromAnotherThreadIsEPERMAndTouchesNothing) {
  b.machine.add_thread(scheduler, scheduler + 1);
  EXPECT_EQ(b.suspend({0}, 0, scheduler + 1), (ids_result{-EPERM, {0}}));
  EXPECT_EQ(cycles(), 0);
}

TEST_F(DriverSuspend, AnEmptyArrayIsNothing) {
  auto args = b.suspend_args(0);
  args.suspend_queues.queue_array_ptr = 0;
  EXPECT_EQ(b.trap(args), 0);
  auto resume = b.resume_args(0);
  EXPECT_EQ(b.trap(resume), 0);
  EXPECT_EQ(cycles(), 0);
}

TEST_F(DriverSuspend, FaultsOnAnArrayThatIsNotThere) {
  auto args = b.suspend_args(1);
  args.suspend_queues.queue_array_ptr = 8;
  EXPECT_EQ(b.trap(args), -EFAULT);
  args.suspend_queues.queue_array_ptr = 0;
  EXPECT_EQ(b.trap(args), -EFAULT) << "the driver would follow it";
  args.suspend_queues.num_queues = 0xffffffff;
  EXPECT_EQ(b.trap(args), -ENOMEM);
  auto resume = b.resume_args(1);
  resume.resume_queues.queue_array_ptr = 8;
  EXPECT_EQ(b.trap(resume), -EFAULT);
  EXPECT_EQ(cycles(), 0);
}

// --- Time ---

TEST_F(DriverSuspend, AnswersAtTheEndOfItsCycle) {
  const auto begin = b.planned.now();
  b.suspend({0});
  EXPECT_EQ(b.planned.now() - begin, 5ms);
  b.resume({0});
  EXPECT_EQ(b.planned.now() - begin, 15ms);
}

TEST_F(DriverSuspend, CostsNothingWhenNothingIsMappedBeforeOrAfter) {
  b.suspend({0, 1}, new_bit);
  b.suspend({1});
  cycles();
  const auto begin = b.planned.now();
  EXPECT_EQ(b.suspend({0, 1, 2}), (ids_result{3, {0, 1, 2}}));
  EXPECT_EQ(b.planned.now(), begin);
  EXPECT_EQ(cycles(), 1) << "but it is one";
}

TEST_F(DriverSuspend, AKernelLosesTimeAndNoWork) {
  b.publish(app, 0, {.length = 100ms, .waves = 10, .signal = b.signal(app, 0, 0)});
  b.run_for(50ms);
  ASSERT_EQ(b.suspend({0}).result, 1);
  b.run_for(10s);
  EXPECT_EQ(completed(), 0);
  ASSERT_EQ(b.resume({0}).result, 1);
  b.run_for(1s);
  EXPECT_EQ(completed(), 1);
  EXPECT_EQ(b.process_stat(app, "busy_ns"), 100'000'000);
}

TEST_F(DriverSuspend, ASuspendedQueueTakesPacketsAndRunsThemAfterTheResume) {
  ASSERT_EQ(b.suspend({0}).result, 1);
  for (int i = 0; i < 5; ++i) b.publish(app, 0, {.length = 1ms});
  b.run_for(1s);
  EXPECT_EQ(b.read_index(app, 0), 0U);
  EXPECT_GT(b.process_stat(app, "unfinished_ns"), 900'000'000);
  ASSERT_EQ(b.resume({0}).result, 1);
  b.run_for(1s);
  EXPECT_EQ(completed(), 5);
}

TEST_F(DriverSuspend, DisturbsEverybodyOnTheGpu) {
  ASSERT_EQ(b.create_queue(other, 0), 0);
  b.publish(other, 0, {.length = 100ms});
  b.run_for(20ms);
  ASSERT_EQ(b.suspend({0}).result, 1);
  ASSERT_EQ(b.resume({0}).result, 1);
  b.run_for(1s);
  EXPECT_EQ(b.process_stat(other, "disturbed_ns"), 15'000'000);
  EXPECT_EQ(b.process_stat(other, "unfinished_ns"), 115'000'000);
  EXPECT_EQ(b.process_stat(other, "busy_ns"), 100'000'000);
}

TEST_F(DriverSuspend, TwoTargetsOnOneGpuAreServedOneAfterTheOther) {
  ASSERT_EQ(b.runtime_enable(other), 0);
  b.machine.add_thread(scheduler, scheduler + 1);
  b.machine.trace(other, scheduler + 1);
  b.pipe();
  auto enable = b.trap_args(uapi::KFD_IOC_DBG_TRAP_ENABLE, other);
  enable.enable = {.exception_mask = 0, .rinfo_ptr = scratch, .rinfo_size = 16, .dbg_fd = 5};
  ASSERT_EQ(b.trap(enable, scheduler + 1), 0);
  ASSERT_EQ(b.create_queue(other, 0), 0);
  b.put_ids({0});
  const auto begin = b.planned.now();
  const auto first = b.begin(scheduler, uapi::AMDKFD_IOC_DBG_TRAP, b.suspend_args(1));
  b.machine.memory(scheduler).put(scratch + 0x9000, std::uint32_t{0});
  auto second_args = b.resume_args(1, other);
  second_args.resume_queues.queue_array_ptr = scratch + 0x9000;
  const auto second =
      b.begin(scheduler + 1, b.file(scheduler), uapi::AMDKFD_IOC_DBG_TRAP, second_args);
  EXPECT_EQ(b.finish(*second), 1);
  EXPECT_EQ(first->finished - begin, 5ms);
  EXPECT_EQ(second->finished - begin, 15ms);
}

TEST_F(DriverSuspend, WritesWhereTheContextWasSaved) {
  auto& memory = b.machine.memory(app);
  const auto area = b.queue_args(0).ctx_save_restore_address;
  const auto stack = b.queue_args(0).ctl_stack_size;
  uapi::kfd_context_save_area_header header{};
  header.debug_offset = 0x1234;
  header.err_payload_addr = 0x5678;
  memory.put(area, header);
  b.publish(app, 0, {.length = 1h, .waves = 8});
  b.run_for(10ms);
  ASSERT_EQ(b.suspend({0}).result, 1);
  header = memory.get<uapi::kfd_context_save_area_header>(area);
  EXPECT_EQ(header.wave_state.control_stack_size, 0U) << "in which debuggers look for waves";
  EXPECT_EQ(header.wave_state.control_stack_offset, stack);
  EXPECT_EQ(header.wave_state.wave_state_size, 0U);
  EXPECT_EQ(header.wave_state.wave_state_offset, stack);
  EXPECT_EQ(header.debug_offset, 0x1234U) << "only the first 16 bytes are the driver's";
  EXPECT_EQ(header.err_payload_addr, 0x5678U);
  // An idle queue of the target gets its header, too.
  const auto idle =
      memory.get<uapi::kfd_context_save_area_header>(b.queue_args(1).ctx_save_restore_address);
  EXPECT_EQ(idle.wave_state.control_stack_offset, stack);
  EXPECT_EQ(idle.wave_state.control_stack_size, 0U);
}

TEST_F(DriverSuspend, TellsTheOwnerOfASuspendedQueueWhereItsContextIs) {
  const auto area = b.queue_args(0).ctx_save_restore_address;
  const std::uint64_t of_one_xcc = b.queue_args(0).ctx_save_restore_size;
  for (std::uint64_t xcc = 1; xcc < default_profile().gpus[0].num_xcc; ++xcc)
    b.machine.memory(app).map(area + xcc * of_one_xcc, 0x1000);
  uapi::kfd_ioctl_get_queue_wave_state_args args{};
  args.ctl_stack_address = area;
  b.publish(app, 0, {.length = 1h, .waves = 8});
  b.run_for(10ms);
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_GET_QUEUE_WAVE_STATE, args), -EINVAL) << "on the GPU";
  ASSERT_EQ(b.suspend({0}).result, 1);
  ASSERT_EQ(b.call(app, uapi::AMDKFD_IOC_GET_QUEUE_WAVE_STATE, args), 0);
  EXPECT_EQ(args.ctl_stack_used_size, 0U);
  EXPECT_EQ(args.save_area_used_size, 0U);
  args.ctl_stack_address = 0x10;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_GET_QUEUE_WAVE_STATE, args), -EFAULT);
  args.queue_id = 99;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_GET_QUEUE_WAVE_STATE, args), -EFAULT);
}

TEST_F(DriverSuspend, SdmaQueuesAreSuspendedLikeAnyOther) {
  auto args = b.queue_args(5);
  args.queue_type = uapi::KFD_IOC_QUEUE_TYPE_SDMA;
  ASSERT_EQ(b.create_queue(app, args), 3);
  b.snapshot(new_bit);
  cycles();
  EXPECT_EQ(b.suspend({3}), (ids_result{1, {3}}));
  EXPECT_EQ(cycles(), 1);
}

TEST_F(DriverSuspend, UpdateDoesNotWakeASuspendedQueue) {
  const auto q = b.queue_args(2);
  uapi::kfd_ioctl_update_queue_args args{.ring_base_address = q.ring_base_address,
                                         .queue_id = 2,
                                         .ring_size = ring_bytes,
                                         .queue_percentage = 100,
                                         .queue_priority = 7};
  ASSERT_EQ(b.call(app, uapi::AMDKFD_IOC_UPDATE_QUEUE, args), 0);
  b.publish(app, 2, {.length = 1ms});
  b.run_for(1s);
  EXPECT_EQ(completed(), 0);
}

profile two_gpus() {
  auto node = default_profile();
  node.gpus.push_back(node.gpus[0]);
  node.gpus[1].gpu_id = 4242;
  return node;
}

class DriverSuspendTwoGpus : public DriverSuspend {
 protected:
  DriverSuspendTwoGpus() : DriverSuspend{two_gpus()} {}
};

TEST_F(DriverSuspendTwoGpus, PaysOneCycleForEachGpuThatHasSomeOfTheQueues) {
  ASSERT_EQ(b.create_queue(app, 3, 1), 3);
  b.snapshot(new_bit);
  const auto second = b.gpu_stat("cycles", 1);
  cycles();
  const auto begin = b.planned.now();
  EXPECT_EQ(b.suspend({0, 3}), (ids_result{2, {0, 3}}));
  EXPECT_EQ(cycles(), 1);
  EXPECT_EQ(b.gpu_stat("cycles", 1), second + 1);
  EXPECT_EQ(b.planned.now() - begin, 10ms) << "one after the other";
  EXPECT_EQ(b.suspend({0}).result, 1);
  EXPECT_EQ(b.gpu_stat("cycles", 1), second + 1);
}

TEST_F(DriverSuspendTwoGpus, AFailureOnOneGpuDoesNotTouchTheOthersResult) {
  ASSERT_EQ(b.create_queue(app, 3, 1), 3);
  b.snapshot(new_bit);
  b.sim->fail_next_cycle(gpu_id(), 1s, driver::after_failure::goes_on);
  EXPECT_EQ(b.suspend({0, 3}), (ids_result{1, {error | 0, 3}}));
}

// Invariant: through suspends, resumes, failing cycles and late steps, every packet completes
// exactly once, in order, one at a time, and not in less than its length.
TEST_F(DriverSuspend, LosesAndRepeatsNoPacketUnderRandomCommands) {
  const sluice::test::random_seed seed;
  std::mt19937 random{seed.value()};
  const auto up_to = [&random](int most) {
    return std::uniform_int_distribution<int>{0, most}(random);
  };
  b.snapshot(new_bit);
  constexpr unsigned queues = 3;
  std::array<std::vector<std::pair<std::uint64_t, duration>>, queues> submitted;
  for (int step = 0; step < 400; ++step) {
    const auto q = static_cast<unsigned>(up_to(queues - 1));
    switch (up_to(6)) {
      case 0:
      case 1:
      case 2: {
        auto& mine = submitted[q];
        const auto done = b.signal(app, q, static_cast<unsigned>(mine.size()));
        const duration length = std::chrono::microseconds{up_to(20'000)};
        const auto waves = static_cast<std::uint32_t>(up_to(12'000));
        b.publish(app, q, {.length = length, .waves = waves, .signal = done});
        mine.emplace_back(done, length);
        break;
      }
      case 3: b.suspend({q, (q + 1) % queues}); break;
      case 4: b.resume({q}); break;
      case 5:
        if (up_to(3) == 0) b.sim->fail_next_cycle(gpu_id(), 20ms, driver::after_failure::goes_on);
        b.planned.run_until(b.planned.now() + std::chrono::microseconds{up_to(9000)});  // Late.
        break;
      default: b.run_for(std::chrono::microseconds{up_to(9000)}); break;
    }
  }
  b.resume({0, 1, 2});  // If a failure was still waiting, it is used up.
  b.resume({0, 1, 2});
  b.run_for(20s);

  std::uint64_t total = 0;
  for (unsigned q = 0; q < queues; ++q) {
    std::uint64_t previous = 0;
    for (const auto& [done, length] : submitted[q]) {
      const auto signal = b.machine.memory(app).get<aql::signal>(done);
      ASSERT_EQ(signal.value, 0) << "once";
      ASSERT_GE(signal.start_ts, previous) << "in order";
      ASSERT_GE(signal.end_ts - signal.start_ts, static_cast<std::uint64_t>(length.count()));
      previous = signal.end_ts;
    }
    ASSERT_EQ(b.read_index(app, q), submitted[q].size());
    total += submitted[q].size();
  }
  EXPECT_EQ(completed(), static_cast<std::int64_t>(total));
  EXPECT_EQ(suspended(), 0);
}

// --- DESTROY_QUEUE of a suspended queue ---

class DriverDestroy : public DriverSuspend {
 protected:
  auto begin_destroy(std::uint32_t id) {
    return b.begin(app, uapi::AMDKFD_IOC_DESTROY_QUEUE,
                   uapi::kfd_ioctl_destroy_queue_args{.queue_id = id, .pad = 0});
  }
};

TEST_F(DriverDestroy, WaitsUntilTheQueueIsResumed) {
  const auto pending = begin_destroy(2);
  b.run_for(1s);
  EXPECT_FALSE(pending->result.has_value());
  EXPECT_EQ(b.snapshot().size(), 3U) << "the process's mutex is free meanwhile";
  EXPECT_EQ(b.resume({2}).result, 1);
  EXPECT_EQ(b.finish(*pending), 0);
  EXPECT_EQ(b.snapshot().size(), 2U);
}

TEST_F(DriverDestroy, IsReleasedByDisable) {
  const auto pending = begin_destroy(2);
  b.run_for(1s);
  ASSERT_EQ(b.disable(), 0);
  EXPECT_EQ(b.finish(*pending), 0);
}

TEST_F(DriverDestroy, IsReleasedByTheDebuggersDeath) {
  const auto pending = begin_destroy(2);
  b.run_for(1s);
  b.machine.exit(scheduler);
  b.sim->reap();
  EXPECT_EQ(b.finish(*pending), 0);
}

TEST_F(DriverDestroy, IsInterruptedByASignalAndStaysMeant) {
  const auto pending = begin_destroy(2);
  b.run_for(1s);
  b.sim->interrupt(pending->request);
  b.settle();
  EXPECT_EQ(pending->result, -erestartsys);
  EXPECT_EQ(b.resume({2}), (ids_result{1, {2}})) << "resuming it is allowed";
  EXPECT_EQ(b.suspend({2}), (ids_result{0, {invalid | 2}})) << "suspending it is not, any more";
  EXPECT_EQ(b.destroy_queue(app, 2), 0) << "the restarted call";
}

TEST_F(DriverDestroy, WhileItWaitsASuspendFindsTheQueueSuspendedAlready) {
  const auto pending = begin_destroy(2);
  b.run_for(1s);
  EXPECT_EQ(b.suspend({2}), (ids_result{1, {2}}));
  EXPECT_EQ(b.resume({2}).result, 1);
  EXPECT_EQ(b.finish(*pending), 0);
}

TEST_F(DriverDestroy, TwoThreadsThatDestroyOneQueueGetOneSuccess) {
  const auto first = begin_destroy(2);
  const auto second = begin_destroy(2);
  b.run_for(1s);
  ASSERT_EQ(b.resume({2}).result, 1);
  EXPECT_EQ(b.finish(*first), 0);
  EXPECT_EQ(b.finish(*second), -EINVAL);
}

TEST_F(DriverDestroy, EndsWithItsProcess) {
  const auto pending = begin_destroy(2);
  b.run_for(1s);
  b.machine.exit(app);
  b.sim->reap();
  b.run_for(1s);
  EXPECT_TRUE(pending->result.has_value());
  EXPECT_EQ(b.process_stat(app, "queues"), 0);
}

TEST_F(DriverDestroy, ARecycledIdIsNewAndSoSafeFromAStaleSuspend) {
  ASSERT_EQ(b.destroy_queue(app, 0), 0);
  ASSERT_EQ(b.create_queue(app, 0), 0);
  EXPECT_EQ(b.suspend({0}), (ids_result{0, {invalid | 0}}));
}

}  // namespace
}  // namespace sluice::sim::test::driver_suspend_test
