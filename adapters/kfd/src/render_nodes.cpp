#include "render_nodes.hpp"

#include "proc.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace sluice::kfd {

std::vector<render_node> find_render_nodes(const std::string& sysfs, const std::string& device) {
  constexpr unsigned drm_major = 226;  // DRM_MAJOR of the kernel, which user space does not get.
  const std::string nodes = sysfs + "/topology/nodes/";
  const std::string directory = device.substr(0, device.rfind('/')) + "/dri/renderD";
  std::vector<render_node> found;
  (void)for_each_numbered_entry<std::uint32_t>(nodes, [&](std::uint32_t node) {
    const std::string folder = nodes + std::to_string(node);
    std::array<char, 32> id_text{};
    std::array<char, 4096> text{};
    const auto id_read = read_small_file((folder + "/gpu_id").c_str(), id_text);
    const auto id = id_read ? parse_number<std::uint32_t>(*id_read).value_or(0) : 0;  // 0: a CPU
    const auto properties = read_small_file((folder + "/properties").c_str(), text);
    const auto render = properties ? property(*properties, "drm_render_minor").value_or(0) : 0;
    if (id == 0 || render == 0) return;
    struct stat file {};
    const bool known = ::stat((directory + std::to_string(render)).c_str(), &file) == 0;
    found.push_back(
        {gpu_id{id}, known ? file.st_rdev : makedev(drm_major, static_cast<unsigned>(render))});
  });
  if (found.size() < 2) found.clear();
  return found;
}

std::optional<gpu_id> gpu_without_render_node(pid_t pid, std::span<const render_node> nodes,
                                              const std::string& sysfs) {
  if (nodes.empty()) return std::nullopt;
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
    if (std::ranges::find(open, node.number) != open.end()) continue;
    const auto listed = sysfs + "/proc/" + std::to_string(pid) + "/vram_" +
                        std::to_string(static_cast<std::uint32_t>(node.gpu));
    struct stat file {};
    if (::stat(listed.c_str(), &file) == 0) return node.gpu;
  }
  return std::nullopt;
}

}  // namespace sluice::kfd
