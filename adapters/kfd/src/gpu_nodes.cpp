#include "gpu_nodes.hpp"

#include "sysfs.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string_view>

#include "sluice/os/proc.hpp"

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

namespace {

/// The PASID of the address space behind an open render node, as amdgpu prints it
/// (amdgpu_show_fdinfo).
std::optional<std::uint32_t> pasid_of(pid_t pid, int descriptor) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fdinfo/" + std::to_string(descriptor);
  std::array<char, 4096> buffer;
  const auto text = read_small_file(path.c_str(), buffer);
  const auto value = text ? status_number(*text, "pasid") : std::nullopt;
  return value ? std::optional{static_cast<std::uint32_t>(*value)} : std::nullopt;
}

/// The PASID of the process. ACQUIRE_VM gives it to the address space. Since Linux 6.17 there is
/// one for each GPU, and the driver prints 0.
std::uint32_t pasid_of(pid_t pid, const std::string& sysfs) {
  const std::string path = sysfs + "/proc/" + std::to_string(pid) + "/pasid";
  std::array<char, 32> buffer;
  const auto text = read_small_file(path.c_str(), buffer);
  return text ? parse_number<std::uint32_t>(*text).value_or(0) : 0;
}

}  // namespace

std::optional<gpu_id> gpu_without_address_space(pid_t pid, std::span<const gpu_node> nodes,
                                                const std::string& sysfs) {
  if (nodes.size() < 2) return std::nullopt;
  const std::string directory = "/proc/" + std::to_string(pid) + "/fd";
  const std::uint32_t wanted = pasid_of(pid, sysfs);
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
    if (::stat(link.c_str(), &file) != 0 || !S_ISCHR(file.st_mode) ||
        std::ranges::find(nodes, file.st_rdev, &gpu_node::render) == nodes.end())
      return;
    if (wanted == 0 || pasid_of(pid, number).value_or(wanted) == wanted)
      open.push_back(file.st_rdev);
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

std::string text_without_address_space(gpu_id gpu) {
  return "has no address space on GPU " + std::to_string(static_cast<std::uint32_t>(gpu)) +
         ": it has not opened the render node, or has not called ACQUIRE_VM; a suspend crashes "
         "some drivers unless the process has an address space on every GPU";
}

}  // namespace sluice::kfd
