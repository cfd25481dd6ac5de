#include "driver.hpp"
#include "driver_bench.hpp"

namespace sluice::sim::test::driver_aql_test {
namespace {

constexpr int doorbell_fd = 9;

class DriverAql : public ::testing::Test {
 protected:
  explicit DriverAql(profile node = default_profile()) : b{std::move(node)} {
    b.open(app);
    EXPECT_EQ(b.create_queue(app, 0), 0);
  }
  int set_doorbell(std::int32_t fd = doorbell_fd, std::uint32_t queue = 0) {
    set_doorbell_args args{.queue_id = queue, .eventfd = fd};
    return b.call(app, SLUICE_SIM_IOC_SET_DOORBELL, args);
  }
  void ring() {
    const auto bell = b.machine.open_file_of(app, doorbell_fd);
    ASSERT_TRUE(bell->rung);
    bell->rung();
    b.settle();
  }
  aql::signal signal_at(std::uint64_t address) {
    return b.machine.memory(app).get<aql::signal>(address);
  }
  static time_point stamp(std::uint64_t ns) {
    return time_point{duration{static_cast<std::int64_t>(ns)}};
  }
  std::uint16_t header_of(std::uint32_t slot) {
    return b.machine.memory(app).get<std::uint16_t>(queue_area + std::uint64_t{slot} * 64);
  }
  driver_bench b;
};

TEST_F(DriverAql, ADoorbellStartsTheKernelAtOnce) {
  b.machine.open_file_of(app, doorbell_fd);
  ASSERT_EQ(set_doorbell(), 0);
  const auto done = b.signal(app, 0, 0);
  b.run_for(3ms);
  b.publish(app, 0, {.length = 2ms, .waves = 10, .signal = done});
  const auto rung = b.planned.now();
  ring();
  EXPECT_EQ(b.read_index(app, 0), 1U) << "the read index moves when the kernel starts";
  EXPECT_EQ(header_of(0), aql::packet_invalid);
  EXPECT_EQ(signal_at(done).value, 1);
  b.run_for(2ms);
  EXPECT_EQ(signal_at(done).value, 0);
  EXPECT_EQ(stamp(signal_at(done).start_ts), rung);
  EXPECT_EQ(stamp(signal_at(done).end_ts), rung + 2ms);
}

TEST_F(DriverAql, WithoutADoorbellTheWriteIndexIsPolled) {
  b.run_for(100ms);
  b.publish(app, 0, {.length = 50ms});
  const auto idle = b.planned.now();
  while (b.process_stat(app, "kernels_started") < 1) b.run_for(10us);
  EXPECT_LE(b.planned.now() - idle, 5ms + 10us) << "idle";
  const auto second = b.signal(app, 0, 1);
  b.publish(app, 0, {.length = 1ms, .signal = second});
  const auto reads = b.machine.memory(app).reads;
  b.run_for(10ms);
  EXPECT_NEAR(static_cast<double>(b.machine.memory(app).reads - reads), 50, 3) << "busy: 200 us";
  b.run_for(100ms);
  EXPECT_EQ(b.process_stat(app, "kernels_completed"), 2);
}

TEST_F(DriverAql, ADoorbellEndsThePolling) {
  b.machine.open_file_of(app, doorbell_fd);
  ASSERT_EQ(set_doorbell(), 0);
  const auto reads = b.machine.memory(app).reads;
  b.run_for(10s);
  EXPECT_EQ(b.machine.memory(app).reads, reads);
  ASSERT_EQ(set_doorbell(-1), 0);
  b.run_for(100ms);
  EXPECT_NEAR(static_cast<double>(b.machine.memory(app).reads - reads), 20, 2) << "idle: 5 ms";
  EXPECT_EQ(b.machine.taken(), 0U);
}

TEST_F(DriverAql, SetDoorbellChecksItsArguments) {
  EXPECT_EQ(set_doorbell(77), -EBADF);
  b.machine.open_file_of(app, doorbell_fd);
  EXPECT_EQ(set_doorbell(doorbell_fd, 5), -EINVAL);
  EXPECT_EQ(set_doorbell(), 0);
  EXPECT_EQ(set_doorbell(), 0);
  EXPECT_EQ(b.machine.taken(), 1U) << "replaced";
  EXPECT_EQ(b.destroy_queue(app, 0), 0);
  EXPECT_EQ(b.machine.taken(), 0U);
}

TEST_F(DriverAql, APacketThatIsAnnouncedBeforeItIsPublishedIsWaitedFor) {
  b.machine.open_file_of(app, doorbell_fd);
  ASSERT_EQ(set_doorbell(), 0);
  auto& memory = b.machine.memory(app);
  memory.put(queue_area, std::uint16_t{aql::packet_invalid});
  memory.put(queue_area + ring_bytes + 0x38, std::uint64_t{1});
  ring();
  b.run_for(10ms);
  EXPECT_EQ(b.process_stat(app, "unfinished_ns"), 0);
  memory.put(queue_area + ring_bytes + 0x38, std::uint64_t{0});
  b.publish(app, 0, {.length = 1ms});
  b.run_for(2ms);  // Without another ring.
  EXPECT_EQ(b.process_stat(app, "kernels_completed"), 1);
}

TEST_F(DriverAql, WritesStampsThenValueThenWakes) {
  uapi::kfd_ioctl_create_event_args event{};
  ASSERT_EQ(b.call(app, uapi::AMDKFD_IOC_CREATE_EVENT, event), 0);
  const auto done = b.signal(app, 0, 0, event.event_id);
  uapi::kfd_event_data data{};
  data.event_id = event.event_id;
  b.machine.memory(app).put(scratch, data);
  const auto pending = b.begin(app, uapi::AMDKFD_IOC_WAIT_EVENTS,
                               uapi::kfd_ioctl_wait_events_args{.events_ptr = scratch,
                                                                .num_events = 1,
                                                                .wait_for_all = 0,
                                                                .timeout = 0xffffffff,
                                                                .wait_result = 0});
  b.publish(app, 0, {.length = 1ms, .signal = done});
  EXPECT_EQ(b.finish(*pending), 0);
  EXPECT_EQ(signal_at(done).value, 0) << "memory is written before anybody is woken";
  const auto& words = b.machine.memory(app).words;
  ASSERT_EQ(words.size(), 5U);
  EXPECT_EQ(words[0].address, queue_area) << "header";
  EXPECT_EQ(words[1].address, queue_area + ring_bytes + 0x80) << "read index";
  EXPECT_EQ(words[2].address, done + offsetof(aql::signal, start_ts));
  EXPECT_EQ(words[3].address, done + offsetof(aql::signal, end_ts));
  EXPECT_EQ(words[4].address, done + offsetof(aql::signal, value));
}

TEST_F(DriverAql, OneSignalCountsSeveralPackets) {
  const auto done = b.signal(app, 0, 0);
  for (int i = 0; i < 3; ++i) b.publish(app, 0, {.length = 10us, .signal = done});
  b.planned.run_until(b.planned.now() + 1s);  // One late step: one batch.
  b.settle();
  b.planned.run_until(b.planned.now() + 1s);
  EXPECT_EQ(b.process_stat(app, "kernels_completed"), 3);
  EXPECT_EQ(signal_at(done).value, 1 - 3);
}

TEST_F(DriverAql, BatchesWhatALateStepHasToWrite) {
  for (int i = 0; i < 200; ++i) {
    b.publish(app, 0, {.length = 10us, .signal = b.signal(app, 0, static_cast<unsigned>(i))});
  }
  b.run_for(5ms);
  const auto begin = b.machine.memory(app).word_batches;
  b.planned.run_until(b.planned.now() + 1s);
  EXPECT_LE(b.machine.memory(app).word_batches - begin, 2U);
  EXPECT_EQ(b.process_stat(app, "kernels_completed"), 200);
}

// Invariant: kernels end back to back at their planned times although the device slept.
TEST_F(DriverAql, ALateStepLeavesNoGapsInPlannedTime) {
  std::vector<std::uint64_t> signals;
  for (unsigned i = 0; i < 200; ++i) {
    signals.push_back(b.signal(app, 0, i));
    b.publish(app, 0, {.length = 10us, .signal = signals.back()});
  }
  b.run_for(5ms - 1ms);  // The first poll has not come yet, or has just begun.
  while (b.process_stat(app, "kernels_started") == 0) b.run_for(10us);
  b.planned.run_until(b.planned.now() + 3s);
  for (unsigned i = 1; i < 200; ++i) {
    ASSERT_EQ(signal_at(signals[i]).start_ts, signal_at(signals[i - 1]).end_ts) << i;
  }
}

// Invariant: what was submitted while the device slept never starts before it was submitted.
TEST_F(DriverAql, AKernelNeverStartsBeforeItsPacketWasSeen) {
  b.machine.open_file_of(app, doorbell_fd);
  ASSERT_EQ(set_doorbell(), 0);
  b.publish(app, 0, {.length = 1ms});
  ring();
  const auto second = b.signal(app, 0, 1);
  const auto submitted = b.planned.now() + 5ms;  // In the sleep, after the first one's end.
  b.publish(app, 0, {.length = 1ms, .signal = second});
  b.planned.run_until(submitted);
  ring();
  b.run_for(10ms);
  EXPECT_EQ(stamp(signal_at(second).start_ts), submitted);
}

TEST_F(DriverAql, GoesRoundTheRing) {
  const std::uint32_t packets = ring_bytes / 64;
  const auto done = b.signal(app, 0, 0);
  for (std::uint32_t i = 0; i < 3 * packets + 7; ++i) {
    b.publish(app, 0, {.length = 1us, .signal = done});
    if (i % 500 == 499) b.run_for(20ms);
  }
  b.run_for(50ms);
  EXPECT_EQ(b.read_index(app, 0), 3 * packets + 7);
  EXPECT_EQ(signal_at(done).value, 1 - static_cast<std::int64_t>(3 * packets + 7));
}

TEST_F(DriverAql, RunsNoPacketTwiceWhenTheWriteIndexRunsAhead) {
  const std::uint32_t packets = ring_bytes / 64;
  for (std::uint32_t i = 0; i < packets; ++i) b.publish(app, 0, {.length = 1us});
  b.machine.memory(app).put(queue_area + ring_bytes + 0x38, std::uint64_t{packets} * 2);
  b.run_for(1s);
  EXPECT_EQ(b.process_stat(app, "kernels_completed"), packets)
      << "consumed slots say INVALID: not published yet";
}

TEST_F(DriverAql, ABrokenPacketStopsItsQueueWhereItIs) {
  ASSERT_EQ(b.create_queue(app, 1), 1);
  for (int i = 0; i < 4; ++i) b.publish(app, 0, {.length = 10ms});
  b.machine.memory(app).put(queue_area + 128, std::uint16_t{5});  // A barrier, the third.
  b.publish(app, 1, {.length = 100ms});
  b.run_for(1s);
  EXPECT_EQ(b.process_stat(app, "broken_queues"), 1);
  EXPECT_EQ(b.read_index(app, 0), 2U) << "those before it run";
  EXPECT_EQ(b.read_index(app, 1), 1U) << "other queues go on";
  EXPECT_EQ(b.process_stat(app, "kernels_completed"), 3);
  const auto unfinished = b.process_stat(app, "unfinished_ns");
  b.run_for(1s);
  EXPECT_EQ(b.process_stat(app, "unfinished_ns"), unfinished) << "nobody waits for it";
}

TEST_F(DriverAql, MemoryThatIsNotThereStopsTheQueue) {
  ASSERT_EQ(b.create_queue(app, 1), 1);
  b.machine.memory(app).unmap(queue_area, ring_bytes);
  b.machine.memory(app).put(queue_area + ring_bytes + 0x38, std::uint64_t{1});
  b.publish(app, 1, {.length = 1ms, .signal = 0x8000000});  // No such page.
  b.run_for(1s);
  EXPECT_EQ(b.process_stat(app, "broken_queues"), 2);
}

// Symptom it guards against: one bad address losing the completions that share its batch.
TEST_F(DriverAql, ABadSignalDoesNotSpoilTheBatch) {
  ASSERT_EQ(b.create_queue(app, 1), 1);
  auto& memory = b.machine.memory(app);
  memory.map(0x9000000, 4096);
  const auto good = b.signal(app, 1, 0);
  b.publish(app, 0, {.length = 10ms, .signal = 0x9000000 + 0x1000 - 64 + 32});
  b.publish(app, 1, {.length = 10ms, .signal = good});
  b.planned.run_until(b.planned.now() + 6ms);
  b.settle();
  b.planned.run_until(b.planned.now() + 1s);
  EXPECT_EQ(signal_at(good).value, 0);
  EXPECT_EQ(b.process_stat(app, "broken_queues"), 1);
}

TEST_F(DriverAql, Pm4AndSdmaQueuesExecuteNothing) {
  auto args = b.queue_args(1);
  args.queue_type = uapi::KFD_IOC_QUEUE_TYPE_COMPUTE;
  ASSERT_EQ(b.create_queue(app, args), 1);
  args.queue_type = uapi::KFD_IOC_QUEUE_TYPE_SDMA;
  ASSERT_EQ(b.create_queue(app, args), 2);
  b.publish(app, 1, {.length = 1ms});
  b.run_for(1s);
  EXPECT_EQ(b.process_stat(app, "kernels_started"), 0);
}

TEST_F(DriverAql, KernelsOfDifferentProcessesShareTheWaves) {
  b.open(other);
  ASSERT_EQ(b.create_queue(other, 0), 0);
  const auto slots = b.profile_.gpus[0].wave_slots();
  b.publish(app, 0, {.length = 100ms, .waves = slots});
  b.run_for(10ms);
  b.publish(other, 0, {.length = 1ms, .waves = 1});
  b.run_for(50ms);
  EXPECT_EQ(b.process_stat(other, "kernels_started"), 0);
  EXPECT_GT(b.process_stat(other, "unfinished_ns"), 40'000'000);
  b.run_for(100ms);
  EXPECT_EQ(b.process_stat(other, "kernels_completed"), 1);
}

}  // namespace
}  // namespace sluice::sim::test::driver_aql_test
