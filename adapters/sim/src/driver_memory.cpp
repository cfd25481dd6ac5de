/// Memory as a runtime asks for it (kfd_chardev.c, amdgpu_amdkfd_gpuvm.c): accounts only. What a
/// buffer holds lies in the client's own address space, where a runtime maps every buffer at the
/// address that it gives here; so there is nothing to store, and the GPU reads and writes there.
///
/// Layouts are the ABI's. The order of checks and the errors are inferred: from what AMD's
/// libhsakmt asks for and relies on, and the driver's general rules. System memory has no limit
/// here.

#include "driver_state.hpp"

#include <algorithm>
#include <cerrno>

namespace sluice::sim {

namespace {

constexpr std::uint64_t page = 4096;
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
  return c.caller->device(args.gpu_id) == nullptr ? -EINVAL : 0;  // Nothing is cached here.
}

int driver::impl::set_scratch_backing(call& c, uapi::kfd_ioctl_set_scratch_backing_va_args& args) {
  return c.caller->device(args.gpu_id) == nullptr ? -EINVAL : 0;
}

int driver::impl::set_trap_handler(call& c, uapi::kfd_ioctl_set_trap_handler_args& args) {
  return c.caller->device(args.gpu_id) == nullptr ? -EINVAL : 0;  // No wave here ever traps.
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
  if (!device->vm_acquired) return -ENODEV;  // kfd_bind_process_to_device
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
  device->memory.emplace(id, memory_object{.address = args.va_addr, .vram = vram, .gpus = {}});
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
  if (!object->gpus.empty()) return -EBUSY;
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
  memory_object* object = process.memory_of(args.handle);
  if (object == nullptr) return -EINVAL;
  for (; args.n_success < args.n_devices; ++args.n_success) {
    const process_device* peer = process.device(gpus[args.n_success]);
    if (peer == nullptr) return -EINVAL;
    if (map && !peer->vm_acquired) return -ENODEV;
    if (map) {
      object->gpus.insert(gpus[args.n_success]);
    } else {
      object->gpus.erase(gpus[args.n_success]);
    }
  }
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
