/// DBG_TRAP but for suspend and resume: who may, in which order it is checked, sessions, events,
/// snapshots, the runtime's handshake, and who cleans up.

#include "driver.hpp"
#include "driver_bench.hpp"

namespace sluice::sim::test::driver_debug_test {
namespace {

profile node_with(trap_authority authority) {
  auto node = default_profile();
  node.authority = authority;
  return node;
}

/// An application with its runtime enabled, and a scheduler that traces it.
class DriverDebug : public ::testing::Test {
 protected:
  explicit DriverDebug(profile node = default_profile()) : b{std::move(node)} {
    for (const pid_t pid : {app, scheduler, other}) b.open(pid);
    EXPECT_EQ(b.runtime_enable(app), 0);
    b.machine.trace(app, scheduler);
  }
  uapi::kfd_runtime_info runtime_info() {
    return b.machine.memory(scheduler).get<uapi::kfd_runtime_info>(scratch);
  }
  int operation(std::uint32_t op, pid_t tid = scheduler, pid_t target = app) {
    auto args = b.trap_args(op, target);
    return b.trap(args, tid);
  }
  auto begin_runtime(std::uint32_t mode) {
    return b.begin(app, uapi::AMDKFD_IOC_RUNTIME_ENABLE,
                   uapi::kfd_ioctl_runtime_enable_args{
                       .r_debug = 0xdeb6, .mode_mask = mode, .capabilities_mask = 0});
  }
  std::uint32_t gpu_id() const { return b.profile_.gpus[0].gpu_id; }
  driver_bench b;
};

class BothAuthorities : public ::testing::TestWithParam<trap_authority> {
 protected:
  BothAuthorities() : b{node_with(GetParam())} {
    for (const pid_t pid : {app, scheduler, other}) b.open(pid);
  }
  int operation(std::uint32_t op, pid_t tid = scheduler, pid_t target = app) {
    auto args = b.trap_args(op, target);
    return b.trap(args, tid);
  }
  driver_bench b;
};
INSTANTIATE_TEST_SUITE_P(Generations, BothAuthorities,
                         ::testing::Values(trap_authority::tracer_thread,
                                           trap_authority::debugger_process));

// --- The order of the checks ---

TEST_P(BothAuthorities, AnUnknownPidIsESRCHBeforeAllElse) {
  EXPECT_EQ(operation(99, scheduler, 9999), -ESRCH);
  EXPECT_EQ(operation(uapi::KFD_IOC_DBG_TRAP_ENABLE, scheduler, 0), -ESRCH);
  EXPECT_EQ(operation(uapi::KFD_IOC_DBG_TRAP_ENABLE, scheduler, -1), -ESRCH);
}

TEST_P(BothAuthorities, AZombieIsESRCH) {
  b.machine.trace(app, scheduler);
  b.machine.become_zombie(app);
  EXPECT_EQ(b.enable(), -ESRCH);
}

// The thread that is named must have memory, not merely its process.
TEST_P(BothAuthorities, AMainThreadThatEndedIsESRCHAndALivingThreadStillNamesTheProcess) {
  b.machine.add_thread(app, app + 1);
  b.machine.trace(app, scheduler);
  ASSERT_EQ(b.enable(), 0);
  b.machine.end_thread(app);
  for (const auto op : {uapi::KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT, uapi::KFD_IOC_DBG_TRAP_DISABLE}) {
    EXPECT_EQ(operation(op), -ESRCH) << op;
  }
  EXPECT_EQ(operation(uapi::KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT, scheduler, app + 1), -EAGAIN);
  EXPECT_EQ(operation(uapi::KFD_IOC_DBG_TRAP_DISABLE, scheduler, app + 1), 0);
}

TEST_P(BothAuthorities, AProcessThatNeverOpenedTheDeviceIsESRCHButForItsTracersEnable) {
  const pid_t fresh = 400;
  b.start(fresh);
  EXPECT_EQ(operation(uapi::KFD_IOC_DBG_TRAP_DISABLE, scheduler, fresh), -ESRCH);
  EXPECT_EQ(b.enable(fresh), -ESRCH) << "not traced";
  EXPECT_FALSE(b.sim->has_process(fresh));
  b.machine.trace(fresh, scheduler);
  EXPECT_EQ(operation(uapi::KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT, scheduler, fresh), -ESRCH);
  EXPECT_EQ(b.enable(fresh), 0);
  EXPECT_TRUE(b.sim->has_process(fresh)) << "enabling made it";
}

TEST_P(BothAuthorities, WhoDoesNotTraceTheTargetGetsEPERMBeforeAnythingIsLookedAt) {
  EXPECT_EQ(b.enable(), -EPERM);
  EXPECT_EQ(operation(uapi::KFD_IOC_DBG_TRAP_SUSPEND_QUEUES), -EPERM);
  EXPECT_EQ(operation(99), -EPERM);
}

TEST_P(BothAuthorities, OfATracingProcessOnlyTheTracingThreadMayAtFirst) {
  b.machine.add_thread(scheduler, scheduler + 1);
  b.machine.trace(app, scheduler + 1);
  EXPECT_EQ(b.enable(), -EPERM);
  EXPECT_EQ(operation(uapi::KFD_IOC_DBG_TRAP_ENABLE, scheduler + 1), -EBADF) << "it may";
}

TEST_P(BothAuthorities, NoSessionIsEINVALForAllButEnable) {
  b.machine.trace(app, scheduler);
  for (std::uint32_t op = 1; op <= 15; ++op) EXPECT_EQ(operation(op), -EINVAL) << op;
}

TEST_P(BothAuthorities, HardwareOperationsNeedTheTargetsRuntime) {
  b.machine.trace(app, scheduler);
  ASSERT_EQ(b.enable(), 0);
  for (std::uint32_t op = 4; op <= 10; ++op) EXPECT_EQ(operation(op), -EPERM) << op;
  EXPECT_EQ(operation(uapi::KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT), -EAGAIN) << "not one of them";
}

TEST_P(BothAuthorities, AnUnknownOperationIsJudgedLast) {
  EXPECT_EQ(operation(99), -EPERM);
  b.machine.trace(app, scheduler);
  EXPECT_EQ(operation(99), -EINVAL) << "no session";
  ASSERT_EQ(b.enable(), 0);
  EXPECT_EQ(operation(99), -EINVAL);
}

TEST_P(BothAuthorities, AThreadsIdNamesItsProcess) {
  b.machine.add_thread(app, app + 1);
  b.machine.trace(app, scheduler);
  EXPECT_EQ(b.enable(app + 1), 0);
}

TEST_P(BothAuthorities, AProcessMayDebugItself) {
  ASSERT_EQ(b.runtime_enable(app), 0);
  ASSERT_EQ(b.create_queue(app, 0), 0);
  ASSERT_EQ(b.enable(app, app), 0);
  EXPECT_EQ(b.suspend({0}, 0, app), (driver_bench::ids_result{0, {invalid | 0}})) << "new";
  EXPECT_EQ(b.suspend({0}, new_bit, app).result, 0);
  auto args = b.trap_args(uapi::KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT);
  args.queue_snapshot = {
      .exception_mask = new_bit, .snapshot_buf_ptr = scratch, .num_queues = 1, .entry_size = 64};
  EXPECT_EQ(b.trap(args, app), 0);
  EXPECT_EQ(b.suspend({0}, 0, app).result, 1);
  EXPECT_EQ(b.resume({0}, app).result, 1);
}

// --- Where the generations differ ---

class TracerThread : public DriverDebug {
 protected:
  TracerThread() : DriverDebug{node_with(trap_authority::tracer_thread)} {}
};
class DebuggerProcess : public DriverDebug {
 protected:
  DebuggerProcess() : DriverDebug{node_with(trap_authority::debugger_process)} {}
};

TEST_F(TracerThread, OtherThreadsOfTheDebuggerMayNotEvenLater) {
  ASSERT_EQ(b.enable(), 0);
  b.machine.add_thread(scheduler, scheduler + 1);
  EXPECT_EQ(b.suspend({0}, 0, scheduler + 1).result, -EPERM);
}

TEST_F(TracerThread, AfterADetachTheSessionStaysAndItsOperationsAreRefused) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  ASSERT_EQ(b.enable(), 0);
  b.snapshot(new_bit);
  ASSERT_EQ(b.suspend({0}).result, 1);
  b.machine.trace(app, 0);
  EXPECT_EQ(b.resume({0}).result, -EPERM);
  EXPECT_EQ(b.process_stat(app, "suspended_queues"), 1);
  b.machine.trace(app, scheduler);
  EXPECT_EQ(b.resume({0}).result, 1);
}

TEST_F(TracerThread, AnybodyMayDisable) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  ASSERT_EQ(b.enable(), 0);
  b.snapshot(new_bit);
  ASSERT_EQ(b.suspend({0}).result, 1);
  EXPECT_EQ(b.disable(app, other), 0);
  EXPECT_EQ(b.process_stat(app, "suspended_queues"), 0);
}

TEST_F(DebuggerProcess, EveryThreadOfTheDebuggerMayOnceItEnabled) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  ASSERT_EQ(b.enable(), 0);
  b.snapshot(new_bit);
  b.machine.add_thread(scheduler, scheduler + 1);
  EXPECT_EQ(b.suspend({0}, 0, scheduler + 1).result, 1);
  b.machine.trace(app, 0);
  EXPECT_EQ(b.resume({0}, scheduler + 1).result, 1) << "after a detach, too";
}

TEST_F(DebuggerProcess, NobodyElseMayDisable) {
  ASSERT_EQ(b.enable(), 0);
  EXPECT_EQ(b.disable(app, other), -EPERM);
  EXPECT_EQ(b.disable(), 0);
}

// Invariant: the debugger is stored before the rest of ENABLE, failing or not.
TEST_F(DebuggerProcess, AFailedEnableStillRecordsTheDebugger) {
  auto args = b.trap_args(uapi::KFD_IOC_DBG_TRAP_ENABLE);
  args.enable.dbg_fd = 77;
  ASSERT_EQ(b.trap(args), -EBADF);
  b.machine.trace(app, 0);
  b.machine.add_thread(scheduler, scheduler + 1);
  EXPECT_EQ(operation(uapi::KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT, scheduler + 1), -EINVAL)
      << "authorised, and no session";
}

// --- ENABLE and DISABLE ---

TEST_F(DriverDebug, EnableTellsTheRuntimesState) {
  ASSERT_EQ(b.enable(), 0);
  EXPECT_EQ(runtime_info().r_debug, 0xdeb6U);
  EXPECT_EQ(runtime_info().runtime_state, uapi::DBG_RUNTIME_STATE_ENABLED);
}

TEST_F(DriverDebug, EnableCopiesAsMuchOfTheRuntimesStateAsThereIsRoomFor) {
  auto args = b.trap_args(uapi::KFD_IOC_DBG_TRAP_ENABLE);
  b.pipe();
  b.machine.memory(scheduler).put(scratch + 8, std::uint64_t{0x1111});
  args.enable = {.exception_mask = 0, .rinfo_ptr = scratch, .rinfo_size = 8, .dbg_fd = 5};
  EXPECT_EQ(b.trap(args), 0);
  EXPECT_EQ(args.enable.rinfo_size, 16U);
  EXPECT_EQ(b.machine.memory(scheduler).get<std::uint64_t>(scratch + 8), 0x1111U);
}

TEST_F(DriverDebug, EnableTwiceIsEALREADYBeforeTheDescriptorIsLookedAt) {
  ASSERT_EQ(b.enable(), 0);
  auto args = b.trap_args(uapi::KFD_IOC_DBG_TRAP_ENABLE);
  args.enable.dbg_fd = 77;
  EXPECT_EQ(b.trap(args), -EALREADY);
}

TEST_F(DriverDebug, EnableWithoutADescriptorIsEBADFAndNoSession) {
  auto args = b.trap_args(uapi::KFD_IOC_DBG_TRAP_ENABLE);
  args.enable.dbg_fd = uapi::KFD_INVALID_FD;
  EXPECT_EQ(b.trap(args), -EBADF);
  EXPECT_EQ(b.disable(), -EINVAL);
}

TEST_F(DriverDebug, EnableThatCannotWriteItsAnswerLeavesTheSessionEnabled) {
  b.pipe();
  auto args = b.trap_args(uapi::KFD_IOC_DBG_TRAP_ENABLE);
  args.enable = {.exception_mask = runtime_bit, .rinfo_ptr = 8, .rinfo_size = 16, .dbg_fd = 5};
  EXPECT_EQ(b.trap(args), -EFAULT);
  EXPECT_EQ(args.enable.rinfo_size, 16U);
  EXPECT_EQ(b.enable(), -EALREADY);
  ASSERT_EQ(b.create_queue(app, 0), 0);
  EXPECT_EQ(b.pipe(), "") << "no exception was subscribed";
  EXPECT_EQ(b.disable(), 0);
}

TEST_F(DriverDebug, EnableHoldsItsOwnReferenceToThePipe) {
  ASSERT_EQ(b.enable(), 0);
  EXPECT_EQ(b.machine.taken(), 1U);
  ASSERT_EQ(b.disable(), 0);
  EXPECT_EQ(b.machine.taken(), 0U);
}

TEST_F(DriverDebug, EnableAndDisableCostCycles) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  const auto before = b.gpu_stat("cycles");
  ASSERT_EQ(b.enable(), 0);
  EXPECT_EQ(b.gpu_stat("cycles"), before + 1);
  ASSERT_EQ(b.disable(), 0);
  EXPECT_EQ(b.gpu_stat("cycles"), before + 3) << "resume everything, and refresh";
}

TEST_F(DriverDebug, EnableBeforeTheRuntimeDefersTheActivation) {
  b.machine.trace(other, scheduler);
  const auto before = b.gpu_stat("cycles");
  ASSERT_EQ(b.enable(other), 0);
  EXPECT_EQ(runtime_info().runtime_state, uapi::DBG_RUNTIME_STATE_DISABLED);
  EXPECT_EQ(b.gpu_stat("cycles"), before);
}

TEST_F(DriverDebug, DisableResumesAndClearsEveryPendingEvent) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  ASSERT_EQ(b.create_queue(app, 1), 1);
  ASSERT_EQ(b.enable(), 0);
  ASSERT_EQ(b.snapshot(new_bit, 1), std::vector{1U});
  ASSERT_EQ(b.suspend({1}).result, 1);
  ASSERT_EQ(b.disable(), 0);
  EXPECT_EQ(b.process_stat(app, "suspended_queues"), 0);
  ASSERT_EQ(b.enable(), 0);
  EXPECT_EQ(b.query(0), (driver_bench::debug_event{-EAGAIN, 0, 0, 0}));
  EXPECT_EQ(b.suspend({0, 1}).result, 2) << "0 is not new any more, either";
}

TEST_F(DriverDebug, DisableWithoutASessionIsEINVAL) { EXPECT_EQ(b.disable(), -EINVAL); }

// --- GPUs that can debug one process at a time ---

profile one_debug_vmid() {
  auto node = default_profile();
  node.gpus[0].per_vmid_debug = false;
  return node;
}

class DriverDebugVmid : public DriverDebug {
 protected:
  DriverDebugVmid() : DriverDebug{one_debug_vmid()} {}
};

TEST_F(DriverDebugVmid, ASecondTargetIsBusy) {
  ASSERT_EQ(b.runtime_enable(other), 0);
  b.machine.trace(other, scheduler);
  ASSERT_EQ(b.enable(app), 0);
  ASSERT_EQ(b.enable(other), 0) << "the failure shows in the state only";
  EXPECT_EQ(runtime_info().runtime_state, uapi::DBG_RUNTIME_STATE_ENABLED_BUSY);
  EXPECT_EQ(b.suspend({0}, 0, scheduler, other).result, -EPERM);
  ASSERT_EQ(b.disable(app), 0);
  ASSERT_EQ(b.disable(other), 0);
  ASSERT_EQ(b.enable(other), 0);
  EXPECT_EQ(runtime_info().runtime_state, uapi::DBG_RUNTIME_STATE_ENABLED);
}

TEST_F(DriverDebugVmid, ADyingTargetGivesItBack) {
  ASSERT_EQ(b.runtime_enable(other), 0);
  b.machine.trace(other, scheduler);
  ASSERT_EQ(b.enable(app), 0);
  b.machine.exit(app);
  b.sim->reap();
  b.run_for(1s);
  ASSERT_EQ(b.enable(other), 0);
  EXPECT_EQ(runtime_info().runtime_state, uapi::DBG_RUNTIME_STATE_ENABLED);
}

TEST_F(DriverDebug, AFailingActivationShowsAsErrorState) {
  b.sim->fail_next_cycle(gpu_id(), 9s, driver::after_failure::goes_on);
  ASSERT_EQ(b.enable(), 0);
  EXPECT_EQ(runtime_info().runtime_state, uapi::DBG_RUNTIME_STATE_ENABLED_ERROR);
  ASSERT_EQ(b.disable(), 0);
  ASSERT_EQ(b.enable(), 0);
  EXPECT_EQ(runtime_info().runtime_state, uapi::DBG_RUNTIME_STATE_ENABLED) << "put back to enabled";
}

// --- The runtime's handshake ---

TEST_F(DriverDebug, RuntimeEnableChecksItsState) {
  EXPECT_EQ(b.runtime_enable(app), -EBUSY);
  ASSERT_EQ(b.create_queue(other, 0), 0);
  EXPECT_EQ(b.runtime_enable(other), -EEXIST);
  EXPECT_EQ(b.runtime_enable(app, 0), 0);
  EXPECT_EQ(b.runtime_enable(app, 0), 0) << "disabling is always allowed";
}

TEST_F(DriverDebug, RuntimeEnableWaitsForTheDebuggersAnswer) {
  b.machine.trace(other, scheduler);
  ASSERT_EQ(b.enable(other), 0);
  const auto pending = b.begin(
      other, uapi::AMDKFD_IOC_RUNTIME_ENABLE,
      uapi::kfd_ioctl_runtime_enable_args{.r_debug = 1, .mode_mask = 1, .capabilities_mask = 0});
  b.run_for(1s);
  EXPECT_FALSE(pending->result.has_value());
  EXPECT_EQ(b.pipe(), ".");
  EXPECT_EQ(b.query(runtime_bit, other), (driver_bench::debug_event{0, runtime_bit, 0, 0}));
  EXPECT_EQ(b.query(runtime_bit, other).result, -EAGAIN);
  EXPECT_EQ(b.send_runtime_event(runtime_bit, other), 0);
  EXPECT_EQ(pending->result, 0);
}

TEST_F(DriverDebug, RuntimeDisableResumesTellsAndWaits) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  ASSERT_EQ(b.enable(), 0);
  b.snapshot(new_bit);
  ASSERT_EQ(b.suspend({0}).result, 1);
  const auto pending = begin_runtime(0);
  b.run_for(1s);
  EXPECT_FALSE(pending->result.has_value());
  EXPECT_EQ(b.process_stat(app, "suspended_queues"), 0);
  EXPECT_EQ(b.pipe(), ".");
  EXPECT_EQ(b.suspend({0}).result, -EPERM) << "the runtime is disabled, its mutex free";
  EXPECT_EQ(b.send_runtime_event(), 0);
  EXPECT_EQ(pending->result, 0);
}

TEST_F(DriverDebug, AnInterruptedHandshakeIsNotRaisedTwice) {
  ASSERT_EQ(b.enable(), 0);
  const auto first = begin_runtime(0);
  b.run_for(1s);
  b.sim->interrupt(first->request);
  b.settle();
  EXPECT_EQ(first->result, -EINTR);
  EXPECT_EQ(b.query(runtime_bit).result, 0);
  const auto again = begin_runtime(0);
  b.run_for(1s);
  EXPECT_FALSE(again->result.has_value());
  EXPECT_EQ(b.pipe(), ".") << "one raise";
  EXPECT_EQ(b.send_runtime_event(), 0);
  EXPECT_EQ(again->result, 0);
}

TEST_F(DriverDebug, AnAnswerThatNobodyWaitsForSatisfiesTheNextHandshake) {
  ASSERT_EQ(b.enable(), 0);
  ASSERT_EQ(b.send_runtime_event(), 0);
  const auto pending = begin_runtime(0);
  EXPECT_EQ(b.finish(*pending), 0);
}

TEST_F(DriverDebug, DisableDoesNotReleaseAWaitingRuntime) {
  ASSERT_EQ(b.enable(), 0);
  const auto pending = begin_runtime(0);
  b.run_for(1s);
  ASSERT_EQ(b.disable(), 0);
  b.run_for(1s);
  EXPECT_FALSE(pending->result.has_value());
  b.sim->interrupt(pending->request);
  b.settle();
  EXPECT_EQ(pending->result, -EINTR);
}

TEST_F(DriverDebug, WithoutASessionTheRuntimeWaitsForNobody) {
  EXPECT_EQ(b.runtime_enable(app, 0), 0);
  EXPECT_EQ(b.runtime_enable(app, 3), 0);
  ASSERT_EQ(b.enable(), 0);
  EXPECT_EQ(runtime_info().ttmp_setup, 1U);
}

// --- Events ---

TEST_F(DriverDebug, ANewQueueRaisesAByteAndAnEvent) {
  ASSERT_EQ(b.enable(), 0);
  ASSERT_EQ(b.create_queue(app, 0), 0);
  ASSERT_EQ(b.create_queue(app, 1), 1);
  EXPECT_EQ(b.pipe(), "..");
  EXPECT_EQ(b.query(new_bit), (driver_bench::debug_event{0, new_bit, gpu_id(), 1})) << "newest";
  EXPECT_EQ(b.query(new_bit), (driver_bench::debug_event{0, new_bit, gpu_id(), 0}));
  EXPECT_EQ(b.query(new_bit), (driver_bench::debug_event{-EAGAIN, 0, 0, 0}));
}

TEST_F(DriverDebug, AQueryClearsOnlyWhatItIsAskedTo) {
  ASSERT_EQ(b.enable(), 0);
  ASSERT_EQ(b.create_queue(app, 0), 0);
  EXPECT_EQ(b.query(delete_bit).status, new_bit);
  EXPECT_EQ(b.query(new_bit).status, new_bit);
  EXPECT_EQ(b.query(0).result, -EAGAIN);
}

TEST_F(DriverDebug, QueuesOfBeforeTheSessionAreNewToo) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  ASSERT_EQ(b.enable(), 0);
  EXPECT_EQ(b.pipe(), "") << "there was nobody to tell";
  EXPECT_EQ(b.query(new_bit).status, new_bit);
}

TEST_F(DriverDebug, ADestroyedQueueIsADeviceEvent) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  ASSERT_EQ(b.enable(), 0);
  b.snapshot(new_bit);
  ASSERT_EQ(b.destroy_queue(app, 0), 0);
  EXPECT_EQ(b.pipe(), ".");
  EXPECT_EQ(b.query(delete_bit), (driver_bench::debug_event{0, delete_bit, gpu_id(), 0}));
}

TEST_F(DriverDebug, NobodyIsToldOfWhatHeDidNotSubscribe) {
  ASSERT_EQ(b.enable(app, scheduler, delete_bit), 0);
  ASSERT_EQ(b.create_queue(app, 0), 0);
  EXPECT_EQ(b.pipe(), "");
  EXPECT_EQ(b.query(0).result, -EAGAIN);
}

TEST_F(DriverDebug, SubscribingToSomethingPendingRaisesOneByteAtOnce) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  ASSERT_EQ(b.create_queue(app, 1), 1);
  ASSERT_EQ(b.enable(app, scheduler, 0), 0);
  auto args = b.trap_args(uapi::KFD_IOC_DBG_TRAP_SET_EXCEPTIONS_ENABLED);
  args.set_exceptions_enabled.exception_mask = delete_bit;
  EXPECT_EQ(b.trap(args), 0);
  EXPECT_EQ(b.pipe(), "");
  args.set_exceptions_enabled.exception_mask = new_bit;
  EXPECT_EQ(b.trap(args), 0);
  EXPECT_EQ(b.pipe(), ".");
}

TEST_F(DriverDebug, ABrokenPacketIsAQueueEvent) {
  ASSERT_EQ(b.enable(app, scheduler, uapi::KFD_EC_MASK_QUEUE), 0);
  ASSERT_EQ(b.create_queue(app, 0), 0);
  b.snapshot(new_bit);
  b.publish(app, 0, {.length = 1ms});
  b.machine.memory(app).put(queue_area, std::uint16_t{5});
  b.run_for(10ms);
  EXPECT_EQ(b.query(0).status, uapi::KFD_EC_MASK(uapi::EC_QUEUE_PACKET_UNSUPPORTED));
}

TEST_F(DriverDebug, SendRuntimeEventForwardsQueueExceptionsToTheRuntime) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  ASSERT_EQ(b.enable(), 0);
  uapi::kfd_ioctl_create_event_args event{};
  ASSERT_EQ(b.call(app, uapi::AMDKFD_IOC_CREATE_EVENT, event), 0);
  auto& memory = b.machine.memory(app);
  uapi::kfd_context_save_area_header header{};
  header.err_payload_addr = scratch + 0x100;
  header.err_event_id = event.event_id;
  memory.put(b.queue_args(0).ctx_save_restore_address, header);
  auto args = b.trap_args(uapi::KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT);
  args.send_runtime_event = {.exception_mask = 1, .gpu_id = gpu_id(), .queue_id = 0};
  EXPECT_EQ(b.trap(args), 0);
  EXPECT_EQ(memory.get<std::uint64_t>(scratch + 0x100), 1U);
  args.send_runtime_event = {.exception_mask = 2, .gpu_id = gpu_id(), .queue_id = 9};
  EXPECT_EQ(b.trap(args), 0) << "an unknown queue is no error";
  EXPECT_EQ(memory.get<std::uint64_t>(scratch + 0x100), 1U);
  args.send_runtime_event = {.exception_mask = uapi::KFD_EC_MASK(uapi::EC_DEVICE_MEMORY_VIOLATION),
                             .gpu_id = 1,
                             .queue_id = 0};
  EXPECT_EQ(b.trap(args), -ENODEV);
}

TEST_F(DriverDebug, QueryExceptionInfoTellsTheRuntimesState) {
  ASSERT_EQ(b.enable(), 0);
  const auto pending = begin_runtime(0);
  b.run_for(1s);
  auto args = b.trap_args(uapi::KFD_IOC_DBG_TRAP_QUERY_EXCEPTION_INFO);
  const auto ask = [&](std::uint32_t code, std::uint32_t source = 0, std::uint64_t at = scratch,
                       std::uint32_t clear = 0) {
    args.query_exception_info = {.info_ptr = at,
                                 .info_size = 16,
                                 .source_id = source,
                                 .exception_code = code,
                                 .clear_exception = clear};
    return b.trap(args);
  };
  EXPECT_EQ(ask(0), -EINVAL);
  EXPECT_EQ(ask(7), -EINVAL) << "a hole in the codes";
  EXPECT_EQ(ask(uapi::EC_MAX), -EINVAL);
  EXPECT_EQ(ask(uapi::EC_QUEUE_NEW, 5), -EINVAL) << "no such queue";
  EXPECT_EQ(ask(uapi::EC_DEVICE_QUEUE_DELETE, 5), -EINVAL) << "no such GPU";
  EXPECT_EQ(ask(uapi::EC_DEVICE_QUEUE_DELETE, gpu_id()), -ENODATA);
  EXPECT_EQ(ask(uapi::EC_PROCESS_RUNTIME, 0, 8), -EFAULT);
  EXPECT_EQ(ask(uapi::EC_PROCESS_RUNTIME), 0);
  EXPECT_EQ(args.query_exception_info.info_size, 16U);
  EXPECT_EQ(runtime_info().runtime_state, uapi::DBG_RUNTIME_STATE_DISABLED);
  EXPECT_EQ(ask(uapi::EC_PROCESS_RUNTIME, 0, scratch, 1), 0);
  EXPECT_EQ(ask(uapi::EC_PROCESS_RUNTIME), -ENODATA);
}

// --- Snapshots ---

TEST_F(DriverDebug, ASnapshotListsNewestFirstAndReportsThePreviousStatus) {
  for (unsigned i = 0; i < 3; ++i) ASSERT_EQ(b.create_queue(app, i), static_cast<int>(i));
  ASSERT_EQ(b.enable(), 0);
  EXPECT_EQ(b.snapshot(new_bit), (std::vector{2U, 1U, 0U}));
  const auto listed = b.snapshot_entry(0);
  const auto q = b.queue_args(2);
  EXPECT_EQ(listed.exception_status, new_bit);
  EXPECT_EQ(listed.ring_base_address, q.ring_base_address);
  EXPECT_EQ(listed.write_pointer_address, q.write_pointer_address);
  EXPECT_EQ(listed.read_pointer_address, q.read_pointer_address);
  EXPECT_EQ(listed.ctx_save_restore_address, q.ctx_save_restore_address);
  EXPECT_EQ(listed.gpu_id, gpu_id());
  EXPECT_EQ(listed.ring_size, ring_bytes);
  EXPECT_EQ(listed.queue_type, uapi::KFD_IOC_QUEUE_TYPE_COMPUTE_AQL);
  EXPECT_EQ(listed.ctx_save_restore_area_size, q.ctx_save_restore_size);
  b.snapshot();
  EXPECT_EQ(b.snapshot_entry(0).exception_status, 0U);
}

TEST_F(DriverDebug, ASnapshotClearsOnlyWhatItWrote) {
  for (unsigned i = 0; i < 3; ++i) ASSERT_EQ(b.create_queue(app, i), static_cast<int>(i));
  ASSERT_EQ(b.enable(), 0);
  auto args = b.trap_args(uapi::KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT);
  args.queue_snapshot = {
      .exception_mask = new_bit, .snapshot_buf_ptr = scratch, .num_queues = 1, .entry_size = 64};
  EXPECT_EQ(b.trap(args), 0);
  EXPECT_EQ(args.queue_snapshot.num_queues, 3U) << "all that exist";
  EXPECT_EQ(b.suspend({0, 1, 2}), (driver_bench::ids_result{1, {invalid | 0, invalid | 1, 2}}));
  args.queue_snapshot = {
      .exception_mask = new_bit, .snapshot_buf_ptr = 0, .num_queues = 0, .entry_size = 64};
  EXPECT_EQ(b.trap(args), 0) << "a pure count";
  EXPECT_EQ(args.queue_snapshot.num_queues, 3U);
}

TEST_F(DriverDebug, ASnapshotStridesByTheCallersEntrySize) {
  for (unsigned i = 0; i < 2; ++i) ASSERT_EQ(b.create_queue(app, i), static_cast<int>(i));
  ASSERT_EQ(b.enable(), 0);
  auto args = b.trap_args(uapi::KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT);
  const auto ask = [&](std::uint32_t size, std::uint64_t at = scratch) {
    args.queue_snapshot = {
        .exception_mask = 0, .snapshot_buf_ptr = at, .num_queues = 8, .entry_size = size};
    return b.trap(args);
  };
  EXPECT_EQ(ask(0), -EINVAL);
  EXPECT_EQ(ask(96), 0);
  EXPECT_EQ(args.queue_snapshot.entry_size, 64U);
  EXPECT_EQ(b.machine.memory(scheduler).get<std::uint32_t>(scratch + 96 + 40), 0U) << "queue 0";
  EXPECT_EQ(b.machine.memory(scheduler).get<std::uint32_t>(scratch + 40), 1U);
  EXPECT_EQ(ask(48), 0);
  EXPECT_EQ(args.queue_snapshot.entry_size, 48U);
  EXPECT_EQ(b.machine.memory(scheduler).get<std::uint32_t>(scratch + 48 + 40), 0U);
  EXPECT_EQ(ask(64, 8), -EFAULT);
}

TEST_F(DriverDebug, ADeviceSnapshotDescribesTheGpus) {
  ASSERT_EQ(b.enable(), 0);
  auto args = b.trap_args(uapi::KFD_IOC_DBG_TRAP_GET_DEVICE_SNAPSHOT);
  const auto ask = [&](std::uint64_t at, std::uint32_t devices, std::uint32_t size) {
    args.device_snapshot = {
        .exception_mask = 0, .snapshot_buf_ptr = at, .num_devices = devices, .entry_size = size};
    return b.trap(args);
  };
  EXPECT_EQ(ask(0, 4, 120), -EINVAL);
  EXPECT_EQ(ask(8, 4, 120), -EFAULT);
  EXPECT_EQ(ask(scratch, 4, 128), 0);
  EXPECT_EQ(args.device_snapshot.num_devices, 1U);
  EXPECT_EQ(args.device_snapshot.entry_size, 120U);
  const auto listed = b.machine.memory(scheduler).get<uapi::kfd_dbg_device_info_entry>(scratch);
  EXPECT_EQ(listed.gpu_id, gpu_id());
  EXPECT_EQ(listed.gfx_target_version, 90402U);
  EXPECT_EQ(listed.simd_count, 304U * 4);
  EXPECT_EQ(listed.num_xcc, 8U);
}

// --- The other hardware operations ---

TEST_F(DriverDebug, WatchPointsAreFourPerGpu) {
  ASSERT_EQ(b.enable(), 0);
  auto set = b.trap_args(uapi::KFD_IOC_DBG_TRAP_SET_NODE_ADDRESS_WATCH);
  set.set_node_address_watch.gpu_id = 1;
  EXPECT_EQ(b.trap(set), -ENODEV);
  set.set_node_address_watch.gpu_id = gpu_id();
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(b.trap(set), 0);
    EXPECT_EQ(set.set_node_address_watch.id, i);
  }
  EXPECT_EQ(b.trap(set), -ENOMEM);
  auto clear = b.trap_args(uapi::KFD_IOC_DBG_TRAP_CLEAR_NODE_ADDRESS_WATCH);
  clear.clear_node_address_watch = {.gpu_id = gpu_id(), .id = 2};
  EXPECT_EQ(b.trap(clear), 0);
  EXPECT_EQ(b.trap(clear), -EINVAL);
  EXPECT_EQ(b.trap(set), 0);
  EXPECT_EQ(set.set_node_address_watch.id, 2U);
}

TEST_F(DriverDebug, WatchPointsAreSharedByAllProcesses) {
  ASSERT_EQ(b.runtime_enable(other), 0);
  b.machine.trace(other, scheduler);
  const auto set = [this](pid_t pid) {
    auto args = b.trap_args(uapi::KFD_IOC_DBG_TRAP_SET_NODE_ADDRESS_WATCH, pid);
    args.set_node_address_watch.gpu_id = gpu_id();
    const int result = b.trap(args);
    return result == 0 ? static_cast<int>(args.set_node_address_watch.id) : result;
  };
  const auto clear = [this](pid_t pid, std::uint32_t id) {
    auto args = b.trap_args(uapi::KFD_IOC_DBG_TRAP_CLEAR_NODE_ADDRESS_WATCH, pid);
    args.clear_node_address_watch = {.gpu_id = gpu_id(), .id = id};
    return b.trap(args);
  };
  ASSERT_EQ(b.enable(app), 0);
  ASSERT_EQ(b.enable(other), 0);
  EXPECT_EQ(set(app), 0);
  EXPECT_EQ(set(other), 1);
  EXPECT_EQ(set(app), 2);
  EXPECT_EQ(clear(other, 0), -EINVAL) << "of another process";
  EXPECT_EQ(clear(other, 1), 0);
  EXPECT_EQ(set(other), 1);
  b.sim->fail_next_cycle(gpu_id(), 9s, driver::after_failure::goes_on);
  EXPECT_EQ(set(other), -ETIME);
  EXPECT_EQ(set(other), 3) << "the failed call kept none";
  b.machine.exit(app);
  b.sim->reap();
  b.run_for(1s);
  EXPECT_EQ(set(other), 0) << "those of a dead process are free";
}

TEST_F(DriverDebug, FlagsGiveBackThePreviousOnes) {
  ASSERT_EQ(b.enable(), 0);
  auto args = b.trap_args(uapi::KFD_IOC_DBG_TRAP_SET_FLAGS);
  args.set_flags.flags = uapi::KFD_DBG_TRAP_FLAG_SINGLE_MEM_OP;
  EXPECT_EQ(b.trap(args), 0);
  EXPECT_EQ(args.set_flags.flags, 0U);
  args.set_flags.flags = 0x80;
  EXPECT_EQ(b.trap(args), 0) << "a bit that the driver does not know";
  EXPECT_EQ(args.set_flags.flags, 1U);
  args.set_flags.flags = uapi::KFD_DBG_TRAP_FLAG_SINGLE_ALU_OP;
  EXPECT_EQ(b.trap(args), -EACCES) << "gfx9 has no precise ALU exceptions";
  EXPECT_EQ(args.set_flags.flags, 0x80U);
}

TEST_F(DriverDebug, LaunchModeAndOverrideCheckTheirModes) {
  ASSERT_EQ(b.enable(), 0);
  auto mode = b.trap_args(uapi::KFD_IOC_DBG_TRAP_SET_WAVE_LAUNCH_MODE);
  mode.launch_mode.launch_mode = 2;
  EXPECT_EQ(b.trap(mode), -EINVAL);
  mode.launch_mode.launch_mode = uapi::KFD_DBG_TRAP_WAVE_LAUNCH_MODE_DEBUG;
  EXPECT_EQ(b.trap(mode), 0);
  auto over = b.trap_args(uapi::KFD_IOC_DBG_TRAP_SET_WAVE_LAUNCH_OVERRIDE);
  over.launch_override.override_mode = 2;
  EXPECT_EQ(b.trap(over), -EPERM);
  over.launch_override = {
      .override_mode = 0, .enable_mask = 0xff, .support_request_mask = 0x0f, .pad = 0};
  EXPECT_EQ(b.trap(over), 0);
  EXPECT_EQ(over.launch_override.enable_mask, 0U);
  EXPECT_EQ(over.launch_override.support_request_mask, 0xc00001ffU);
  over.launch_override = {
      .override_mode = 1, .enable_mask = 0x200, .support_request_mask = 0x200, .pad = 0};
  EXPECT_EQ(b.trap(over), -EACCES) << "not among the supported ones";
  over.launch_override = {
      .override_mode = 1, .enable_mask = 0, .support_request_mask = 0x03, .pad = 0};
  EXPECT_EQ(b.trap(over), 0);
  EXPECT_EQ(over.launch_override.enable_mask, 0x0fU);
  EXPECT_EQ(b.trap(over), 0) << "the mask of what is supported requests nothing new";
  EXPECT_EQ(over.launch_override.enable_mask, 0x0cU);
}

profile other_gpu(std::uint32_t gfx_target_version) {
  auto node = default_profile();
  node.gpus[0].gfx_target_version = gfx_target_version;
  return node;
}

class DriverDebugGfx11 : public DriverDebug {
 protected:
  DriverDebugGfx11() : DriverDebug{other_gpu(110000)} {}
};

TEST_F(DriverDebugGfx11, HasNoPreciseMemoryAndFewerOverrides) {
  ASSERT_EQ(b.enable(), 0);
  auto flags = b.trap_args(uapi::KFD_IOC_DBG_TRAP_SET_FLAGS);
  flags.set_flags.flags = uapi::KFD_DBG_TRAP_FLAG_SINGLE_MEM_OP;
  EXPECT_EQ(b.trap(flags), -EACCES);
  auto over = b.trap_args(uapi::KFD_IOC_DBG_TRAP_SET_WAVE_LAUNCH_OVERRIDE);
  EXPECT_EQ(b.trap(over), 0);
  EXPECT_EQ(over.launch_override.support_request_mask, 0x1ffU);
  over.launch_override = {
      .override_mode = 0, .enable_mask = 0, .support_request_mask = 1U << 30U, .pad = 0};
  EXPECT_EQ(b.trap(over), -EACCES);
}

class DriverDebugGfx908 : public DriverDebug {
 protected:
  DriverDebugGfx908() : DriverDebug{other_gpu(90008)} {}
};

TEST_F(DriverDebugGfx908, OverridesTheAddressWatchOnly) {
  ASSERT_EQ(b.enable(), 0);
  auto over = b.trap_args(uapi::KFD_IOC_DBG_TRAP_SET_WAVE_LAUNCH_OVERRIDE);
  EXPECT_EQ(b.trap(over), 0);
  EXPECT_EQ(over.launch_override.support_request_mask, 0x80U);
  over.launch_override.override_mode = uapi::KFD_DBG_TRAP_OVERRIDE_REPLACE;
  EXPECT_EQ(b.trap(over), -EINVAL);
}

// --- Who cleans up ---

TEST_F(DriverDebug, TheDebuggersDeathResumesEverythingAndEndsItsSessions) {
  ASSERT_EQ(b.runtime_enable(other), 0);
  b.machine.trace(other, scheduler);
  for (const pid_t pid : {app, other}) {
    ASSERT_EQ(b.create_queue(pid, 0), 0);
    ASSERT_EQ(b.enable(pid), 0);
    b.snapshot(new_bit, 64, pid);
    ASSERT_EQ(b.suspend({0}, 0, scheduler, pid).result, 1);
  }
  b.machine.exit(scheduler);
  b.machine.trace(app, 0);
  b.sim->reap();
  b.run_for(1s);
  for (const pid_t pid : {app, other}) {
    EXPECT_EQ(b.process_stat(pid, "suspended_queues"), 0);
    EXPECT_EQ(b.machine.taken(), 0U);
  }
  b.start(scheduler);
  b.open(scheduler);
  b.machine.trace(app, scheduler);
  EXPECT_EQ(b.enable(), 0) << "a new one may begin";
}

TEST_F(DriverDebug, TheDebuggersExecEndsItsSessions) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  ASSERT_EQ(b.enable(), 0);
  b.snapshot(new_bit);
  ASSERT_EQ(b.suspend({0}).result, 1);
  b.exec(scheduler);
  b.sim->reap();
  b.run_for(1s);
  EXPECT_EQ(b.process_stat(app, "suspended_queues"), 0);
}

TEST_F(DriverDebug, ClosingTheDeviceEndsNothing) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  ASSERT_EQ(b.enable(), 0);
  b.snapshot(new_bit);
  ASSERT_EQ(b.suspend({0}).result, 1);
  b.sim->release(b.file(scheduler));
  b.open(scheduler);
  b.run_for(1s);
  EXPECT_EQ(b.process_stat(app, "suspended_queues"), 1);
  EXPECT_EQ(b.resume({0}).result, 1);
}

TEST_F(DriverDebug, TheTargetsDeathIsESRCH) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  ASSERT_EQ(b.enable(), 0);
  b.snapshot(new_bit);
  ASSERT_EQ(b.suspend({0}).result, 1);
  b.machine.exit(app);
  EXPECT_EQ(b.resume({0}).result, -ESRCH) << "even before anybody looked";
  b.sim->reap();
  b.run_for(1s);
  EXPECT_EQ(b.machine.taken(), 0U) << "the pipe is let go";
}

TEST_F(DriverDebug, TheTargetsExecIsESRCHUntilItOpensTheDeviceAgain) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  ASSERT_EQ(b.enable(), 0);
  b.exec(app);
  EXPECT_EQ(b.suspend({0}).result, -ESRCH);
  b.open(app);
  EXPECT_EQ(b.suspend({0}).result, -EINVAL) << "no session";
  EXPECT_EQ(b.enable(), 0);
}

TEST_F(DriverDebug, ATargetThatDiesWhileACallWaitsForItIsESRCH) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  ASSERT_EQ(b.enable(), 0);
  b.snapshot(new_bit);
  b.put_ids({0});
  const auto first = b.begin(scheduler, uapi::AMDKFD_IOC_DBG_TRAP, b.suspend_args(1));
  const auto second = b.begin(scheduler, uapi::AMDKFD_IOC_DBG_TRAP, b.resume_args(1));
  b.run_for(1ms);
  b.machine.exit(app);
  b.sim->reap();
  b.run_for(1s);
  EXPECT_EQ(first->result, 1) << "it was in the middle of its cycle, and comes to its end";
  EXPECT_EQ(second->result, -ESRCH);
  EXPECT_EQ(b.machine.taken(), 0U);
}

TEST_F(DriverDebug, ADebuggerThatDiesInTheMiddleOfASuspendStillResumes) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  ASSERT_EQ(b.enable(), 0);
  b.snapshot(new_bit);
  b.put_ids({0});
  const auto pending = b.begin(scheduler, uapi::AMDKFD_IOC_DBG_TRAP, b.suspend_args(1));
  b.run_for(1ms);
  b.machine.exit(scheduler);
  b.sim->reap();
  b.run_for(1s);
  EXPECT_TRUE(pending->result.has_value());
  EXPECT_EQ(b.process_stat(app, "suspended_queues"), 0);
}

TEST_F(DriverDebug, ATargetThatDiesInItsHandshakeIsForgotten) {
  ASSERT_EQ(b.enable(), 0);
  const auto pending = begin_runtime(0);
  b.run_for(1s);
  b.machine.exit(app);
  b.sim->reap();
  b.run_for(1s);
  EXPECT_EQ(pending->result, -EINTR);
  EXPECT_EQ(b.machine.taken(), 0U);
}

TEST(DriverGenerations, WithoutHardwareSchedulingNothingCanBeDebugged) {
  auto node = default_profile();
  node.sched_policy = 2;
  driver_bench b{node};
  for (const pid_t pid : {app, scheduler}) b.open(pid);
  auto args = b.trap_args(uapi::KFD_IOC_DBG_TRAP_ENABLE, 9999);
  EXPECT_EQ(b.trap(args), -EINVAL) << "before it looks for the target";
}

TEST(DriverGenerations, ASecondaryContextDebugsNobody) {
  auto node = default_profile();
  node.abi_minor = 19;
  driver_bench b{node};
  for (const pid_t pid : {app, scheduler}) b.open(pid);
  b.machine.trace(app, scheduler);
  std::array<std::byte, 1> nothing{};
  EXPECT_EQ(b.call(scheduler, uapi::AMDKFD_IOC_CREATE_PROCESS, nothing), 0);
  EXPECT_EQ(b.enable(), -EOPNOTSUPP);
  b.open(scheduler);
  EXPECT_EQ(b.enable(), 0) << "another descriptor of the same process may";
}

}  // namespace
}  // namespace sluice::sim::test::driver_debug_test
