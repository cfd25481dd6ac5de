// What `sluice accept` found, as text and as a profile.

#include "acceptance.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>

#include <fmt/format.h>

#include "sluice/duration_text.hpp"

namespace sluice::cli::acceptance {

namespace {

using namespace std::chrono_literals;

std::uint64_t property(const device_facts& of, std::string_view key) {
  const auto found = of.properties.find(key);
  return found == of.properties.end() ? 0 : found->second;
}

std::string firmware_text(const device_facts& of) {
  const auto compute = property(of, "fw_version");
  const auto copies = property(of, "sdma_fw_version");
  return fmt::format("compute {}, SDMA {}", compute != 0 ? std::to_string(compute) : "unknown",
                     copies != 0 ? std::to_string(copies) : "unknown");
}

/// In quotes that TOML understands.
std::string quoted(std::string text) {
  for (char& each : text)
    if (each == '"' || each == '\\') each = '?';
  return '"' + text + '"';
}

std::string driver_text(const device_facts& of) {
  return fmt::format("KFD 1.{}, Linux {}{}", of.abi_minor, of.kernel,
                     of.module.empty() ? "" : ", amdgpu " + of.module);
}

std::string device_text(const device_facts& of) {
  return fmt::format("gpu_id {}, {}{}, gfx {}, {}", static_cast<std::uint32_t>(of.gpu.id),
                     of.gpu.name.empty() ? "" : of.gpu.name + ", ", of.gpu.pci,
                     kfd::gfx_text(of.gpu.gfx_target_version), of.mes ? "MES" : "runlist");
}

/// What goes into a profile: rounded to a microsecond, within what a profile may say.
std::string cost_text(duration value, duration most) {
  const auto rounded = std::chrono::round<std::chrono::microseconds>(value);
  return to_text(std::clamp<duration>(rounded, 1us, most));
}

/// What suspends and resumes cost, where the GPU was full if that was measured: for each call, or
/// with MES for each queue.
std::vector<duration> samples_of(const report& about, std::string_view name) {
  std::vector<duration> all;
  for (const std::string_view kind : {"busy", "idle"}) {
    for (const auto& each : about.findings) {
      const auto* const found = each.find(name);
      if (found == nullptr || !each.step.starts_with("suspend-") || !each.step.ends_with(kind))
        continue;
      const auto queues = std::max(std::atoi(each.step.c_str() + 8), 1);
      for (const auto one : found->samples) all.push_back(about.device.mes ? one / queues : one);
    }
    if (!all.empty()) break;
  }
  return all;
}

}  // namespace

std::string_view to_string(verdict what) {
  switch (what) {
    case verdict::passed: return "passed";
    case verdict::failed: return "FAILED";
    case verdict::not_possible: return "not possible here";
    case verdict::begun: return "started, not finished";
    case verdict::not_run: break;
  }
  return "not run";
}

duration figure::quantile(double share) const {
  if (samples.empty()) return {};
  auto sorted = samples;
  std::ranges::sort(sorted);
  const auto rank = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted[static_cast<std::size_t>(
      std::clamp(rank - 1, 0.0, static_cast<double>(sorted.size() - 1)))];
}

void finding::measured(std::string_view name, duration sample) {
  for (auto& each : figures)
    if (each.name == name) return each.samples.push_back(sample);
  figures.push_back({std::string{name}, {sample}});
}

const figure* finding::find(std::string_view name) const {
  const auto found = std::ranges::find(figures, name, &figure::name);
  return found == figures.end() ? nullptr : &*found;
}

std::map<std::string, std::uint64_t, std::less<>> read_properties(const kfd::roots& where,
                                                                  std::uint32_t node) {
  std::map<std::string, std::uint64_t, std::less<>> all;
  std::ifstream file{fmt::format("{}/topology/nodes/{}/properties", where.sysfs, node)};
  std::string key;
  for (std::uint64_t value = 0; file >> key >> value;) all[key] = value;
  return all;
}

namespace {
std::vector<std::string_view> steps_with(const report& about, verdict what) {
  std::vector<std::string_view> all;
  for (const auto& each : about.findings)
    if (each.what == what) all.emplace_back(each.step);
  return all;
}
}  // namespace

bool report::good() const {
  const auto is = [this](verdict what) { return steps_with(*this, what).size(); };
  return is(verdict::passed) != 0 &&
         is(verdict::passed) + is(verdict::not_possible) == findings.size();
}

std::string result_text(const report& about) {
  const auto missing = steps_with(about, verdict::not_possible);
  if (about.good() && missing.empty()) return "accepted";
  if (about.good())
    return fmt::format("accepted, but {} step{} not possible here: {}", missing.size(),
                       missing.size() == 1 ? " was" : "s were", fmt::join(missing, ", "));
  if (const auto failed = steps_with(about, verdict::failed); !failed.empty())
    return fmt::format("NOT ACCEPTED: {} failed", fmt::join(failed, ", "));
  if (missing.size() == about.findings.size()) return "NOT ACCEPTED: no step was possible here";
  if (const auto begun = steps_with(about, verdict::begun); !begun.empty())
    return fmt::format("NOT ACCEPTED so far: {} was started and has not finished", begun.front());
  return "NOT ACCEPTED so far: some steps have not run";
}

std::string time_text(duration value) {
  const double us = std::chrono::duration<double, std::micro>(value).count();
  if (us < 1000) return fmt::format("{:.3g} us", us);
  return us < 1e6 ? fmt::format("{:.3g} ms", us / 1e3) : fmt::format("{:.3g} s", us / 1e6);
}

std::string line_of(const finding& which) {
  std::string text = fmt::format("{:<16} {}", which.step, to_string(which.what));
  if (!which.why.empty()) text += ": " + which.why;
  for (const auto& each : which.figures)
    text += fmt::format("\n{:<16}   {}: p50 {}, p99 {} ({} samples)", "", each.name,
                        time_text(each.quantile(0.5)), time_text(each.quantile(0.99)),
                        each.samples.size());
  for (const auto& each : which.notes) text += fmt::format("\n{:<16}   {}", "", each);
  return text + "\n";
}

std::string report_text(const report& about) {
  std::string text =
      about.device.simulated
          ? "# sluice accept, on a SIMULATED device: no result was measured on hardware\n\n"
          : "# sluice accept\n\n";
  text += fmt::format("- result: {}\n", result_text(about));
  text += fmt::format("- when: {}\n- device: {}\n- driver: {}\n- firmware: {}\n- victim: {}\n",
                      about.when, device_text(about.device), driver_text(about.device),
                      firmware_text(about.device), about.victim);
  for (const auto& each : about.notes) text += "- " + each + "\n";
  text +=
      "\n| step | verdict | duration | figure | p50 | p99 | samples |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const auto& each : about.findings) {
    const std::string first =
        fmt::format("| {} | {} | {} ", each.step, to_string(each.what),
                    each.took == duration::zero() ? "" : time_text(each.took));
    if (each.figures.empty()) text += first + "| | | | |\n";
    for (const auto& one : each.figures)
      text += fmt::format(
          "{}| {} | {} | {} | {} |\n", &one == &each.figures.front() ? first : "| | | ", one.name,
          time_text(one.quantile(0.5)), time_text(one.quantile(0.99)), one.samples.size());
  }
  text += "\n";
  for (const auto& each : about.findings) {
    if (!each.why.empty())
      text += fmt::format("- {}: {}: {}\n", each.step, to_string(each.what), each.why);
    for (const auto& one : each.notes) text += fmt::format("- {}: {}\n", each.step, one);
  }
  return text;
}

std::string profile_text(const report& about) {
  const figure suspend{"", samples_of(about, suspend_call)};
  const figure resume{"", samples_of(about, resume_call)};
  if (suspend.samples.empty() || resume.samples.empty()) return {};
  const auto& device = about.device;
  const auto& gpu = device.gpu;
  std::string text = fmt::format(
      "# Measured by 'sluice accept' on a {}, for 'sluice sim', 'sluice lab' and\n"
      "# the policy slo. suspend_cost is from {} driver calls, resume_cost from {}. Missing\n"
      "# keys have the defaults in adapters/sim/src/profile.hpp.\n"
      "name = \"measured\"\n\n[measured]\nsimulated = {}\naccepted = {}\nat = {}\ndriver = {}\n"
      "firmware = {}\n",
      device.simulated ? "SIMULATED device" : "GPU", suspend.samples.size(), resume.samples.size(),
      device.simulated, about.good(), quoted(about.when), quoted(driver_text(device)),
      quoted(firmware_text(device)));
  if (!about.good())
    text.insert(0, "# NOT ACCEPTED: a step failed or did not run; see the report.\n");
  const auto also = [&](std::string_view key, std::string_view name) {
    for (const auto& each : about.findings) {
      const auto* const found = each.find(name);
      if (found == nullptr) continue;
      text +=
          fmt::format("{0}_p50 = \"{1}\"\n{0}_p99 = \"{2}\"\n", key,
                      cost_text(found->quantile(0.5), 60s), cost_text(found->quantile(0.99), 60s));
      return;
    }
  };
  also("attach", attach_time);
  also("attach_stall", stall_per_attach);
  also("suspend_stall", stall_per_suspend);
  also("resume_stall", stall_per_resume);
  text += fmt::format(
      "\n[driver]\nabi_minor = {}\n\n[[gpu]]\ngpu_id = {}\nscheduler = \"{}\"\n"
      "gfx_target_version = {}\nper_vmid_debug = {}\n",
      device.abi_minor, static_cast<std::uint32_t>(gpu.id), device.mes ? "mes" : "runlist",
      gpu.gfx_target_version, device.many_debugged);
  // What a profile would refuse is left out: newer drivers put more than a bus into location_id.
  const auto number = [&](std::string_view key, std::uint64_t value, std::uint64_t most) {
    if (value != 0 && value <= most) text += fmt::format("{} = {}\n", key, value);
  };
  const auto shown = [&](std::string_view key, std::string_view name, std::uint64_t most) {
    number(key, property(device, name), most);
  };
  constexpr auto any = std::numeric_limits<std::int32_t>::max();
  const auto simds = property(device, "simd_per_cu");
  number("compute_units", simds == 0 ? 0 : property(device, "simd_count") / simds, 4096);
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
  if (const auto engines = property(device, "num_sdma_xgmi_engines"); engines <= 64)
    text += fmt::format("sdma_xgmi_engines = {}\n", engines);
  shown("sdma_queues_per_engine", "num_sdma_queues_per_engine", 64);
  shown("gpu_clock_mhz", "max_engine_clk_fcompute", 100000);
  shown("fw_version", "fw_version", any);
  shown("sdma_fw_version", "sdma_fw_version", any);
  const auto cost = [&](std::string_view key, const figure& of) {
    text += fmt::format("{0} = \"{1}\"\n{0}_p99 = \"{2}\"\n", key, cost_text(of.quantile(0.5), 9s),
                        cost_text(of.quantile(0.99), 9s));
  };
  cost("suspend_cost", suspend);
  cost("resume_cost", resume);
  return text;
}

}  // namespace sluice::cli::acceptance
