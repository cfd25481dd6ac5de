#include "queues.hpp"

#include "output.hpp"

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::cli::queues_test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr gpu_id first{51110};
constexpr gpu_id second{2};  // as small as an ordinal

/// As KFD shows them.
std::vector<driver_fact> facts(std::uint64_t node, const std::string& unique) {
  return {{.key = "node", .value = node, .text = {}},
          {.key = "unique_id", .value = unique, .text = "unique id " + unique},
          {.key = "gfx_target_version", .value = std::uint64_t{90402}, .text = "gfx 9.4.2"}};
}

node_view two_gpus() {
  node_view node;
  node.gpus.push_back({.id = first,
                       .ordinal = 0,
                       .name = "a",
                       .pci = "0000:01:00.0",
                       .vram = 1000,
                       .facts = facts(1, "0xabc")});
  node.gpus.push_back({.id = second,
                       .ordinal = 1,
                       .name = "b",
                       .pci = "0000:02:00.0",
                       .vram = {},
                       .facts = facts(2, "0xdef")});
  process_description train;
  train.pid = 4242;
  train.start_time = 9;
  train.command = "train\x1b";
  train.user = 0;
  train.vram = {{first, 600}, {second, 10}};
  train.evicted_ms = {{first, 5}};
  train.queues = {{.id = driver_queue_id{0},
                   .gpu = first,
                   .kind = queue_kind::compute,
                   .type = "compute",
                   .ring_bytes = 4096,
                   .priority = 7},
                  {.id = driver_queue_id{1},
                   .gpu = second,
                   .kind = queue_kind::copy,
                   .type = "sdma",
                   .ring_bytes = 1024,
                   .priority = {}}};
  process_description idle;
  idle.pid = 77;
  idle.command = "idle";
  idle.user = 12345;
  idle.vram = {{first, 350}};
  node.processes = {idle, train};
  return node;
}

TEST(QueuesGpu, IsFoundByEveryName) {
  const auto node = two_gpus();
  for (const auto* word : {"51110", "0", "0000:01:00.0", "0xabc", "0x0ABC"})
    EXPECT_EQ(find_gpu(node, word), &node.gpus[0]) << word;
  EXPECT_EQ(find_gpu(node, "1"), &node.gpus[1]);
  EXPECT_EQ(find_gpu(node, "2"), &node.gpus[1]) << "a gpu_id goes before an ordinal";
  for (const auto* word : {"3", "0x1", "0x", "", "gpu", "-1"})
    EXPECT_EQ(find_gpu(node, word), nullptr) << word;
}

TEST(QueuesFilter, KeepsQueuesOfAGpuAndProcessesThatHoldItsMemory) {
  auto node = two_gpus();
  EXPECT_FALSE(apply({.gpus = {"0"}}, node));
  ASSERT_THAT(node.processes, SizeIs(2));
  EXPECT_THAT(node.processes[1].queues, SizeIs(1));
  EXPECT_THAT(node.gpus, SizeIs(1));

  node = two_gpus();
  EXPECT_FALSE(apply({.gpus = {"1"}}, node));
  ASSERT_THAT(node.processes, SizeIs(1));
  EXPECT_EQ(node.processes[0].queues[0].type, "sdma");
}

TEST(QueuesFilter, KeepsTypesPidsAndUsers) {
  auto node = two_gpus();
  EXPECT_FALSE(apply({.compute = true}, node));
  ASSERT_THAT(node.processes, SizeIs(1));
  EXPECT_THAT(node.processes[0].queues, SizeIs(1));

  node = two_gpus();
  EXPECT_FALSE(apply({.pids = {77}}, node));
  ASSERT_THAT(node.processes, SizeIs(1));
  EXPECT_EQ(node.processes[0].pid, 77);

  node = two_gpus();
  EXPECT_FALSE(apply({.users = {"root"}}, node));
  ASSERT_THAT(node.processes, SizeIs(1));
  EXPECT_EQ(node.processes[0].pid, 4242);
}

TEST(QueuesFilter, NamesWhatIsNotThere) {
  auto node = two_gpus();
  EXPECT_THAT(*apply({.gpus = {"9"}}, node), HasSubstr("--gpu 9: no such GPU"));
  EXPECT_THAT(*apply({.users = {"nobody-of-that-name"}}, node), HasSubstr("no such user"));
}

TEST(QueuesWarnings, TellOfLittleMemoryLeftAndOfEvictions) {
  const auto before = two_gpus();
  auto now = two_gpus();
  // 950 of 1000 bytes.
  ASSERT_THAT(memory_warnings(before, now), SizeIs(1));
  EXPECT_THAT(memory_warnings(before, now)[0], HasSubstr("GPU 0: 950B of 1000B VRAM"));
  now.processes[0].vram[first] = 0;
  EXPECT_THAT(memory_warnings(before, now), IsEmpty());
  now.processes[1].evicted_ms[first] = 8;
  ASSERT_THAT(memory_warnings(before, now), SizeIs(1));
  EXPECT_THAT(memory_warnings(before, now)[0], HasSubstr("evicting process 4242 (train?)"));
  EXPECT_THAT(memory_warnings(before, now)[0], HasSubstr("3 ms"));
  now.processes[1].start_time = 10;
  EXPECT_THAT(memory_warnings(before, now), IsEmpty()) << "another process with that pid";
}

TEST(QueuesText, ShowsWhatADriverKnowsOfAGpu) {
  node_view node;
  node.gpus.push_back({.id = first});
  EXPECT_EQ(queues_text(node, {}, 0), "GPU 0: gpu_id 51110\nno process uses a GPU\n");
  node.gpus[0].facts = {{.key = "uuid", .value = "GPU-1", .text = "UUID GPU-1"}};
  EXPECT_THAT(queues_text(node, {}, 0), HasSubstr("GPU 0: gpu_id 51110, UUID GPU-1\n"));
  EXPECT_EQ(find_gpu(node, "GPU-1"), &node.gpus[0]);
}

TEST(QueuesText, ShowsARowForEachQueueAndProcessesWithoutAny) {
  const auto text = queues_text(
      two_gpus(),
      {.held = {{4242, {.tracer = 9, .holder = 9, .suspended = {{driver_queue_id{1}}}}}},
       .given = {{{4242, 9}, {.is = role::offline}}, {{77, 5}, {.is = role::online}}}},
      0);
  EXPECT_THAT(text, HasSubstr("GPU 0: gpu_id 51110, 0000:01:00.0, unique id 0xabc, gfx 9.4.2"));
  EXPECT_THAT(
      text,
      HasSubstr(
          " PID  USER   COMMAND  ROLE     GPU  QUEUE  TYPE     SIZE  PRIO  STATE      VRAM\n"
          "  77  12345  idle     -          -      -  -           -     -  -          350B\n"
          "4242  root   train?   offline    0      0  compute  4.0K     7  held       600B\n"
          "4242  root   train?   offline    1      1  sdma     1.0K     -  suspended   10B\n"));
}

TEST(Queues, SayWhatKeepsAnOfflineProcessFromBeingTouched) {
  about_processes known;
  roles::role_reason& why = known.given[{4242, 9}];
  why.rule = roles::role_rule::tag;
  why.says = role::offline;
  why.detail = "AMD_QUEUE_TAG=OFFLINE_AI";
  why.bar = roles::role_bar::gang_incomplete;
  why.ranks_seen = 1;
  why.ranks = 2;
  EXPECT_THAT(queues_text(two_gpus(), known, 0), ContainsRegex("train\\? +gang +0 "));
  const auto train = queues_json(two_gpus(), known, {}).at("processes").at(1);
  EXPECT_EQ(train.at("role"), "unmatched");
  EXPECT_EQ(train.at("role_rule"), "tag");
  EXPECT_EQ(train.at("role_bar"), "gang_incomplete");
  EXPECT_EQ(train.at("role_why"),
            "offline by AMD_QUEUE_TAG=OFFLINE_AI, but its gang is not complete on this node (1 of "
            "2 ranks)");
  why.bar = roles::role_bar::released;
  EXPECT_THAT(queues_text(two_gpus(), known, 0), ContainsRegex("train\\? +released +0 "));
}

TEST(QueuesText, ShowsWhoseQueuesTheDriverHasTakenOff) {
  const evictions both{{4242, first}, {4242, second}};
  const auto rows = [&](holdings held) {
    return queues_text(two_gpus(), {.held = std::move(held), .evicted = both}, 0);
  };
  EXPECT_THAT(rows({}), ContainsRegex(" compute +4.0K +7 +evicted +600B\n.* sdma .* evicted +10B"));
  EXPECT_THAT(rows({{4242, {.tracer = 9, .holder = 9, .suspended = {{driver_queue_id{1}}}}}}),
              ContainsRegex(" held\\+evicted +600B\n.* suspended\\+evicted +10B"));
  auto before = two_gpus();
  auto now = two_gpus();
  EXPECT_THAT(evicted_between(before, now), IsEmpty());
  now.processes[1].evicted_ms[first] = 8;
  EXPECT_EQ(evicted_between(before, now), (evictions{{4242, first}}));
}

TEST(QueuesText, TellsAnEmptyFilterFromAnUnusedNode) {
  auto node = two_gpus();
  node.processes.clear();
  EXPECT_THAT(queues_text(node, {}, 0), HasSubstr("no process uses a GPU\n"));
  EXPECT_THAT(queues_text(node, {.unfiltered = 2}, 0),
              HasSubstr("2 processes use the driver, but none matches the filter\n"));
}

TEST(QueuesJson, HasWhatIsUnknownAsNull) {
  const auto value = queues_json(two_gpus(),
                                 {.held = {{4242, {.tracer = 9, .holder = 0, .suspended = {}}}},
                                  .given = {{{4242, 9}, {.is = role::offline}}}},
                                 {"beware"});
  EXPECT_EQ(value.at("version").as_int64(), 1);
  EXPECT_EQ(value.at("warnings").at(0).as_string(), "beware");
  EXPECT_TRUE(value.at("gpus").at(1).at("vram_bytes").is_null());
  EXPECT_EQ(value.at("gpus").at(1).at("vram_used_bytes").to_number<int>(), 10);
  EXPECT_EQ(value.at("gpus").at(1).at("unique_id"), "0xdef");
  EXPECT_EQ(value.at("gpus").at(1).at("gfx_target_version").to_number<int>(), 90402);
  const auto& train = value.at("processes").at(1);
  EXPECT_EQ(train.at("queues").at(0).at("priority").to_number<int>(), 7);
  EXPECT_TRUE(train.at("queues").at(1).at("priority").is_null());
  EXPECT_EQ(train.at("vram_bytes").at("51110").to_number<int>(), 600);
  EXPECT_TRUE(train.at("queues").at(0).at("suspended").is_null()) << "its tracer does not tell";
  EXPECT_TRUE(train.at("queues").at(0).at("evicted").is_null()) << "one look does not tell";
  EXPECT_EQ(train.at("traced_by").to_number<int>(), 9);
  EXPECT_TRUE(train.at("held_by").is_null());
  EXPECT_EQ(train.at("role").as_string(), "offline");
  EXPECT_EQ(train.at("user").as_string(), "root");

  // Symptom: 0 bytes on a driver that shows no sizes of memory.
  auto node = two_gpus();
  for (auto& each : node.processes) each.vram.clear();
  const auto used = [&](std::size_t gpu) {
    return queues_json(node, {}, {}).at("gpus").at(gpu).at("vram_used_bytes");
  };
  EXPECT_TRUE(used(0).is_null());
  EXPECT_TRUE(used(1).is_null());
  for (auto& each : node.processes) each.queues.clear();
  EXPECT_EQ(used(0).to_number<int>(), 0);
  EXPECT_TRUE(used(1).is_null());
}

}  // namespace
}  // namespace sluice::cli::queues_test
