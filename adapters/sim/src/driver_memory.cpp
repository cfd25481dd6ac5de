/// Memory as a runtime asks for it (kfd_chardev.c, amdgpu_amdkfd_gpuvm.c): accounts only. What a
/// buffer holds lies in the client's own address space, where a runtime maps every buffer at the
/// address that it gives here; so there is nothing to store, and the GPU reads and writes there.
///
/// The order of checks and the errors are those of Linux 6.12; tests/conformance compares them with
/// the driver's. System memory has no limit here.

#include "driver_state.hpp"
#include "topology.hpp"

#include <algorithm>
#include <cerrno>

namespace sluice::sim {

namespace {

constexpr std::uint64_t page = 4096;
/// eop_buffer_size of every GPU since gfx8 (kfd_queue_ctx_save_restore_size).
constexpr std::uint64_t end_of_pipe_size = 4096;
/// Free VRAM is reported in steps (VRAM_AVAILABLITY_ALIGN).
constexpr std::uint64_t available_step = std::uint64_t{2} << 20U;
/// kfd_doorbell_process_slice: 1024 doorbells of 8 bytes since gfx9.
constexpr std::uint64_t doorbell_slice = 1024 * sizeof(std::uint64_t);
/// Golden value of GB_ADDR_CONFIG for gfx9.4.3; nothing here depends on it.
constexpr std::uint32_t gb_addr_config = 0x2a114042;

constexpr std::uint64_t page_up(std::uint64_t size) { return (size + page - 1) / page * page; }

// MAKE_HANDLE of kfd_chardev.c.
constexpr std::uint64_t make_handle(std::uint32_t gpu_id, std::uint32_t id) {
  return std::uint64_t{gpu_id} << 32U | id;
}
constexpr std::uint32_t gpu_of(std::uint64_t handle) {
  return static_cast<std::uint32_t>(handle >> 32U);
}
constexpr std::uint32_t id_of(std::uint64_t handle) { return static_cast<std::uint32_t>(handle); }

}  // namespace

std::uint64_t driver::vram_of(pid_t pid, std::uint32_t gpu_id) const {
  const kfd_process* process = impl_->find(pid);
  if (process == nullptr) return 0;
  for (const auto& device : process->devices) {
    if (device.gpu->shape.gpu_id == gpu_id) return device.vram;
  }
  return 0;
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
  args.available = (node.shape.vram_bytes() - node.vram_used) / available_step * available_step;
  return 0;
}

int driver::impl::alloc_memory(call& c, uapi::kfd_ioctl_alloc_memory_of_gpu_args& args) {
  kfd_process& process = *c.caller;
  if (args.size == 0) return -EINVAL;
  process_device* device = process.device(args.gpu_id);
  if (device == nullptr) return -EINVAL;
  if (device->render < 0) return -ENODEV;  // kfd_bind_process_to_device
  gpu_node& node = *device->gpu;
  std::uint64_t mapped_at = 0;
  std::uint64_t vram = 0;
  if ((args.flags & uapi::KFD_IOC_ALLOC_MEM_FLAGS_VRAM) != 0) {
    if (args.size > node.shape.vram_bytes() - node.vram_used) return -ENOMEM;
    vram = page_up(args.size);
    if (vram > node.shape.vram_bytes() - node.vram_used) return -ENOMEM;
  } else if ((args.flags & uapi::KFD_IOC_ALLOC_MEM_FLAGS_GTT) != 0) {
    // System memory, which the client maps through its render node.
  } else if ((args.flags & uapi::KFD_IOC_ALLOC_MEM_FLAGS_USERPTR) != 0) {
    if (args.mmap_offset == 0) return -EINVAL;
    mapped_at = args.mmap_offset;
  } else if ((args.flags & uapi::KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL) != 0) {
    if (args.size != doorbell_slice) return -EINVAL;
  } else if ((args.flags & uapi::KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP) != 0) {
    if (args.size != page) return -EINVAL;
    mapped_at = mmap_offset(mmap_type::mmio, process.pasid, node.index);
  } else {
    return -EINVAL;
  }
  std::uint32_t id = 0;  // idr_alloc: the lowest that is free.
  while (device->memory.contains(id)) ++id;
  constexpr auto behind_bus = uapi::KFD_IOC_ALLOC_MEM_FLAGS_VRAM |
                              uapi::KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL |
                              uapi::KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP;
  device->memory.emplace(
      id,
      memory_object{.address = args.va_addr,
                    .size = page_up(args.size),
                    .vram = vram,
                    .pages_of_process = (args.flags & uapi::KFD_IOC_ALLOC_MEM_FLAGS_USERPTR) != 0,
                    .behind_bus = (args.flags & behind_bus) != 0,
                    .queues = {}});
  device->vram += vram;
  node.vram_used += vram;
  args.handle = make_handle(args.gpu_id, id);
  args.mmap_offset = mapped_at;
  return 0;
}

int driver::impl::free_memory(call& c, uapi::kfd_ioctl_free_memory_of_gpu_args& args) {
  kfd_process& process = *c.caller;
  const memory_object* object = process.memory_of(args.handle);
  if (object == nullptr) return -EINVAL;
  if (process.event_page == args.handle) return -EPERM;
  if (!object->queues.empty()) return -EBUSY;
  process_device& device = *process.device(gpu_of(args.handle));
  device.vram -= object->vram;
  device.gpu->vram_used -= object->vram;
  device.memory.erase(id_of(args.handle));
  return 0;
}

void driver::impl::free_all_memory(kfd_process& process) {
  for (auto& device : process.devices) {
    device.gpu->vram_used -= device.vram;
    device.vram = 0;
    device.memory.clear();
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
                              : unmap_from(*object, gpus[args.n_success])) {
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
  const bool linked =
      object.vram > 0 && there.hive_id != 0 && there.hive_id == owner.gpu->shape.hive_id;
  if (object.behind_bus && peer.gpu != owner.gpu && !linked) return -EINVAL;
  for (const auto& device : process.devices) {
    for (const auto& [id, other] : device.memory) {
      if (other.queues.contains(there.gpu_id) && other.address < object.address + object.size &&
          object.address < other.address + other.size)
        return -EINVAL;
    }
  }
  object.queues.emplace(there.gpu_id, 0);
  return 0;
}

int driver::impl::unmap_from(memory_object& object, std::uint32_t gpu_id) {
  const auto mapped = object.queues.find(gpu_id);
  if (mapped == object.queues.end()) return -EINVAL;
  if (mapped->second > 0) return -EBUSY;
  object.queues.erase(mapped);
  return 0;
}

/// kfd_queue_buffer_get: the buffer that is mapped at exactly these pages. \param size what it must
/// have; less than a page: any. \return its handle; 0: none.
std::uint64_t driver::impl::buffer_at(kfd_process& process, std::uint32_t gpu_id,
                                      std::uint64_t address, std::uint64_t size) {
  for (const auto& device : process.devices) {
    for (const auto& [id, object] : device.memory) {
      if (!object.queues.contains(gpu_id) || object.address != address / page * page) continue;
      if (size / page != 0 && object.size / page != size / page) return 0;
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
    if (process.memory_of(found[0])->pages_of_process) return -EPERM;
    if (found[0] >> 32U != shape.gpu_id) return -EINVAL;
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
  process.event_page = handle;
  return 0;
}

}  // namespace sluice::sim
