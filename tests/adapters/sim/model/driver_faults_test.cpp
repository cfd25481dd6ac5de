/// Faults that tests inject into calls.

#include "driver.hpp"
#include "driver_bench.hpp"
#include "three_queues.hpp"

#include <cerrno>

namespace sluice::sim::test::driver_faults_test {
namespace {

using ids_result = driver_bench::ids_result;

constexpr auto dbg_trap = _IOC_NR(uapi::AMDKFD_IOC_DBG_TRAP);

class DriverFaults : public three_queues {};

TEST_F(DriverFaults, ACallIsAnsweredWithoutBeingPerformed) {
  b.sim->inject({.number = dbg_trap, .op = uapi::KFD_IOC_DBG_TRAP_SUSPEND_QUEUES, .error = EINTR});
  b.snapshot();  // Another operation does not meet it.
  EXPECT_EQ(b.suspend({0}), (ids_result{-EINTR, {0}}));
  EXPECT_EQ(suspended(), 1);
  EXPECT_EQ(cycles(), 0);
  EXPECT_EQ(b.suspend({0}), (ids_result{1, {0}})) << "once only";
}

TEST_F(DriverFaults, MeetsTheCallersAndTargetsThatWereNamed) {
  b.sim->inject({.number = dbg_trap, .target = other, .error = EIO, .times = 2});
  b.sim->inject({.number = dbg_trap, .caller = app, .error = EBUSY});
  EXPECT_EQ(b.suspend({0}).result, 1);
  b.machine.trace(other, scheduler);
  EXPECT_EQ(b.enable(other), -EIO);
  EXPECT_EQ(b.enable(other), -EIO);
  EXPECT_EQ(b.enable(other), 0);
  b.sim->inject({.number = dbg_trap, .error = EIO, .times = 100});
  b.sim->forget_faults();
  EXPECT_EQ(b.resume({0}).result, 1);
}

TEST_F(DriverFaults, ADelayedCallListensToNoSignal) {
  b.sim->inject({.number = dbg_trap, .delay = 8s});
  b.put_ids({0});
  const auto begin = b.planned.now();
  const auto pending = b.begin(scheduler, uapi::AMDKFD_IOC_DBG_TRAP, b.suspend_args(1));
  b.run_for(1s);
  b.sim->interrupt(pending->request);
  b.run_for(1s);
  EXPECT_FALSE(pending->result.has_value());
  EXPECT_EQ(b.finish(*pending), 1);
  EXPECT_EQ(b.planned.now() - begin, 8s + b.profile_.gpus[0].suspend_cost);
}

TEST_F(DriverFaults, ATargetThatIsKilledInMidCallIsGoneForTheNext) {
  b.sim->inject({.number = dbg_trap, .target = app, .delay = 2ms, .kill_target = true});
  b.put_ids({0});
  const auto pending = b.begin(scheduler, uapi::AMDKFD_IOC_DBG_TRAP, b.suspend_args(1));
  b.run_for(3ms);
  ASSERT_EQ(b.machine.killed, (std::vector<pid_t>{app}));
  b.machine.exit(app);
  b.sim->reap();
  EXPECT_EQ(b.finish(*pending), 1) << "the call began on a living target";
  EXPECT_EQ(b.resume({0}).result, -ESRCH);
}

TEST_F(DriverFaults, AHangingSchedulerIsResetAfterThePreemptionTimeout) {
  const auto began = b.planned.now();
  std::optional<int> written;
  b.sim->hang_hws("51110\n", [&written](int result) { written = result; });
  b.run_for(1s);
  EXPECT_FALSE(written) << "the writer waits";
  b.run_until(began + b.profile_.preemption_timeout);
  EXPECT_EQ(written, 0);
  b.run_for(1s);
  EXPECT_EQ(b.gpu_stat("resets", 0), 1);
}

TEST_F(DriverFaults, TheNextActivationEndsAsTold) {
  ASSERT_EQ(b.disable(), 0);
  ASSERT_EQ(b.sim->set_next_activation(app, uapi::DBG_RUNTIME_STATE_ENABLED_ERROR), 0);
  ASSERT_EQ(b.enable(), 0);
  EXPECT_EQ(b.machine.memory(scheduler).get<uapi::kfd_runtime_info>(scratch).runtime_state,
            uapi::DBG_RUNTIME_STATE_ENABLED_ERROR);
  EXPECT_EQ(b.suspend({0}).result, -EPERM);
  ASSERT_EQ(b.disable(), 0);
  ASSERT_EQ(b.enable(), 0);
  b.snapshot(new_bit);
  EXPECT_EQ(b.suspend({0}).result, 1);
  EXPECT_EQ(b.sim->set_next_activation(9999, 2), -ESRCH);
}

}  // namespace
}  // namespace sluice::sim::test::driver_faults_test
