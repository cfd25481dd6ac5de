/// The batch commands of uapi_batch.hpp.

#include "driver.hpp"
#include "driver_bench.hpp"
#include "test_seed.hpp"

#include <linux/capability.h>

#include <cerrno>
#include <random>

#include "sluice/kfd/uapi_batch.hpp"

namespace sluice::sim::test::driver_batch_test {
namespace {

using entry = uapi::kfd_batch_queue_entry;
using entries = std::vector<entry>;

constexpr std::uint64_t array = scratch + 0x8000;

profile patched(queue_scheduler kind = queue_scheduler::runlist) {
  auto node = default_profile();
  node.batch_commands = true;
  node.gpus[0].scheduler = kind;
  node.gpus.push_back(node.gpus[0]);
  node.gpus[1].gpu_id += 257;
  return node;
}

/// Two processes with two queues each on the first GPU and one on the second.
class DriverBatch : public ::testing::Test {
 protected:
  explicit DriverBatch(profile node = patched()) : b{std::move(node)} {
    for (const pid_t pid : {app, scheduler, other}) b.open(pid);
    for (const pid_t pid : {app, other}) {
      for (unsigned i = 0; i < 3; ++i) {
        EXPECT_EQ(b.create_queue(pid, i, i == 2 ? 1 : 0), static_cast<int>(i));
      }
      b.machine.may_trace.insert({scheduler, pid});
    }
    cycles();
  }
  struct answer {
    int result = 0;
    std::vector<std::uint32_t> ids;
    friend bool operator==(const answer&, const answer&) = default;
    friend std::ostream& operator<<(std::ostream& out, const answer& value) {
      out << value.result << " [" << std::hex;
      for (const auto id : value.ids) out << ' ' << id;
      return out << std::dec << " ]";
    }
  };
  answer unmap(const entries& what, std::uint32_t flags = 0, pid_t tid = scheduler,
               std::uint32_t grace = 0) {
    put(what, tid);
    uapi::kfd_ioctl_batch_unmap_queues_args args{
        .num_queues = static_cast<std::uint32_t>(what.size()),
        .grace_period_us = grace,
        .flags = flags,
        .pad = 0,
        .queue_array_ptr = array};
    const int result = b.call(tid, uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES, args);
    return {result, get(what.size(), tid)};
  }
  answer remap(const entries& what, pid_t tid = scheduler) {
    put(what, tid);
    uapi::kfd_ioctl_fast_remap_args args{
        .num_queues = static_cast<std::uint32_t>(what.size()), .pad = 0, .queue_array_ptr = array};
    const int result = b.call(tid, uapi::AMDKFD_IOC_FAST_REMAP, args);
    return {result, get(what.size(), tid)};
  }
  int remap_all(pid_t tid = scheduler) {
    uapi::kfd_ioctl_fast_remap_args args{};
    return b.call(tid, uapi::AMDKFD_IOC_FAST_REMAP, args);
  }
  int reserve(std::uint32_t online, std::uint32_t offline, pid_t tid = scheduler) {
    uapi::kfd_ioctl_set_hqd_reservation_args args{.gpu_id = b.profile_.gpus[0].gpu_id,
                                                  .online_percent = online,
                                                  .offline_percent = offline,
                                                  .pad = 0};
    return b.call(tid, uapi::AMDKFD_IOC_SET_HQD_RESERVATION, args);
  }
  /// On the first GPU, since the last call.
  std::int64_t cycles() {
    const auto now = b.gpu_stat("cycles");
    return now - std::exchange(cycles_before_, now);
  }
  std::int64_t completed(pid_t pid) const { return b.process_stat(pid, "kernels_completed"); }
  std::int64_t held(pid_t pid) const { return b.process_stat(pid, "held_queues"); }
  driver_bench b;

 private:
  void put(const entries& what, pid_t tid) {
    for (std::size_t i = 0; i < what.size(); ++i) {
      b.machine.memory(tid).put(array + i * sizeof(entry), what[i]);
    }
  }
  std::vector<std::uint32_t> get(std::size_t count, pid_t tid) {
    std::vector<std::uint32_t> out;
    for (std::size_t i = 0; i < count; ++i) {
      out.push_back(b.machine.memory(tid).get<entry>(array + i * sizeof(entry)).queue_id);
    }
    return out;
  }
  std::int64_t cycles_before_ = 0;
};

TEST_F(DriverBatch, ADriverWithoutThemSaysENOTTY) {
  driver_bench stock;
  stock.open(app);
  uapi::kfd_ioctl_batch_unmap_queues_args args{};
  EXPECT_EQ(stock.call(app, uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES, args), -ENOTTY);
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES, args), 0) << "that is how to ask";
}

TEST_F(DriverBatch, SeveralProcessesInOneCycle) {
  for (const pid_t pid : {app, other}) {
    for (unsigned i = 0; i < 3; ++i) b.publish(pid, i, {.length = 50ms});
  }
  b.run_for(10ms);
  const auto second = b.gpu_stat("cycles", 1);
  const auto begin = b.planned.now();
  EXPECT_EQ(unmap({{app, 0}, {app, 1}, {other, 0}, {other, 1}}), (answer{4, {0, 1, 0, 1}}));
  EXPECT_EQ(b.planned.now() - begin, b.profile_.gpus[0].batch_unmap_cost);
  EXPECT_EQ(cycles(), 1);
  EXPECT_EQ(b.gpu_stat("cycles", 1), second) << "nothing of it is on the second GPU";
  b.run_for(1s);
  EXPECT_EQ(completed(app), 1);
  EXPECT_EQ(completed(other), 1);
  EXPECT_EQ(remap_all(), 4);
  EXPECT_EQ(cycles(), 1);
  b.run_for(1s);
  EXPECT_EQ(completed(app), 3);
  EXPECT_EQ(completed(other), 3);
  EXPECT_EQ(b.process_stat(app, "kernels_started"), 3) << "saved, not started again";
}

TEST_F(DriverBatch, SaysOfEachEntryWhatBecameOfIt) {
  ASSERT_EQ(unmap({{other, 0}}, 0, scheduler).result, 1);
  cycles();
  EXPECT_EQ(
      unmap({{app, 0}, {app, 9}, {9999, 0}, {app, 0}, {other, 0}, {app, error | invalid | 1}}),
      (answer{3, {0, invalid | 9, invalid | 0, invalid | 0, 0, 1}}));
  EXPECT_EQ(cycles(), 1);
  EXPECT_EQ(unmap({{app, 0}, {other, 0}}).result, 2) << "held before";
  EXPECT_EQ(cycles(), 0) << "and nothing changes";
  EXPECT_EQ(remap({{app, 0}, {app, 2}, {other, 0}}), (answer{2, {0, invalid | 2, 0}}));
  EXPECT_EQ(cycles(), 1);
}

// A process that is held and then becomes another user's stayed held for ever.
TEST_F(DriverBatch, WhatAFileHoldsItMayMapAgainWithoutAuthority) {
  ASSERT_EQ(unmap({{app, 0}}), (answer{1, {0}}));
  b.machine.may_trace.erase({scheduler, app});
  EXPECT_EQ(remap({{app, 0}}), (answer{1, {0}}));
  EXPECT_EQ(remap({{app, 0}}), (answer{0, {invalid | 0}}));
  EXPECT_EQ(unmap({{app, 0}}), (answer{0, {invalid | 0}}));
}

TEST_F(DriverBatch, WithoutAuthorityNothingIsToldOfAProcess) {
  b.machine.may_trace.clear();
  EXPECT_EQ(unmap({{app, 0}, {app, 9}}), (answer{0, {invalid | 0, invalid | 9}}));
  EXPECT_EQ(cycles(), 0);
  b.machine.capabilities.insert({scheduler, CAP_SYS_ADMIN});
  EXPECT_EQ(unmap({{app, 0}, {app, 9}}), (answer{0, {invalid | 0, invalid | 9}}));
}

TEST_F(DriverBatch, AHoldBelongsToTheOpenFile) {
  b.machine.may_trace.insert({other, app});
  ASSERT_EQ(unmap({{app, 0}}).result, 1);
  EXPECT_EQ(unmap({{app, 0}}, 0, other), (answer{0, {invalid | 0}}));
  EXPECT_EQ(remap({{app, 0}}, other), (answer{0, {invalid | 0}}));
  EXPECT_EQ(remap_all(other), 0);
  EXPECT_EQ(held(app), 1);
}

TEST_F(DriverBatch, TheLastCloseMapsEverythingAgain) {
  b.publish(app, 0, {.length = 1ms});
  ASSERT_EQ(unmap({{app, 0}, {other, 1}, {app, 2}}).result, 3);
  cycles();
  b.sim->release(b.file(scheduler));
  b.run_for(1s);
  EXPECT_EQ(held(app) + held(other), 0);
  EXPECT_EQ(cycles(), 1);
  EXPECT_EQ(completed(app), 1);
}

TEST_F(DriverBatch, TheHoldersDeathMapsEverythingAgainThoughSomebodyKeepsTheFile) {
  b.publish(app, 0, {.length = 1ms});
  ASSERT_EQ(unmap({{app, 0}, {other, 1}}).result, 2);
  b.machine.exit(scheduler);
  b.sim->reap();
  b.run_for(1s);
  EXPECT_EQ(held(app) + held(other), 0);
  EXPECT_EQ(completed(app), 1);
}

TEST_F(DriverBatch, AFileClosedInMidCallLeavesNothingHeld) {
  b.publish(app, 0, {.length = 1s});
  b.run_for(10ms);
  b.machine.memory(scheduler).put(array, entry{app, 0});
  uapi::kfd_ioctl_batch_unmap_queues_args args{};
  args.num_queues = 1;
  args.queue_array_ptr = array;
  const auto pending = b.begin(scheduler, uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES, args);
  b.sim->release(b.file(scheduler));
  EXPECT_EQ(b.finish(*pending), 1);
  b.run_for(100ms);
  EXPECT_EQ(held(app), 0);
}

TEST_F(DriverBatch, DestroyOfAHeldQueueDoesNotWait) {
  ASSERT_EQ(unmap({{app, 0}}).result, 1);
  EXPECT_EQ(b.destroy_queue(app, 0), 0);
  EXPECT_EQ(held(app), 0);
  EXPECT_EQ(remap({{app, 0}}), (answer{0, {invalid | 0}}));
  ASSERT_EQ(b.create_queue(app, 0), 0);
  b.publish(app, 0, {.length = 1ms});
  b.run_for(1s);
  EXPECT_EQ(completed(app), 1) << "the next queue with that id is not held";
}

TEST_F(DriverBatch, AHoldAndADebugSuspensionDoNotKnowOfEachOther) {
  // Without a runtime there can be none; so with one, in another process.
  b.start(500);
  b.open(500);
  ASSERT_EQ(b.runtime_enable(500), 0);
  b.machine.trace(500, scheduler);
  b.machine.may_trace.insert({scheduler, 500});
  ASSERT_EQ(b.enable(500), 0);
  ASSERT_EQ(b.create_queue(500, 0), 0);
  b.snapshot(new_bit, 64, 500);
  ASSERT_EQ(unmap({{500, 0}}).result, 1);
  ASSERT_EQ(b.suspend({0}, 0, scheduler, 500).result, 1);
  b.publish(500, 0, {.length = 1ms});
  ASSERT_EQ(remap_all(), 1);
  b.run_for(1s);
  EXPECT_EQ(completed(500), 0) << "still suspended";
  ASSERT_EQ(unmap({{500, 0}}).result, 1);
  ASSERT_EQ(b.resume({0}, scheduler, 500).result, 1);
  b.run_for(1s);
  EXPECT_EQ(completed(500), 0) << "still held";
  ASSERT_EQ(remap_all(), 1);
  b.run_for(1s);
  EXPECT_EQ(completed(500), 1);
}

TEST_F(DriverBatch, AFailingCycleIsMarked) {
  b.sim->fail_next_cycle(b.profile_.gpus[0].gpu_id, 1s, driver::after_failure::goes_on);
  EXPECT_EQ(unmap({{app, 0}, {app, 9}, {other, 2}}), (answer{1, {error | 0, invalid | 9, 2}}));
  EXPECT_EQ(held(app), 1) << "as far as the driver knows";
  EXPECT_EQ(remap({{app, 0}}), (answer{1, {0}}));
}

TEST_F(DriverBatch, WhatCouldNotBeMappedStaysHeld) {
  b.publish(app, 0, {.length = 1ms});
  ASSERT_EQ(unmap({{app, 0}}).result, 1);
  b.sim->fail_next_cycle(b.profile_.gpus[0].gpu_id, 1s, driver::after_failure::goes_on);
  EXPECT_EQ(remap({{app, 0}}), (answer{0, {error | 0}}));
  EXPECT_EQ(held(app), 1);
  EXPECT_EQ(remap_all(), 1);
  b.run_for(1s);
  EXPECT_EQ(completed(app), 1);
}

TEST_F(DriverBatch, HoldsSdmaQueuesToo) {
  auto sdma = b.queue_args(5);
  sdma.queue_type = uapi::KFD_IOC_QUEUE_TYPE_SDMA;
  ASSERT_EQ(b.create_queue(app, sdma), 3);
  EXPECT_EQ(unmap({{app, 3}}), (answer{1, {3}}));
  EXPECT_EQ(held(app), 1);
  EXPECT_EQ(remap_all(), 1);
  EXPECT_EQ(held(app), 0);
  ASSERT_EQ(unmap({{app, 3}}).result, 1);
  b.sim->release(b.file(scheduler));
  b.run_for(1s);
  EXPECT_EQ(held(app), 0);
}

TEST_F(DriverBatch, RefusesNonsense) {
  EXPECT_EQ(unmap({{app, 0}}, uapi::KFD_BATCH_FLAG_MARK_ONLY).result, -EINVAL);
  EXPECT_EQ(unmap({{app, 0}}, 0x80).result, -EINVAL);
  uapi::kfd_ioctl_batch_unmap_queues_args args{};
  args.num_queues = 1;
  EXPECT_EQ(b.call(scheduler, uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES, args), -EFAULT);
  args.num_queues = uapi::KFD_BATCH_MAX_QUEUES + 1;
  EXPECT_EQ(b.call(scheduler, uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES, args), -EINVAL);
  EXPECT_EQ(held(app), 0);
}

TEST_F(DriverBatch, TheGraceIsRoundedUpToTheRegistersUnit) {
  b.publish(app, 0, {.length = 50ms});
  b.run_for(10ms);
  const auto begin = b.planned.now();
  ASSERT_EQ(unmap({{app, 0}}, 0, scheduler, 1000).result, 1);
  // 255 units of 1000 clocks at 2100 MHz.
  EXPECT_EQ(b.planned.now() - begin, b.profile_.gpus[0].batch_unmap_cost + 121'428ns);
}

// --- Reservation ---

class DriverReservation : public DriverBatch {
 protected:
  static profile four_slots() {
    auto node = patched();
    node.gpus[0].hqd_slots = 4;
    node.gpus[0].compute_units = 4096;  // Room for everybody: slots decide.
    return node;
  }
  DriverReservation() : DriverBatch{four_slots()} {
    b.machine.capabilities.insert({scheduler, CAP_SYS_ADMIN});
  }
};

TEST_F(DriverReservation, MarkedQueuesTakeTurnsInTheirShareAndLeaveTheRest) {
  ASSERT_EQ(unmap({{app, 0}, {app, 1}},
                  uapi::KFD_BATCH_FLAG_MARK_OFFLINE | uapi::KFD_BATCH_FLAG_MARK_ONLY)
                .result,
            2);
  EXPECT_EQ(held(app), 0) << "only marked";
  ASSERT_EQ(reserve(75, 25), 0);
  for (const pid_t pid : {app, other}) {
    for (unsigned i = 0; i < 2; ++i) b.publish(pid, i, {.length = 100ms});
  }
  b.run_for(50ms);
  const auto busy = [this](pid_t pid) { return b.process_stat(pid, "busy_ns"); };
  b.run_for(400ms);
  EXPECT_EQ(completed(other), 2);
  EXPECT_EQ(completed(app), 2);
  EXPECT_GE(busy(app), 200'000'000) << "one after the other";
  EXPECT_LT(busy(other), 160'000'000) << "side by side";
  EXPECT_GT(b.gpu_stat("runlist_switches"), 0);
}

TEST_F(DriverReservation, AShareOfNothingMapsNoMarkedQueue) {
  ASSERT_EQ(
      unmap({{app, 0}}, uapi::KFD_BATCH_FLAG_MARK_OFFLINE | uapi::KFD_BATCH_FLAG_MARK_ONLY).result,
      1);
  ASSERT_EQ(reserve(100, 0), 0);
  b.publish(app, 0, {.length = 1ms});
  b.publish(app, 1, {.length = 1ms});
  b.run_for(1s);
  EXPECT_EQ(completed(app), 1);
  ASSERT_EQ(reserve(0, 100), 0) << "which ends it";
  b.run_for(1s);
  EXPECT_EQ(completed(app), 2);
}

TEST_F(DriverReservation, LimitsAQueueUntilItsMarkIsTakenBack) {
  constexpr std::uint32_t mark = uapi::KFD_BATCH_FLAG_MARK_OFFLINE | uapi::KFD_BATCH_FLAG_MARK_ONLY;
  ASSERT_EQ(reserve(100, 0), 0);
  cycles();
  ASSERT_EQ(unmap({{app, 0}, {app, 1}}, mark).result, 2);
  EXPECT_EQ(cycles(), 1) << "for both";
  for (unsigned i = 0; i < 2; ++i) b.publish(app, i, {.length = 1ms});
  b.run_for(1s);
  EXPECT_EQ(completed(app), 0);
  EXPECT_EQ(unmap({{app, 0}, {other, 0}}, uapi::KFD_BATCH_FLAG_UNMARK),
            (answer{1, {0, invalid | 0}}))
      << "the other was not marked";
  EXPECT_EQ(cycles(), 1);
  EXPECT_EQ(held(app), 0);
  b.run_for(1s);
  EXPECT_EQ(completed(app), 1);
  EXPECT_EQ(unmap({{app, 1}}, uapi::KFD_BATCH_FLAG_UNMARK | mark).result, -EINVAL);
}

TEST_F(DriverReservation, EndsWithItsFile) {
  ASSERT_EQ(
      unmap({{app, 0}}, uapi::KFD_BATCH_FLAG_MARK_OFFLINE | uapi::KFD_BATCH_FLAG_MARK_ONLY).result,
      1);
  ASSERT_EQ(reserve(100, 0), 0);
  b.publish(app, 0, {.length = 1ms});
  b.sim->release(b.file(scheduler));
  b.run_for(1s);
  EXPECT_EQ(completed(app), 1);
}

TEST_F(DriverReservation, IsRefusedWhereItCannotBe) {
  EXPECT_EQ(reserve(60, 41), -EINVAL);
  EXPECT_EQ(reserve(101, 0), -EINVAL);
  EXPECT_EQ(reserve(0, 101), -EINVAL);
  EXPECT_EQ(reserve(50, 50, other), -EPERM);
  ASSERT_EQ(reserve(50, 50), 0);
  b.machine.capabilities.insert({other, CAP_SYS_ADMIN});
  EXPECT_EQ(reserve(50, 50, other), -EBUSY);
}

// --- MES ---

class DriverBatchMes : public DriverBatch {
 protected:
  DriverBatchMes() : DriverBatch{patched(queue_scheduler::mes)} {}
};

TEST_F(DriverBatchMes, IsOneCommandForEachQueue) {
  b.publish(app, 0, {.length = 50ms});
  b.publish(other, 1, {.length = 50ms});
  b.run_for(10ms);
  EXPECT_EQ(unmap({{app, 0}, {app, 1}, {other, 0}}).result, 3);
  EXPECT_EQ(cycles(), 3);
  b.run_for(100ms);
  EXPECT_EQ(completed(app), 0);
  EXPECT_EQ(completed(other), 1);
  EXPECT_EQ(remap_all(), 3);
  EXPECT_EQ(cycles(), 3);
  b.run_for(100ms);
  EXPECT_EQ(completed(app), 1);
}

TEST_F(DriverBatchMes, AFailingCommandLeavesItsEntryInvalidAndInError) {
  b.sim->fail_next_cycle(b.profile_.gpus[0].gpu_id, 1s, driver::after_failure::goes_on);
  EXPECT_EQ(unmap({{app, 0}, {app, 1}}), (answer{0, {error | invalid | 0, invalid | 1}}));
  EXPECT_EQ(unmap({{app, 0}, {app, 1}}), (answer{2, {0, 1}}));
  b.sim->fail_next_cycle(b.profile_.gpus[0].gpu_id, 1s, driver::after_failure::goes_on);
  EXPECT_EQ(remap({{app, 0}, {app, 1}}), (answer{0, {error | invalid | 0, error | invalid | 1}}));
  EXPECT_EQ(remap({{app, 0}, {app, 1}}), (answer{2, {0, 1}}));
}

TEST_F(DriverBatchMes, HasNoReservation) {
  b.machine.capabilities.insert({scheduler, CAP_SYS_ADMIN});
  EXPECT_EQ(reserve(50, 50), -EOPNOTSUPP);
}

TEST_F(DriverBatch, AClosedFilesHoldsEndHoweverOftenTheGpuFails) {
  ASSERT_EQ(unmap({{app, 0}, {app, 1}}).result, 2);
  b.publish(app, 0, {.length = 1ms});
  const auto fail_next = [this] {
    b.sim->fail_next_cycle(b.profile_.gpus[0].gpu_id, 5ms, driver::after_failure::goes_on);
  };
  fail_next();
  b.sim->release(b.file(scheduler));
  for (int i = 0; i < 4; ++i) {
    fail_next();  // The one before is under way.
    b.run_for(5ms);
    EXPECT_EQ(completed(app), 0) << i;
  }
  b.run_for(10ms);
  EXPECT_EQ(completed(app), 1);
  EXPECT_EQ(held(app), 0);
}

// Invariant: whatever holds, closes, destroys and failures do, once every holder has gone every
// packet of a living queue completes, exactly once.
TEST_F(DriverBatch, LosesNothingUnderRandomHolds) {
  const sluice::test::random_seed seed;
  std::mt19937 random{seed.value()};
  const auto up_to = [&random](unsigned most) {
    return std::uniform_int_distribution<unsigned>{0, most}(random);
  };
  std::int64_t published = 0;
  for (int step = 0; step < 300; ++step) {
    const pid_t pid = up_to(1) == 0 ? app : other;
    switch (up_to(5)) {
      case 0:
      case 1:
        b.publish(pid, up_to(2), {.length = 1us * (1 + up_to(20'000))});
        ++published;
        break;
      case 2: {
        entries some;
        for (unsigned i = up_to(4); i > 0; --i)
          some.push_back({up_to(1) == 0 ? app : other, up_to(3)});
        unmap(some, 0, scheduler, up_to(1) * 100);
        break;
      }
      case 3: remap({{pid, up_to(3)}}); break;
      case 4:
        if (up_to(3) != 0) break;
        b.sim->release(b.file(scheduler));
        b.open(scheduler);
        break;
      default:
        if (up_to(5) == 0) {
          b.sim->fail_next_cycle(b.profile_.gpus[0].gpu_id, 5ms, driver::after_failure::goes_on);
        }
        b.run_for(1us * up_to(30'000));
    }
  }
  b.create_queue(other, 5);  // Meets the fault that may still wait.
  b.machine.exit(scheduler);
  b.sim->reap();
  b.run_for(60s);
  EXPECT_EQ(held(app) + held(other), 0);
  EXPECT_EQ(completed(app) + completed(other), published);
  EXPECT_EQ(b.process_stat(app, "kernels_started") + b.process_stat(other, "kernels_started"),
            published);
}

}  // namespace
}  // namespace sluice::sim::test::driver_batch_test
