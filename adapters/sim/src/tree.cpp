#include "tree.hpp"

#include "nvidia_proc.hpp"
#include "profile.hpp"
#include "topology.hpp"

#include <algorithm>
#include <utility>

namespace sluice::sim {

static_tree::static_tree(const profile& node) {
  nodes_.push_back({.kind = node_kind::directory,
                    .mode = 0555,
                    .device = 0,
                    .text = {},
                    .children = {},
                    .name = {}});
  constexpr std::uint64_t root = 1;
  if (node.driver == driver_kind::nvidia)
    add_nvidia(root, node);
  else
    add_kfd(root, node);
  const auto sim = add_directory(root, "sim");
  add(sim, "stats.json", node_kind::stats, 0444);
  add(sim, "control", node_kind::control, 0600);
}

void static_tree::add_nvidia(std::uint64_t root, const profile& node) {
  const auto dev = add_directory(root, "dev");
  // As nvidia-modprobe makes them.
  add(dev, nvidia_control_node, node_kind::device, 0666);
  const auto driver = add_directory(add_directory(add_directory(root, "proc"), "driver"), "nvidia");
  add(driver, "version", node_kind::text, 0444, nvidia_version_text(node));
  const auto gpus = add_directory(driver, "gpus");
  for (std::uint32_t minor = 0; minor < node.gpus.size(); ++minor) {
    const auto device = add(dev, nvidia_gpu_node(minor), node_kind::device, 0666);
    nodes_[device - 1].device = minor + 1;
    add(add_directory(gpus, nvidia_bus_location(node.gpus[minor])), "information", node_kind::text,
        0444, nvidia_information_text(node, minor));
  }
}

void static_tree::add_kfd(std::uint64_t root, const profile& node) {
  const auto dev = add_directory(root, "dev");
  add(dev, "kfd", node_kind::device, 0666);  // As udev rules of ROCm installations set it.

  const auto kfd = add_directory(
      add_directory(add_directory(add_directory(root, "sys"), "class"), "kfd"), "kfd");
  processes_ = add(kfd, "proc", node_kind::processes, 0555);
  const auto topology = add_directory(kfd, "topology");
  add(topology, "generation_id", node_kind::text, 0444, "2\n");
  add(topology, "system_properties", node_kind::text, 0444, system_properties());
  const auto nodes = add_directory(topology, "nodes");
  const auto described = topology_of(node);
  for (std::size_t i = 0; i < described.size(); ++i) {
    const auto& each = described[i];
    const auto directory = add_directory(nodes, std::to_string(i));
    add(directory, "gpu_id", node_kind::text, 0444, std::to_string(each.gpu_id) + "\n");
    add(directory, "name", node_kind::text, 0444, each.name + "\n");
    add(directory, "properties", node_kind::text, 0444, each.properties);
    const auto add_list = [&](const char* name, const std::vector<std::string>& items) {
      const auto list = add_directory(directory, name);
      for (std::size_t k = 0; k < items.size(); ++k) {
        add(add_directory(list, std::to_string(k)), "properties", node_kind::text, 0444, items[k]);
      }
    };
    add_list("mem_banks", each.mem_banks);
    add_list("caches", each.caches);
    add_list("io_links", each.io_links);
    add_list("p2p_links", {});
  }

  // debugfs is root's alone.
  const auto debug = add_directory(root, "debug", 0700);
  add(debug, "mqds", node_kind::mqds, 0444);
  add(debug, "hqds", node_kind::hqds, 0444);
  add(debug, "rls", node_kind::rls, 0444);
  add(debug, "hang_hws", node_kind::hang_hws, 0200);
  add(debug, "mem_limit", node_kind::mem_limit, 0200);
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
                    .device = 0,
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
