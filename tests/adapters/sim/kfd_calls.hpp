#pragma once
/// \file
/// The driver's calls as bare as possible: what a test says is what the kernel gets. Every function
/// returns ioctl's value, or -errno.

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "sluice/kfd/uapi.hpp"
#include "sluice/kfd/uapi_memory.hpp"

namespace sluice::test {

namespace uapi = kfd::uapi;

template <class Argument>
int raw_call(int fd, std::uint32_t command, Argument& argument) {
  const int value = ioctl(fd, command, &argument);
  return value < 0 ? -errno : value;
}

inline std::uint64_t address_of(const void* memory) {
  return reinterpret_cast<std::uint64_t>(memory);
}

class raw_device {
 public:
  explicit raw_device(const std::string& path) : fd_{open(path.c_str(), O_RDWR | O_CLOEXEC)} {
    if (fd_ < 0) throw std::runtime_error("cannot open " + path);
  }
  raw_device(const raw_device&) = delete;
  raw_device& operator=(const raw_device&) = delete;
  ~raw_device() { close(fd_); }
  int fd() const { return fd_; }

  int version(std::uint32_t& major, std::uint32_t& minor) const {
    uapi::kfd_ioctl_get_version_args get{};
    const int value = raw_call(fd_, uapi::AMDKFD_IOC_GET_VERSION, get);
    major = get.major_version;
    minor = get.minor_version;
    return value;
  }

  int runtime_enable(bool on) const {
    uapi::kfd_ioctl_runtime_enable_args set{};
    set.mode_mask = on ? uapi::KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK : 0;
    return raw_call(fd_, uapi::AMDKFD_IOC_RUNTIME_ENABLE, set);
  }

 private:
  int fd_;
};

/// Gives the GPU an address space of the process, that of this render node. The process may close
/// the node afterwards. \return also 0 if the GPU has it already, and -EBUSY if it has another one.
inline int acquire_vm(int fd, std::uint32_t gpu, const std::string& render) {
  const int node = open(render.c_str(), O_RDWR | O_CLOEXEC);
  uapi::kfd_ioctl_acquire_vm_args args{};
  args.drm_fd = static_cast<std::uint32_t>(node);
  args.gpu_id = gpu;
  const int value = raw_call(fd, uapi::AMDKFD_IOC_ACQUIRE_VM, args);
  close(node);
  return value;
}

/// Memory of a queue that never gets a packet: enough for calls about queues.
class queue_memory {
 public:
  static constexpr std::uint32_t ring_size = 4096;
  queue_memory() {
    base_ = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base_ == MAP_FAILED) throw std::runtime_error("mmap failed");
  }
  queue_memory(const queue_memory&) = delete;
  queue_memory& operator=(const queue_memory&) = delete;
  ~queue_memory() { munmap(base_, mapped); }

  std::uint64_t ring() const { return address_of(base_); }
  std::uint64_t saved_context() const { return ring() + 3 * page; }

  /// Gives the GPU the process's address space and this memory, if it does not have them yet.
  /// \param doorbell where to put the offset of its doorbell. \return the queue id, or -errno.
  int create(int fd, std::uint32_t gpu, std::uint64_t* doorbell = nullptr) const {
    std::error_code none;
    const auto device = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), none);
    auto root = device.parent_path().parent_path();
    if (root.filename() == "fuse") root = root.parent_path();  // The simulated device's mount.
    auto node = properties_of(gpu, root);
    const auto render = "renderD" + std::to_string(node["drm_render_minor"]);
    (void)acquire_vm(fd, gpu, root / "dev/dri" / render);
    const auto saved = save_area_of(node);
    map(fd, gpu, ring(), page);
    map(fd, gpu, ring() + page, page);
    map(fd, gpu, ring() + 2 * page, page);
    map(fd, gpu, saved_context(), saved.total);
    uapi::kfd_ioctl_create_queue_args create{};
    create.ring_base_address = ring();
    create.ring_size = ring_size;
    create.write_pointer_address = ring() + page + 0x38;
    create.read_pointer_address = ring() + page + 0x80;
    create.eop_buffer_address = ring() + 2 * page;
    create.eop_buffer_size = page;
    create.ctx_save_restore_address = saved_context();
    create.ctx_save_restore_size = saved.context;
    create.ctl_stack_size = saved.control_stack;
    create.gpu_id = gpu;
    create.queue_type = uapi::KFD_IOC_QUEUE_TYPE_COMPUTE_AQL;
    create.queue_percentage = 100;
    create.queue_priority = 7;
    const int value = raw_call(fd, uapi::AMDKFD_IOC_CREATE_QUEUE, create);
    if (doorbell != nullptr) *doorbell = create.doorbell_offset;
    return value < 0 ? value : static_cast<int>(create.queue_id);
  }

 private:
  static constexpr std::size_t page = 4096;
  static constexpr std::size_t mapped = std::size_t{1} << 30U;
  struct save_area {
    std::uint32_t control_stack = page, context = 2 * page;
    std::uint64_t total = 2 * page;
  };

  using property_map = std::map<std::string, std::uint64_t>;
  /// What the topology says about this GPU.
  static property_map properties_of(std::uint32_t gpu, const std::filesystem::path& root) {
    property_map out;
    for (int node = 1;; ++node) {
      const auto folder = root / "sys/class/kfd/kfd/topology/nodes" / std::to_string(node);
      std::ifstream id{folder / "gpu_id"};
      std::uint32_t found = 0;
      if (!(id >> found)) return out;
      if (found != gpu) continue;
      std::ifstream properties{folder / "properties"};
      std::string key;
      for (std::uint64_t value = 0; properties >> key >> value;) out[key] = value;
      return out;
    }
  }
  /// A driver without these properties compares no sizes.
  static save_area save_area_of(property_map& node) {
    save_area out;
    if (node["cwsr_size"] == 0) return out;
    const auto xccs = node["num_xcc"];
    const auto units = node["simd_count"] / node["simd_per_cu"] / xccs;
    const auto engines = node["array_count"] / node["simd_arrays_per_engine"];
    const auto waves =
        node["gfx_target_version"] >= 100100 ? units * 32 : std::min(units * 40, engines * 512);
    out.control_stack = static_cast<std::uint32_t>(node["ctl_stack_size"]);
    out.context = static_cast<std::uint32_t>(node["cwsr_size"]);
    const auto total = (out.context + (waves * 32 + 63) / 64 * 64) * xccs;
    out.total = (total + page - 1) / page * page;
    return out;
  }
  /// Fails where the process mapped this memory before.
  static void map(int fd, std::uint32_t gpu, std::uint64_t at, std::uint64_t size) {
    uapi::kfd_ioctl_alloc_memory_of_gpu_args alloc{};
    alloc.va_addr = at;
    alloc.size = size;
    alloc.gpu_id = gpu;
    alloc.flags = uapi::KFD_IOC_ALLOC_MEM_FLAGS_GTT;
    if (raw_call(fd, uapi::AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, alloc) != 0) return;
    uapi::kfd_ioctl_map_memory_to_gpu_args args{};
    args.handle = alloc.handle;
    args.device_ids_array_ptr = address_of(&gpu);
    args.n_devices = 1;
    if (raw_call(fd, uapi::AMDKFD_IOC_MAP_MEMORY_TO_GPU, args) == 0) return;
    uapi::kfd_ioctl_free_memory_of_gpu_args free{};
    free.handle = alloc.handle;
    (void)raw_call(fd, uapi::AMDKFD_IOC_FREE_MEMORY_OF_GPU, free);
  }

  void* base_ = nullptr;
};

inline int destroy_queue(int fd, std::uint32_t id) {
  uapi::kfd_ioctl_destroy_queue_args destroy{};
  destroy.queue_id = id;
  return raw_call(fd, uapi::AMDKFD_IOC_DESTROY_QUEUE, destroy);
}

/// The calls of a debug session with `pid`. For another process the calling thread must trace it.
class debugger {
 public:
  debugger(int fd, pid_t pid) : fd_{fd}, pid_{static_cast<std::uint32_t>(pid)} {
    if (pipe2(pipe_.data(), O_CLOEXEC | O_NONBLOCK) != 0) throw std::runtime_error("pipe2 failed");
  }
  debugger(const debugger&) = delete;
  debugger& operator=(const debugger&) = delete;
  ~debugger() {
    close(pipe_[0]);
    close(pipe_[1]);
  }

  static bool seize(pid_t pid) { return ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0; }

  int enable(std::uint64_t mask) {
    auto trap = make(uapi::KFD_IOC_DBG_TRAP_ENABLE);
    trap.enable.exception_mask = mask;
    trap.enable.rinfo_ptr = address_of(&runtime_);
    trap.enable.rinfo_size = sizeof runtime_;
    trap.enable.dbg_fd = static_cast<std::uint32_t>(pipe_[1]);
    return run(trap);
  }
  int disable() {
    auto trap = make(uapi::KFD_IOC_DBG_TRAP_DISABLE);
    return run(trap);
  }
  int suspend(std::vector<std::uint32_t>& ids, std::uint64_t clear = 0) {
    auto trap = make(uapi::KFD_IOC_DBG_TRAP_SUSPEND_QUEUES);
    trap.suspend_queues.exception_mask = clear;
    trap.suspend_queues.queue_array_ptr = address_of(ids.data());
    trap.suspend_queues.num_queues = static_cast<std::uint32_t>(ids.size());
    return run(trap);
  }
  int resume(std::vector<std::uint32_t>& ids) {
    auto trap = make(uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES);
    trap.resume_queues.queue_array_ptr = address_of(ids.data());
    trap.resume_queues.num_queues = static_cast<std::uint32_t>(ids.size());
    return run(trap);
  }
  int resume_all() {
    auto trap = make(uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES);
    return run(trap);
  }
  /// At most `room` entries; clears the given exceptions of those.
  int snapshot(std::vector<uapi::kfd_queue_snapshot_entry>& entries, std::uint64_t clear,
               std::uint32_t room = 64) {
    entries.assign(room, {});
    auto trap = make(uapi::KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT);
    trap.queue_snapshot.exception_mask = clear;
    trap.queue_snapshot.snapshot_buf_ptr = address_of(entries.data());
    trap.queue_snapshot.num_queues = room;
    trap.queue_snapshot.entry_size = sizeof(uapi::kfd_queue_snapshot_entry);
    const int value = run(trap);
    entries.resize(value < 0 ? 0 : std::min(room, trap.queue_snapshot.num_queues));
    return value;
  }
  /// Makes every queue suspendable.
  int clear_new() {
    std::vector<uapi::kfd_queue_snapshot_entry> entries;
    return snapshot(entries, uapi::KFD_EC_MASK(uapi::EC_QUEUE_NEW));
  }
  /// \return the pending status, which is cleared; nothing when nothing is pending.
  std::optional<std::uint64_t> query() {
    auto trap = make(uapi::KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT);
    trap.query_debug_event.exception_mask = ~std::uint64_t{0};
    if (run(trap) != 0) return std::nullopt;
    return trap.query_debug_event.exception_mask;
  }
  int send_runtime_event() {
    auto trap = make(uapi::KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT);
    trap.send_runtime_event.exception_mask = uapi::KFD_EC_MASK(uapi::EC_PROCESS_RUNTIME);
    return run(trap);
  }

  /// Whether a notification came (one is taken).
  bool notified() const {
    char byte = 0;
    return read(pipe_[0], &byte, 1) == 1;
  }
  const uapi::kfd_runtime_info& runtime() const { return runtime_; }

 private:
  uapi::kfd_ioctl_dbg_trap_args make(std::uint32_t op) const {
    uapi::kfd_ioctl_dbg_trap_args trap{};
    trap.pid = pid_;
    trap.op = op;
    return trap;
  }
  int run(uapi::kfd_ioctl_dbg_trap_args& trap) const {
    return raw_call(fd_, uapi::AMDKFD_IOC_DBG_TRAP, trap);
  }

  int fd_;
  std::uint32_t pid_;
  std::array<int, 2> pipe_{};
  uapi::kfd_runtime_info runtime_{};
};

/// What a scheduler subscribes to.
inline constexpr std::uint64_t usual_mask = uapi::KFD_EC_MASK(uapi::EC_QUEUE_NEW) |
                                            uapi::KFD_EC_MASK(uapi::EC_DEVICE_QUEUE_DELETE) |
                                            uapi::KFD_EC_MASK(uapi::EC_PROCESS_RUNTIME);

}  // namespace sluice::test
