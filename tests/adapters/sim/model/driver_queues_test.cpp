#include "driver.hpp"
#include "driver_bench.hpp"

namespace sluice::sim::test::driver_queues_test {
namespace {

class DriverQueues : public ::testing::Test {
 protected:
  DriverQueues() { b.open(app); }
  driver_bench b;
};

TEST_F(DriverQueues, GetTheLowestFreeIdAtOnceAgain) {
  for (int i = 0; i < 4; ++i) EXPECT_EQ(b.create_queue(app, static_cast<unsigned>(i)), i);
  EXPECT_EQ(b.destroy_queue(app, 1), 0);
  EXPECT_EQ(b.destroy_queue(app, 2), 0);
  EXPECT_EQ(b.create_queue(app, 1), 1);
  EXPECT_EQ(b.create_queue(app, 2), 2);
  EXPECT_EQ(b.create_queue(app, 4), 4);
}

TEST_F(DriverQueues, AReusedIdHasANewSerial) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  const auto before = b.sim->queues_of(app).at(0).serial;
  ASSERT_EQ(b.destroy_queue(app, 0), 0);
  ASSERT_EQ(b.create_queue(app, 0), 0);
  EXPECT_NE(b.sim->queues_of(app).at(0).serial, before);
}

TEST_F(DriverQueues, ShowInSysfsWithInternalTypes) {
  auto args = b.queue_args(0);
  ASSERT_EQ(b.create_queue(app, args), 0);
  args.queue_type = uapi::KFD_IOC_QUEUE_TYPE_COMPUTE;
  ASSERT_EQ(b.create_queue(app, args), 1);
  args.queue_type = uapi::KFD_IOC_QUEUE_TYPE_SDMA;
  ASSERT_EQ(b.create_queue(app, args), 2);
  args.queue_type = uapi::KFD_IOC_QUEUE_TYPE_SDMA_XGMI;
  args.ring_size = 512;
  ASSERT_EQ(b.create_queue(app, args), 3);
  const auto queues = b.sim->queues_of(app);
  ASSERT_EQ(queues.size(), 4U);
  EXPECT_EQ(queues[0].type, 0) << "AQL";
  EXPECT_EQ(queues[1].type, 0) << "PM4";
  EXPECT_EQ(queues[2].type, 1);
  EXPECT_EQ(queues[3].type, 4) << "while the DIQ type exists";
  EXPECT_EQ(queues[0].ring_size, ring_bytes);
  EXPECT_EQ(queues[3].ring_size, 1024U) << "raised to the least";
  EXPECT_EQ(queues[0].gpu, b.profile_.gpus[0].gpu_id);
}

struct bad_create {
  const char* what;
  std::function<void(uapi::kfd_ioctl_create_queue_args&)> change;
  int expected;
};

TEST_F(DriverQueues, CreateChecksItsArguments) {
  const std::vector<bad_create> cases{
      {"percentage", [](auto& a) { a.queue_percentage = 101; }, -EINVAL},
      {"priority", [](auto& a) { a.queue_priority = 16; }, -EINVAL},
      {"size", [](auto& a) { a.ring_size = 3000; }, -EINVAL},
      {"ring", [](auto& a) { a.ring_base_address = ~0ULL; }, -EFAULT},
      {"rptr", [](auto& a) { a.read_pointer_address = 1ULL << 63U; }, -EFAULT},
      {"wptr", [](auto& a) { a.write_pointer_address = 1ULL << 63U; }, -EFAULT},
      {"eop", [](auto& a) { a.eop_buffer_address = 1ULL << 63U; }, -EFAULT},
      {"ctx", [](auto& a) { a.ctx_save_restore_address = 1ULL << 63U; }, -EFAULT},
      {"type", [](auto& a) { a.queue_type = 9; }, -524},
      {"gpu", [](auto& a) { a.gpu_id = 1; }, -EINVAL},
      {"engine",
       [](auto& a) {
         a.queue_type = uapi::KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID;
         a.sdma_engine_id = 99;
       },
       -EINVAL},
  };
  for (const auto& each : cases) {
    auto args = b.queue_args(0);
    each.change(args);
    EXPECT_EQ(b.create_queue(app, args), each.expected) << each.what;
  }
  EXPECT_TRUE(b.sim->queues_of(app).empty());
}

TEST_F(DriverQueues, CreateNeedsAnAddressSpaceOfTheGpu) {
  auto args = b.queue_args(0);
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_CREATE_QUEUE, args), -ESRCH);
  b.acquire(app);
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_CREATE_QUEUE, args), -EINVAL) << "nothing is mapped";
}

TEST_F(DriverQueues, CreateNeedsEveryBufferMappedInItsSize) {
  constexpr std::uint64_t eop = queue_area + ring_bytes + 0x1000;
  b.map_memory(app, 0, eop, 0x1000);
  const std::vector<bad_create> cases{
      {"read pointer", [](auto& a) { a.read_pointer_address = scratch; }, -EINVAL},
      {"ring not mapped", [](auto& a) { a.ring_base_address += queue_stride; }, -EINVAL},
      {"ring too small", [](auto& a) { a.ring_size *= 2; }, -EINVAL},
      {"ring too large", [](auto& a) { a.ring_size /= 2; }, -EINVAL},
      {"end of pipe", [](auto& a) { a.eop_buffer_address = scratch; }, -EINVAL},
      {"end of pipe too small", [](auto& a) { a.eop_buffer_size = 0x800; }, -EINVAL},
      {"end of pipe too large", [](auto& a) { a.eop_buffer_size = 0x2000; }, -EINVAL},
      {"save area", [](auto& a) { a.ctx_save_restore_address += 0x1000; }, -EINVAL},
      {"save area too small", [](auto& a) { a.ctx_save_restore_size -= 0x1000; }, -EINVAL},
      {"save area too large", [](auto& a) { a.ctx_save_restore_size += 0x1000; }, -EINVAL},
      {"control stack", [](auto& a) { a.ctl_stack_size += 8; }, -EINVAL},
      {"a ring of less than a page", [](auto& a) { a.ring_size = 512; }, 0},
      {"no end of pipe", [](auto& a) { a.eop_buffer_address = 0; }, 1},
      {"SDMA needs no save area",
       [](auto& a) {
         a.queue_type = uapi::KFD_IOC_QUEUE_TYPE_SDMA;
         a.ctx_save_restore_size = 0;
       },
       2},
  };
  for (const auto& each : cases) {
    auto args = b.queue_args(0);
    args.eop_buffer_address = eop;
    args.eop_buffer_size = 0x1000;
    each.change(args);
    EXPECT_EQ(b.create_queue(app, args), each.expected) << each.what;
  }
}

TEST_F(DriverQueues, AskForNoBuffersBeforeAbi17) {
  auto node = default_profile();
  node.abi_minor = 16;
  driver_bench old{node};
  old.open(app);
  auto args = old.queue_args(0);
  EXPECT_EQ(old.call(app, uapi::AMDKFD_IOC_CREATE_QUEUE, args), -ESRCH);
  old.acquire(app);
  EXPECT_EQ(old.call(app, uapi::AMDKFD_IOC_CREATE_QUEUE, args), 0);
}

TEST_F(DriverQueues, KeepTheirBuffersMapped) {
  constexpr std::uint64_t first = 0x7f0000000000, second = 0x7f0000100000;
  const auto from = b.map_memory(app, 0, first, ring_bytes);
  const auto to = b.map_memory(app, 0, second, ring_bytes);
  auto args = b.queue_args(0);
  args.ring_base_address = first;
  ASSERT_EQ(b.create_queue(app, args), 0);
  args.ctl_stack_size = 0;
  EXPECT_EQ(b.create_queue(app, args), -EINVAL) << "which keeps nothing";
  EXPECT_EQ(b.unmap_memory(app, 0, from), -EBUSY);
  EXPECT_EQ(b.free_memory(app, from), -EBUSY);
  uapi::kfd_ioctl_update_queue_args update{.ring_base_address = second,
                                           .queue_id = 0,
                                           .ring_size = ring_bytes,
                                           .queue_percentage = 100,
                                           .queue_priority = 7};
  ASSERT_EQ(b.call(app, uapi::AMDKFD_IOC_UPDATE_QUEUE, update), 0);
  EXPECT_EQ(b.unmap_memory(app, 0, from), 0);
  EXPECT_EQ(b.free_memory(app, from), 0);
  EXPECT_EQ(b.unmap_memory(app, 0, to), -EBUSY);
  ASSERT_EQ(b.destroy_queue(app, 0), 0);
  EXPECT_EQ(b.unmap_memory(app, 0, to), 0);
}

TEST_F(DriverQueues, AreLimitedPerProcessAndGpu) {
  for (int i = 0; i < 255; ++i) ASSERT_EQ(b.create_queue(app, 0), i);
  EXPECT_EQ(b.create_queue(app, 0), -ENOSPC);
}

TEST_F(DriverQueues, CreateCostsEverybodyARunlistCycle) {
  b.open(other);
  ASSERT_EQ(b.create_queue(other, 0), 0);
  b.publish(other, 0, {.length = 100ms});
  b.run_for(20ms);
  const auto before = b.planned.now();
  ASSERT_EQ(b.create_queue(app, 0), 0);
  EXPECT_EQ(b.planned.now() - before, 1ms);
  b.run_for(1s);
  EXPECT_EQ(b.process_stat(other, "busy_ns"), 100'000'000);
  EXPECT_EQ(b.process_stat(other, "unfinished_ns"), 101'000'000);
  EXPECT_EQ(b.process_stat(other, "disturbed_ns"), 0) << "not the debugger's doing";
}

TEST_F(DriverQueues, UpdateOverwritesEverythingAndFaultsOnUnknownIds) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  const auto q = b.queue_args(0);
  uapi::kfd_ioctl_update_queue_args args{.ring_base_address = q.ring_base_address,
                                         .queue_id = 7,
                                         .ring_size = ring_bytes,
                                         .queue_percentage = 100,
                                         .queue_priority = 11};
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_UPDATE_QUEUE, args), -EFAULT);
  args.queue_id = 0;
  args.queue_percentage = 101;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_UPDATE_QUEUE, args), -EINVAL);
  args.queue_percentage = 0;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_UPDATE_QUEUE, args), 0);
  b.publish(app, 0, {.length = 1ms});
  b.run_for(1s);
  EXPECT_EQ(b.process_stat(app, "kernels_completed"), 0) << "percentage 0 deactivates";
  args.queue_percentage = 100;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_UPDATE_QUEUE, args), 0);
  b.run_for(1s);
  EXPECT_EQ(b.process_stat(app, "kernels_completed"), 1);
}

TEST_F(DriverQueues, UpdateToAnotherRingGoesOnAtTheReadIndex) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  b.publish(app, 0, {.length = 50ms});
  b.publish(app, 0, {.length = 50ms});
  b.run_for(10ms);
  ASSERT_EQ(b.read_index(app, 0), 1U);
  // The second packet is moved with the ring, and changed on the way.
  auto& memory = b.machine.memory(app);
  const auto from = b.queue_args(0).ring_base_address;
  const auto to = b.queue_args(1).ring_base_address;
  auto packet = memory.get<aql::kernel_dispatch_packet>(from + 64);
  packet.kernel_object = 1'000'000;
  memory.put(to + 64, packet);
  uapi::kfd_ioctl_update_queue_args args{.ring_base_address = to,
                                         .queue_id = 0,
                                         .ring_size = ring_bytes,
                                         .queue_percentage = 100,
                                         .queue_priority = 7};
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_UPDATE_QUEUE, args), -EFAULT) << "not mapped";
  b.map_area(app, 1);
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_UPDATE_QUEUE, args), 0);
  b.run_for(1s);
  EXPECT_EQ(b.process_stat(app, "kernels_completed"), 2);
  EXPECT_EQ(b.process_stat(app, "busy_ns"), 51'000'000);
}

TEST_F(DriverQueues, DestroyOfAnUnknownQueueIsInvalid) {
  EXPECT_EQ(b.destroy_queue(app, 0), -EINVAL);
}

TEST_F(DriverQueues, DestroyForgetsWhatIsInThem) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  b.publish(app, 0, {.length = 1h});
  b.run_for(10ms);
  EXPECT_EQ(b.destroy_queue(app, 0), 0);
  EXPECT_TRUE(b.sim->queues_of(app).empty());
  const auto busy = b.process_stat(app, "busy_ns");
  b.run_for(1s);
  EXPECT_EQ(b.process_stat(app, "busy_ns"), busy);
}

TEST_F(DriverQueues, SetCuMaskChecksAndCostsACycle) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  const auto cycles = b.gpu_stat("cycles");
  uapi::kfd_ioctl_set_cu_mask_args args{.queue_id = 0, .num_cu_mask = 0, .cu_mask_ptr = scratch};
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_SET_CU_MASK, args), -EINVAL);
  args.num_cu_mask = 33;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_SET_CU_MASK, args), -EINVAL);
  args.num_cu_mask = 64;
  args.cu_mask_ptr = 8;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_SET_CU_MASK, args), -EFAULT);
  args.cu_mask_ptr = scratch;
  args.queue_id = 3;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_SET_CU_MASK, args), -EFAULT);
  args.queue_id = 0;
  EXPECT_EQ(b.call(app, uapi::AMDKFD_IOC_SET_CU_MASK, args), 0);
  EXPECT_EQ(b.gpu_stat("cycles"), cycles + 1);
}

TEST_F(DriverQueues, AreRemovedWhenTheirProcessExits) {
  ASSERT_EQ(b.create_queue(app, 0), 0);
  b.publish(app, 0, {.length = 1h});
  b.run_for(10ms);
  b.open(other);
  ASSERT_EQ(b.create_queue(other, 0), 0);
  b.publish(other, 0, {.length = 10ms, .waves = 100'000});
  b.run_for(10ms);
  b.machine.exit(app);
  b.sim->reap();
  b.run_for(1s);
  EXPECT_EQ(b.process_stat(app, "queues"), 0);
  EXPECT_EQ(b.process_stat(app, "alive"), 0);
  EXPECT_EQ(b.process_stat(other, "kernels_completed"), 1) << "the room is free again";
}

TEST_F(DriverQueues, SurviveTheirProcessDyingInTheMiddleOfACreate) {
  b.map_area(app, 0);
  const auto pending = b.begin(app, uapi::AMDKFD_IOC_CREATE_QUEUE, b.queue_args(0));
  b.run_for(200us);
  b.machine.exit(app);
  b.sim->reap();
  b.run_for(1s);
  EXPECT_TRUE(pending->result.has_value());
  EXPECT_EQ(b.process_stat(app, "queues"), 0);
}

TEST_F(DriverQueues, AFailingCycleFailsTheCreateAndLeavesNothing) {
  b.sim->fail_next_cycle(b.profile_.gpus[0].gpu_id, 9s, driver::after_failure::goes_on);
  EXPECT_EQ(b.create_queue(app, 0), -ETIME);
  EXPECT_TRUE(b.sim->queues_of(app).empty());
  EXPECT_EQ(b.create_queue(app, 0), 0);
}

}  // namespace
}  // namespace sluice::sim::test::driver_queues_test
