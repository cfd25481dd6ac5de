/// Queues: their life as their owner commands it, and the runlist cycle that every change costs
/// everybody on the GPU (kfd_process_queue_manager.c, kfd_device_queue_manager.c).

#include "driver_state.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>

namespace sluice::sim {

namespace {

constexpr std::uint32_t max_queues_per_device = 4096;     // Module parameter, its default.
constexpr std::uint64_t user_space_end = 0x7ffffffff000;  // TASK_SIZE_MAX with 4-level paging.

bool access_ok(std::uint64_t address, std::uint64_t size) {
  return size <= user_space_end && address <= user_space_end - size;
}

/// What CREATE_QUEUE and UPDATE_QUEUE check alike, in the driver's order.
int check_ring(std::uint32_t percentage, std::uint32_t priority, std::uint64_t base,
               std::uint32_t size) {
  // Bits 8-15 of the percentage are the target XCC of PM4 queues.
  if ((percentage & 0xffU) > uapi::KFD_MAX_QUEUE_PERCENTAGE) return -EINVAL;
  if (priority > uapi::KFD_MAX_QUEUE_PRIORITY) return -EINVAL;
  if (base != 0 && !access_ok(base, sizeof(std::uint64_t))) return -EFAULT;
  if (size != 0 && !std::has_single_bit(size)) return -EINVAL;
  return 0;
}

std::uint32_t effective_ring_size(std::uint32_t size) {
  return std::max(size, uapi::KFD_MIN_QUEUE_RING_SIZE);
}

}  // namespace

void driver::impl::set_active(kfd_queue& queue, bool active) {
  queue.active = active;
  queue.gpu->model.set_active(queue.model, active);
}

void driver::impl::refresh_active(kfd_queue& queue) { set_active(queue, queue.should_be_active()); }

std::optional<duration> driver::impl::take_failure(gpu_node& node) {
  const auto failing = std::exchange(node.failing, std::nullopt);
  if (!failing) return std::nullopt;
  if (failing->reset_follows) start_reset(node);
  return failing->lasts;
}

task<int> driver::impl::cycle(gpu_node& node, cycle_kind kind, duration cost, duration grace) {
  // unmap_queues_cpsch returns early when no runlist is active, map_queues_cpsch when nothing is to
  // be mapped: such a cycle costs nothing.
  if (!node.model.runlist_in_use()) cost = duration::zero();
  if (grace > duration::zero()) {
    const duration drain = node.model.begin_drain(grace);
    co_await sleep_until{engine_, engine_.now() + drain};
  }
  const auto failing = take_failure(node);
  if (failing) cost = *failing;
  node.model.begin_cycle(kind);
  co_await sleep_until{engine_, engine_.now() + cost};
  node.model.end_cycle(!failing);
  co_return failing ? -ETIME : 0;
}

task<int> driver::impl::change_queue(std::shared_ptr<kfd_queue> queue, bool active, cycle_kind kind,
                                     duration cost) {
  gpu_node& node = *queue->gpu;
  if (node.shape.scheduler == queue_scheduler::runlist) {
    set_active(*queue, active);
    co_return co_await cycle(node, kind, cost);
  }
  if (queue->active == active) co_return 0;
  const auto failing = take_failure(node);
  if (!active && !failing) node.model.set_listed(queue->model, false, kind);
  co_await sleep_until{engine_, engine_.now() + failing.value_or(cost)};
  if (failing) co_return -EIO;
  if (active) node.model.set_listed(queue->model, true, kind);
  set_active(*queue, active);
  co_return 0;
}

task<int> driver::impl::renew_queue(std::shared_ptr<kfd_queue> queue) {
  const gpu_node& node = *queue->gpu;
  if (node.shape.scheduler == queue_scheduler::mes && queue->active) {
    const int error =
        co_await change_queue(queue, false, cycle_kind::ordinary, node.shape.cycle_cost);
    if (error != 0) co_return error;
  }
  co_return co_await change_queue(queue, queue->should_be_active(), cycle_kind::ordinary,
                                  node.shape.cycle_cost);
}

task<int> driver::impl::refresh_debugger(gpu_node& node) {
  if (node.shape.scheduler == queue_scheduler::runlist) {
    co_return co_await cycle(node, cycle_kind::debug, node.shape.cycle_cost);
  }
  const auto failing = take_failure(node);
  co_await sleep_until{engine_, engine_.now() + failing.value_or(node.shape.cycle_cost)};
  co_return failing ? -EIO : 0;
}

task<int> driver::impl::create_queue(call_ptr c, uapi::kfd_ioctl_create_queue_args& args) {
  const process_ptr process = c->caller;
  if (const int error = check_ring(args.queue_percentage, args.queue_priority,
                                   args.ring_base_address, args.ring_size)) {
    co_return error;
  }
  if (!access_ok(args.read_pointer_address, sizeof(std::uint32_t)) ||
      !access_ok(args.write_pointer_address, sizeof(std::uint32_t)) ||
      !access_ok(args.eop_buffer_address, sizeof(std::uint32_t)) ||
      !access_ok(args.ctx_save_restore_address, sizeof(std::uint32_t))) {
    co_return -EFAULT;
  }
  std::uint32_t type = args.queue_type;
  switch (type) {
    case uapi::KFD_IOC_QUEUE_TYPE_COMPUTE:
    case uapi::KFD_IOC_QUEUE_TYPE_COMPUTE_AQL:
    case uapi::KFD_IOC_QUEUE_TYPE_SDMA:
    case uapi::KFD_IOC_QUEUE_TYPE_SDMA_XGMI: break;
    case uapi::KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID:
      if (profile_.abi_minor >= 17) break;
      [[fallthrough]];
    default: co_return -kernel_enotsupp;
  }

  auto held = co_await process->mutex.lock();
  if (process->gone) co_return -ESRCH;
  process_device* device = process->device(args.gpu_id);
  if (device == nullptr) co_return -EINVAL;
  if (device->render < 0) co_return -ESRCH;
  gpu_node& node = *device->gpu;
  smi_process(*device, *process, true);
  std::optional<std::uint32_t> engine;
  if (type == uapi::KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID) {
    const auto own = node.shape.sdma_engines;
    if (args.sdma_engine_id >= own + node.shape.sdma_xgmi_engines) co_return -EINVAL;
    engine = args.sdma_engine_id;
    type = *engine < own ? uapi::KFD_IOC_QUEUE_TYPE_SDMA : uapi::KFD_IOC_QUEUE_TYPE_SDMA_XGMI;
  }
  const auto q = std::make_shared<kfd_queue>();
  q->serial = ++last_serial_;
  q->type = type;
  q->gpu = &node;
  q->owner = process.get();
  q->ring_base = args.ring_base_address;
  q->ring_size = effective_ring_size(args.ring_size);
  q->percentage = args.queue_percentage & 0xffU;
  q->priority = args.queue_priority;
  q->write_pointer = args.write_pointer_address;
  q->read_pointer = args.read_pointer_address;
  q->eop_address = args.eop_buffer_address;
  q->eop_size = args.eop_buffer_size;
  q->save_area = args.ctx_save_restore_address;
  q->save_area_size = args.ctx_save_restore_size;
  q->control_stack_size = args.ctl_stack_size;
  constexpr std::uint32_t with_buffers = 17;  // Linux 6.12
  if (profile_.abi_minor >= with_buffers) {
    if (const int error = acquire_buffers(*process, *q)) co_return error;
  }
  const auto on_this_gpu = std::count_if(process->queues.begin(), process->queues.end(),
                                         [&node](const auto& each) { return each->gpu == &node; });
  if (on_this_gpu >= static_cast<std::ptrdiff_t>(node.shape.max_queues_per_process)) {
    release_buffers(*process, *q);
    co_return -ENOSPC;
  }
  std::uint32_t id = 0;
  while (id < process->queue_ids.size() && process->queue_ids.test(id)) ++id;
  if (id == process->queue_ids.size()) {
    release_buffers(*process, *q);
    co_return -ENOMEM;
  }
  q->id = id;

  q->debug_workaround = process->debug_enabled && node.shape.restricts_cus_for_debug();
  // Every queue is born "new", with or without a debugger.
  q->exception_status = uapi::KFD_EC_MASK(uapi::EC_QUEUE_NEW);
  process->queue_ids.set(id);
  {
    const auto lock = co_await node.dqm.lock();
    if (node.queue_count >= max_queues_per_device) {
      process->queue_ids.reset(id);
      release_buffers(*process, *q);
      co_return -EPERM;
    }
    if (!q->is_compute() && !place_sdma(q, engine)) {
      process->queue_ids.reset(id);
      release_buffers(*process, *q);
      co_return -ENOMEM;
    }
    ++node.queue_count;
    q->evicted = device->evictions > 0;
    if (q->is_compute()) {
      q->model = node.model.add_queue(static_cast<model_process>(process->serial), q->priority);
      node.queues.emplace(q->model, q);
    }
    if (q->should_be_active()) {
      const int error = co_await change_queue(q, true, cycle_kind::ordinary, node.shape.cycle_cost);
      if (error != 0) {
        drop_queue(*process, q);
        co_return error;
      }
    }
  }
  process->queues.insert(process->queues.begin(), q);
  if (outer_.on_queue) outer_.on_queue(process->pid);
  args.queue_id = id;
  args.doorbell_offset =
      mmap_offset(mmap_type::doorbell, process->pasid, node.index) | id * sizeof(std::uint64_t);
  plan_fetch(q);
  held.unlock();
  raise(*process, q->exception_status, uapi::EC_QUEUE_NEW);
  co_return 0;
}

bool driver::impl::place_sdma(const std::shared_ptr<kfd_queue>& queue,
                              std::optional<std::uint32_t> engine) {
  gpu_node& node = *queue->gpu;
  // The lowest free number, numbers going over the engines first.
  const bool own = queue->type == uapi::KFD_IOC_QUEUE_TYPE_SDMA;
  const auto first = engine.value_or(own ? 0 : node.shape.sdma_engines);
  const auto count = engine ? 1 : own ? node.shape.sdma_engines : node.shape.sdma_xgmi_engines;
  for (std::uint32_t rlc = 0; rlc < node.shape.sdma_queues_per_engine; ++rlc) {
    for (std::uint32_t each = first; each < first + count; ++each) {
      if (!node.sdma.emplace(std::pair{rlc, each}, queue).second) continue;
      queue->sdma_engine = each;
      queue->sdma_rlc = rlc;
      return true;
    }
  }
  return false;
}

task<int> driver::impl::update_queue(call_ptr c, uapi::kfd_ioctl_update_queue_args& args) {
  const process_ptr process = c->caller;
  if (const int error = check_ring(args.queue_percentage, args.queue_priority,
                                   args.ring_base_address, args.ring_size)) {
    co_return error;
  }
  const auto held = co_await process->mutex.lock();
  if (process->gone) co_return -ESRCH;
  const auto q = process->queue(args.queue_id);
  if (!q) co_return -EFAULT;
  // Newest drivers (2025-2026): nothing is updated in a process that has lost a queue to a reset.
  if (profile_.abi_minor >= uapi::KFD_IOCTL_MINOR_VERSION_SECONDARY &&
      std::any_of(process->queues.begin(), process->queues.end(),
                  [](const auto& each) { return each->was_reset; })) {
    co_return -EACCES;
  }
  gpu_node& node = *q->gpu;
  const auto lock = co_await node.dqm.lock();
  const auto size = effective_ring_size(args.ring_size);
  if (const int error = replace_ring(*process, *q, args.ring_base_address, size)) co_return error;
  if (q->ring_base != args.ring_base_address || q->ring_size != size) forget_fetched(*q);
  q->ring_base = args.ring_base_address;
  q->ring_size = size;
  q->percentage = args.queue_percentage & 0xffU;
  q->priority = args.queue_priority;
  node.model.set_priority(q->model, q->priority);
  const int error = co_await renew_queue(q);
  plan_fetch(q);
  co_return error;
}

/// Takes the queue out of every table. Whoever needs a cycle first has run it.
void driver::impl::drop_queue(kfd_process& process, const std::shared_ptr<kfd_queue>& queue) {
  const auto keep = queue;  // NOLINT: the caller's may be one of those that are erased.
  keep->destroyed = true;
  engine_.cancel(keep->poll);
  close_doorbell(*keep);
  keep->gpu->model.remove_queue(keep->model);
  keep->gpu->queues.erase(keep->model);
  if (!keep->is_compute()) keep->gpu->sdma.erase({keep->sdma_rlc, keep->sdma_engine});
  --keep->gpu->queue_count;
  process.queue_ids.reset(keep->id);
  release_buffers(process, *keep);
  if (keep->gws) process.device(keep->gpu->shape.gpu_id)->gws = false;
  std::erase(process.queues, keep);
  if (outer_.on_queue) outer_.on_queue(process.pid);
}

task<int> driver::impl::destroy_queue(call_ptr c, uapi::kfd_ioctl_destroy_queue_args& args) {
  const process_ptr process = c->caller;
  auto held = co_await process->mutex.lock();
  if (process->gone) co_return -ESRCH;
  const auto q = process->queue(args.queue_id);
  if (!q) co_return -EINVAL;
  gpu_node& node = *q->gpu;

  // wait_on_destroy_queue: a debugger that holds the queue is given the time to let go.
  if (q->being_destroyed && profile_.has_fixes_of_2026()) co_return -EBUSY;
  q->being_destroyed = true;
  if (process->debug_enabled && q->suspended) {
    held.unlock();
    bool interrupted = false;
    while (q->suspended && !q->destroyed && !interrupted) {
      const auto why = co_await node.destroy_wait.wait(c->signal);
      interrupted = why == wake_reason::interrupted;
    }
    held = co_await process->mutex.lock();
    if (q->destroyed) co_return -EINVAL;  // By another thread, or with its process.
    if (q->suspended) {
      if (profile_.has_fixes_of_2026()) q->being_destroyed = false;
      co_return -kernel_erestartsys;
    }
  }
  {
    const auto lock = co_await node.dqm.lock();
    if (q->active) {
      // A failure is logged by the driver; the queue goes nevertheless.
      co_await change_queue(q, false, cycle_kind::ordinary, node.shape.cycle_cost);
    }
    drop_queue(*process, q);
  }
  node.destroy_wait.wake_all();
  if (process_device* device = process->device(node.shape.gpu_id)) {
    raise(*process, device->exception_status, uapi::EC_DEVICE_QUEUE_DELETE);
  }
  co_return 0;
}

task<int> driver::impl::set_cu_mask(call_ptr c, uapi::kfd_ioctl_set_cu_mask_args& args) {
  const process_ptr process = c->caller;
  constexpr std::uint32_t most_bits = 1024;
  if (args.num_cu_mask == 0 || args.num_cu_mask % 32 != 0) co_return -EINVAL;
  std::vector<std::uint32_t> mask(std::min(args.num_cu_mask, most_bits) / 32);
  if (!process->memory->read(args.cu_mask_ptr, std::as_writable_bytes(std::span{mask}))) {
    co_return -EFAULT;
  }
  const auto held = co_await process->mutex.lock();
  if (process->gone) co_return -ESRCH;
  const auto q = process->queue(args.queue_id);
  if (!q) co_return -EFAULT;
  if (q->debug_workaround) co_return -EBUSY;
  gpu_node& node = *q->gpu;
  if (node.shape.gfx_target_version >= 100000) {
    // Work-group processors are pairs of compute units: both or none.
    for (const auto word : mask) {
      if (((word ^ (word >> 1U)) & 0x55555555U) != 0) co_return -EINVAL;
    }
  }
  q->cu_masked = true;
  // Costs what every change of an MQD costs; the GPU model knows waves, not compute units, so the
  // mask itself has no effect.
  const auto lock = co_await node.dqm.lock();
  co_return co_await renew_queue(q);
}

/// Global wave sync, for cooperative launches: one queue of a process and GPU may own it.
task<int> driver::impl::alloc_queue_gws(call_ptr c, uapi::kfd_ioctl_alloc_queue_gws_args& args) {
  const process_ptr process = c->caller;
  const auto held = co_await process->mutex.lock();
  if (process->gone) co_return -ESRCH;
  const auto q = process->queue(args.queue_id);
  // The order and the errnos of kfd_ioctl_alloc_queue_gws, as far as they matter to a debugger.
  if (!q) co_return -EINVAL;
  if (process->debug_enabled && q->gpu->shape.restricts_cus_for_debug()) co_return -EBUSY;
  process_device& device = *process->device(q->gpu->shape.gpu_id);
  if (args.num_gws != 0 && device.gws) co_return -EBUSY;
  if (args.num_gws == 0 && !device.gws) co_return -EINVAL;
  gpu_node& node = *q->gpu;
  const auto lock = co_await node.dqm.lock();
  // Any queue may give it back, whichever has it.
  device.gws = q->gws = args.num_gws != 0;
  args.first_gws = 0;
  co_return co_await renew_queue(q);
}

int driver::impl::set_doorbell(call& c, set_doorbell_args& args) {
  const auto q = c.caller->queue(args.queue_id);
  if (!q || !q->is_aql()) return -EINVAL;
  int fd = -1;
  if (args.eventfd >= 0) {
    const auto taken = os_.take_fd(c.tid, args.eventfd);
    if (!taken) return -EBADF;
    fd = *taken;
  }
  close_doorbell(*q);
  q->doorbell = fd;
  if (fd >= 0) {
    os_.watch_doorbell(fd, [this, weak = std::weak_ptr{q}] {
      if (const auto rung = weak.lock()) plan_fetch(rung);
    });
  }
  plan_fetch(q);
  return 0;
}

void driver::impl::close_doorbell(kfd_queue& queue) {
  if (queue.doorbell < 0) return;
  os_.unwatch_doorbell(queue.doorbell);
  os_.close_fd(std::exchange(queue.doorbell, -1));
}

}  // namespace sluice::sim
