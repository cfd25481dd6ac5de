// AMD's driver under `sluice accept`.

#include "tested_driver.hpp"

#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "sluice/kfd/checks.hpp"
#include "sluice/kfd/device.hpp"
#include "sluice/kfd/driver.hpp"
#include "sluice/kfd/node_view.hpp"

namespace sluice::cli::acceptance {

namespace {

/// Of a GPU's node in the topology; firmware versions are among them.
using gpu_properties = std::map<std::string, std::uint64_t, std::less<>>;

gpu_properties read_properties(const kfd::roots& where, std::uint32_t node) {
  gpu_properties all;
  std::ifstream file{fmt::format("{}/topology/nodes/{}/properties", where.sysfs, node)};
  std::string key;
  for (std::uint64_t value = 0; file >> key >> value;) all[key] = value;
  return all;
}

std::uint64_t property(const gpu_properties& of, std::string_view key) {
  const auto found = of.find(key);
  return found == of.end() ? 0 : found->second;
}

std::string profile_of(const kfd::gpu_description& gpu, const gpu_properties& properties,
                       std::uint32_t abi_minor, bool mes) {
  std::string text = fmt::format(
      "[driver]\nabi_minor = {}\n\n[[gpu]]\ngpu_id = {}\nscheduler = \"{}\"\n"
      "gfx_target_version = {}\nper_vmid_debug = {}\n",
      abi_minor, static_cast<std::uint32_t>(gpu.id), mes ? "mes" : "runlist",
      gpu.gfx_target_version, kfd::many_debugged(gpu.gfx_target_version));
  // What a profile would refuse is left out: newer drivers put more than a bus into location_id.
  const auto number = [&](std::string_view key, std::uint64_t value, std::uint64_t most) {
    if (value != 0 && value <= most) text += fmt::format("{} = {}\n", key, value);
  };
  const auto shown = [&](std::string_view key, std::string_view name, std::uint64_t most) {
    number(key, property(properties, name), most);
  };
  constexpr auto any = std::numeric_limits<std::int32_t>::max();
  const auto simds = property(properties, "simd_per_cu");
  number("compute_units", simds == 0 ? 0 : property(properties, "simd_count") / simds, 4096);
  shown("num_xcc", "num_xcc", 64);
  shown("simd_per_cu", "simd_per_cu", 16);
  shown("waves_per_simd", "max_waves_per_simd", 64);
  number("hqd_slots", gpu.compute_slots, 1024);
  shown("device_id", "device_id", 0xffff);
  shown("domain", "domain", 0xffff);
  shown("location_id", "location_id", 0xffff);
  number("hive_id", gpu.reset_domain, std::numeric_limits<std::int64_t>::max());
  number("memory_mib", gpu.vram.value_or(0) >> 20U, 1U << 24U);
  shown("shader_arrays", "array_count", 1024);
  shown("arrays_per_engine", "simd_arrays_per_engine", 64);
  shown("wave_front_size", "wave_front_size", 64);
  shown("sdma_engines", "num_sdma_engines", 64);
  if (const auto engines = property(properties, "num_sdma_xgmi_engines"); engines <= 64)
    text += fmt::format("sdma_xgmi_engines = {}\n", engines);
  shown("sdma_queues_per_engine", "num_sdma_queues_per_engine", 64);
  shown("gpu_clock_mhz", "max_engine_clk_fcompute", 100000);
  shown("fw_version", "fw_version", any);
  shown("sdma_fw_version", "sdma_fw_version", any);
  return text;
}

class kfd_under_test final : public tested_driver {
 public:
  // The stock driver's way is what is tried.
  explicit kfd_under_test(const kfd::roots& where)
      : tested_driver(kfd::make_driver({.where = where, .batch_commands = false})), where_(where) {}

  std::string_view victim() const override {
    return on().simulated() ? std::string_view{"sluice-sim-victim"} : std::string_view{};
  }
  std::string_view how_to_make_a_victim() const override {
    return "compile adapters/cli/accept/victim.hip.cpp with hipcc (the first lines of this file "
           "show the command), and pass --victim PROGRAM";
  }

  result<std::vector<std::unique_ptr<kfd::smi_stream>>> open_resets() override {
    auto opened = kfd::device::open(where_.device, [](std::string_view) {});
    if (!opened) return opened.error();
    device_ = std::move(*opened);
    std::vector<std::unique_ptr<kfd::smi_stream>> all;
    if (const auto node = kfd::look_at_node(where_); node)
      for (const auto& gpu : node->gpus)
        if (auto stream = kfd::smi_stream::open(*device_, gpu.id, kfd::smi_resets))
          all.push_back(std::move(*stream));
    return all;
  }
  std::string_view why_deaf() const override { return "no SMI events"; }

  device_facts facts(gpu_id gpu) const override {
    device_facts known;
    known.simulated = on().simulated();
    const std::uint32_t abi_minor = device_ ? device_->minor_version() : 0;
    const auto module = known.simulated ? "" : first_line_of("/sys/module/amdgpu/version");
    known.driver =
        fmt::format("KFD 1.{}, Linux {}{}", abi_minor, first_line_of("/proc/sys/kernel/osrelease"),
                    module.empty() ? "" : ", amdgpu " + module);
    const auto node = kfd::look_at_node(where_);
    if (!node || node->gpus.empty()) return known;
    const auto* const found = node->find(gpu);
    const kfd::gpu_description& about = found != nullptr ? *found : node->gpus.front();
    const auto properties = read_properties(where_, about.node);
    const bool mes = kfd::uses_mes({}, about.gfx_target_version);
    known.costs_per_queue = mes;
    known.device = fmt::format("gpu_id {}, {}{}, gfx {}, {}", static_cast<std::uint32_t>(about.id),
                               about.name.empty() ? "" : about.name + ", ", about.pci,
                               kfd::gfx_text(about.gfx_target_version), mes ? "MES" : "runlist");
    const auto version = [&](std::string_view key) {
      const auto value = property(properties, key);
      return value != 0 ? std::to_string(value) : "unknown";
    };
    known.firmware =
        fmt::format("compute {}, SDMA {}", version("fw_version"), version("sdma_fw_version"));
    known.profile = profile_of(about, properties, abi_minor, mes);
    return known;
  }

 private:
  const kfd::roots where_;
  std::unique_ptr<kfd::device> device_;
};

}  // namespace

std::unique_ptr<tested_driver> test_kfd() {
  return std::make_unique<kfd_under_test>(kfd::roots::from_environment());
}

}  // namespace sluice::cli::acceptance
