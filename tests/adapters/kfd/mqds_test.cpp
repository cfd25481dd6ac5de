#include "sluice/kfd/mqds.hpp"

#include "parser_pieces.hpp"
#include "test_seed.hpp"

#include <cctype>
#include <cstdio>

namespace sluice::kfd::mqds_test {
namespace {

/// The dump of a compute descriptor, with these in it and nothing else.
struct descriptor {
  std::uint64_t ring = 0x7f3a00400000;
  std::uint32_t priority = 7;

  std::string text() const {
    std::string lines;
    for (std::uint32_t first = 0; first < 512; first += 8) {
      char piece[16];
      std::snprintf(piece, sizeof piece, "    %08x:", first * 4);
      lines += piece;
      for (std::uint32_t at = first; at < first + 8; ++at) {
        std::snprintf(piece, sizeof piece, " %08x", dword(at));
        lines += piece;
      }
      lines += '\n';
    }
    return lines;
  }

 private:
  std::uint32_t dword(std::uint32_t at) const {
    switch (at) {
      case 134: return priority;
      case 136: return static_cast<std::uint32_t>(ring >> 8U);
      case 137: return static_cast<std::uint32_t>(ring >> 40U);
      default: return 0;
    }
  }
};

std::string compute(const descriptor& what = {}) {
  return "  Compute queue on device 4db5\n" + what.text();
}

void replace(std::string& text, std::string_view what, std::string_view with) {
  const std::size_t at = text.find(what);
  ASSERT_NE(at, std::string::npos) << what;
  text.replace(at, what.size(), with);
}

void expect_same(const mqds& one, const mqds& other) {
  EXPECT_EQ(one.processes, other.processes);
  EXPECT_EQ(one.problems.count, other.problems.count);
  EXPECT_EQ(one.problems.first_line, other.problems.first_line);
  EXPECT_EQ(one.problems.first_text, other.problems.first_text);
  ASSERT_EQ(one.queues.size(), other.queues.size());
  for (std::size_t index = 0; index < one.queues.size(); ++index) {
    EXPECT_EQ(one.queues[index].pid, other.queues[index].pid);
    EXPECT_EQ(one.queues[index].ring_base, other.queues[index].ring_base);
    EXPECT_EQ(one.queues[index].priority, other.queues[index].priority);
  }
}

TEST(Mqds, ReadsTheMainlineSample) {
  const mqds seen = parse_mqds(sample("mqds_v9.txt"));
  EXPECT_FALSE(seen.problems) << seen.problems.first_text;
  EXPECT_EQ(seen.processes, (std::vector<pid_t>{4242, 4300}));
  ASSERT_EQ(seen.queues.size(), 3U);

  const mqd& newest = seen.queues[0];
  EXPECT_EQ(newest.pid, 4242);
  EXPECT_EQ(newest.type, mqd_type::compute);
  EXPECT_EQ(newest.gpu, gpu_id{0x4db5});
  EXPECT_FALSE(newest.queue);
  EXPECT_EQ(newest.ring_base, 0x7f3a00500000U);
  EXPECT_EQ(newest.descriptor_address, 0x7f00a06000U);
  EXPECT_EQ(newest.priority, 11U);
  EXPECT_EQ(newest.pipe_priority, 2U);
  EXPECT_EQ(newest.active, false);
  EXPECT_EQ(newest.read_pointer_address, 0x7f3a10201080U);
  EXPECT_EQ(newest.write_pointer_address, 0x7f3a10201038U);
  EXPECT_EQ(newest.aql, true);
  EXPECT_EQ(newest.descriptors, 1U);

  EXPECT_EQ(seen.queues[1].type, mqd_type::sdma);
  EXPECT_EQ(seen.queues[1].ring_base, 0x3a102000U);
  EXPECT_FALSE(seen.queues[1].priority);

  const mqd& oldest = seen.queues[2];
  EXPECT_EQ(oldest.ring_base, 0x7f3a00400000U);
  EXPECT_EQ(oldest.priority, 7U);
  EXPECT_EQ(oldest.active, true);
  EXPECT_EQ(oldest.quantum, 0x111U);
  EXPECT_EQ(oldest.saved_read, 0x250U);
  EXPECT_EQ(oldest.saved_write, 0x450U);
  EXPECT_EQ(oldest.read_pointer_address - oldest.write_pointer_address, 0x48U);
}

TEST(Mqds, ReadsThePatchedSample) {
  const mqds seen = parse_mqds(sample("mqds_patched.txt"));
  EXPECT_FALSE(seen.problems) << seen.problems.first_text;
  ASSERT_EQ(seen.queues.size(), 2U);
  const mqd& first = seen.queues[0];
  EXPECT_EQ(first.pid, 15234);
  EXPECT_EQ(first.queue, driver_queue_id{1});
  EXPECT_EQ(first.gpu, gpu_id::none);
  EXPECT_EQ(first.location, (pci_location{1, 0x100}));
  EXPECT_EQ(first.ring_base, 0x7f8c00000000U);
  EXPECT_EQ(first.active, true);
  EXPECT_EQ(first.priority, 7U);
  EXPECT_EQ(first.write_pointer_address, 0U);
  const mqd& second = seen.queues[1];
  EXPECT_EQ(second.pid, 12345);
  EXPECT_EQ(second.active, false);
  EXPECT_EQ(second.priority, 2U);
}

TEST(Mqds, ReadsBothGrammarsInOneText) {
  const std::string mainline = sample("mqds_v9.txt");
  const std::string patched = sample("mqds_patched.txt");
  const mqds seen = parse_mqds(mainline + patched + mainline + patched);
  EXPECT_FALSE(seen.problems) << seen.problems.first_text;
  ASSERT_EQ(seen.queues.size(), 10U);
  EXPECT_EQ(seen.queues[2].pid, 4242);
  EXPECT_EQ(seen.queues[3].pid, 15234);
  EXPECT_EQ(seen.queues[7].priority, 7U);
  EXPECT_EQ(seen.queues[9].pid, 12345);
}

TEST(Mqds, GivesNoQueueAfterALabelledOneToTheProcessBeforeIt) {
  const mqds seen =
      parse_mqds("Process 4242 PASID 0x8001:\n" + sample("mqds_patched.txt") + compute());
  ASSERT_EQ(seen.queues.size(), 2U);
  EXPECT_EQ(seen.queues[1].pid, 12345);
  EXPECT_EQ(seen.problems.count, 1U);
}

TEST(Mqds, ReadsTheNewerProcessHeader) {
  const mqds seen = parse_mqds("Process 4242 PASID 4250:\n" + compute());
  EXPECT_FALSE(seen.problems);
  ASSERT_EQ(seen.queues.size(), 1U);
  EXPECT_EQ(seen.queues[0].pid, 4242);
}

TEST(Mqds, TakesTheDescriptorsOfSeveralXccsForOneQueue) {
  const descriptor one{.ring = 0x7f0000001000, .priority = 3};
  const descriptor other{.ring = 0x7f0000002000, .priority = 11};
  const mqds seen = parse_mqds("Process 7 PASID 0x8001:\n  Compute queue on device 4db5\n" +
                               one.text() + one.text() + one.text() + compute(other));
  EXPECT_FALSE(seen.problems) << seen.problems.first_text;
  ASSERT_EQ(seen.queues.size(), 2U);
  EXPECT_EQ(seen.queues[0].descriptors, 3U);
  EXPECT_EQ(seen.queues[0].priority, 3U);
  EXPECT_EQ(seen.queues[1].descriptors, 1U);
  EXPECT_EQ(seen.queues[1].priority, 11U);
}

TEST(Mqds, DoesNotTrustAnSdmaDescriptorThatIsRepeated) {
  std::string text = sample("mqds_v9.txt");
  const std::size_t begin = text.find("  SDMA queue");
  const std::size_t dump = text.find('\n', begin) + 1;
  const std::size_t end = text.find("  Compute queue", begin);
  text.insert(end, text.substr(dump, end - dump));
  const mqds seen = parse_mqds(text);
  EXPECT_FALSE(seen.problems) << seen.problems.first_text;
  ASSERT_EQ(seen.queues.size(), 3U);
  EXPECT_EQ(seen.queues[1].type, mqd_type::sdma);
  EXPECT_EQ(seen.queues[1].ring_base, 0U);
  EXPECT_EQ(seen.queues[2].ring_base, 0x7f3a00400000U);
}

TEST(Mqds, KnowsTheRarerKindsOfQueue) {
  const mqds seen =
      parse_mqds("Process 7 PASID 0x8001:\n  DIQ on device 4db5\n" + descriptor{}.text() +
                 "  Bad user queue type 9 on device 4db5\n" + compute());
  EXPECT_FALSE(seen.problems) << seen.problems.first_text;
  ASSERT_EQ(seen.queues.size(), 3U);
  EXPECT_EQ(seen.queues[0].type, mqd_type::diq);
  EXPECT_EQ(seen.queues[0].ring_base, 0U);
  EXPECT_EQ(seen.queues[1].type, mqd_type::other);
  EXPECT_EQ(seen.queues[2].priority, 7U);
}

TEST(Mqds, SkipsAnUnknownLineWithinAQueueAndNamesIt) {
  std::string text = "Process 7 PASID 0x8001:\n" + compute();
  replace(text, "    00000100:", "    a line of\tlater years\n    00000100:");
  const mqds seen = parse_mqds(text);
  EXPECT_EQ(seen.queues.size(), 1U);
  EXPECT_EQ(seen.problems.count, 1U);
  EXPECT_EQ(seen.problems.first_line, 11U);
  EXPECT_EQ(seen.problems.first_text, "    a line of.later years");

  text = sample("mqds_patched.txt");
  replace(text, "    priority: 7", "    colour: green\n    priority: 7");
  const mqds labelled = parse_mqds(text);
  ASSERT_EQ(labelled.queues.size(), 2U);
  EXPECT_EQ(labelled.queues[0].priority, 7U);
  EXPECT_EQ(labelled.problems.count, 1U);
}

TEST(Mqds, GivesNoQueueToAProcessWhoseHeaderIsDamaged) {
  const mqds seen =
      parse_mqds("Process 7 PASID 0x8001:\n" + compute() + "Proce\x01s 8 PASID 0x8002:\n" +
                 compute() + "Process 9 PASID 0x8003:\n" + compute());
  ASSERT_EQ(seen.queues.size(), 2U);
  EXPECT_EQ(seen.queues[0].pid, 7);
  EXPECT_EQ(seen.queues[1].pid, 9);
  EXPECT_EQ(seen.problems.count, 2U);  // the header, and the queue that is nobody's
  EXPECT_EQ(seen.problems.first_text, "Proce.s 8 PASID 0x8002:");
}

TEST(Mqds, LeavesOutWhatHasLostLines) {
  // From the middle of one process's queue to the middle of another's: what follows fits together,
  // but belongs to the second.
  const std::string one = "Process 7 PASID 0x8001:\n" + compute();
  const std::string two = "Process 8 PASID 0x8002:\n" + compute() + compute();
  const std::string text =
      one.substr(0, one.find("    00000240:")) + two.substr(two.find("    00000260:"));
  const mqds seen = parse_mqds(text);
  EXPECT_TRUE(seen.queues.empty());
  EXPECT_NE(seen.problems.count, 0U);
}

TEST(Mqds, TakesNoQueueWhoseHeaderIsLostForAnXccOfTheOneBefore) {
  std::string text = "Process 7 PASID 0x8001:\n" + compute() +
                     descriptor{.ring = 0x7f0000001000}.text() + compute();
  const mqds seen = parse_mqds(text);
  EXPECT_TRUE(seen.queues.empty());
  EXPECT_NE(seen.problems.count, 0U);
}

TEST(Mqds, DamagedDigitsSpoilOnlyTheirQueue) {
  std::string damaged = "Process 7 PASID 0x8001:\n" + compute() + compute();
  damaged[damaged.find("    00000220: ") + 15] = 'z';
  const mqds seen = parse_mqds(damaged);
  ASSERT_EQ(seen.queues.size(), 1U);
  EXPECT_EQ(seen.queues[0].pid, 7);
  EXPECT_EQ(seen.problems.count, 2U);  // the line and its queue
}

TEST(Mqds, RefusesEveryByteThatDoesNotBelongWhereItStands) {
  // A queue of a kind whose descriptor may have any length. Its first line and those after it are
  // not read in the same way.
  const std::string header = "Process 7 PASID 0x8001:\n  DIQ on device 4db5\n";
  constexpr std::size_t line = 86;
  const std::string text = header + descriptor{}.text().substr(0, 3 * line);
  for (std::size_t at = 0; at < 2 * line; ++at) {
    const std::size_t column = at % line;
    if (column == line - 1) continue;
    const bool digit = column >= 13 && (column - 13) % 9 != 0;
    for (int byte = 0; byte <= 0xff; ++byte) {
      if (byte == '\n') continue;  // Makes two lines of it, and the first may be a short one.
      std::string changed = text;
      changed[header.size() + at] = static_cast<char>(byte);
      const bool fits = digit ? std::isxdigit(byte) != 0 : changed == text;
      const mqds seen = parse_mqds(changed);
      ASSERT_EQ(seen.problems.count == 0, fits) << "byte " << byte << " at " << at;
      // What comes before a line that is none may be a queue of its own.
      if (fits || at < line) {
        ASSERT_EQ(seen.queues.size(), fits ? 1U : 0U) << "byte " << byte << " at " << at;
      }
    }
  }
}

TEST(Mqds, ReadsOfATruncatedTextOnlyWhatIsComplete) {
  const std::string text = sample("mqds_v9.txt") + sample("mqds_patched.txt");
  const mqds whole = parse_mqds(text);
  std::size_t most = 0;
  for (std::size_t length = 0; length < text.size(); length += length % 97 == 0 ? 1 : 7) {
    const mqds seen = parse_mqds(std::string_view{text}.substr(0, length));
    ASSERT_LE(seen.queues.size(), whole.queues.size());
    ASSERT_GE(seen.queues.size(), most);
    most = seen.queues.size();
    for (std::size_t index = 0; index < seen.queues.size(); ++index) {
      ASSERT_EQ(seen.queues[index].pid, whole.queues[index].pid);
      ASSERT_TRUE(!seen.queues[index].priority ||
                  seen.queues[index].priority == whole.queues[index].priority);
      if (seen.queues[index].type == mqd_type::compute) {
        ASSERT_EQ(seen.queues[index].ring_base, whole.queues[index].ring_base);
      }
    }
  }
}

TEST(Mqds, ReadsPiecesAsTheWhole) {
  const sluice::test::random_seed seed;
  std::mt19937_64 random{seed.value()};
  const std::string text = sample("mqds_v9.txt") + "nonsense\n" + sample("mqds_patched.txt") +
                           std::string(1000, 'x') + "\n" + sample("mqds_v9.txt");
  const mqds whole = parse_mqds(text);
  EXPECT_EQ(whole.queues.size(), 8U);
  EXPECT_EQ(whole.problems.count, 2U);
  for (const std::size_t longest : {1U, 3U, 90U, 5000U})
    expect_same(parse_in_pieces<mqds_parser>(text, random, longest), whole);
}

TEST(Mqds, NeverMakesUpAQueueFromDamagedText) {
  const sluice::test::random_seed seed;
  std::mt19937_64 random{seed.value()};
  // Ring bases tell which process a queue belongs to; no two pids can be cut into a third.
  std::string text;
  for (std::uint32_t pid = 1; pid <= 4; ++pid) {
    text += "Process " + std::to_string(pid * 11111) + " PASID 0x8001:\n";
    for (std::uint32_t each = 0; each < 3; ++each)
      text += compute({.ring = std::uint64_t{pid} << 40U | each << 12U, .priority = pid});
  }
  for (int round = 0; round < 300; ++round) {
    // Shorter than a queue: a cut from within one queue to the very same place in another leaves no
    // trace.
    std::string damaged = text;
    damaged.erase(random() % damaged.size(), 1 + random() % 5000);
    for (const mqd& each : parse_mqds(damaged).queues) {
      if (each.pid % 11111 != 0) continue;  // a header cut within its digits
      ASSERT_EQ(each.ring_base >> 40U, static_cast<std::uint64_t>(each.pid) / 11111);
      ASSERT_EQ(each.priority, static_cast<std::uint32_t>(each.pid) / 11111);
    }
  }
}

TEST(Mqds, ReadsAHundredMegabytesOfGarbageInBoundedMemory) {
  const mqds seen = parse_garbage<mqds_parser>(1);
  EXPECT_TRUE(seen.queues.empty());
  EXPECT_GT(seen.problems.count, 100'000U);
  EXPECT_EQ(seen.problems.first_line, 1U);
  EXPECT_LE(seen.problems.first_text.size(), 60U);
}

TEST(Mqds, KeepsNoMoreThanItsLimit) {
  mqds_parser parser;
  std::string piece = "Process 7 PASID 0x8001:\n";
  for (int each = 0; each < 1000; ++each) piece += "  Bad user queue type 9 on device 4db5\n";
  for (int round = 0; round < 100; ++round) parser.feed(piece);
  const mqds seen = parser.finish();
  EXPECT_EQ(seen.queues.size(), mqds_parser::most);
  EXPECT_EQ(seen.problems.count, 100'000U - mqds_parser::most);
}

TEST(Mqds, JoinsQueuesByTheirRing) {
  const mqds seen = parse_mqds(sample("mqds_v9.txt") + sample("mqds_patched.txt"));
  const gpu_id gpu{0x4db5};
  const std::vector<queue_ring> queues{{driver_queue_id{0}, gpu, 0x7f3a00400000},
                                       {driver_queue_id{2}, gpu, 0x7f3a00500000},
                                       {driver_queue_id{3}, gpu, 0x7f3a00600000},
                                       {driver_queue_id{4}, gpu_id{9}, 0x7f3a00500000}};
  const auto found = join(seen, 4242, queues);
  ASSERT_EQ(found.size(), 4U);
  ASSERT_NE(found[0], nullptr);
  EXPECT_EQ(found[0]->priority, 7U);
  ASSERT_NE(found[1], nullptr);
  EXPECT_EQ(found[1]->priority, 11U);
  EXPECT_EQ(found[2], nullptr);
  EXPECT_EQ(found[3], nullptr);
  EXPECT_EQ(join(seen, 4300, queues)[0], nullptr);

  const std::vector<queue_ring> labelled{{driver_queue_id{1}, gpu, 0x7f8c00000000},
                                         {driver_queue_id{5}, gpu, 0x7f8c00000000}};
  EXPECT_NE(join(seen, 15234, labelled)[0], nullptr);
  EXPECT_EQ(join(seen, 15234, labelled)[1], nullptr);
}

TEST(Mqds, JoinsNothingWhereTwoDescriptorsFit) {
  const mqds seen = parse_mqds("Process 7 PASID 0x8001:\n" + compute() + compute());
  const std::vector<queue_ring> queues{{driver_queue_id{0}, gpu_id{0x4db5}, 0x7f3a00400000}};
  EXPECT_EQ(join(seen, 7, queues)[0], nullptr);
}

}  // namespace
}  // namespace sluice::kfd::mqds_test
