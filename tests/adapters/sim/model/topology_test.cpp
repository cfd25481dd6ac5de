#include "topology.hpp"

#include "profile.hpp"

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace sluice::sim::test::topology_test {
namespace {

using listing = std::vector<std::pair<std::string, std::uint64_t>>;

listing parse(const std::string& text) {
  listing out;
  std::istringstream lines{text};
  std::string key;
  for (std::uint64_t value = 0; lines >> key >> value;) out.emplace_back(key, value);
  return out;
}

std::uint64_t value_of(const std::string& text, const std::string& wanted) {
  for (const auto& [key, value] : parse(text)) {
    if (key == wanted) return value;
  }
  ADD_FAILURE() << "no " << wanted << " in\n" << text;
  return ~std::uint64_t{0};
}

profile eight_gpus() {
  auto node = default_profile();
  const auto one = node.gpus.front();
  node.gpus.assign(8, one);
  for (std::uint32_t i = 0; i < 8; ++i) node.gpus[i].gpu_id += i;
  return node;
}

// The keys and their order, as documented for the driver; a parser may go by either.
TEST(Topology, ListsAGpusPropertiesInTheDriversOrder) {
  const auto nodes = topology_of(default_profile());
  ASSERT_EQ(nodes.size(), 2U);
  std::vector<std::string> keys;
  for (const auto& [key, value] : parse(nodes[1].properties)) keys.push_back(key);
  const std::vector<std::string> expected{"cpu_cores_count",
                                          "simd_count",
                                          "mem_banks_count",
                                          "caches_count",
                                          "io_links_count",
                                          "p2p_links_count",
                                          "cpu_core_id_base",
                                          "simd_id_base",
                                          "max_waves_per_simd",
                                          "lds_size_in_kb",
                                          "gds_size_in_kb",
                                          "num_gws",
                                          "wave_front_size",
                                          "array_count",
                                          "simd_arrays_per_engine",
                                          "cu_per_simd_array",
                                          "simd_per_cu",
                                          "max_slots_scratch_cu",
                                          "gfx_target_version",
                                          "vendor_id",
                                          "device_id",
                                          "location_id",
                                          "domain",
                                          "drm_render_minor",
                                          "hive_id",
                                          "num_sdma_engines",
                                          "num_sdma_xgmi_engines",
                                          "num_sdma_queues_per_engine",
                                          "num_cp_queues",
                                          "cwsr_size",
                                          "ctl_stack_size",
                                          "max_engine_clk_fcompute",
                                          "local_mem_size",
                                          "fw_version",
                                          "capability",
                                          "debug_prop",
                                          "sdma_fw_version",
                                          "unique_id",
                                          "num_xcc",
                                          "max_engine_clk_ccompute"};
  EXPECT_EQ(keys, expected);
  EXPECT_EQ(nodes[1].properties.substr(0, 38), "cpu_cores_count 0\nsimd_count 1216\nmem_");
  // A CPU shows the same up to ctl_stack_size, and its clock.
  keys.clear();
  for (const auto& [key, value] : parse(nodes[0].properties)) keys.push_back(key);
  auto of_a_cpu = std::vector<std::string>(expected.begin(), expected.begin() + 31);
  of_a_cpu.emplace_back("max_engine_clk_ccompute");
  EXPECT_EQ(keys, of_a_cpu);
}

TEST(Topology, CountsWhatItShows) {
  for (const auto& each : topology_of(eight_gpus())) {
    EXPECT_EQ(value_of(each.properties, "mem_banks_count"), each.mem_banks.size());
    EXPECT_EQ(value_of(each.properties, "io_links_count"), each.io_links.size());
    EXPECT_EQ(value_of(each.properties, "caches_count"), each.caches.size());
  }
}

TEST(Topology, LinksEveryGpuToTheCpuAndToThoseOfItsHive) {
  auto node = eight_gpus();
  for (std::size_t i = 4; i < 8; ++i) node.gpus[i].hive_id = 77;
  node.gpus[7].hive_id = 0;
  const auto nodes = topology_of(node);
  const std::vector<std::size_t> expected{8, 4, 4, 4, 4, 3, 3, 3, 1};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    EXPECT_EQ(nodes[i].io_links.size(), expected[i]) << "node " << i;
    for (const auto& link : nodes[i].io_links) {
      EXPECT_EQ(value_of(link, "node_from"), i);
      const auto peer = value_of(link, "node_to");
      EXPECT_NE(peer, i);
      // PCIe to and from the CPU, XGMI between GPUs; and both ends know of it.
      EXPECT_EQ(value_of(link, "type"), i == 0 || peer == 0 ? 2U : 11U);
      std::size_t back = 0;
      for (const auto& other : nodes.at(peer).io_links) back += value_of(other, "node_to") == i;
      EXPECT_EQ(back, 1U);
    }
  }
}

TEST(Topology, WritesALinkToTheByte) {
  auto node = eight_gpus();
  const auto link = topology_of(node)[2].io_links[1];
  EXPECT_EQ(link,
            "type 11\nversion_major 0\nversion_minor 0\nnode_from 2\nnode_to 1\nweight 15\n"
            "min_latency 0\nmax_latency 0\nmin_bandwidth 64000\nmax_bandwidth 64000\n"
            "recommended_transfer_size 0\nrecommended_sdma_engine_id_mask 65532\nflags 1\n");
  node.abi_minor = 16;
  EXPECT_EQ(topology_of(node)[2].io_links[1].find("recommended_sdma"), std::string::npos);
}

TEST(Topology, WritesAMemoryBankToTheByte) {
  const auto nodes = topology_of(default_profile());
  EXPECT_EQ(nodes[1].mem_banks,
            std::vector<std::string>{"heap_type 1\nsize_in_bytes 206141652992\nflags 0\n"
                                     "width 8192\nmem_clk_max 1300\n"});
  EXPECT_EQ(value_of(nodes[0].mem_banks.at(0), "heap_type"), 0U);
}

// ROCr takes a GPU without a cache for a mistake.
TEST(Topology, ShowsACacheOfEachLevelThatTheGpuHas) {
  auto node = default_profile();
  const auto caches = topology_of(node)[1].caches;
  ASSERT_EQ(caches.size(), 3U);
  EXPECT_EQ(caches[0].substr(0, caches[0].find("sibling_map")),
            "processor_id_low 2147487744\nlevel 1\nsize 32\ncache_line_size 64\n"
            "cache_lines_per_tag 1\nassociation 16\nlatency 1\ntype 9\n");
  const auto siblings = [](const std::string& cache) {
    const auto map = cache.substr(cache.find("sibling_map ") + 12);
    EXPECT_EQ(map.size(), 512U);
    EXPECT_EQ(map.back(), '\n');
    return std::count(map.begin(), map.end(), '1');
  };
  EXPECT_EQ(siblings(caches[0]), 1);
  EXPECT_EQ(siblings(caches[1]), 38) << "an XCC";
  EXPECT_EQ(siblings(caches[2]), 256) << "all that are shown";
  EXPECT_EQ(value_of(caches[2], "size"), 262144U);
  node.gpus.front().l3_kib = 0;
  EXPECT_EQ(topology_of(node)[1].caches.size(), 2U);
}

TEST(Topology, GivesEveryGpuAPlaceOfItsOwn) {
  auto node = eight_gpus();
  node.gpus[3].location_id = 0xaf08;
  node.gpus[3].domain = 1;
  node.gpus[3].unique_id = 42;
  const auto nodes = topology_of(node);
  for (const auto* key : {"location_id", "drm_render_minor", "unique_id", "simd_id_base"}) {
    std::vector<std::uint64_t> values;
    for (std::size_t i = 1; i < nodes.size(); ++i) {
      const auto value = value_of(nodes[i].properties, key);
      EXPECT_EQ(std::count(values.begin(), values.end(), value), 0) << key << ' ' << value;
      values.push_back(value);
    }
  }
  EXPECT_EQ(value_of(nodes[1].properties, "location_id"), 0x100U);
  EXPECT_EQ(value_of(nodes[4].properties, "location_id"), 0xaf08U);
  EXPECT_EQ(value_of(nodes[4].properties, "domain"), 1U);
  EXPECT_EQ(value_of(nodes[4].properties, "unique_id"), 42U);
}

}  // namespace
}  // namespace sluice::sim::test::topology_test
