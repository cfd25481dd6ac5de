#pragma once
/// \file
/// The simulated driver on a fake machine in virtual time, with the calls that tests make.

#include "aql.hpp"
#include "call_bench.hpp"
#include "driver.hpp"
#include "profile.hpp"
#include "topology.hpp"

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/kfd/uapi.hpp"
#include "sluice/kfd/uapi_memory.hpp"
#include "sluice/sim/abi.hpp"

namespace sluice::sim::test {

using namespace std::chrono_literals;  // NOLINT: a header of tests only.
namespace uapi = kfd::uapi;

inline constexpr std::uint64_t new_bit = uapi::KFD_EC_MASK(uapi::EC_QUEUE_NEW);
inline constexpr std::uint64_t delete_bit = uapi::KFD_EC_MASK(uapi::EC_DEVICE_QUEUE_DELETE);
inline constexpr std::uint64_t runtime_bit = uapi::KFD_EC_MASK(uapi::EC_PROCESS_RUNTIME);
inline constexpr std::uint32_t invalid = uapi::KFD_DBG_QUEUE_INVALID_MASK;
inline constexpr std::uint32_t error = uapi::KFD_DBG_QUEUE_ERROR_MASK;
inline constexpr int erestartsys = 512;

/// Processes of a test: the owner of queues, and who debugs it.
inline constexpr pid_t app = 100;
inline constexpr pid_t scheduler = 200;
inline constexpr pid_t other = 300;

/// Where things lie in every fake process.
inline constexpr std::uint64_t scratch = 0x10000;      ///< For arrays and structs of calls.
inline constexpr std::uint64_t queue_area = 0x100000;  ///< Each queue has one of queue_stride.
inline constexpr std::uint64_t queue_stride = 0x20000;
inline constexpr std::uint32_t ring_bytes = 0x10000;
/// Save areas, which are large, and of which only the beginning can be written.
inline constexpr std::uint64_t save_area = 0x1000000000;
inline constexpr std::uint64_t save_stride = 0x400000000;
inline constexpr std::uint64_t save_bytes = 0x4000;
inline constexpr std::uint64_t areas = 64;
inline constexpr int first_render_fd = 1000;  ///< Of GPU 0; the others follow.

class driver_bench : public call_bench {
 public:
  explicit driver_bench(profile node = default_profile()) : profile_{std::move(node)} {
    sim = std::make_unique<driver>(planned, machine, profile_);
    for (const pid_t pid : {app, scheduler, other}) start(pid);
  }

  void start(pid_t pid) { prepare(pid, machine.start(pid)); }
  void exec(pid_t pid) { prepare(pid, machine.exec(pid)); }
  void prepare(pid_t pid, fake_memory& memory) {
    memory.map(scratch, 0x10000);
    memory.map(queue_area, areas * queue_stride);
    for (std::uint64_t i = 0; i < areas; ++i) memory.map(save_area + i * save_stride, save_bytes);
    std::erase_if(mapped_, [pid](const auto& each) { return std::get<0>(each) == pid; });
  }

  file_id open(pid_t pid) {
    file_id file = 0;
    EXPECT_EQ(sim->open(pid, 0, file), 0);
    files_[pid] = file;
    return file;
  }
  file_id file(pid_t pid) const { return files_.at(pid); }

  using call_bench::begin;
  using call_bench::call;

  template <class Args>
  std::unique_ptr<pending_call<Args>> begin(pid_t pid, std::uint32_t command, const Args& args) {
    return begin(pid, file(pid), command, args);
  }
  template <class Args>
  int call(pid_t pid, std::uint32_t command, Args& args) {
    return call(pid, file(pid), command, args);
  }

  // --- The owner's calls ---
  int runtime_enable(pid_t pid, std::uint32_t mode = 1) {
    uapi::kfd_ioctl_runtime_enable_args args{
        .r_debug = 0xdeb6, .mode_mask = mode, .capabilities_mask = 0};
    return call(pid, uapi::AMDKFD_IOC_RUNTIME_ENABLE, args);
  }
  /// \param area which part of the process's queue area it uses.
  uapi::kfd_ioctl_create_queue_args queue_args(std::uint32_t area, std::uint32_t gpu = 0) const {
    const auto base = queue_area + area * queue_stride;
    uapi::kfd_ioctl_create_queue_args args{};
    args.ring_base_address = base;
    args.ring_size = ring_bytes;
    args.write_pointer_address = base + ring_bytes + 0x38;
    args.read_pointer_address = base + ring_bytes + 0x80;
    args.gpu_id = profile_.gpus.at(gpu).gpu_id;
    args.queue_type = uapi::KFD_IOC_QUEUE_TYPE_COMPUTE_AQL;
    args.queue_percentage = 100;
    args.queue_priority = 7;
    args.ctx_save_restore_address = save_area + area * save_stride;
    const auto saved = save_area_of(profile_.gpus.at(gpu));
    args.ctx_save_restore_size = static_cast<std::uint32_t>(saved.context);
    args.ctl_stack_size = static_cast<std::uint32_t>(saved.control_stack);
    return args;
  }
  /// Maps the memory of that area, as a runtime does before it creates a queue.
  void map_area(pid_t pid, std::uint32_t area, std::uint32_t gpu = 0) {
    if (!mapped_.emplace(pid, area, gpu).second) return;
    const auto& shape = profile_.gpus.at(gpu);
    const auto saved = save_area_of(shape);
    const auto base = queue_area + area * queue_stride;
    map_memory(pid, gpu, base, ring_bytes);
    map_memory(pid, gpu, base + ring_bytes, 0x1000);
    map_memory(pid, gpu, save_area + area * save_stride,
               (saved.context + saved.debugger) * shape.num_xcc);
  }
  /// Gives the GPU an address space of the process. A second call changes nothing.
  void acquire(pid_t pid, std::uint32_t gpu = 0) {
    const int fd = first_render_fd + static_cast<int>(gpu);
    machine.open_file_of(pid, fd)->render_node = true;
    uapi::kfd_ioctl_acquire_vm_args args{.drm_fd = static_cast<std::uint32_t>(fd),
                                         .gpu_id = profile_.gpus.at(gpu).gpu_id};
    EXPECT_EQ(call(pid, uapi::AMDKFD_IOC_ACQUIRE_VM, args), 0);
  }
  /// Allocates memory at that address and maps it to the GPU. \return its handle.
  std::uint64_t map_memory(pid_t pid, std::uint32_t gpu, std::uint64_t at, std::uint64_t size,
                           std::uint32_t flags = uapi::KFD_IOC_ALLOC_MEM_FLAGS_GTT) {
    acquire(pid, gpu);
    const std::uint32_t gpu_id = profile_.gpus.at(gpu).gpu_id;
    uapi::kfd_ioctl_alloc_memory_of_gpu_args alloc{};
    alloc.va_addr = at;
    alloc.size = size;
    alloc.gpu_id = gpu_id;
    alloc.flags = flags;
    if ((flags & uapi::KFD_IOC_ALLOC_MEM_FLAGS_USERPTR) != 0) alloc.mmap_offset = at;
    EXPECT_EQ(call(pid, uapi::AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, alloc), 0);
    constexpr std::uint64_t ids = scratch + 0xff00;
    machine.memory(pid).put(ids, gpu_id);
    uapi::kfd_ioctl_map_memory_to_gpu_args map{
        .handle = alloc.handle, .device_ids_array_ptr = ids, .n_devices = 1, .n_success = 0};
    EXPECT_EQ(call(pid, uapi::AMDKFD_IOC_MAP_MEMORY_TO_GPU, map), 0);
    return alloc.handle;
  }
  int unmap_memory(pid_t pid, std::uint32_t gpu, std::uint64_t handle) {
    constexpr std::uint64_t ids = scratch + 0xff00;
    machine.memory(pid).put(ids, profile_.gpus.at(gpu).gpu_id);
    uapi::kfd_ioctl_map_memory_to_gpu_args args{
        .handle = handle, .device_ids_array_ptr = ids, .n_devices = 1, .n_success = 0};
    return call(pid, uapi::AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU, args);
  }
  int free_memory(pid_t pid, std::uint64_t handle) {
    uapi::kfd_ioctl_free_memory_of_gpu_args args{.handle = handle};
    return call(pid, uapi::AMDKFD_IOC_FREE_MEMORY_OF_GPU, args);
  }
  /// Maps the area of the write pointer first. Memory elsewhere is the test's to map.
  int create_queue(pid_t pid, uapi::kfd_ioctl_create_queue_args args) {
    const auto area = (args.write_pointer_address - queue_area) / queue_stride;
    for (std::uint32_t gpu = 0; gpu < profile_.gpus.size(); ++gpu) {
      if (profile_.gpus[gpu].gpu_id == args.gpu_id && area < areas)
        map_area(pid, static_cast<std::uint32_t>(area), gpu);
    }
    const int result = call(pid, uapi::AMDKFD_IOC_CREATE_QUEUE, args);
    return result == 0 ? static_cast<int>(args.queue_id) : result;
  }
  int create_queue(pid_t pid, std::uint32_t area, std::uint32_t gpu = 0) {
    return create_queue(pid, queue_args(area, gpu));
  }
  int destroy_queue(pid_t pid, std::uint32_t id) {
    uapi::kfd_ioctl_destroy_queue_args args{.queue_id = id, .pad = 0};
    return call(pid, uapi::AMDKFD_IOC_DESTROY_QUEUE, args);
  }

  // --- Packets: area as in queue_args ---
  struct work {
    duration length{};
    std::uint32_t waves = 64;
    std::uint64_t signal = 0;
  };
  void publish(pid_t pid, std::uint32_t area, const work& what, bool announce = true) {
    auto& memory = machine.memory(pid);
    const auto base = queue_area + area * queue_stride;
    const auto write = memory.get<std::uint64_t>(base + ring_bytes + 0x38);
    aql::kernel_dispatch_packet packet{};
    packet.header = aql::packet_kernel_dispatch | aql::header_bits;
    packet.setup = 1;
    packet.workgroup_size_x = 64;
    packet.workgroup_size_y = packet.workgroup_size_z = 1;
    packet.grid_size_x = what.waves * 64;
    packet.grid_size_y = packet.grid_size_z = 1;
    packet.kernel_object = static_cast<std::uint64_t>(what.length.count());
    packet.completion_signal = what.signal;
    memory.put(base + write % (ring_bytes / 64) * 64, packet);
    if (announce) memory.put(base + ring_bytes + 0x38, write + 1);
  }
  std::uint64_t read_index(pid_t pid, std::uint32_t area) {
    return machine.memory(pid).get<std::uint64_t>(queue_area + area * queue_stride + ring_bytes +
                                                  0x80);
  }
  /// A signal in the queue's area, with value 1.
  std::uint64_t signal(pid_t pid, std::uint32_t area, std::uint32_t index,
                       std::uint32_t event_id = 0) {
    const auto at =
        queue_area + area * queue_stride + ring_bytes + 0xa000 + std::uint64_t{index} * 64;
    aql::signal value{};
    value.value = 1;
    value.event_id = event_id;
    machine.memory(pid).put(at, value);
    return at;
  }

  // --- The debugger's calls ---
  uapi::kfd_ioctl_dbg_trap_args trap_args(std::uint32_t op, pid_t target = app) const {
    uapi::kfd_ioctl_dbg_trap_args args{};
    args.pid = static_cast<std::uint32_t>(target);
    args.op = op;
    return args;
  }
  int trap(uapi::kfd_ioctl_dbg_trap_args& args, pid_t tid = scheduler) {
    return call(tid, file(machine.leader_of(tid)), uapi::AMDKFD_IOC_DBG_TRAP, args);
  }
  static constexpr int pipe_fd = 5;
  std::string& pipe(pid_t pid = scheduler) { return machine.open_file_of(pid, pipe_fd)->bytes; }
  int enable(pid_t target = app, pid_t debugger = scheduler,
             std::uint64_t mask = new_bit | delete_bit | runtime_bit) {
    pipe(debugger);
    auto args = trap_args(uapi::KFD_IOC_DBG_TRAP_ENABLE, target);
    args.enable = {.exception_mask = mask,
                   .rinfo_ptr = scratch,
                   .rinfo_size = sizeof(uapi::kfd_runtime_info),
                   .dbg_fd = pipe_fd};
    return trap(args, debugger);
  }
  int disable(pid_t target = app, pid_t debugger = scheduler) {
    auto args = trap_args(uapi::KFD_IOC_DBG_TRAP_DISABLE, target);
    return trap(args, debugger);
  }
  /// \return the ids listed, newest first; clears `mask` in them.
  std::vector<std::uint32_t> snapshot(std::uint64_t mask = 0, std::uint32_t room = 64,
                                      pid_t target = app) {
    auto args = trap_args(uapi::KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT, target);
    args.queue_snapshot = {.exception_mask = mask,
                           .snapshot_buf_ptr = scratch + 0x4000,
                           .num_queues = room,
                           .entry_size = sizeof(uapi::kfd_queue_snapshot_entry)};
    EXPECT_EQ(trap(args), 0);
    std::vector<std::uint32_t> ids;
    for (std::uint32_t i = 0; i < std::min(room, args.queue_snapshot.num_queues); ++i) {
      ids.push_back(snapshot_entry(i).queue_id);
    }
    return ids;
  }
  uapi::kfd_queue_snapshot_entry snapshot_entry(std::uint32_t index) {
    return machine.memory(scheduler).get<uapi::kfd_queue_snapshot_entry>(
        scratch + 0x4000 + index * sizeof(uapi::kfd_queue_snapshot_entry));
  }
  struct ids_result {
    int result = 0;
    std::vector<std::uint32_t> ids;  ///< As the call left them.
    friend bool operator==(const ids_result&, const ids_result&) = default;
    friend std::ostream& operator<<(std::ostream& out, const ids_result& value) {
      out << value.result << " [" << std::hex;
      for (const auto id : value.ids) out << ' ' << id;
      return out << std::dec << " ]";
    }
  };
  void put_ids(const std::vector<std::uint32_t>& ids, pid_t pid = scheduler) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      machine.memory(pid).put(scratch + 0x8000 + i * 4, ids[i]);
    }
  }
  std::vector<std::uint32_t> get_ids(std::size_t count, pid_t pid = scheduler) {
    std::vector<std::uint32_t> ids;
    for (std::size_t i = 0; i < count; ++i) {
      ids.push_back(machine.memory(pid).get<std::uint32_t>(scratch + 0x8000 + i * 4));
    }
    return ids;
  }
  uapi::kfd_ioctl_dbg_trap_args suspend_args(std::size_t count, std::uint64_t mask = 0,
                                             pid_t target = app) const {
    auto args = trap_args(uapi::KFD_IOC_DBG_TRAP_SUSPEND_QUEUES, target);
    args.suspend_queues = {.exception_mask = mask,
                           .queue_array_ptr = scratch + 0x8000,
                           .num_queues = static_cast<std::uint32_t>(count),
                           .grace_period = 0};
    return args;
  }
  uapi::kfd_ioctl_dbg_trap_args resume_args(std::size_t count, pid_t target = app) const {
    auto args = trap_args(uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES, target);
    args.resume_queues = {.queue_array_ptr = scratch + 0x8000,
                          .num_queues = static_cast<std::uint32_t>(count),
                          .pad = 0};
    return args;
  }
  ids_result suspend(const std::vector<std::uint32_t>& ids, std::uint64_t mask = 0,
                     pid_t tid = scheduler, pid_t target = app) {
    put_ids(ids, machine.leader_of(tid));
    auto args = suspend_args(ids.size(), mask, target);
    const int result = trap(args, tid);
    return {result, get_ids(ids.size(), machine.leader_of(tid))};
  }
  ids_result resume(const std::vector<std::uint32_t>& ids, pid_t tid = scheduler,
                    pid_t target = app) {
    put_ids(ids, machine.leader_of(tid));
    auto args = resume_args(ids.size(), target);
    const int result = trap(args, tid);
    return {result, get_ids(ids.size(), machine.leader_of(tid))};
  }
  struct debug_event {
    int result = 0;
    std::uint64_t status = 0;
    std::uint32_t gpu = 0;
    std::uint32_t queue = 0;
    friend bool operator==(const debug_event&, const debug_event&) = default;
    friend std::ostream& operator<<(std::ostream& out, const debug_event& e) {
      return out << e.result << " status " << std::hex << e.status << std::dec << " gpu " << e.gpu
                 << " queue " << e.queue;
    }
  };
  debug_event query(std::uint64_t clear, pid_t target = app) {
    auto args = trap_args(uapi::KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT, target);
    args.query_debug_event = {.exception_mask = clear, .gpu_id = 77, .queue_id = 77};
    const int result = trap(args);
    return {result, args.query_debug_event.exception_mask, args.query_debug_event.gpu_id,
            args.query_debug_event.queue_id};
  }
  int send_runtime_event(std::uint64_t mask = runtime_bit, pid_t target = app) {
    auto args = trap_args(uapi::KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT, target);
    args.send_runtime_event = {.exception_mask = mask, .gpu_id = 0, .queue_id = 0};
    return trap(args);
  }

  // --- Accounts, from the text that everybody reads ---
  std::int64_t gpu_stat(const std::string& name, std::size_t gpu = 0) const {
    return number(objects("gpus").at(gpu), name);
  }
  /// Of the latest process with that pid.
  std::int64_t process_stat(pid_t pid, const std::string& name) const {
    std::int64_t value = -1;
    for (const auto& each : objects("processes")) {
      if (number(each, "pid") == pid) value = number(each, name);
    }
    return value;
  }

  profile profile_;
  std::unique_ptr<driver> sim;

 private:
  device_driver& called() override { return *sim; }
  std::vector<std::string> objects(const std::string& array) const {
    const auto text = sim->stats_json();
    const auto from = text.find("\"" + array + "\":[");
    const auto list = text.substr(from, text.find(']', from) - from);
    std::vector<std::string> out;
    const std::regex object{"\\{[^}]*\\}"};
    for (std::sregex_iterator it{list.begin(), list.end(), object}, end; it != end; ++it) {
      out.push_back(it->str());
    }
    return out;
  }
  static std::int64_t number(const std::string& object, const std::string& name) {
    std::smatch found;
    if (!std::regex_search(object, found, std::regex{"\"" + name + "\":(-?[0-9]+|true|false)"})) {
      ADD_FAILURE() << "no " << name << " in " << object;
      return -1;
    }
    if (found[1] == "true") return 1;
    if (found[1] == "false") return 0;
    return std::stoll(found[1]);
  }
  std::map<pid_t, file_id> files_;
  std::set<std::tuple<pid_t, std::uint32_t, std::uint32_t>> mapped_;  ///< Process, area, GPU.
};

}  // namespace sluice::sim::test
