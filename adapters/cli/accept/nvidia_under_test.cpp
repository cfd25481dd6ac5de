// NVIDIA's driver under `sluice accept`.

#include "tested_driver.hpp"

#include <cstdint>
#include <limits>

#include <fmt/format.h>

#include "sluice/nvidia/driver.hpp"
#include "sluice/nvidia/driver_text.hpp"

namespace sluice::cli::acceptance {

namespace {

class nvidia_under_test final : public tested_driver {
 public:
  explicit nvidia_under_test(const nvidia::roots& where)
      : tested_driver(nvidia::make_driver({.where = where, .allow_untested_driver = true})),
        where_(where) {}

  std::string_view victim() const override { return "sluice-nvidia-victim"; }
  std::string_view how_to_make_a_victim() const override {
    return "sluice-nvidia-victim is not beside this program; reinstall sluice, or pass --victim "
           "PROGRAM";
  }

  result<std::vector<std::unique_ptr<kfd::smi_stream>>> open_resets() override {
    return std::vector<std::unique_ptr<kfd::smi_stream>>{};
  }
  std::string_view why_deaf() const override { return "search dmesg for Xid after the run"; }

  std::string why_untested() const override {
    const auto release = nvidia::read_release(where_);
    if (!release || nvidia::is_tested(*release)) return {};
    return fmt::format("driver release {}{} was not tested with sluice", release->version,
                       release->open_modules ? "" : " (closed kernel modules)");
  }

  device_facts facts(gpu_id gpu) const override {
    device_facts known;
    known.simulated = on().simulated();
    const auto release = nvidia::read_release(where_);
    const std::string version = release ? release->version : "unknown";
    known.driver = fmt::format("NVIDIA {}{}, Linux {}", version,
                               release && release->open_modules ? " (open kernel modules)" : "",
                               first_line_of("/proc/sys/kernel/osrelease"));
    const auto node = on().look();
    if (!node || node->gpus.empty()) return known;
    const auto* const found = node->find(gpu);
    const gpu_description& about = found != nullptr ? *found : node->gpus.front();
    const auto id = static_cast<std::uint32_t>(about.id);
    known.device = fmt::format("gpu_id {}, {}, {}", id, about.name, about.pci);
    known.profile = fmt::format(
        "[driver]\nkind = \"nvidia\"\nversion = {}\n\n[[gpu]]\ngpu_id = {}\nmodel = {}\n"
        "scheduler = \"channels\"\ntime_sliced = true\n",
        quoted(version), id, quoted(about.name.empty() ? "unknown" : about.name));
    if (const auto memory = about.vram.value_or(0) >> 20U; memory != 0)
      known.profile += fmt::format("memory_mib = {}\n", memory);
    // An attach makes no call that other programs notice. All GPUs of this driver since Volta have
    // warps of 32 threads and 4 processing blocks in a multiprocessor. Channels are not limited.
    known.profile +=
        "cycle_cost = \"0us\"\nnum_xcc = 1\nsimd_per_cu = 4\nwave_front_size = 32\n"
        "hqd_slots = 2048\nvmids = 2048\n";
    return known;
  }

 private:
  const nvidia::roots where_;
};

}  // namespace

std::unique_ptr<tested_driver> test_nvidia() {
  return std::make_unique<nvidia_under_test>(nvidia::roots::from_environment());
}

}  // namespace sluice::cli::acceptance
