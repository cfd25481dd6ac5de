#include "sluice/kfd/sysfs_text.hpp"

#include <gtest/gtest.h>

namespace sluice::kfd::sysfs_text_test {
namespace {

TEST(SysfsText, KnowsTheEntriesOfAProcess) {
  const auto kind = [](std::string_view name) {
    const auto entry = parse_proc_entry(name);
    return entry ? std::optional{entry->kind} : std::nullopt;
  };
  EXPECT_EQ(kind("pasid"), proc_entry_kind::pasid);
  EXPECT_EQ(kind("queues"), proc_entry_kind::queues);
  EXPECT_EQ(kind("vram_19893"), proc_entry_kind::vram);
  EXPECT_EQ(kind("sdma_19893"), proc_entry_kind::sdma);
  EXPECT_EQ(kind("stats_19893"), proc_entry_kind::stats);
  EXPECT_EQ(kind("counters_19893"), proc_entry_kind::counters);
  EXPECT_EQ(parse_proc_entry("stats_19893")->gpu, gpu_id{19893});
  EXPECT_EQ(kind("context_2"), proc_entry_kind::context);
  EXPECT_EQ(parse_proc_entry("context_2")->number, 2U);
  for (const auto* name : {"", "vram", "vram_", "vram_x", "vram_1x", "vram_-1", "vram_1\n",
                           "vram_99999999999", "new_1"})
    EXPECT_FALSE(parse_proc_entry(name)) << name;
}

TEST(SysfsText, ReadsNumbersOnlyWhole) {
  EXPECT_EQ(parse_sysfs_number("1048576"), 1048576U);
  EXPECT_EQ(parse_sysfs_number("18446744073709551615\n"), 18446744073709551615U);
  for (const auto* text : {"", "\n", "-1", "+1", " 1", "1 ", "1\n\n", "1x", "18446744073709551616"})
    EXPECT_FALSE(parse_sysfs_number(text)) << text;
}

TEST(SysfsText, ReadsAQueueOnlyWhole) {
  const auto queue = parse_sysfs_queue("1048576", "0", "19893");
  ASSERT_TRUE(queue);
  EXPECT_EQ(queue->ring_size, 1048576U);
  EXPECT_EQ(queue->type, 0U);
  EXPECT_EQ(queue->gpu, gpu_id{19893});
  EXPECT_FALSE(parse_sysfs_queue("", "0", "19893"));
  EXPECT_FALSE(parse_sysfs_queue("1048576", "x", "19893"));
  EXPECT_FALSE(parse_sysfs_queue("1048576", "0", "19893198931989319893"));
}

}  // namespace
}  // namespace sluice::kfd::sysfs_text_test
