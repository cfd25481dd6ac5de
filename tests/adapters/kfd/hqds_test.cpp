#include "sluice/kfd/hqds.hpp"

#include "parser_pieces.hpp"
#include "test_seed.hpp"

#include <cstdio>

namespace sluice::kfd::hqds_test {
namespace {

std::string registers(std::uint64_t ring, std::uint32_t vmid, std::uint32_t read,
                      std::uint32_t write) {
  std::string lines;
  for (std::uint32_t first = 0; first < 56; first += 8) {
    char piece[16];
    std::snprintf(piece, sizeof piece, "    %08x:", 0xc914 + first * 4);
    lines += piece;
    for (std::uint32_t at = first; at < first + 8; ++at) {
      const std::uint32_t value = at == 2    ? static_cast<std::uint32_t>(vmid != 0)
                                  : at == 3  ? vmid
                                  : at == 8  ? static_cast<std::uint32_t>(ring >> 8U)
                                  : at == 9  ? static_cast<std::uint32_t>(ring >> 40U)
                                  : at == 10 ? read
                                  : at == 54 ? write
                                             : 0;
      std::snprintf(piece, sizeof piece, " %08x", value);
      lines += piece;
    }
    lines += '\n';
  }
  return lines;
}

std::string slot(int xcc, int queue, const std::string& dump) {
  return " Inst " + std::to_string(xcc) + ",  CP Pipe 0, Queue " + std::to_string(queue) + "\n" +
         dump;
}

constexpr std::uint64_t ring = 0x7f3a00400000;
const std::string node = "Node 1, gpu_id 4db5:\n";
constexpr gpu_id gpu{0x4db5};

TEST(Hqds, ReadsTheSample) {
  const hqds seen = parse_hqds(sample("hqds_v9.txt"));
  EXPECT_FALSE(seen.problems) << seen.problems.first_text;
  ASSERT_EQ(seen.slots.size(), 3U);
  EXPECT_TRUE(seen.slots[0].hiq);
  EXPECT_EQ(seen.slots[0].mec, 2U);
  EXPECT_TRUE(seen.slots[0].active);
  EXPECT_FALSE(seen.slots[1].active);
  const hqd& taken = seen.slots[2];
  EXPECT_EQ(taken.node, 1U);
  EXPECT_EQ(taken.gpu, gpu);
  EXPECT_EQ(taken.xcc, 0U);
  EXPECT_EQ(taken.pipe, 0U);
  EXPECT_EQ(taken.slot, 1U);
  EXPECT_FALSE(taken.hiq);
  EXPECT_TRUE(taken.active);
  EXPECT_EQ(taken.descriptor_address, 0x7f00a06000U);
  EXPECT_EQ(taken.vmid, 8U);
  EXPECT_EQ(taken.pipe_priority, 1U);
  EXPECT_EQ(taken.priority, 7U);
  EXPECT_EQ(taken.ring_base, ring);
  EXPECT_EQ(taken.read, 0x250U);
  EXPECT_EQ(taken.write, 0x450U);
  EXPECT_EQ(backlog(taken, 0), 32U);

  const auto uses = occupancy(seen);
  ASSERT_EQ(uses.size(), 1U);
  EXPECT_EQ(uses[0].slots, 2U);
  EXPECT_EQ(uses[0].active, 1U);
}

TEST(Hqds, CountsTheBacklogAcrossTheEndOfTheCountAndOfTheRing) {
  EXPECT_EQ(backlog(hqd{.read = 0xffffffe0, .write = 0x1'0000'0020}, 0), 4U);
  EXPECT_EQ(backlog(hqd{.read = 0xffffffe0, .write = 0x1'0000'0020}, 1U << 20U), 4U);
  // A ring of 64 packets whose registers turn with it: 1008 of 1024 dwords read, 32 written anew.
  EXPECT_EQ(backlog(hqd{.read = 1008, .write = 32}, 4096), 3U);
  EXPECT_EQ(backlog(hqd{.read = 0, .write = 1024}, 4096), 64U);
  EXPECT_EQ(backlog(hqd{.read = 512, .write = 512}, 4096), 0U);
}

TEST(Hqds, ReadsTheOlderHeadersAndAStoppedDevice) {
  const std::string dump = registers(ring, 8, 0, 16);
  const hqds seen = parse_hqds(
      "Node 1, gpu_id 4db5:\n Device is stopped\n" + std::string{"Node 2, gpu_id 5ec6:\n"} +
      "  HIQ on MEC 2 Pipe 0 Queue 0\n" + dump + "  CP Pipe 1, Queue 3\n" + dump);
  EXPECT_FALSE(seen.problems) << seen.problems.first_text;
  EXPECT_EQ(seen.stopped, (std::vector<gpu_id>{gpu}));
  ASSERT_EQ(seen.slots.size(), 2U);
  EXPECT_TRUE(seen.slots[0].hiq);
  EXPECT_EQ(seen.slots[1].gpu, gpu_id{0x5ec6});
  EXPECT_EQ(seen.slots[1].pipe, 1U);
  EXPECT_EQ(seen.slots[1].slot, 3U);
}

TEST(Hqds, TakesRegistersByPositionWhateverTheirAddress) {
  std::string dump = registers(ring, 8, 0, 32);
  for (std::size_t at = dump.find("0000c9"); at != std::string::npos; at = dump.find("0000c9"))
    dump[at + 4] = 'f';
  // Registers that do not follow one another begin a new line; the order is the same.
  const std::size_t end = dump.rfind(' ');
  const std::string last = dump.substr(end + 1, 8);
  dump = dump.substr(0, end) + "\n    0000ffff: " + last + "\n";
  const hqds seen = parse_hqds(node + slot(0, 0, dump));
  EXPECT_FALSE(seen.problems) << seen.problems.first_text;
  ASSERT_EQ(seen.slots.size(), 1U);
  EXPECT_EQ(seen.slots[0].ring_base, ring);
  EXPECT_EQ(backlog(seen.slots[0], 0), 2U);
}

TEST(Hqds, LeavesOutASlotWithALineMissing) {
  std::string dump = registers(ring, 8, 0, 32);
  const std::size_t line = dump.find("    0000c934:");
  dump.erase(line, dump.find('\n', line) + 1 - line);
  const hqds seen = parse_hqds(node + slot(0, 0, dump) + slot(0, 1, registers(ring, 8, 0, 16)));
  ASSERT_EQ(seen.slots.size(), 1U);
  EXPECT_EQ(seen.slots[0].slot, 1U);
  EXPECT_EQ(seen.problems.count, 1U);
  EXPECT_EQ(seen.problems.first_line, 2U);
  EXPECT_EQ(seen.problems.first_text, " Inst 0,  CP Pipe 0, Queue 0");
}

TEST(Hqds, GivesNoSlotToAGpuWhoseHeaderIsDamaged) {
  const std::string one = slot(0, 0, registers(ring, 8, 0, 16));
  const hqds seen = parse_hqds(node + one + "Nod\x01 2, gpu_id 5ec6:\n" + one);
  EXPECT_EQ(seen.slots.size(), 1U);
  EXPECT_EQ(seen.problems.count, 2U);
  EXPECT_EQ(seen.problems.first_text, "Nod. 2, gpu_id 5ec6:");
}

TEST(Hqds, ReadsOfATruncatedTextOnlyWholeSlots) {
  const std::string text = sample("hqds_v9.txt");
  std::size_t most = 0;
  for (std::size_t length = 0; length <= text.size(); ++length) {
    const hqds seen = parse_hqds(std::string_view{text}.substr(0, length));
    ASSERT_GE(seen.slots.size(), most);
    most = seen.slots.size();
    for (const hqd& each : seen.slots) {
      ASSERT_EQ(each.gpu, gpu);
      ASSERT_TRUE(!each.active || each.hiq || each.write == 0x450) << length;
    }
  }
  EXPECT_EQ(most, 3U);
}

TEST(Hqds, ReadsPiecesAsTheWhole) {
  const sluice::test::random_seed seed;
  std::mt19937_64 random{seed.value()};
  const std::string text = sample("hqds_v9.txt") + "nonsense\n" + sample("hqds_v9.txt");
  for (const std::size_t longest : {1U, 3U, 90U, 5000U}) {
    const hqds seen = parse_in_pieces<hqds_parser>(text, random, longest);
    EXPECT_EQ(seen.slots.size(), 6U);
    EXPECT_EQ(seen.problems.count, 1U);
    EXPECT_EQ(seen.problems.first_line, 30U);
  }
}

TEST(Hqds, ReadsAHundredMegabytesOfGarbageInBoundedMemory) {
  const hqds seen = parse_garbage<hqds_parser>(2);
  EXPECT_TRUE(seen.slots.empty());
  EXPECT_GT(seen.problems.count, 100'000U);
}

TEST(Hqds, JoinsAQueueWithItsSlotsOnEveryXcc) {
  const hqds seen =
      parse_hqds(node + slot(0, 0, registers(ring, 8, 0, 16)) + slot(0, 1, registers(0, 0, 0, 0)) +
                 slot(1, 0, registers(ring, 8, 0, 48)));
  const std::vector<queue_in_slots> queues{{.gpu = gpu, .ring_base = ring},
                                           {.gpu = gpu, .ring_base = ring + 0x1000},
                                           {.gpu = gpu_id{9}, .ring_base = ring},
                                           {.gpu = gpu, .ring_base = ring, .vmid = 9}};
  const auto loads = join(seen, queues);
  ASSERT_EQ(loads.size(), 4U);
  ASSERT_TRUE(loads[0]);
  EXPECT_EQ(loads[0]->slots, 2U);
  EXPECT_EQ(loads[0]->backlog, 3U);
  for (std::size_t other = 1; other < 4; ++other) {
    ASSERT_TRUE(loads[other]);
    EXPECT_EQ(loads[other]->slots, 0U);
  }
}

TEST(Hqds, TellsAddressSpacesApartByTheirVmidOrNotAtAll) {
  const hqds seen = parse_hqds(node + slot(0, 0, registers(ring, 8, 0, 16)) +
                               slot(0, 1, registers(ring, 9, 0, 32)));
  const std::vector<queue_in_slots> queues{{.gpu = gpu, .ring_base = ring},
                                           {.gpu = gpu, .ring_base = ring, .vmid = 9}};
  const auto loads = join(seen, queues);
  EXPECT_FALSE(loads[0]);
  ASSERT_TRUE(loads[1]);
  EXPECT_EQ(loads[1]->slots, 1U);
  EXPECT_EQ(loads[1]->backlog, 2U);
}

}  // namespace
}  // namespace sluice::kfd::hqds_test
