#pragma once
/// \file
/// The device nodes of NVIDIA's driver, and the texts below /proc/driver/nvidia.

#include "profile.hpp"

#include <cstdint>
#include <string>

namespace sluice::sim {

inline constexpr const char* nvidia_control_node = "nvidiactl";
std::string nvidia_gpu_node(std::uint32_t minor);
/// "0000:04:00.0": what gpu_profile::gpu_id consists of.
std::string nvidia_bus_location(const gpu_profile& gpu);
std::string nvidia_version_text(const profile& node);
/// \param minor index of the GPU.
std::string nvidia_information_text(const profile& node, std::uint32_t minor);

}  // namespace sluice::sim
