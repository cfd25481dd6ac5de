#include "tree.hpp"

#include "profile.hpp"

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace sluice::sim {

namespace {

/// One line of a topology `properties` file (sysfs_show_64bit_prop: "%s %llu\n").
struct property {
  std::string_view key;
  std::uint64_t value;
};

std::string properties(std::initializer_list<property> all) {
  std::string text;
  for (const auto& each : all) {
    text += std::string{each.key} + " " + std::to_string(each.value) + "\n";
  }
  return text;
}

/// The CPU node: in the driver's list only because every node is numbered.
std::string cpu_properties() {
  return properties({{"cpu_cores_count", 64},
                     {"simd_count", 0},
                     {"mem_banks_count", 0},
                     {"caches_count", 0},
                     {"io_links_count", 0},
                     {"cpu_core_id_base", 0},
                     {"simd_id_base", 0},
                     {"max_waves_per_simd", 0},
                     {"lds_size_in_kb", 0},
                     {"gds_size_in_kb", 0},
                     {"num_gws", 0},
                     {"wave_front_size", 0},
                     {"array_count", 0},
                     {"simd_arrays_per_engine", 0},
                     {"cu_per_simd_array", 0},
                     {"simd_per_cu", 0},
                     {"max_slots_scratch_cu", 0},
                     {"gfx_target_version", 0},
                     {"vendor_id", 0},
                     {"device_id", 0},
                     {"location_id", 0},
                     {"domain", 0},
                     {"drm_render_minor", 0},
                     {"hive_id", 0},
                     {"num_sdma_engines", 0},
                     {"num_sdma_xgmi_engines", 0},
                     {"num_sdma_queues_per_engine", 0},
                     {"num_cp_queues", 0},
                     {"max_engine_clk_ccompute", 2400}});
}

// kfd_topology capability bits that a runtime looks at before it enables debugging.
constexpr std::uint64_t cap_watch_points = 0x80;
constexpr std::uint64_t cap_doorbell_type_2 = 2U << 12U;
constexpr std::uint64_t cap_trap_debug = 0x8000;
constexpr std::uint64_t cap_trap_debug_firmware = 0x20000000;

std::string gpu_properties(const gpu_profile& gpu, std::size_t index) {
  // gfx942 lays its compute units out as 4 shader arrays per XCC.
  const std::uint64_t arrays = std::uint64_t{4} * gpu.num_xcc;
  return properties({{"cpu_cores_count", 0},
                     {"simd_count", std::uint64_t{gpu.compute_units} * gpu.simd_per_cu},
                     {"mem_banks_count", 0},
                     {"caches_count", 0},
                     {"io_links_count", 0},
                     {"cpu_core_id_base", 0},
                     {"simd_id_base", 2147487744 + 4096 * std::uint64_t{index}},
                     {"max_waves_per_simd", gpu.waves_per_simd},
                     {"lds_size_in_kb", 64},
                     {"gds_size_in_kb", 0},
                     {"num_gws", 64},
                     {"wave_front_size", 64},
                     {"array_count", arrays},
                     {"simd_arrays_per_engine", 1},
                     {"cu_per_simd_array", (gpu.compute_units + arrays - 1) / arrays},
                     {"simd_per_cu", gpu.simd_per_cu},
                     {"max_slots_scratch_cu", 32},
                     {"gfx_target_version", gpu.gfx_target_version},
                     {"vendor_id", 0x1002},
                     {"device_id", 0x74a1},
                     {"location_id", (index + 1) << 8U},
                     {"domain", 0},
                     {"drm_render_minor", 128 + index},
                     {"hive_id", 0},
                     {"num_sdma_engines", 2},
                     {"num_sdma_xgmi_engines", 14},
                     {"num_sdma_queues_per_engine", 8},
                     {"num_cp_queues", gpu.hqd_slots},
                     {"max_engine_clk_fcompute", 2100},
                     {"local_mem_size", 0},
                     {"fw_version", 0},
                     {"capability", cap_watch_points | cap_doorbell_type_2 | cap_trap_debug |
                                        cap_trap_debug_firmware},
                     {"debug_prop", 0},
                     {"sdma_fw_version", 0},
                     {"unique_id", gpu.gpu_id},
                     {"num_xcc", gpu.num_xcc},
                     {"max_engine_clk_ccompute", 2400}});
}

}  // namespace

static_tree::static_tree(const profile& node) {
  nodes_.push_back(
      {.kind = node_kind::directory, .mode = 0555, .text = {}, .children = {}, .name = {}});
  constexpr std::uint64_t root = 1;

  const auto dev = add_directory(root, "dev");
  add(dev, "kfd", node_kind::device, 0666);  // As udev rules of ROCm installations set it.

  const auto kfd = add_directory(
      add_directory(add_directory(add_directory(root, "sys"), "class"), "kfd"), "kfd");
  add(kfd, "proc", node_kind::processes, 0555);
  const auto topology = add_directory(kfd, "topology");
  add(topology, "generation_id", node_kind::text, 0444, "2\n");
  add(topology, "system_properties", node_kind::text, 0444,
      properties({{"platform_oem", 0}, {"platform_id", 0}, {"platform_rev", 0}}));
  const auto nodes = add_directory(topology, "nodes");
  const auto add_node = [&](std::size_t index, std::uint32_t gpu_id, const std::string& name,
                            std::string text) {
    const auto directory = add_directory(nodes, std::to_string(index));
    add(directory, "gpu_id", node_kind::text, 0444, std::to_string(gpu_id) + "\n");
    add(directory, "name", node_kind::text, 0444, name + "\n");
    add(directory, "properties", node_kind::text, 0444, std::move(text));
    for (const auto* empty : {"mem_banks", "caches", "io_links"}) {
      add_directory(directory, empty);
    }
  };
  add_node(0, 0, "", cpu_properties());
  for (std::size_t i = 0; i < node.gpus.size(); ++i) {
    add_node(i + 1, node.gpus[i].gpu_id, "ip discovery", gpu_properties(node.gpus[i], i));
  }

  // debugfs is root's alone.
  add(add_directory(root, "debug", 0700), "mqds", node_kind::mqds, 0444);
  add(add_directory(root, "sim"), "stats.json", node_kind::stats, 0444);
}

std::uint64_t static_tree::child(std::uint64_t parent, std::string_view name) const noexcept {
  const auto* directory = find(parent);
  if (directory == nullptr) return 0;
  const auto found = std::find_if(directory->children.begin(), directory->children.end(),
                                  [&](std::uint64_t id) { return nodes_[id - 1].name == name; });
  return found == directory->children.end() ? 0 : *found;
}

std::uint64_t static_tree::add(std::uint64_t parent, std::string name, node_kind kind,
                               std::uint32_t mode, std::string text) {
  nodes_.push_back({.kind = kind,
                    .mode = mode,
                    .text = std::move(text),
                    .children = {},
                    .name = std::move(name)});
  nodes_[parent - 1].children.push_back(nodes_.size());
  return nodes_.size();
}

std::uint64_t static_tree::add_directory(std::uint64_t parent, std::string name,
                                         std::uint32_t mode) {
  return add(parent, std::move(name), node_kind::directory, mode);
}

}  // namespace sluice::sim
