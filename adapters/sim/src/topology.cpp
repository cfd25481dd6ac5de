#include "topology.hpp"

#include "profile.hpp"

#include <initializer_list>
#include <string_view>

namespace sluice::sim {

namespace {

/// sysfs_show_32bit_prop, sysfs_show_64bit_prop: "%s %u\n", "%s %llu\n".
struct property {
  std::string_view key;
  std::uint64_t value;
};

std::string properties(std::initializer_list<property> all) {
  std::string text;
  for (const auto& each : all) {
    text += each.key;
    text += ' ' + std::to_string(each.value) + '\n';
  }
  return text;
}

// kfd_crat.h.
constexpr std::uint32_t link_pcie = 2;
constexpr std::uint32_t link_xgmi = 11;
constexpr std::uint32_t link_enabled = 1;
constexpr std::uint32_t pcie_weight = 20;
constexpr std::uint32_t xgmi_weight = 15;  // For each hop; within a hive there is one.
constexpr std::uint32_t heap_system = 0;
constexpr std::uint32_t heap_frame_buffer_public = 1;  // All of it visible: a large BAR.

constexpr std::uint32_t cpu_cores = 64;  // Assumption.

/// mem_show().
std::string memory_bank(std::uint32_t heap, std::uint64_t bytes, std::uint32_t width,
                        std::uint32_t clock) {
  return properties({{"heap_type", heap},
                     {"size_in_bytes", bytes},
                     {"flags", 0},
                     {"width", width},
                     {"mem_clk_max", clock}});
}

/// cache_show(). \param siblings how many compute units share it; 256 at most are shown.
std::string cache(std::uint32_t level, std::uint32_t kib, std::uint64_t first_simd,
                  std::uint32_t siblings) {
  constexpr std::uint32_t data_of_a_gpu = 1 | 8;  // HSA_CACHE_TYPE_DATA, HSA_CACHE_TYPE_HSACU.
  constexpr std::uint32_t mapped = 256;           // CRAT_SIBLINGMAP_SIZE, in bits.
  std::string text = properties({{"processor_id_low", first_simd},
                                 {"level", level},
                                 {"size", kib},
                                 {"cache_line_size", level == 1 ? 64U : 128U},
                                 {"cache_lines_per_tag", 1},
                                 {"association", 16},
                                 {"latency", 1},
                                 {"type", data_of_a_gpu}});
  text += "sibling_map ";
  for (std::uint32_t i = 0; i < mapped; ++i) text += i < siblings ? "1," : "0,";
  text.back() = '\n';
  return text;
}

/// kfd_set_recommended_sdma_engines(): all engines for this kind of link. For links between eight
/// MI300X, the driver has a table with one engine for each link, which is not simulated.
std::uint64_t recommended_engines(const gpu_profile& gpu, bool pcie) {
  const auto lowest = [](std::uint32_t count) { return (std::uint64_t{1} << count) - 1; };
  if (pcie || gpu.sdma_xgmi_engines == 0) return lowest(gpu.sdma_engines);
  return lowest(gpu.sdma_xgmi_engines) << gpu.sdma_engines;
}

/// iolink_show(). Bandwidths in MB/s: one lane of the slowest PCIe generation to 16 of the fifth
/// (the form amdgpu_amdkfd_get_pcie_bandwidth_mbytes gives them), and one XGMI link of MI300X
/// (data sheet: 64 GB/s each way).
std::string io_link(const profile& node, std::uint32_t type, std::size_t from, std::size_t to) {
  const bool pcie = type == link_pcie;
  std::string text = properties({{"type", type},
                                 {"version_major", 0},
                                 {"version_minor", 0},
                                 {"node_from", from},
                                 {"node_to", to},
                                 {"weight", pcie ? pcie_weight : xgmi_weight},
                                 {"min_latency", 0},
                                 {"max_latency", 0},
                                 {"min_bandwidth", pcie ? 312U : 64000U},
                                 {"max_bandwidth", 64000},
                                 {"recommended_transfer_size", 0}});
  // Came together with the engine ids of CREATE_QUEUE.
  if (node.abi_minor >= 17) {
    const auto& gpu = node.gpus[std::max(from, to) - 1];
    text += properties({{"recommended_sdma_engine_id_mask", recommended_engines(gpu, pcie)}});
  }
  return text + properties({{"flags", link_enabled}});
}

/// node_show(): what CPUs and GPUs show alike.
struct node_properties {
  std::uint64_t cpu_cores_count, simd_count, mem_banks_count, caches_count, io_links_count,
      simd_id_base, max_waves_per_simd, lds_size_in_kb, num_gws, wave_front_size, array_count,
      simd_arrays_per_engine, cu_per_simd_array, simd_per_cu, max_slots_scratch_cu,
      gfx_target_version, vendor_id, device_id, location_id, domain, drm_render_minor, hive_id,
      num_sdma_engines, num_sdma_xgmi_engines, num_sdma_queues_per_engine, num_cp_queues, cwsr_size,
      ctl_stack_size;
};

std::string common(const profile& node, const node_properties& p) {
  return properties({{"cpu_cores_count", p.cpu_cores_count},
                     {"simd_count", p.simd_count},
                     {"mem_banks_count", p.mem_banks_count},
                     {"caches_count", p.caches_count},
                     {"io_links_count", p.io_links_count},
                     {"p2p_links_count", 0},  // By its absence, libraries know an old driver.
                     {"cpu_core_id_base", 0},
                     {"simd_id_base", p.simd_id_base},
                     {"max_waves_per_simd", p.max_waves_per_simd},
                     {"lds_size_in_kb", p.lds_size_in_kb},
                     {"gds_size_in_kb", 0},
                     {"num_gws", p.num_gws},
                     {"wave_front_size", p.wave_front_size},
                     {"array_count", p.array_count},
                     {"simd_arrays_per_engine", p.simd_arrays_per_engine},
                     {"cu_per_simd_array", p.cu_per_simd_array},
                     {"simd_per_cu", p.simd_per_cu},
                     {"max_slots_scratch_cu", p.max_slots_scratch_cu},
                     {"gfx_target_version", p.gfx_target_version},
                     {"vendor_id", p.vendor_id},
                     {"device_id", p.device_id},
                     {"location_id", p.location_id},
                     {"domain", p.domain},
                     {"drm_render_minor", p.drm_render_minor},
                     {"hive_id", p.hive_id},
                     {"num_sdma_engines", p.num_sdma_engines},
                     {"num_sdma_xgmi_engines", p.num_sdma_xgmi_engines},
                     {"num_sdma_queues_per_engine", p.num_sdma_queues_per_engine},
                     {"num_cp_queues", p.num_cp_queues}}) +
         // Linux 6.12
         (node.abi_minor >= 17
              ? properties({{"cwsr_size", p.cwsr_size}, {"ctl_stack_size", p.ctl_stack_size}})
              : "");
}

constexpr std::uint64_t simd_id_base(std::size_t index) { return 2147487744 + 4096 * index; }

std::string gpu_properties(const profile& node, std::size_t index, std::size_t caches,
                           std::size_t links) {
  const gpu_profile& gpu = node.gpus[index];
  node_properties p{};
  p.caches_count = caches;
  p.simd_count = std::uint64_t{gpu.compute_units} * gpu.simd_per_cu;
  p.mem_banks_count = 1;
  p.io_links_count = links;
  p.simd_id_base = simd_id_base(index);
  p.max_waves_per_simd = gpu.waves_per_simd;
  p.lds_size_in_kb = 64;
  p.num_gws = 64;
  p.wave_front_size = gpu.wave_front_size;
  p.array_count = gpu.shader_arrays;
  p.simd_arrays_per_engine = gpu.arrays_per_engine;
  p.cu_per_simd_array = (gpu.compute_units + gpu.shader_arrays - 1) / gpu.shader_arrays;
  p.simd_per_cu = gpu.simd_per_cu;
  p.max_slots_scratch_cu = 32;
  p.gfx_target_version = gpu.gfx_target_version;
  p.vendor_id = 0x1002;
  p.device_id = gpu.device_id;
  p.location_id = gpu.location(index);
  p.domain = gpu.domain;
  p.drm_render_minor = first_render_minor + index;
  p.hive_id = gpu.hive_id;
  p.num_sdma_engines = gpu.sdma_engines;
  p.num_sdma_xgmi_engines = gpu.sdma_xgmi_engines;
  p.num_sdma_queues_per_engine = gpu.sdma_queues_per_engine;
  p.num_cp_queues = gpu.hqd_slots;
  // A serial number has its highest bits set; 16 of them may come from the GPU's id.
  const auto unique_id =
      gpu.unique_id != 0 ? gpu.unique_id : 0x5a00'0000'0000'0000U | std::uint64_t{gpu.gpu_id};
  const auto saved = save_area_of(gpu);
  p.cwsr_size = saved.context;
  p.ctl_stack_size = saved.control_stack;
  return common(node, p) + properties({{"max_engine_clk_fcompute", 2100},
                                       {"local_mem_size", 0},  // Always: the memory banks tell it.
                                       {"fw_version", gpu.fw_version},
                                       {"capability", capability_of(gpu)},
                                       {"debug_prop", debug_properties_of(gpu)},
                                       {"sdma_fw_version", gpu.sdma_fw_version},
                                       {"unique_id", unique_id},
                                       {"num_xcc", gpu.num_xcc},
                                       {"max_engine_clk_ccompute", 2400}});
}

}  // namespace

std::uint32_t capability_of(const gpu_profile& gpu) {
  constexpr std::uint32_t watch_points = 0x80U | 2U << 8U;  // 2 to the power of 2.
  constexpr std::uint32_t doorbells_of_8_bytes = 2U << 12U;
  constexpr std::uint32_t trap_debug = 0x8000U, trap_override = 0x10000U, launch_mode = 0x20000U;
  constexpr std::uint32_t firmware_supports_it = 0x20000000U;
  const auto version = gpu.gfx_target_version;
  std::uint32_t out = watch_points | doorbells_of_8_bytes | trap_debug | trap_override |
                      launch_mode | firmware_supports_it;
  if (version >= 90010 && version < 100000) out |= capability_precise_memory;
  if (version >= 120000) out |= capability_precise_alu;
  return out;
}

std::uint32_t debug_properties_of(const gpu_profile& gpu) {
  constexpr std::uint32_t dispatch_info_always_valid = 0x400;
  constexpr auto compared = [](std::uint32_t lowest, std::uint32_t highest) {
    return lowest | highest << 4U;
  };
  const auto version = gpu.gfx_target_version;
  const bool gfx9_4_3 = version >= 90400 && version < 90500;
  // kfd_dbg_has_ttmps_always_setup
  const bool always = (version < 110000 && version != 90010) || version >= 110000;
  return (gfx9_4_3           ? compared(7, 30)
          : version < 100000 ? compared(6, 29)
                             : compared(7, 29)) |
         (always ? dispatch_info_always_valid : 0);
}

save_area_sizes save_area_of(const gpu_profile& gpu) {
  constexpr auto whole_pages = [](std::uint64_t size) { return (size + 4095) / 4096 * 4096; };
  constexpr std::uint64_t sgprs = 0x4000, lds = 0x10000, registers = 0x1000;  // Of a compute unit.
  constexpr std::uint64_t header = 40, debugger_of_wave = 32, debugger_align = 64;
  const auto version = gpu.gfx_target_version;
  const std::uint64_t units = gpu.compute_units / gpu.num_xcc;
  const std::uint64_t engines = gpu.shader_arrays / gpu.arrays_per_engine;
  const bool navi = version >= 100100;
  const std::uint64_t waves = navi ? units * 32 : std::min(units * 40, engines * 512);
  std::uint64_t vgprs = 0x40000;
  if (version / 100 == 904 || version == 90010 || version == 90008) vgprs = 0x80000;
  if (version == 110000 || version == 110001 || version == 110501 || version / 100 == 1200)
    vgprs = 0x60000;
  save_area_sizes out;
  out.control_stack = whole_pages(header + waves * (navi ? 12 : 8) + 8);
  // What the hardware of gfx10 can address.
  if (version / 10000 == 10) out.control_stack = std::min<std::uint64_t>(out.control_stack, 0x7000);
  out.context = out.control_stack + whole_pages(units * (vgprs + sgprs + lds + registers));
  out.debugger = (waves * debugger_of_wave + debugger_align - 1) / debugger_align * debugger_align;
  return out;
}

std::vector<topology_node> topology_of(const profile& node) {
  const auto count = node.gpus.size();
  std::vector<topology_node> out(count + 1);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& gpu = node.gpus[i];
    const auto number = i + 1;
    auto& here = out[number];
    here.gpu_id = gpu.gpu_id;
    here.name = "ip discovery";  // amdgpu_asic_name of every GPU found by its discovery table.
    here.mem_banks.push_back(
        memory_bank(heap_frame_buffer_public, gpu.memory_mib << 20U, gpu.memory_width, 1300));
    // The link to the CPU first, then those to peers; all are seen from both ends.
    here.io_links.push_back(io_link(node, link_pcie, number, 0));
    out[0].io_links.push_back(io_link(node, link_pcie, 0, number));
    for (std::size_t k = 0; k < count; ++k) {
      if (k == i || gpu.hive_id == 0 || node.gpus[k].hive_id != gpu.hive_id) continue;
      here.io_links.push_back(io_link(node, link_xgmi, number, k + 1));
    }
    std::uint32_t level = 0;
    for (const auto kib : {gpu.l1_kib, gpu.l2_kib, gpu.l3_kib}) {
      ++level;
      if (kib == 0) continue;
      const auto siblings = level == 1 ? 1 : gpu.compute_units / (level == 2 ? gpu.num_xcc : 1);
      here.caches.push_back(cache(level, kib, simd_id_base(i), siblings));
    }
    here.properties = gpu_properties(node, i, here.caches.size(), here.io_links.size());
  }
  node_properties cpu{};
  cpu.cpu_cores_count = cpu_cores;
  cpu.mem_banks_count = 1;
  cpu.io_links_count = count;
  out[0].mem_banks.push_back(memory_bank(heap_system, cpu_memory, 64, 2400));
  out[0].properties = common(node, cpu) + properties({{"max_engine_clk_ccompute", 2400}});
  return out;
}

std::string system_properties() {
  return properties({{"platform_oem", 0}, {"platform_id", 0}, {"platform_rev", 0}});
}

}  // namespace sluice::sim
