#include "gpu_nodes.hpp"

#include "proc.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string_view>

namespace sluice::kfd {

std::vector<gpu_node> find_gpu_nodes(const std::string& sysfs, const std::string& device) {
  constexpr unsigned drm_major = 226;  // DRM_MAJOR of the kernel, which user space does not get.
  const std::string nodes = sysfs + "/topology/nodes/";
  const std::string directory = device.substr(0, device.rfind('/')) + "/dri/renderD";
  std::map<std::uint32_t, gpu_node> found;
  (void)for_each_numbered_entry<std::uint32_t>(nodes, [&](std::uint32_t node) {
    const std::string folder = nodes + std::to_string(node);
    std::array<char, 32> id_text{};
    std::array<char, 4096> text{};
    const auto id_read = read_small_file((folder + "/gpu_id").c_str(), id_text);
    const auto id = id_read ? parse_number<std::uint32_t>(*id_read).value_or(0) : 0;  // 0: a CPU
    if (id == 0) return;
    const auto properties = read_small_file((folder + "/properties").c_str(), text);
    const auto render = properties ? property(*properties, "drm_render_minor").value_or(0) : 0;
    auto& here = found[node] = {gpu_id{id}, 0};
    if (render == 0) return;
    struct stat file {};
    here.render = ::stat((directory + std::to_string(render)).c_str(), &file) == 0
                      ? file.st_rdev
                      : makedev(drm_major, static_cast<unsigned>(render));
  });
  std::vector<gpu_node> all;
  for (const auto& [node, gpu] : found) all.push_back(gpu);
  return all;
}

std::optional<gpu_id> gpu_without_render_node(pid_t pid, std::span<const gpu_node> nodes,
                                              const std::string& sysfs) {
  if (nodes.size() < 2) return std::nullopt;
  const std::string directory = "/proc/" + std::to_string(pid) + "/fd";
  std::vector<dev_t> open;
  const bool readable = for_each_numbered_entry<int>(directory, [&](int number) {
    const std::string link = directory + "/" + std::to_string(number);
    std::array<char, 64> text;
    const ssize_t length = ::readlink(link.c_str(), text.data(), text.size());
    // Nothing is asked of files that might be on a server that does not answer.
    if (length <= 0 ||
        !std::string_view{text.data(), static_cast<std::size_t>(length)}.starts_with("/dev/"))
      return;
    struct stat file {};
    if (::stat(link.c_str(), &file) == 0 && S_ISCHR(file.st_mode)) open.push_back(file.st_rdev);
  });
  if (!readable) return std::nullopt;
  for (const auto& node : nodes) {
    if (node.render == 0 || std::ranges::find(open, node.render) != open.end()) continue;
    const auto listed = sysfs + "/proc/" + std::to_string(pid) + "/vram_" +
                        std::to_string(static_cast<std::uint32_t>(node.gpu));
    struct stat file {};
    if (::stat(listed.c_str(), &file) == 0) return node.gpu;
  }
  return std::nullopt;
}

std::string text_without_render_node(gpu_id gpu) {
  return "has not opened the render node of GPU " +
         std::to_string(static_cast<std::uint32_t>(gpu)) +
         "; a suspend crashes some drivers unless the process has an address space on every GPU";
}

}  // namespace sluice::kfd
