#include "hqds.hpp"

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::cli::hqds_test {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

constexpr gpu_id gpu{51110};

kfd::hqd slot(std::uint32_t number, std::uint64_t ring, std::uint32_t vmid) {
  kfd::hqd made;
  made.node = 1;
  made.gpu = gpu;
  made.slot = number;
  made.active = ring != 0;
  made.ring_base = ring;
  made.vmid = vmid;
  made.read = 16;
  made.write = 16 + 16 * 5;
  return made;
}

kfd::mqd queue(pid_t pid, std::uint64_t ring) {
  kfd::mqd made;
  made.pid = pid;
  made.gpu = gpu;
  made.ring_base = ring;
  return made;
}

node_view node() {
  node_view made;
  gpu_description about;
  about.id = gpu;
  made.gpus.push_back(about);
  process_description process;
  process.pid = 4242;
  process.command = "train";
  process.queues.push_back({.id = driver_queue_id{0},
                            .gpu = gpu,
                            .kind = queue_kind::compute,
                            .type = "compute",
                            .ring_bytes = 4096,
                            .priority = {}});
  made.processes.push_back(process);
  return made;
}

TEST(HqdsSlots, AreAProcesssWhereOneDescriptorFits) {
  kfd::hqds slots;
  slots.slots = {slot(0, 0x1000, 8), slot(1, 0, 0), slot(2, 0x2000, 9)};
  slots.slots.push_back(slot(0, 0x3000, 0));
  slots.slots.back().hiq = true;
  kfd::mqds queues;
  queues.queues = {queue(4242, 0x1000), queue(5, 0x2000), queue(6, 0x2000)};
  const auto taken = taken_slots(slots, queues, node());
  ASSERT_THAT(taken, SizeIs(2)) << "free slots, or the driver's own";
  EXPECT_EQ(taken[0].pid, 4242);
  EXPECT_EQ(taken[0].command, "train");
  EXPECT_EQ(taken[0].backlog, 5U);
  EXPECT_EQ(taken[1].pid, 0) << "two processes have a ring at that address";

  const auto text = hqds_text(slots, taken, node(), 0);
  EXPECT_THAT(text, HasSubstr("GPU 0: 2 of 3 compute slots in use\n"));
  EXPECT_THAT(text, HasSubstr("GPU  XCC  PIPE  SLOT  VMID  PRIO  BACKLOG   PID  COMMAND\n"
                              "  0    0     0     0     8     0        5  4242  train\n"
                              "  0    0     0     2     9     0        5     -  -\n"));
  const auto value = hqds_json(slots, taken);
  EXPECT_EQ(value.at("gpus").at(0).at("taken").to_number<int>(), 2);
  EXPECT_EQ(value.at("taken").at(0).at("backlog").to_number<int>(), 5);
  EXPECT_TRUE(value.at("taken").at(1).at("pid").is_null());
}

// Processes that were forked from one have their rings at the same address.
TEST(HqdsSlots, AreAProcesssWhoseDescriptorTheyName) {
  kfd::hqds slots;
  slots.slots = {slot(0, 0x1000, 8), slot(1, 0x1000, 9), slot(2, 0x1000, 10)};
  slots.slots[0].descriptor_address = 0xb000;
  slots.slots[1].descriptor_address = 0xa000;
  slots.slots[2].descriptor_address = 0xc000;
  kfd::mqds queues;
  queues.queues = {queue(4242, 0x1000), queue(5, 0x1000)};
  queues.queues[0].descriptor_address = 0xa000;
  queues.queues[1].descriptor_address = 0xb000;
  const auto taken = taken_slots(slots, queues, node());
  ASSERT_THAT(taken, SizeIs(3));
  EXPECT_EQ(taken[0].pid, 5);
  EXPECT_EQ(taken[1].pid, 4242);
  EXPECT_EQ(taken[2].pid, 0) << "neither's, as far as can be known";
}

// Pointers that turn with the ring: the write pointer is behind the read pointer.
TEST(HqdsSlots, CountABacklogThatWrapsAround) {
  kfd::hqds slots;
  slots.slots = {slot(0, 0x1000, 8)};
  slots.slots[0].read = 1024 - 16;  // of 1024 dwords
  slots.slots[0].write = 32;
  kfd::mqds queues;
  queues.queues = {queue(4242, 0x1000)};
  EXPECT_EQ(taken_slots(slots, queues, node())[0].backlog, 3U);
}

}  // namespace
}  // namespace sluice::cli::hqds_test
