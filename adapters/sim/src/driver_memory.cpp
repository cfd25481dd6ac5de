/// Memory as a runtime asks for it (kfd_chardev.c, amdgpu_amdkfd_gpuvm.c): accounts only. What a
/// buffer holds lies in the client's own address space, where a runtime maps every buffer at the
/// address that it gives here; so there is nothing to store, and the GPU reads and writes there.
///
/// The order of checks and the errors are those of Linux 6.12; tests/conformance compares them with
/// the driver's.

#include "driver_state.hpp"
#include "topology.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <tuple>

namespace sluice::sim {

namespace {

constexpr std::uint64_t page = 4096;
/// eop_buffer_size of every GPU since gfx8 (kfd_queue_ctx_save_restore_size).
constexpr std::uint64_t end_of_pipe_size = 4096;
/// Free VRAM is reported in steps (VRAM_AVAILABLITY_ALIGN).
constexpr std::uint64_t available_step = std::uint64_t{2} << 20U;
/// kfd_doorbell_process_slice: 1024 doorbells of 8 bytes since gfx9.
constexpr std::uint64_t doorbell_slice = 1024 * sizeof(std::uint64_t);
/// Of a GPU's address space (amdgpu_vm_adjust_size).
constexpr std::uint64_t end_of_addresses = std::uint64_t{1} << 48U;
/// Golden value of GB_ADDR_CONFIG for gfx9.4.3; nothing here depends on it.
constexpr std::uint32_t gb_addr_config = 0x2a114042;

/// amdgpu_amdkfd_gpuvm_init_mem_limits, ttm_global_init: of the system memory in the topology.
constexpr std::uint64_t reserved_for_system = std::uint64_t{3} << 29U;
constexpr std::uint64_t most_system = cpu_memory - cpu_memory / 64 - reserved_for_system;
constexpr std::uint64_t most_ttm = cpu_memory / 2;

constexpr std::uint64_t steps(std::uint64_t size) {
  return (size + available_step - 1) / available_step * available_step;
}

constexpr std::uint64_t page_up(std::uint64_t size) { return (size + page - 1) / page * page; }

// MAKE_HANDLE of kfd_chardev.c.
constexpr std::uint64_t make_handle(std::uint32_t gpu_id, std::uint32_t id) {
  return std::uint64_t{gpu_id} << 32U | id;
}
constexpr std::uint32_t gpu_of(std::uint64_t handle) {
  return static_cast<std::uint32_t>(handle >> 32U);
}
constexpr std::uint32_t id_of(std::uint64_t handle) { return static_cast<std::uint32_t>(handle); }

/// Doorbells or registers.
bool is_page_of_gpu(const buffer_object& memory) {
  return memory.kind == uapi::KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL ||
         memory.kind == uapi::KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP;
}

}  // namespace

std::uint64_t driver::vram_of(pid_t pid, std::uint32_t gpu_id) const {
  const kfd_process* process = impl_->find(pid);
  if (process == nullptr) return 0;
  for (const auto& device : process->devices) {
    if (device.gpu->shape.gpu_id != gpu_id) continue;
    std::uint64_t bytes = 0;
    for (const auto& [id, object] : device.memory) {
      if (object.is(uapi::KFD_IOC_ALLOC_MEM_FLAGS_VRAM) && !object.imported)
        bytes += object.memory->size;
    }
    return bytes;
  }
  return 0;
}

buffer_object::buffer_object(gpu_node& of, system_memory& whole, std::uint32_t what,
                             std::uint64_t bytes, std::shared_ptr<buffer_object> imported)
    : gpu{of},
      system{whole},
      kind{what},
      size{bytes},
      source{std::move(imported)},
      pinned{is_page_of_gpu(*this)} {
  account(size, steps(size));
}

buffer_object::~buffer_object() { account(-size, -steps(size)); }

/// amdgpu_amdkfd_reserve_mem_limit. \param bytes what is added, modulo 2^64.
void buffer_object::account(std::uint64_t bytes, std::uint64_t whole_steps) {
  if (source) return;
  if (kind == uapi::KFD_IOC_ALLOC_MEM_FLAGS_VRAM) {
    gpu.vram_used += bytes;
    gpu.vram_taken += whole_steps;
  }
  if (kind == uapi::KFD_IOC_ALLOC_MEM_FLAGS_GTT) system.ttm += bytes;
  if (kind == uapi::KFD_IOC_ALLOC_MEM_FLAGS_GTT || kind == uapi::KFD_IOC_ALLOC_MEM_FLAGS_USERPTR)
    system.used += bytes;
}

bool memory_object::behind_bus() const noexcept {
  return is(uapi::KFD_IOC_ALLOC_MEM_FLAGS_VRAM) || (!imported && is_page_of_gpu(*memory));
}

bool driver::impl::has_room(const gpu_node& node, std::uint32_t kind, std::uint64_t size) const {
  switch (kind) {
    case uapi::KFD_IOC_ALLOC_MEM_FLAGS_VRAM:
      return size <= node.shape.vram_bytes() - node.vram_used;
    case uapi::KFD_IOC_ALLOC_MEM_FLAGS_GTT:
      return size <= most_system - system_.used && size <= most_ttm - system_.ttm;
    case uapi::KFD_IOC_ALLOC_MEM_FLAGS_USERPTR: return size <= most_system - system_.used;
    default: return true;
  }
}

/// kfd_debugfs_kfd_mem_limits
std::string driver::impl::mem_limit() const {
  const auto line = [](const char* what, std::uint64_t used, std::uint64_t most) {
    constexpr unsigned mebibyte = 20;
    return std::string{what} + " mem used " + std::to_string(used >> mebibyte) + "M out of " +
           std::to_string(most >> mebibyte) + "M\n";
  };
  return line("System", system_.used, most_system) + line("TTM", system_.ttm, most_ttm);
}

/// drm_gem_handle_create: the lowest that is free.
std::uint32_t gpu_node::add_handle(std::shared_ptr<buffer_object> object) {
  std::uint32_t handle = 1;
  while (handles.contains(handle)) ++handle;
  handles.emplace(handle, std::move(object));
  return handle;
}

memory_object driver::impl::make_buffer(gpu_node& node, std::uint32_t kind, std::uint64_t size) {
  memory_object out;
  out.memory = std::make_shared<buffer_object>(node, system_, kind, size, nullptr);
  out.handle = node.add_handle(out.memory);
  return out;
}

/// The driver's defect: buffers that share memory on a GPU share its handle. The first that is
/// freed deletes it, and the next deletes whatever has that handle by then.
void driver::impl::delete_handle(const memory_object& object) {
  object.memory->gpu.handles.erase(object.handle);
}

std::uint64_t process_device::add(memory_object object) {
  std::uint32_t id = 0;  // idr_alloc: the lowest that is free.
  while (memory.contains(id)) ++id;
  memory.emplace(id, std::move(object));
  return make_handle(gpu->shape.gpu_id, id);
}

memory_object* kfd_process::memory_of(std::uint64_t handle) {
  process_device* owner = device(gpu_of(handle));
  if (owner == nullptr) return nullptr;
  const auto it = owner->memory.find(id_of(handle));
  return it == owner->memory.end() ? nullptr : &it->second;
}

int driver::impl::set_memory_policy(call& c, uapi::kfd_ioctl_set_memory_policy_args& args) {
  for (const auto policy : {args.default_policy, args.alternate_policy}) {
    if (policy > uapi::KFD_IOC_CACHE_POLICY_NONCOHERENT) return -EINVAL;
  }
  const process_device* device = c.caller->device(args.gpu_id);
  if (device == nullptr) return -EINVAL;
  return device->render < 0 ? -ESRCH : 0;  // Nothing is cached here.
}

int driver::impl::set_scratch_backing(call& c, uapi::kfd_ioctl_set_scratch_backing_va_args& args) {
  const process_device* device = c.caller->device(args.gpu_id);
  if (device == nullptr) return -EINVAL;
  return device->render < 0 ? -ENODEV : 0;
}

int driver::impl::set_trap_handler(call& c, uapi::kfd_ioctl_set_trap_handler_args& args) {
  const process_device* device = c.caller->device(args.gpu_id);
  if (device == nullptr) return -EINVAL;
  return device->render < 0 ? -ESRCH : 0;  // No wave here ever traps.
}

int driver::impl::get_tile_config(call& c, uapi::kfd_ioctl_get_tile_config_args& args) {
  if (c.caller->device(args.gpu_id) == nullptr) return -EINVAL;
  // gfx9 and later have no tile modes of this kind.
  args.num_tile_configs = 0;
  args.num_macro_tile_configs = 0;
  args.gb_addr_config = gb_addr_config;
  args.num_banks = 0;
  args.num_ranks = 0;
  return 0;
}

int driver::impl::available_memory(call& c, uapi::kfd_ioctl_get_available_memory_args& args) {
  const process_device* device = c.caller->device(args.gpu_id);
  if (device == nullptr) return -EINVAL;
  const gpu_node& node = *device->gpu;
  args.available = (node.shape.vram_bytes() - node.vram_taken) / available_step * available_step;
  return 0;
}

int driver::impl::alloc_memory(call& c, uapi::kfd_ioctl_alloc_memory_of_gpu_args& args) {
  kfd_process& process = *c.caller;
  if (args.size == 0) return -EINVAL;
  process_device* device = process.device(args.gpu_id);
  if (device == nullptr) return -EINVAL;
  if (device->render < 0) return -ENODEV;  // kfd_bind_process_to_device
  gpu_node& node = *device->gpu;
  std::uint32_t kind = 0;
  for (const auto each :
       {uapi::KFD_IOC_ALLOC_MEM_FLAGS_VRAM, uapi::KFD_IOC_ALLOC_MEM_FLAGS_GTT,
        uapi::KFD_IOC_ALLOC_MEM_FLAGS_USERPTR, uapi::KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL,
        uapi::KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP}) {
    if (kind == 0) kind = args.flags & each;
  }
  std::uint64_t mapped_at = 0;  // The client maps device and system memory by its render node.
  switch (kind) {
    case uapi::KFD_IOC_ALLOC_MEM_FLAGS_USERPTR:
      if (args.mmap_offset == 0) return -EINVAL;
      mapped_at = args.mmap_offset;
      break;
    case uapi::KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL:
      if (args.size != doorbell_slice) return -EINVAL;
      break;
    case uapi::KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP:
      if (args.size != page) return -EINVAL;
      mapped_at = mmap_offset(mmap_type::mmio, process.pasid, node.index);
      break;
    case 0: return -EINVAL;
    default: break;
  }
  const std::uint64_t size = page_up(args.size);
  if (size == 0) return -EINVAL;  // It was too large for 64 bits.
  if (!has_room(node, kind, size)) return -ENOMEM;
  auto object = make_buffer(node, kind, size);
  object.address = args.va_addr;
  args.handle = device->add(std::move(object));
  args.mmap_offset = mapped_at;
  return 0;
}

int driver::impl::free_memory(call& c, uapi::kfd_ioctl_free_memory_of_gpu_args& args) {
  kfd_process& process = *c.caller;
  const memory_object* object = process.memory_of(args.handle);
  if (object == nullptr) return -EINVAL;
  if (process.event_page == args.handle) return -EPERM;
  if (!object->queues.empty()) return -EBUSY;
  delete_handle(*object);
  process.device(gpu_of(args.handle))->memory.erase(id_of(args.handle));
  return 0;
}

void driver::impl::free_all_memory(kfd_process& process) {
  for (auto& device : process.devices) {
    for (const auto& [id, object] : device.memory) delete_handle(object);
    device.memory.clear();
    if (device.trap_handler) delete_handle(*device.trap_handler);
    device.trap_handler.reset();
    if (device.render >= 0) os_.close_fd(std::exchange(device.render, -1));
  }
}

int driver::impl::map_memory(call& c, uapi::kfd_ioctl_map_memory_to_gpu_args& args) {
  return change_mapping(*c.caller, args, true);
}

int driver::impl::unmap_memory(call& c, uapi::kfd_ioctl_map_memory_to_gpu_args& args) {
  return change_mapping(*c.caller, args, false);
}

int driver::impl::change_mapping(kfd_process& process, uapi::kfd_ioctl_map_memory_to_gpu_args& args,
                                 bool map) {
  constexpr std::uint32_t most = 4096;  // GPUs; the driver's allocation would fail somewhere above.
  if (args.n_devices == 0 || args.n_success > args.n_devices) return -EINVAL;
  if (args.n_devices > most) return -ENOMEM;
  std::vector<std::uint32_t> gpus(args.n_devices);
  if (!process.memory->read(args.device_ids_array_ptr, std::as_writable_bytes(std::span{gpus}))) {
    return -EFAULT;
  }
  const process_device* owner = process.device(gpu_of(args.handle));
  if (owner == nullptr) return -EINVAL;
  if (map && owner->render < 0) return -ENODEV;
  memory_object* object = process.memory_of(args.handle);
  if (object == nullptr) return -ENOMEM;
  for (; args.n_success < args.n_devices; ++args.n_success) {
    const process_device* peer = process.device(gpus[args.n_success]);
    if (peer == nullptr) return -EINVAL;
    if (const int error = map ? map_to(process, *owner, *object, *peer)
                              : unmap_from(process, *object, gpus[args.n_success])) {
      return error;
    }
  }
  return 0;
}

/// amdgpu_amdkfd_gpuvm_map_memory_to_gpu, kfd_mem_attach. A second time is no error.
int driver::impl::map_to(const kfd_process& process, const process_device& owner,
                         memory_object& object, const process_device& peer) {
  if (peer.render < 0) return -ENODEV;
  const gpu_profile& there = peer.gpu->shape;
  if (object.queues.contains(there.gpu_id)) return 0;
  if (object.address == 0) return -EINVAL;
  // Assumption: PCIe carries no accesses between GPUs (CONFIG_HSA_AMD_P2P is off).
  const bool linked = object.is(uapi::KFD_IOC_ALLOC_MEM_FLAGS_VRAM) && there.hive_id != 0 &&
                      there.hive_id == owner.gpu->shape.hive_id;
  if (object.behind_bus() && peer.gpu != owner.gpu && !linked) return -EINVAL;
  // amdgpu_vm_verify_parameters
  if (object.address % page != 0 || object.address >= end_of_addresses ||
      object.memory->size > end_of_addresses - object.address)
    return -EINVAL;
  for (const auto& device : process.devices) {
    for (const auto& [id, other] : device.memory) {
      if (other.queues.contains(there.gpu_id) &&
          other.address < object.address + object.memory->size &&
          object.address < other.address + other.memory->size)
        return -EINVAL;
    }
  }
  object.queues.emplace(there.gpu_id, 0);
  return 0;
}

int driver::impl::unmap_from(const kfd_process& process, memory_object& object,
                             std::uint32_t gpu_id) {
  const auto mapped = object.queues.find(gpu_id);
  if (mapped == object.queues.end()) return -EINVAL;
  // A queue keeps all mappings of the memory that it uses.
  for (const auto& device : process.devices) {
    for (const auto& [id, other] : device.memory) {
      const auto used = other.queues.find(gpu_id);
      if (other.memory == object.memory && used != other.queues.end() && used->second > 0)
        return -EBUSY;
    }
  }
  object.queues.erase(mapped);
  return 0;
}

/// kfd_mem_export_dmabuf: by the handle, whose buffer it is by now.
int driver::impl::share(memory_object& object) {
  if (object.dmabuf) return 0;
  const auto& handles = object.memory->gpu.handles;
  const auto found = handles.find(object.handle);
  if (found == handles.end()) return -ENOENT;
  const auto& named = found->second;
  if (named->kind == uapi::KFD_IOC_ALLOC_MEM_FLAGS_USERPTR) return -EPERM;
  object.dmabuf = named->source ? named->source : named;
  return 0;
}

task<int> driver::impl::export_dmabuf(call_ptr c, uapi::kfd_ioctl_export_dmabuf_args& args) {
  memory_object* object = c->caller->memory_of(args.handle);
  if (object == nullptr) co_return -EINVAL;
  if (const int error = share(*object)) co_return error;
  const auto number = promise_file(c->tid);
  dmabufs_.emplace(number, object->dmabuf);
  co_return co_await hand_over(c, number,
                               {.offset = offsetof(uapi::kfd_ioctl_export_dmabuf_args, dmabuf_fd),
                                .close_on_exec = (args.flags & O_CLOEXEC) != 0});
}

int driver::impl::dmabuf_of(const call& c, std::uint32_t fd, std::shared_ptr<buffer_object>& out) {
  const auto file = os_.handed_file(c.tid, static_cast<int>(fd));
  if (!file) return -file.error().value();
  const auto found = dmabufs_.find(*file);
  if (found == dmabufs_.end()) return -EINVAL;
  out = found->second;
  return 0;
}

/// amdgpu_amdkfd_gpuvm_import_dmabuf_fd
int driver::impl::import_dmabuf(call& c, uapi::kfd_ioctl_import_dmabuf_args& args) {
  process_device* device = c.caller->device(args.gpu_id);
  if (device == nullptr) return -EINVAL;
  if (device->render < 0) return -ENODEV;
  memory_object object;
  if (const int error = dmabuf_of(c, args.dmabuf_fd, object.dmabuf)) return error;
  const auto& shared = object.dmabuf;
  gpu_node& node = *device->gpu;
  const auto known =
      std::find_if(node.handles.begin(), node.handles.end(), [&shared](const auto& each) {
        return each.second == shared || each.second->source == shared;
      });
  if (known != node.handles.end()) {
    std::tie(object.handle, object.memory) = *known;
  } else {
    object.memory = shared;
    if (&shared->gpu != &node) {
      if (is_page_of_gpu(*shared)) return -EINVAL;
      shared->pinned = true;
      object.memory = std::make_shared<buffer_object>(
          node, system_, uapi::KFD_IOC_ALLOC_MEM_FLAGS_GTT, shared->size, shared);
    }
    object.handle = node.add_handle(object.memory);
  }
  object.address = args.va_addr;
  object.imported = true;
  args.handle = device->add(std::move(object));
  return 0;
}

int driver::impl::dmabuf_info(call& c, uapi::kfd_ioctl_get_dmabuf_info_args& args) {
  std::shared_ptr<buffer_object> shared;
  if (const int error = dmabuf_of(c, args.dmabuf_fd, shared)) return error;
  args.size = shared->size;
  args.gpu_id = shared->gpu.shape.gpu_id;
  args.metadata_size = 0;  // Only a render node could set it.
  args.flags = shared->kind == uapi::KFD_IOC_ALLOC_MEM_FLAGS_VRAM
                   ? uapi::KFD_IOC_ALLOC_MEM_FLAGS_VRAM
                   : uapi::KFD_IOC_ALLOC_MEM_FLAGS_GTT;
  if (shared->pinned) args.flags |= uapi::KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC;
  return 0;
}

/// kfd_queue_buffer_get: the buffer that is mapped at exactly these pages. \param size what it must
/// have; less than a page: any. \return its handle; 0: none.
std::uint64_t driver::impl::buffer_at(kfd_process& process, std::uint32_t gpu_id,
                                      std::uint64_t address, std::uint64_t size) {
  for (const auto& device : process.devices) {
    for (const auto& [id, object] : device.memory) {
      if (!object.queues.contains(gpu_id) || object.address != address / page * page) continue;
      if (size / page != 0 && object.memory->size / page != size / page) return 0;
      return make_handle(device.gpu->shape.gpu_id, id);
    }
  }
  return 0;
}

/// kfd_queue_acquire_buffers, since Linux 6.12: every buffer is mapped, and of the expected size.
int driver::impl::acquire_buffers(kfd_process& process, kfd_queue& queue) {
  const gpu_profile& shape = queue.gpu->shape;
  std::vector<std::uint64_t> found;
  const auto have = [&](std::uint64_t address, std::uint64_t size) {
    found.push_back(buffer_at(process, shape.gpu_id, address, size));
    return found.back() != 0;
  };
  if (!have(queue.write_pointer, page) || !have(queue.read_pointer, page) ||
      !have(queue.ring_base, queue.ring_size))
    return -EINVAL;
  if (queue.is_compute()) {
    if (queue.eop_address != 0 &&
        (queue.eop_size < end_of_pipe_size || !have(queue.eop_address, page_up(queue.eop_size))))
      return -EINVAL;
    const auto wanted = save_area_of(shape);
    if (queue.control_stack_size != wanted.control_stack || queue.save_area_size < wanted.context ||
        !have(queue.save_area,
              page_up((std::uint64_t{queue.save_area_size} + wanted.debugger) * shape.num_xcc)))
      return -EINVAL;
  }
  // amdgpu_amdkfd_map_gtt_bo_to_gart: MES reads the write pointer by an address of its own.
  // Buffers of the driver stay those of the GPU that they were allocated for.
  if (shape.scheduler == queue_scheduler::mes) {
    if (process.memory_of(found[0])->is(uapi::KFD_IOC_ALLOC_MEM_FLAGS_USERPTR)) return -EPERM;
    if (found[0] >> 32U != shape.gpu_id) return -EINVAL;
    process.memory_of(found[0])->memory->pinned = true;
  }
  for (const auto handle : found) ++process.memory_of(handle)->queues[shape.gpu_id];
  queue.buffers = std::move(found);
  return 0;
}

void driver::impl::release_buffers(kfd_process& process, kfd_queue& queue) {
  for (const auto handle : queue.buffers) {
    if (memory_object* object = process.memory_of(handle))
      --object->queues[queue.gpu->shape.gpu_id];
  }
  queue.buffers.clear();
}

/// Of UPDATE_QUEUE, pqm_update_queue_properties.
int driver::impl::replace_ring(kfd_process& process, kfd_queue& queue, std::uint64_t base,
                               std::uint64_t size) {
  constexpr std::size_t ring = 2;  // In kfd_queue::buffers.
  if (queue.buffers.size() <= ring || base == 0) return 0;
  const std::uint32_t gpu_id = queue.gpu->shape.gpu_id;
  const auto handle = buffer_at(process, gpu_id, base, size);
  if (handle == 0) return -EFAULT;
  ++process.memory_of(handle)->queues[gpu_id];
  --process.memory_of(std::exchange(queue.buffers[ring], handle))->queues[gpu_id];
  return 0;
}

int driver::impl::get_apertures_old(call& c, uapi::kfd_ioctl_get_process_apertures_args& args) {
  const auto all = apertures_of(*c.caller);
  const auto count = std::min(all.size(), args.process_apertures.size());
  std::copy_n(all.begin(), count, args.process_apertures.begin());
  args.num_of_nodes = static_cast<std::uint32_t>(count);
  return 0;
}

/// kfd_kmap_event_page: the runtime of a discrete GPU brings the page of signal slots itself.
int driver::impl::set_event_page(kfd_process& process, std::uint64_t handle) {
  if (process.event_page) return -EINVAL;
  const process_device* device = process.device(gpu_of(handle));
  const memory_object* object = process.memory_of(handle);
  if (device == nullptr || object == nullptr) return -EINVAL;
  // All slots begin unsignaled. A page that the CPU does not see has no reader either.
  const std::vector<std::byte> unsignaled(uapi::KFD_SIGNAL_EVENT_LIMIT * sizeof(std::uint64_t),
                                          std::byte{0xff});
  (void)process.memory->write(object->address, unsignaled);
  object->memory->pinned = true;
  process.event_page = handle;
  return 0;
}

}  // namespace sluice::sim
