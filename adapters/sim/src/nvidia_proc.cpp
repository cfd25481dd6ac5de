#include "nvidia_proc.hpp"

#include <array>
#include <cstdio>

namespace sluice::sim {

namespace {

template <class... Values>
std::string printed(const char* format, Values... values) {
  std::array<char, 256> text{};
  const int length = std::snprintf(text.data(), text.size(), format, values...);
  return {text.data(), static_cast<std::size_t>(length)};
}

}  // namespace

std::string nvidia_gpu_node(std::uint32_t minor) { return "nvidia" + std::to_string(minor); }

std::string nvidia_bus_location(const gpu_profile& gpu) {
  return printed("%04x:%02x:%02x.0", gpu.gpu_id >> 16U, gpu.gpu_id >> 8U & 0xffU,
                 gpu.gpu_id & 0xffU);
}

// nv_procfs_read_version. The date of the build is an invention.
std::string nvidia_version_text(const profile& node) {
  return "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  " + node.driver_version +
         "  Release Build  (sluice-sim@simulated)  Sun Nov  1 00:00:00 UTC 2026\n"
         "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n";
}

// nv_procfs_read_gpu_info. UUID, VBIOS version and interrupt are inventions.
std::string nvidia_information_text(const profile& node, std::uint32_t minor) {
  const auto& gpu = node.gpus[minor];
  const auto field = [](const char* name, const std::string& value) {
    return std::string{name} + value + "\n";
  };
  return field("Model: \t\t ", gpu.model) + field("IRQ:   \t\t ", std::to_string(64 + minor)) +
         field("GPU UUID: \t ", printed("GPU-5106ce00-0000-4000-8000-%012x", gpu.gpu_id)) +
         field("Video BIOS: \t ", "96.00.89.00.01") + field("Bus Type: \t ", "PCIe") +
         field("DMA Size: \t ", "52 bits") + field("DMA Mask: \t ", "0xfffffffffffff") +
         field("Bus Location: \t ", nvidia_bus_location(gpu)) +
         field("Device Minor: \t ", std::to_string(minor)) +
         field("GPU Firmware: \t ", node.driver_version) + field("GPU Excluded:\t ", "No");
}

}  // namespace sluice::sim
