#include "generated_tree.hpp"

#include "parse_number.hpp"

#include <algorithm>
#include <utility>

namespace sluice::sim {

std::uint64_t pack(generated node) noexcept {
  return std::uint64_t{node.kind} << 56U | std::uint64_t{node.process & 0xffffffU} << 32U |
         node.item;
}

generated unpack(std::uint64_t id) noexcept {
  return {.kind = static_cast<std::uint8_t>(id >> 56U),
          .process = static_cast<std::uint32_t>(id >> 32U) & 0xffffffU,
          .item = static_cast<std::uint32_t>(id)};
}

bool is_directory(generated node) noexcept {
  switch (node.kind) {
    case process_directory:
    case queues_directory:
    case queue_directory:
    case stats_directory:
    case handed_directory: return true;
    default: return false;
  }
}

std::optional<std::uint32_t> generated_tree::process_of(pid_t pid) const {
  const auto found = process_numbers_.find(pid);
  if (found == process_numbers_.end()) return std::nullopt;
  return found->second;
}

void generated_tree::process_changed(pid_t pid, bool appeared) {
  if (const auto old = process_numbers_.find(pid); old != process_numbers_.end()) {
    process_pids_.erase(old->second);
    process_numbers_.erase(old);
  }
  if (!appeared) return;
  process_numbers_.emplace(pid, ++last_process_);
  process_pids_.emplace(last_process_, pid);
}

std::optional<pid_t> generated_tree::pid_of(std::uint32_t process) const {
  const auto found = process_pids_.find(process);
  if (found == process_pids_.end()) return std::nullopt;
  return found->second;
}

std::vector<tree_entry> generated_tree::list(std::uint64_t directory) const {
  std::vector<tree_entry> out;
  const auto add = [&](std::string name, generated node) {
    out.push_back({std::move(name), pack(node), is_directory(node)});
  };
  if (!is_generated(directory)) {  // The root of the generated part: one entry per process.
    for (const auto& [pid, number] : process_numbers_) {
      add(std::to_string(pid), {process_directory, number, 0});
    }
    return out;
  }
  const auto node = unpack(directory);
  const auto pid = pid_of(node.process);
  if (!pid) return out;
  switch (node.kind) {
    case process_directory: {
      add("pasid", {pasid_file, node.process, 0});
      add("queues", {queues_directory, node.process, 0});
      for (const auto gpu : kfd_->gpus_of(*pid)) {
        const auto suffix = "_" + std::to_string(gpu);
        add("vram" + suffix, {vram_file, node.process, gpu});
        add("sdma" + suffix, {sdma_file, node.process, gpu});
        add("stats" + suffix, {stats_directory, node.process, gpu});
      }
      break;
    }
    case queues_directory:
      for (const auto& queue : kfd_->queues_of(*pid)) {
        add(std::to_string(queue.id),
            {queue_directory, node.process, static_cast<std::uint32_t>(queue.serial)});
      }
      break;
    case queue_directory:
      for (const auto& queue : kfd_->queues_of(*pid)) {
        if (static_cast<std::uint32_t>(queue.serial) != node.item) continue;
        add("gpuid", {queue_gpuid_file, node.process, node.item});
        add("size", {queue_size_file, node.process, node.item});
        add("type", {queue_type_file, node.process, node.item});
      }
      break;
    case stats_directory:
      add("evicted_ms", {evicted_file, node.process, node.item});
      if (kfd_->cu_occupancy(*pid, node.item)) {
        add("cu_occupancy", {occupancy_file, node.process, node.item});
      }
      break;
    default: break;
  }
  return out;
}

std::size_t generated_tree::directories_in(std::uint64_t directory) const {
  if (const auto* node = names_.find(directory)) {
    if (node->kind == node_kind::processes) return process_numbers_.size();
    return static_cast<std::size_t>(
        std::count_if(node->children.begin(), node->children.end(),
                      [this](std::uint64_t child) { return is_directory(*names_.find(child)); }));
  }
  const auto node = unpack(directory);
  const auto pid = pid_of(node.process);
  if (!pid) return 0;
  if (node.kind == queues_directory) return kfd_->queues_of(*pid).size();
  // Its queues, and of each GPU the statistics.
  if (node.kind == process_directory) return 1 + kfd_->gpus_of(*pid).size();
  return 0;
}

std::optional<tree_entry> generated_tree::look_up(std::uint64_t directory,
                                                  std::string_view name) const {
  if (!is_generated(directory)) {  // Need not list every process.
    const auto pid = parse_number<pid_t>(name);
    if (!pid || std::to_string(*pid) != name) return std::nullopt;
    const auto number = process_numbers_.find(*pid);
    if (number == process_numbers_.end()) return std::nullopt;
    return tree_entry{std::string{name}, pack({process_directory, number->second, 0}), true};
  }
  if (const auto node = unpack(directory); node.kind == queues_directory) {
    const auto pid = pid_of(node.process);
    const auto id = parse_number<std::uint32_t>(name);
    if (!pid || !id || std::to_string(*id) != name) return std::nullopt;
    for (const auto& queue : kfd_->queues_of(*pid)) {
      if (queue.id != *id) continue;
      return tree_entry{
          std::string{name},
          pack({queue_directory, node.process, static_cast<std::uint32_t>(queue.serial)}), true};
    }
    return std::nullopt;
  }
  for (auto& each : list(directory)) {
    if (each.name == name) return std::move(each);
  }
  return std::nullopt;
}

std::optional<std::string> generated_tree::content(std::uint64_t file) const {
  if (const auto* fixed = names_.find(file)) {
    switch (fixed->kind) {
      case node_kind::mqds: return kfd_->mqds();
      case node_kind::hqds: return kfd_->hqds();
      case node_kind::rls: return kfd_->rls();
      case node_kind::hang_hws: return "echo gpu_id > hang_hws\n";
      case node_kind::mem_limit: return kfd_->mem_limit();
      case node_kind::stats: return device_.stats_json();
      default: return fixed->text;
    }
  }
  const auto node = unpack(file);
  const auto pid = pid_of(node.process);
  if (!pid) return std::nullopt;
  switch (node.kind) {
    case pasid_file: return std::to_string(kfd_->pasid_of(*pid)) + "\n";
    case evicted_file: return std::to_string(kfd_->evicted_ms(*pid, node.item)) + "\n";
    case vram_file: return std::to_string(kfd_->vram_of(*pid, node.item)) + "\n";
    // No SDMA engine is simulated.
    case sdma_file: return "0\n";
    case occupancy_file: {
      const auto units = kfd_->cu_occupancy(*pid, node.item);
      return units ? std::optional{std::to_string(*units) + "\n"} : std::nullopt;
    }
    case queue_size_file:
    case queue_type_file:
    case queue_gpuid_file:
      for (const auto& queue : kfd_->queues_of(*pid)) {
        if (static_cast<std::uint32_t>(queue.serial) != node.item) continue;
        // kfd_procfs_queue show functions: no newline.
        if (node.kind == queue_size_file) return std::to_string(queue.ring_size);
        if (node.kind == queue_type_file) return std::to_string(queue.type);
        return std::to_string(queue.gpu);
      }
      return std::nullopt;
    default: return std::nullopt;
  }
}

}  // namespace sluice::sim
