#include "sluice/kfd/node_view.hpp"

#include "sysfs.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <string_view>

#include "sluice/kfd/driver_trees.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::kfd {

namespace {

/// An attribute file holds a page at most.
std::optional<std::string> read_attribute(const std::string& path) {
  std::array<char, 4096> buffer;
  const auto text = read_small_file(path.c_str(), buffer);
  if (!text) return {};
  return std::string{*text};
}

template <class Number>
std::optional<Number> read_number(const std::string& path) {
  const auto text = read_attribute(path);
  return text ? parse_number<Number>(*text) : std::nullopt;
}

/// Lines "key value" of a topology file, unsigned decimals.
std::map<std::string, std::uint64_t, std::less<>> read_properties(const std::string& path) {
  std::map<std::string, std::uint64_t, std::less<>> all;
  const auto text = read_attribute(path);
  std::string_view rest = text ? std::string_view{*text} : std::string_view{};
  while (!rest.empty()) {
    const auto end = rest.find('\n');
    const auto line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    const auto blank = line.find(' ');
    if (blank == std::string_view::npos) continue;
    if (const auto value = parse_number<std::uint64_t>(line.substr(blank + 1)))
      all.emplace(line.substr(0, blank), *value);
  }
  return all;
}

std::uint64_t value_of(const std::map<std::string, std::uint64_t, std::less<>>& all,
                       std::string_view key) {
  const auto found = all.find(key);
  return found == all.end() ? 0 : found->second;
}

/// Assumption: a bank of heap type 1 or 2 (HSA_HEAPTYPE_FRAME_BUFFER_PUBLIC, _PRIVATE of the thunk
/// library) is memory on the board, and its size_in_bytes is in bytes. local_mem_size is 0 on
/// current drivers.
std::optional<std::uint64_t> board_memory(const std::string& node, std::uint64_t local_mem_size) {
  std::uint64_t bytes = 0;
  const std::string banks = node + "/mem_banks";
  for_each_numbered_entry<std::uint32_t>(banks, [&](std::uint32_t bank) {
    const auto about = read_properties(banks + "/" + std::to_string(bank) + "/properties");
    const auto heap = value_of(about, "heap_type");
    if (heap == 1 || heap == 2) bytes += value_of(about, "size_in_bytes");
  });
  if (bytes == 0) bytes = local_mem_size;
  if (bytes == 0) return {};
  return bytes;
}

/// domain:bus:device.function of "location_id = bus << 8 | devfn".
std::string pci_address(std::uint64_t domain, std::uint64_t location) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.%x", static_cast<unsigned>(domain),
                static_cast<unsigned>(location >> 8U) & 0xffU,
                static_cast<unsigned>(location >> 3U) & 0x1fU,
                static_cast<unsigned>(location) & 7U);
  return text.data();
}

std::string hexadecimal(std::uint64_t value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%#llx", static_cast<unsigned long long>(value));
  return text.data();
}

std::vector<driver_fact> facts_of(const gpu_description& gpu) {
  const std::string unique = hexadecimal(gpu.unique_id);
  return {{.key = "node", .value = std::uint64_t{gpu.node}, .text = {}},
          {.key = "unique_id", .value = unique, .text = "unique id " + unique},
          {.key = "gfx_target_version",
           .value = std::uint64_t{gpu.gfx_target_version},
           .text = "gfx " + gfx_text(gpu.gfx_target_version)}};
}

std::string type_text(queue_type type) {
  if (kind_of(type) == queue_kind::compute) return "compute";
  return type == queue_type::sdma ? "sdma" : "sdma_xgmi";
}

std::vector<gpu_description> read_gpus(const std::string& sysfs) {
  std::vector<gpu_description> gpus;
  const std::string nodes = sysfs + "/topology/nodes";
  for_each_numbered_entry<std::uint32_t>(nodes, [&](std::uint32_t number) {
    const std::string node = nodes + "/" + std::to_string(number);
    const auto id = read_number<std::uint32_t>(node + "/gpu_id");
    if (!id || *id == 0) return;  // a CPU, or hidden from this device cgroup
    const auto about = read_properties(node + "/properties");
    gpu_description gpu;
    gpu.id = gpu_id{*id};
    gpu.node = number;
    gpu.name = read_attribute(node + "/name").value_or("");
    while (!gpu.name.empty() && gpu.name.back() == '\n') gpu.name.pop_back();
    gpu.location = {.domain = static_cast<std::uint32_t>(value_of(about, "domain")),
                    .location_id = static_cast<std::uint32_t>(value_of(about, "location_id"))};
    gpu.pci = pci_address(value_of(about, "domain"), value_of(about, "location_id"));
    gpu.unique_id = value_of(about, "unique_id");
    gpu.reset_domain = value_of(about, "hive_id");
    gpu.gfx_target_version = static_cast<std::uint32_t>(value_of(about, "gfx_target_version"));
    gpu.capability = value_of(about, "capability");
    gpu.compute_slots = static_cast<std::uint32_t>(value_of(about, "num_cp_queues"));
    gpu.vram = board_memory(node, value_of(about, "local_mem_size"));
    gpu.facts = facts_of(gpu);
    gpus.push_back(std::move(gpu));
  });
  std::ranges::sort(gpus, {}, &gpu_description::node);
  for (std::size_t index = 0; index < gpus.size(); ++index)
    gpus[index].ordinal = static_cast<std::uint32_t>(index);
  return gpus;
}

std::vector<queue_description> read_queues(const std::string& process) {
  std::vector<queue_description> queues;
  const std::string directory = process + "/queues";
  for_each_numbered_entry<std::uint32_t>(directory, [&](std::uint32_t number) {
    const std::string queue = directory + "/" + std::to_string(number);
    const auto gpu = read_number<std::uint32_t>(queue + "/gpuid");
    const auto type = read_number<int>(queue + "/type");
    const auto size = read_number<std::uint64_t>(queue + "/size");
    if (!gpu || !type) return;  // gone again
    const queue_type kind = type_from_sysfs(*type);
    queues.push_back({.id = driver_queue_id{number},
                      .gpu = gpu_id{*gpu},
                      .kind = kind_of(kind),
                      .type = type_text(kind),
                      .ring_bytes = size.value_or(0),
                      .priority = {}});
  });
  std::ranges::sort(queues, {}, &queue_description::id);
  return queues;
}

/// About a process, from <proc>/PID/status.
void read_status(const std::string& proc, process_description& process) {
  std::array<char, 4096> buffer;
  const std::string directory = proc + "/" + std::to_string(process.pid);
  if (const auto status = read_small_file((directory + "/status").c_str(), buffer)) {
    if (const auto uid = status_number(*status, "Uid")) process.user = static_cast<uid_t>(*uid);
    process.tracer = static_cast<pid_t>(status_number(*status, "TracerPid").value_or(0));
  }
  if (const auto stat = read_small_file((directory + "/stat").c_str(), buffer))
    process.start_time = parse_start_time(*stat).value_or(0);
  process.command = read_attribute(directory + "/comm").value_or("?");
  while (!process.command.empty() && process.command.back() == '\n') process.command.pop_back();
}

bool is_on(const mqd& shown, const gpu_description& gpu) {
  return shown.location ? *shown.location == gpu.location : shown.gpu == gpu.id;
}

/// What all compute queues of the process on the GPU have, if the text shows `count` of them.
std::optional<std::uint32_t> common_priority(const mqds& seen, pid_t pid,
                                             const gpu_description& gpu, std::size_t count) {
  std::optional<std::uint32_t> common;
  std::size_t shown = 0;
  for (const mqd& each : seen.queues) {
    if (each.pid != pid || each.type != mqd_type::compute || !is_on(each, gpu)) continue;
    ++shown;
    if (!each.priority || (common && *common != *each.priority)) return {};
    common = each.priority;
  }
  return shown == count ? common : std::nullopt;
}

}  // namespace

std::string gfx_text(std::uint32_t gfx) {
  return std::to_string(gfx / 10000) + "." + std::to_string(gfx / 100 % 100) + "." +
         std::to_string(gfx % 100);
}

const gpu_description* node_view::find(gpu_id id) const noexcept {
  const auto found = std::ranges::find(gpus, id, &gpu_description::id);
  return found == gpus.end() ? nullptr : &*found;
}

result<node_view> look_at_node(const roots& where, const std::string& proc) {
  node_view view;
  view.gpus = read_gpus(where.sysfs);
  const std::string processes = where.sysfs + "/proc";
  const bool readable = for_each_numbered_entry<pid_t>(processes, [&](pid_t pid) {
    process_description process;
    process.pid = pid;
    const std::string directory = processes + "/" + std::to_string(pid);
    read_status(proc, process);
    process.queues = read_queues(directory);
    for (const auto& gpu : view.gpus) {
      const std::string id = std::to_string(static_cast<std::uint32_t>(gpu.id));
      if (const auto bytes = read_number<std::uint64_t>(directory + "/vram_" + id))
        process.vram.emplace(gpu.id, *bytes);
      if (const auto ms = read_number<std::uint64_t>(directory + "/stats_" + id + "/evicted_ms"))
        process.evicted_ms.emplace(gpu.id, *ms);
    }
    view.processes.push_back(std::move(process));
  });
  if (!readable) return last_system_error();
  std::ranges::sort(view.processes, {}, &process_description::pid);
  return view;
}

std::string why_not_listed(pid_t pid, const roots& where) {
  return sluice::why_not_listed(
      pid, "the AMD compute driver (no " + where.sysfs + "/proc/" + std::to_string(pid) + ")");
}

bool may_be_listed(pid_t pid, const roots& where) {
  const auto listed = [&](pid_t each) {
    return ::access((where.sysfs + "/proc/" + std::to_string(each)).c_str(), F_OK) == 0;
  };
  return listed(pid) || !listed(::getpid());
}

void add_priorities(node_view& node, const mqds& seen, const known_rings& rings) {
  for (process_description& process : node.processes) {
    if (const auto known = rings.find(process.pid); known != rings.end()) {
      const auto found = join(seen, process.pid, known->second);
      for (std::size_t index = 0; index < found.size(); ++index)
        for (queue_description& queue : process.queues)
          if (found[index] != nullptr && queue.id == known->second[index].id)
            queue.priority = found[index]->priority;
    }
    for (const gpu_description& gpu : node.gpus) {
      const auto here = [&](const queue_description& queue) {
        return queue.gpu == gpu.id && queue.kind == queue_kind::compute;
      };
      const auto count = static_cast<std::size_t>(std::ranges::count_if(process.queues, here));
      const auto common = common_priority(seen, process.pid, gpu, count);
      for (queue_description& queue : process.queues) {
        if (!here(queue) || queue.priority) continue;
        queue.priority = common;
        for (const mqd& each : seen.queues)
          if (each.pid == process.pid && each.queue == queue.id && is_on(each, gpu))
            queue.priority = each.priority;
      }
    }
  }
}

result<void> add_priorities(node_view& node, const roots& where, const known_rings& rings) {
  const auto seen = read_mqds(where);
  if (!seen) return seen.error();
  add_priorities(node, *seen, rings);
  return {};
}

}  // namespace sluice::kfd
