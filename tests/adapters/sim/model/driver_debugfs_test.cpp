/// What debugfs shows, to the byte: mqds in both formats, hqds, rls.

#include "driver.hpp"
#include "driver_bench.hpp"

#include <algorithm>
#include <iomanip>
#include <sstream>

namespace sluice::sim::test::driver_debugfs_test {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in{text};
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

/// The registers of every block of `hqds` whose line is `title`, for a GPU with one XCC.
std::vector<std::vector<std::uint32_t>> blocks(const std::string& text, const std::string& title) {
  std::vector<std::vector<std::uint32_t>> out;
  bool inside = false;
  for (const auto& line : lines_of(text)) {
    if (!line.starts_with("    0")) {
      inside = line.starts_with(title);
      if (inside) out.emplace_back();
      continue;
    }
    if (!inside) continue;
    std::istringstream fields{line.substr(line.find(':') + 1)};
    std::uint32_t word = 0;
    while (fields >> std::hex >> word) out.back().push_back(word);
  }
  return out;
}

std::vector<std::vector<std::uint32_t>> slots(const driver_bench& b) {
  return blocks(b.sim->hqds(), " Inst 0,  CP Pipe");
}

/// By ring: the slot of each of the bench's queues, by area; -1: in none.
std::vector<int> slots_of_areas(const driver_bench& b, std::uint32_t areas) {
  std::vector<int> out(areas, -1);
  const auto all = slots(b);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].at(2) == 0) continue;
    const auto ring = (all[i].at(8) | std::uint64_t{all[i].at(9)} << 32U) << 8U;
    const auto area = static_cast<std::size_t>((ring - queue_area) / queue_stride);
    EXPECT_EQ(out.at(area), -1) << "in two slots";
    out.at(area) = static_cast<int>(i);
  }
  return out;
}

profile small_gpu() {
  auto node = default_profile();
  node.gpus[0].num_xcc = 1;
  node.gpus[0].hqd_slots = 4;
  return node;
}

TEST(DriverMqds, PrintsProcessesAndQueuesNewestFirst) {
  driver_bench b;
  b.open(app);
  b.open(other);
  auto args = b.queue_args(0);
  args.ring_base_address = 0x7f3a00400000;
  args.ring_size = 1U << 20U;
  args.queue_priority = 11;
  b.map_memory(app, 0, args.ring_base_address, args.ring_size);
  ASSERT_EQ(b.create_queue(app, args), 0);
  args.queue_type = uapi::KFD_IOC_QUEUE_TYPE_SDMA;
  ASSERT_EQ(b.create_queue(app, args), 1);
  const auto text = b.sim->mqds();
  // gpu_id 51110 in hexadecimal.
  EXPECT_EQ(text.find("Process 100 PASID 0x8001:\n  SDMA queue on device c7a6\n    00000000: "),
            0U);
  EXPECT_NE(text.find("\n    000001e0: 00000000 00000000 00000000 00000000 00000000 00000000 "
                      "00000000 00000000\n  Compute queue on device c7a6\n"
                      "    00000000: c0310800 00000000 "),
            std::string::npos)
      << "the SDMA descriptor has 128 words";
  EXPECT_NE(text.find("    00000220: 3a004000 0000007f "), std::string::npos) << "ring base >> 8";
  EXPECT_NE(text.find(" 00005301 00000002 0000000b 00000111\n"), std::string::npos)
      << "pipe priority, queue priority, quantum";
  EXPECT_NE(text.find("    00000240: 00000000 18084511 "), std::string::npos) << "ring size";
  EXPECT_EQ(text.substr(text.size() - std::strlen("Process 300 PASID 0x8002:\n")),
            "Process 300 PASID 0x8002:\n");
  // 8 XCCs of 64 lines, 16 lines of SDMA, 2 queue and 2 process headers.
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 8 * 64 + 16 + 4);
}

TEST(DriverMqds, PrintsThePidTwiceInTheNewStyle) {
  auto node = default_profile();
  node.header = mqds_header::lead_pid;
  driver_bench b{node};
  b.open(app);
  EXPECT_EQ(b.sim->mqds(), "Process 100 PASID 100:\n");
  EXPECT_EQ(b.sim->pasid_of(app), 0U);
}

// Symptom it guards against: pointers that are live in mqds, where hardware shows the last save.
TEST(DriverMqds, ShowsThePointersOfTheLastSave) {
  driver_bench b;
  b.open(app);
  ASSERT_EQ(b.create_queue(app, 0), 0);
  for (int i = 0; i < 3; ++i) b.publish(app, 0, {.length = 100ms});
  b.run_for(110ms);
  ASSERT_EQ(b.read_index(app, 0), 2U);
  const auto word = [&b](std::size_t index) {  // Of the newest queue's first XCC.
    const auto text = b.sim->mqds();
    const auto line = text.find("\n    00000000:") + 1 + index / 8 * 86;
    return std::stoul(text.substr(line + 14 + index % 8 * 9, 8), nullptr, 16);
  };
  EXPECT_EQ(word(138), 0U);
  EXPECT_EQ(word(182), 0U);
  ASSERT_EQ(b.create_queue(app, 1), 1);  // A cycle, and so a save.
  ASSERT_EQ(b.destroy_queue(app, 1), 0);
  EXPECT_EQ(word(130), 1U);
  EXPECT_EQ(word(138), 2 * 16U) << "words, 16 per packet";
  EXPECT_EQ(word(182), 3 * 16U);
}

TEST(DriverMqds, RepeatsAnSdmaQueueBehindAComputeQueueOnSeveralXccs) {
  auto node = default_profile();
  node.gpus[0].num_xcc = 2;
  driver_bench b{node};
  b.open(app);
  auto args = b.queue_args(0);
  args.queue_type = uapi::KFD_IOC_QUEUE_TYPE_SDMA;
  ASSERT_EQ(b.create_queue(app, args), 0);
  ASSERT_EQ(b.create_queue(app, 1), 1);
  const auto lines = lines_of(b.sim->mqds());
  ASSERT_EQ(lines.size(), 1U + 1 + 2 * 64 + 1 + 2 * 16);
  EXPECT_EQ(lines[2 + 2 * 64], "  SDMA queue on device c7a6");
  EXPECT_EQ(lines[3 + 2 * 64].substr(0, 23), "    00000000: 0080181d ");
  EXPECT_EQ(lines[3 + 2 * 64 + 16].substr(0, 23), "    00000000: 00000000 ");
}

// As in the sample of a patched driver, but for the numbers: blocks of labelled lines with an empty
// line between them.
TEST(DriverMqds, DescribesQueuesByLabelsWhereTheDriverIsPatched) {
  auto node = default_profile();
  node.format = mqds_format::labelled;
  node.gpus[0].domain = 1;
  driver_bench b{node};
  for (const pid_t pid : {app, scheduler, other}) b.open(pid);
  EXPECT_EQ(b.sim->mqds(), "");
  auto args = b.queue_args(0);
  args.ring_base_address = 0x7f8c00000000;
  b.map_memory(app, 0, args.ring_base_address, args.ring_size);
  ASSERT_EQ(b.create_queue(app, args), 0);
  ASSERT_EQ(b.create_queue(app, args), 1);
  ASSERT_EQ(b.destroy_queue(app, 0), 0);
  args.ring_base_address = 0x7f5a00000000;
  b.map_memory(other, 0, args.ring_base_address, args.ring_size);
  args.queue_priority = 2;
  args.queue_percentage = 0;  // Never mapped.
  ASSERT_EQ(b.create_queue(other, args), 0);
  EXPECT_EQ(b.sim->mqds(),
            "Compute queue on device 0001:01:00.0\n"
            "    Queue ID: 1 (0x1)\n"
            "    Address: 0x7f8c00000000\n"
            "    Process: pid 100 pasid 0x8001\n"
            "    is active: yes\n"
            "    priority: 7\n"
            "    queue count: 1\n"
            "\n"
            "Compute queue on device 0001:01:00.0\n"
            "    Queue ID: 0 (0x0)\n"
            "    Address: 0x7f5a00000000\n"
            "    Process: pid 300 pasid 0x8003\n"
            "    is active: no\n"
            "    priority: 2\n"
            "    queue count: 1\n");
}

TEST(DriverSdma, GivesOutTheEnginesInTurnAndThenNoMore) {
  auto node = default_profile();
  node.gpus[0].sdma_queues_per_engine = 2;
  node.gpus[0].sdma_xgmi_engines = 1;
  driver_bench b{node};
  b.open(app);
  auto args = b.queue_args(0);
  args.queue_type = uapi::KFD_IOC_QUEUE_TYPE_SDMA;
  const auto newest = [&b] {  // Engine and RLC: the last two words of the newest descriptor.
    const auto text = b.sim->mqds();
    const std::string last_line = "    000001e0: ";
    return text.substr(text.find(last_line) + last_line.size() + std::size_t{6} * 9, 17);
  };
  for (const auto* expected :
       {"00000000 00000000", "00000001 00000000", "00000000 00000001", "00000001 00000001"}) {
    ASSERT_GE(b.create_queue(app, args), 0);
    EXPECT_EQ(newest(), expected);
  }
  EXPECT_EQ(b.create_queue(app, args), -ENOMEM);
  ASSERT_EQ(b.destroy_queue(app, 2), 0);
  EXPECT_EQ(b.create_queue(app, args), 2) << "the id of the refused one is free as well";
  EXPECT_EQ(newest(), "00000000 00000001");
  args.queue_type = uapi::KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID;
  args.sdma_engine_id = 2;  // The first beyond the GPU's own: for links.
  ASSERT_EQ(b.create_queue(app, args), 4);
  EXPECT_EQ(newest(), "00000002 00000000");
  EXPECT_EQ(b.sim->queues_of(app).at(4).type, 4);
  args.sdma_engine_id = 3;
  EXPECT_EQ(b.create_queue(app, args), -EINVAL);
}

// The grammar, line by line: for each XCC the HIQ and every slot of KFD's, used or not, with 56
// registers; then every RLC of every SDMA engine, with gaps between its registers.
TEST(DriverHqds, PrintsEverySlotOfEveryXcc) {
  auto node = default_profile();
  node.gpus[0].num_xcc = 2;
  node.gpus[0].sdma_xgmi_engines = 0;
  node.gpus[0].sdma_queues_per_engine = 1;
  node.gpus.push_back(node.gpus[0]);
  node.gpus[1].gpu_id = 0x4db5;
  driver_bench b{node};
  const auto lines = lines_of(b.sim->hqds());
  std::size_t at = 0;
  const std::string word = " 00000000";
  const std::string eight = word + word + word + word + word + word + word + word;
  for (const auto* title : {"Node 1, gpu_id c7a6:", "Node 2, gpu_id 4db5:"}) {
    ASSERT_EQ(lines.at(at++), title);
    for (const std::string xcc : {"0", "1"}) {
      ASSERT_EQ(lines.at(at++), "   Inst " + xcc + ", HIQ on MEC 2 Pipe 0 Queue 0");
      EXPECT_EQ(lines.at(at).substr(0, 41), "    0000c914: 00a06000 0000007f 00000001 ");
      at += 7;
      // Eight rings of amdgpu's own are not KFD's: two in each pipe.
      for (const std::string pipe : {"0", "1", "2", "3"}) {
        for (const std::string queue : {"2", "3", "4", "5", "6", "7"}) {
          ASSERT_EQ(lines.at(at++), " Inst " + xcc + ",  CP Pipe " + pipe + ", Queue " + queue);
          for (const auto* address : {"c914", "c934", "c954", "c974", "c994", "c9b4", "c9d4"}) {
            ASSERT_EQ(lines.at(at++), "    0000" + std::string{address} + ":" + eight);
          }
        }
      }
    }
    for (const std::string engine : {"0", "1"}) {
      ASSERT_EQ(lines.at(at++), "  SDMA Engine " + engine + ", RLC 0");
      const std::vector<std::pair<std::uint32_t, int>> rows{
          {0x00, 8}, {0x20, 8}, {0x40, 3}, {0xa0, 6}, {0xbc, 7}, {0x100, 8}, {0x120, 4}};
      for (const auto& [offset, count] : rows) {
        std::ostringstream row;
        row << "    " << std::hex << std::setw(8) << std::setfill('0')
            << 0x4e00 + (engine == "0" ? 0U : 0x1800U) + offset << ':';
        for (int i = 0; i < count; ++i) row << word;
        ASSERT_EQ(lines.at(at++), row.str());
      }
    }
  }
  EXPECT_EQ(at, lines.size());
}

// Symptom it guards against: pointers of the registers that are as old as the descriptor's.
TEST(DriverHqds, ShowsLivePointersWhereTheDescriptorIsStale) {
  driver_bench b{small_gpu()};
  b.open(app);
  auto args = b.queue_args(0);
  args.queue_priority = 11;
  ASSERT_EQ(b.create_queue(app, args), 0);
  for (int i = 0; i < 3; ++i) b.publish(app, 0, {.length = 100ms});
  b.run_for(110ms);
  const auto seen = slots(b).at(0);
  ASSERT_EQ(seen.size(), 56U);
  EXPECT_EQ(seen[2], 1U) << "active";
  EXPECT_EQ(seen[3], 3U) << "VMID";
  EXPECT_EQ(seen[5], 2U) << "pipe priority";
  EXPECT_EQ(seen[6], 11U) << "queue priority";
  EXPECT_EQ(seen[7], 0x111U) << "quantum";
  EXPECT_EQ(seen[8] | std::uint64_t{seen[9]} << 32U, queue_area >> 8U);
  EXPECT_EQ(seen[10], 2 * 16U) << "two packets consumed, in words";
  EXPECT_EQ(seen[54], 3 * 16U) << "three written";
  EXPECT_NE(b.sim->mqds().find("    00000220: 00001000 00000000 00000000 "), std::string::npos)
      << "no save yet: the descriptor's read pointer is 0";
}

TEST(DriverHqds, KeepsAQueueInItsSlotWhileItIsMapped) {
  auto node = small_gpu();
  node.gpus[0].scheduler = queue_scheduler::mes;  // Where queues come and go one by one.
  driver_bench b{node};
  b.open(app);
  b.open(other);
  ASSERT_EQ(b.create_queue(app, 0), 0);
  ASSERT_EQ(b.create_queue(other, 1), 0);
  ASSERT_EQ(b.create_queue(app, 2), 1);
  EXPECT_EQ(slots_of_areas(b, 3), (std::vector<int>{0, 1, 2}));
  auto all = slots(b);
  EXPECT_EQ(all[0][3], 3U);
  EXPECT_EQ(all[1][3], 4U) << "another process, another VMID";
  EXPECT_EQ(all[2][3], 3U);
  ASSERT_EQ(b.destroy_queue(app, 0), 0);
  EXPECT_EQ(slots_of_areas(b, 3), (std::vector<int>{-1, 1, 2}));
  ASSERT_EQ(b.create_queue(other, 0), 1);
  EXPECT_EQ(slots_of_areas(b, 3), (std::vector<int>{0, 1, 2})) << "the lowest free one";
  EXPECT_EQ(slots(b)[0][3], 4U);
}

TEST(DriverHqds, EmptiesTheSlotOfASuspendedQueue) {
  for (const auto kind : {queue_scheduler::runlist, queue_scheduler::mes}) {
    auto node = small_gpu();
    node.gpus[0].scheduler = kind;
    driver_bench b{node};
    b.open(app);
    b.open(scheduler);
    ASSERT_EQ(b.runtime_enable(app), 0);
    ASSERT_EQ(b.create_queue(app, 0), 0);
    ASSERT_EQ(b.create_queue(app, 1), 1);
    b.machine.trace(app, scheduler);
    ASSERT_EQ(b.enable(), 0);
    b.snapshot(new_bit);
    ASSERT_EQ(b.suspend({0}).result, 1);
    const auto held = slots_of_areas(b, 2);
    EXPECT_EQ(held[0], -1);
    EXPECT_GE(held[1], 0);
    ASSERT_EQ(b.resume({0}).result, 1);
    EXPECT_GE(slots_of_areas(b, 2)[0], 0);
  }
}

// More queues than slots: all slots are printed, and who has no turn is in none of them.
TEST(DriverHqds, ShowsTheSetThatHasItsTurn) {
  driver_bench b{small_gpu()};
  b.open(app);
  for (std::uint32_t area = 0; area < 6; ++area) {
    ASSERT_EQ(b.create_queue(app, area), static_cast<int>(area));
  }
  std::vector<int> turns(6);
  for (int i = 0; i < 30; ++i) {
    const auto now = slots_of_areas(b, 6);
    const auto mapped = std::count_if(now.begin(), now.end(), [](int slot) { return slot >= 0; });
    EXPECT_TRUE(mapped == 4 || mapped == 0) << mapped;  // 0: between two sets.
    for (std::size_t area = 0; area < 6; ++area) turns[area] += now[area] >= 0 ? 1 : 0;
    b.run_for(7ms);
  }
  EXPECT_EQ(slots(b).size(), 4U);
  for (const auto each : turns) {
    EXPECT_GT(each, 0) << "never had its turn";
    EXPECT_LT(each, 30) << "always had its turn";
  }
}

TEST(DriverHqds, ShowsAnSdmaQueueAtItsEngine) {
  auto node = small_gpu();
  driver_bench b{node};
  b.open(app);
  auto args = b.queue_args(0);
  args.queue_type = uapi::KFD_IOC_QUEUE_TYPE_SDMA;
  ASSERT_EQ(b.create_queue(app, args), 0);
  ASSERT_EQ(b.create_queue(app, args), 1);
  const auto text = b.sim->hqds();
  const auto second = blocks(text, "  SDMA Engine 1, RLC 0").at(0);
  ASSERT_EQ(second.size(), 19U + 6 + 7 + 12);
  EXPECT_EQ(second[0] & 1U, 1U) << "enabled";
  EXPECT_EQ(second[1], queue_area >> 8U);
  EXPECT_EQ(blocks(text, "  SDMA Engine 1, RLC 1").at(0)[0], 0U);
  ASSERT_EQ(b.destroy_queue(app, 1), 0);
  EXPECT_EQ(blocks(b.sim->hqds(), "  SDMA Engine 1, RLC 0").at(0)[0], 0U);
}

// One MAP_PROCESS (21 words) for each process, then one MAP_QUEUES (7 words) for each active queue,
// the youngest first.
TEST(DriverRls, ListsProcessesAndActiveQueuesAsPackets) {
  driver_bench b;
  EXPECT_EQ(b.sim->rls(), "Node 1, gpu_id c7a6:\n  No active runlist\n");
  b.open(app);
  EXPECT_EQ(b.sim->rls(), "Node 1, gpu_id c7a6:\n  No active runlist\n");
  ASSERT_EQ(b.create_queue(app, 0), 0);
  const auto lines = lines_of(b.sim->rls());
  ASSERT_EQ(lines.size(), 1U + 4);
  EXPECT_EQ(lines[1].substr(0, 31), "  00000000: c013a100 14008001 0");
  EXPECT_EQ(lines[2],
            "  00000020: 00000000 00000000 00000000 00000000 00000000 00400080 00000000 00000000");
  // Its write pointer ends the packet; queue 0's doorbell is at 0.
  EXPECT_EQ(lines[3].substr(lines[3].size() - 27), " c005a200 20000010 00000000");
  EXPECT_EQ(lines[4].substr(lines[4].size() - 18), " 00110038 00000000");
  auto args = b.queue_args(1);
  args.queue_percentage = 0;
  ASSERT_EQ(b.create_queue(app, args), 1);
  EXPECT_EQ(lines_of(b.sim->rls()).size(), 1U + 4) << "an inactive queue is counted, not listed";
  EXPECT_NE(b.sim->rls().find(" 00800080 "), std::string::npos);
}

TEST(DriverRls, IsAbsentWithinACycleAndUnderMes) {
  driver_bench b;
  b.open(app);
  ASSERT_EQ(b.create_queue(app, 0), 0);
  b.map_area(app, 1);
  const auto pending = b.begin(app, uapi::AMDKFD_IOC_CREATE_QUEUE, b.queue_args(1));
  ASSERT_FALSE(pending->result) << "its cycle goes on";
  EXPECT_EQ(b.sim->rls(), "Node 1, gpu_id c7a6:\n  No active runlist\n");
  EXPECT_EQ(slots(b).at(0).at(2), 0U) << "nothing is mapped meanwhile";
  ASSERT_EQ(b.finish(*pending), 0);
  EXPECT_EQ(lines_of(b.sim->rls()).size(), 1U + 5);

  auto node = default_profile();
  node.gpus[0].scheduler = queue_scheduler::mes;
  driver_bench mes{node};
  mes.open(app);
  ASSERT_EQ(mes.create_queue(app, 0), 0);
  EXPECT_EQ(mes.sim->rls(), "Node 1, gpu_id c7a6:\n  No active runlist\n");
  EXPECT_EQ(slots(mes).at(0).at(2), 1U);
}

TEST(DriverRls, GoesOnAtItsBeginningWhenOversubscribed) {
  auto node = small_gpu();
  driver_bench b{node};
  b.open(app);
  for (std::uint32_t area = 0; area < 5; ++area) ASSERT_GE(b.create_queue(app, area), 0);
  const auto text = b.sim->rls();
  const auto words = 21 + 5 * 7 + 4;
  EXPECT_EQ(lines_of(text).size(), 1U + (words + 7) / 8);
  EXPECT_NE(text.find(" c002a500 "), std::string::npos);
}

}  // namespace
}  // namespace sluice::sim::test::driver_debugfs_test
