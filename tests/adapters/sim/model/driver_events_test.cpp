#include "driver.hpp"
#include "driver_bench.hpp"

namespace sluice::sim::test::driver_events_test {
namespace {

using waiting = std::unique_ptr<pending_call<uapi::kfd_ioctl_wait_events_args>>;

class DriverEvents : public ::testing::Test {
 protected:
  DriverEvents() { b.open(app); }
  std::uint32_t create(bool auto_reset = false, std::uint32_t type = uapi::KFD_IOC_EVENT_SIGNAL) {
    uapi::kfd_ioctl_create_event_args args{};
    args.event_type = type;
    args.auto_reset = auto_reset ? 1 : 0;
    EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_CREATE_EVENT, args), 0);
    return args.event_id;
  }
  int set(std::uint32_t id) {
    uapi::kfd_ioctl_set_event_args args{.event_id = id, .pad = 0};
    return b.call(app, uapi::AMDKFD_IOC_SET_EVENT, args);
  }
  int reset(std::uint32_t id) {
    uapi::kfd_ioctl_reset_event_args args{.event_id = id, .pad = 0};
    return b.call(app, uapi::AMDKFD_IOC_RESET_EVENT, args);
  }
  int destroy(std::uint32_t id) {
    uapi::kfd_ioctl_destroy_event_args args{.event_id = id, .pad = 0};
    return b.call(app, uapi::AMDKFD_IOC_DESTROY_EVENT, args);
  }
  waiting wait(const std::vector<std::uint32_t>& ids, bool all = false,
               std::uint32_t timeout = 0xffffffff, std::uint64_t age = 0) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      uapi::kfd_event_data data{};
      data.signal_event_data.last_event_age = age;
      data.event_id = ids[i];
      b.machine.memory(app).put(scratch + i * sizeof data, data);
    }
    return b.begin(
        app, uapi::AMDKFD_IOC_WAIT_EVENTS,
        uapi::kfd_ioctl_wait_events_args{.events_ptr = scratch,
                                         .num_events = static_cast<std::uint32_t>(ids.size()),
                                         .wait_for_all = all ? 1U : 0U,
                                         .timeout = timeout,
                                         .wait_result = 77});
  }
  driver_bench b;
};

TEST_F(DriverEvents, HaveTheLowestFreeIdFromOneOn) {
  EXPECT_EQ(create(), 1U);
  EXPECT_EQ(create(), 2U);
  EXPECT_EQ(destroy(1), 0);
  EXPECT_EQ(create(), 1U);
  EXPECT_EQ(create(), 3U);
  EXPECT_EQ(create(false, uapi::KFD_IOC_EVENT_HW_EXCEPTION), 0x40000000U);
}

TEST_F(DriverEvents, AreLimited) {
  for (int i = 0; i < 4095; ++i) create();
  uapi::kfd_ioctl_create_event_args args{};
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_CREATE_EVENT, args), -ENOSPC);
}

TEST_F(DriverEvents, UnknownOnesAreInvalid) {
  EXPECT_EQ(set(1), -EINVAL);
  EXPECT_EQ(reset(1), -EINVAL);
  EXPECT_EQ(destroy(1), -EINVAL);
  const auto pending = wait({1});
  EXPECT_EQ(pending->result, -EINVAL);
}

TEST_F(DriverEvents, OnlySignalEventsAreSetFromTheCpu) {
  const auto id = create(false, uapi::KFD_IOC_EVENT_MEMORY);
  EXPECT_EQ(set(id), -EINVAL);
  EXPECT_EQ(reset(id), -EINVAL);
}

TEST_F(DriverEvents, WakeTheirWaiter) {
  const auto id = create();
  const auto pending = wait({id});
  b.run_for(1s);
  ASSERT_FALSE(pending->result.has_value());
  EXPECT_EQ(set(id), 0);
  EXPECT_EQ(pending->result, 0);
  EXPECT_EQ(pending->args.wait_result, uapi::KFD_IOC_WAIT_RESULT_COMPLETE);
}

TEST_F(DriverEvents, StaySetUntilResetUnlessTheyResetThemselves) {
  const auto manual = create(false);
  const auto automatic = create(true);
  set(manual);
  set(automatic);
  EXPECT_EQ(wait({manual}, false, 0)->args.wait_result, uapi::KFD_IOC_WAIT_RESULT_COMPLETE);
  EXPECT_EQ(wait({manual}, false, 0)->args.wait_result, uapi::KFD_IOC_WAIT_RESULT_COMPLETE);
  EXPECT_EQ(wait({automatic}, false, 0)->args.wait_result, uapi::KFD_IOC_WAIT_RESULT_COMPLETE);
  EXPECT_EQ(wait({automatic}, false, 0)->args.wait_result, uapi::KFD_IOC_WAIT_RESULT_TIMEOUT);
  EXPECT_EQ(reset(manual), 0);
  EXPECT_EQ(wait({manual}, false, 0)->args.wait_result, uapi::KFD_IOC_WAIT_RESULT_TIMEOUT);
}

TEST_F(DriverEvents, AnAutoResetEventThatWokeSomebodyIsNotSetAfterwards) {
  const auto id = create(true);
  const auto pending = wait({id});
  set(id);
  EXPECT_EQ(pending->result, 0);
  EXPECT_EQ(wait({id}, false, 0)->args.wait_result, uapi::KFD_IOC_WAIT_RESULT_TIMEOUT);
}

TEST_F(DriverEvents, TimeOutAtThePlannedTime) {
  const auto id = create();
  const auto begin = b.planned.now();
  const auto pending = wait({id}, false, 25);
  EXPECT_EQ(b.finish(*pending), 0);
  EXPECT_EQ(pending->args.wait_result, uapi::KFD_IOC_WAIT_RESULT_TIMEOUT);
  EXPECT_EQ(pending->finished - begin, 25ms);
}

TEST_F(DriverEvents, WaitForAllWaitsForAll) {
  const auto first = create();
  const auto second = create();
  const auto pending = wait({first, second}, true);
  set(second);
  EXPECT_FALSE(pending->result.has_value());
  set(first);
  EXPECT_EQ(pending->result, 0);
  EXPECT_EQ(wait({first, second}, true, 0)->args.wait_result, uapi::KFD_IOC_WAIT_RESULT_COMPLETE);
}

TEST_F(DriverEvents, WakeEveryWaiter) {
  const auto id = create();
  const auto one = wait({id});
  const auto two = wait({id});
  set(id);
  EXPECT_EQ(one->result, 0);
  EXPECT_EQ(two->result, 0);
}

TEST_F(DriverEvents, ASignalEndsTheWaitWithTheTimeThatIsLeft) {
  const auto id = create();
  const auto pending = wait({id}, false, 1000);
  b.run_for(300ms);
  b.sim->interrupt(pending->request);
  b.settle();
  EXPECT_EQ(pending->result, -erestartsys);
  EXPECT_EQ(pending->args.wait_result, uapi::KFD_IOC_WAIT_RESULT_FAIL);
  EXPECT_EQ(pending->args.timeout, 700U);
}

// Invariant: an auto-reset event taken by a wait that a signal then ends is there for the restart.
TEST_F(DriverEvents, AnInterruptedWaitGivesBackWhatItTook) {
  const auto taken = create(true);
  const auto never_set = create();
  const auto pending = wait({taken, never_set}, true);
  set(taken);
  b.sim->interrupt(pending->request);
  b.settle();
  ASSERT_EQ(pending->result, -erestartsys);
  EXPECT_EQ(wait({taken}, false, 0)->args.wait_result, uapi::KFD_IOC_WAIT_RESULT_COMPLETE);
}

TEST_F(DriverEvents, DestroyingAnAwaitedEventFailsTheWait) {
  const auto id = create();
  const auto pending = wait({id});
  EXPECT_EQ(destroy(id), 0);
  EXPECT_EQ(pending->result, -EIO);
  EXPECT_EQ(pending->args.wait_result, uapi::KFD_IOC_WAIT_RESULT_FAIL);
}

TEST_F(DriverEvents, AnAgeThatIsNoLongerTrueDoesNotWait) {
  const auto id = create();
  const auto pending = wait({id}, false, 0, 1);
  EXPECT_EQ(pending->args.wait_result, uapi::KFD_IOC_WAIT_RESULT_TIMEOUT) << "age 1 is the first";
  set(id);
  reset(id);
  const auto late = wait({id}, false, 0, 1);
  EXPECT_EQ(late->args.wait_result, uapi::KFD_IOC_WAIT_RESULT_COMPLETE);
  EXPECT_EQ(
      b.machine.memory(app).get<uapi::kfd_event_data>(scratch).signal_event_data.last_event_age,
      2U);
}

TEST_F(DriverEvents, FaultOnBadMemory) {
  uapi::kfd_ioctl_wait_events_args args{
      .events_ptr = 8, .num_events = 1, .wait_for_all = 0, .timeout = 0, .wait_result = 0};
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_WAIT_EVENTS, args), -EFAULT);
  args.num_events = 1U << 30U;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_WAIT_EVENTS, args), -ENOMEM);
}

TEST_F(DriverEvents, ADyingProcessEndsItsWaits) {
  const auto id = create();
  const auto pending = wait({id});
  b.machine.exit(app);
  b.sim->reap();
  b.settle();
  EXPECT_TRUE(pending->result.has_value());
}

TEST_F(DriverEvents, CallsInProgressGetNoReplyFromADestroyedDriver) {
  const auto id = create();
  const auto pending = wait({id});
  b.sim.reset();
  b.run_for(1s);
  EXPECT_FALSE(pending->result.has_value());
}

}  // namespace
}  // namespace sluice::sim::test::driver_events_test
