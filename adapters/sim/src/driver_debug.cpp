/// The debugger's side: RUNTIME_ENABLE and DBG_TRAP (kfd_chardev.c, kfd_debug.c, and suspend_queues
/// and resume_queues of kfd_device_queue_manager.c).

#include "driver_state.hpp"
#include "topology.hpp"

#include <algorithm>
#include <cerrno>

namespace sluice::sim {

namespace {

constexpr std::uint64_t new_bit = uapi::KFD_EC_MASK(uapi::EC_QUEUE_NEW);
constexpr std::uint64_t runtime_bit = uapi::KFD_EC_MASK(uapi::EC_PROCESS_RUNTIME);

/// The ioctl's "hardware" operations, which need an enabled runtime.
constexpr bool is_hardware_operation(std::uint32_t op) {
  return op >= uapi::KFD_IOC_DBG_TRAP_SET_WAVE_LAUNCH_OVERRIDE &&
         op <= uapi::KFD_IOC_DBG_TRAP_SET_FLAGS;
}

/// kfd_dbg_trap_set_flags refuses what the GPU's capability lacks, and takes bits that it does not
/// know.
std::uint32_t refused_flags(const gpu_profile& shape) {
  std::uint32_t flags = 0;
  if ((capability_of(shape) & capability_precise_memory) == 0)
    flags |= uapi::KFD_DBG_TRAP_FLAG_SINGLE_MEM_OP;
  if ((capability_of(shape) & capability_precise_alu) == 0)
    flags |= uapi::KFD_DBG_TRAP_FLAG_SINGLE_ALU_OP;
  return flags;
}

/// validate_trap_override_request of each generation.
int check_override(const gpu_profile& shape, std::uint32_t mode, std::uint32_t& supported) {
  constexpr std::uint32_t address_watch = 1U << 7U;
  constexpr std::uint32_t exceptions = 0x1ff;  // Floating point, division, address watch, memory.
  constexpr std::uint32_t wave_start_and_end = 3U << 30U;
  const auto version = shape.gfx_target_version;
  const bool gfx9_4_3 = version >= 90400 && version < 90600;
  const bool per_process = version == 90010 || gfx9_4_3 || version >= 110000;
  supported &= !per_process                    ? address_watch
               : gfx9_4_3 || version >= 110004 ? exceptions | wave_start_and_end
                                               : exceptions;
  if (mode == uapi::KFD_DBG_TRAP_OVERRIDE_OR) return 0;
  if (!per_process) return -EINVAL;
  return mode == uapi::KFD_DBG_TRAP_OVERRIDE_REPLACE ? 0 : -EPERM;
}

/// kmalloc's limit (KMALLOC_MAX_SIZE, 4 MiB) on the array of queue ids.
constexpr std::uint32_t most_queue_ids = (4U << 20U) / sizeof(std::uint32_t);

/// q_array_get_index: the first entry that, but for bit 31, is the id.
std::uint32_t* entry_of(std::vector<std::uint32_t>& ids, std::uint32_t id) {
  const auto it = std::find_if(ids.begin(), ids.end(), [id](std::uint32_t value) {
    return (value & ~uapi::KFD_DBG_QUEUE_INVALID_MASK) == id;
  });
  return it == ids.end() ? nullptr : &*it;
}

bool may_be_suspended(const kfd_queue& queue) {
  return (queue.exception_status & new_bit) == 0 && !queue.being_destroyed;
}

/// Reads the caller's array and marks every entry invalid until something is found for it.
int read_queue_ids(address_space& memory, std::uint64_t address, std::uint32_t count,
                   std::vector<std::uint32_t>& ids) {
  if (count > most_queue_ids) return -ENOMEM;
  ids.resize(count);
  // The driver follows a null array to an oops; the simulator refuses it.
  if (!memory.read(address, std::as_writable_bytes(std::span{ids}))) return -EFAULT;
  for (auto& id : ids) id |= uapi::KFD_DBG_QUEUE_INVALID_MASK;
  return 0;
}

/// Takes effect with the cycle that follows.
void release_debug_vmid(gpu_node& node, const kfd_process& target) {
  if (node.debug_vmid_owner != target.serial) return;
  node.debug_vmid_owner = 0;
  node.model.set_vmids(node.shape.vmids);
}

/// What running waves get before they are saved. The value counts 1000 GPU clocks and goes into the
/// 8 bits of CP_IQ_WAIT_TIME2.SCH_WAVE; 0 is written as 1. Assumptions: larger values lose their
/// upper bits, what is 0 then counts as 1, and the default (no write) is none.
duration grace_of(const gpu_profile& shape, std::uint32_t value) {
  if (value == 0xffffffff) return duration::zero();
  const std::uint64_t units = std::max((value == 0 ? 1U : value) & 0xffU, 1U);
  return std::chrono::nanoseconds{units * 1'000'000 / shape.gpu_clock_mhz};
}

}  // namespace

// --- Raising -------------------------------------------------------------------------------------

bool driver::impl::raise(kfd_process& process, std::uint64_t& status,
                         uapi::kfd_dbg_trap_exception_code code) {
  if (!process.debug_enabled) return false;
  const auto bit = uapi::KFD_EC_MASK(code);
  status |= bit;
  if ((process.enabled_exceptions & bit) == 0) return false;
  if (process.debug_fd >= 0) os_.write_byte(process.debug_fd, '.');
  return true;
}

// --- The target's runtime ------------------------------------------------------------------------

task<int> driver::impl::runtime_handshake(call_ptr c, async_mutex::guard* held) {
  const process_ptr process = c->caller;
  if (!process->runtime_retry) {
    raise(*process, process->exception_status, uapi::EC_PROCESS_RUNTIME);
  }
  held->unlock();
  bool interrupted = false;
  while (process->runtime_permits == 0 && !interrupted) {  // down_interruptible
    const auto why = co_await process->runtime_wait.wait(c->signal);
    interrupted = why == wake_reason::interrupted && process->runtime_permits == 0;
  }
  if (!interrupted) --process->runtime_permits;
  *held = co_await process->mutex.lock();
  process->runtime_retry = interrupted;
  // The semaphore's EINTR, not ERESTARTSYS: the runtime calls again by hand, and finds
  // runtime_retry set.
  co_return interrupted ? -EINTR : 0;
}

task<int> driver::impl::runtime_enable(call_ptr c, uapi::kfd_ioctl_runtime_enable_args& args) {
  const process_ptr process = c->caller;
  auto held = co_await process->mutex.lock();
  if (process->gone) co_return -ESRCH;
  auto& runtime = process->runtime;

  if ((args.mode_mask & uapi::KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK) != 0) {
    if (!process->runtime_retry) {
      if (runtime.runtime_state != uapi::DBG_RUNTIME_STATE_DISABLED) co_return -EBUSY;
      if (!process->queues.empty()) co_return -EEXIST;
      runtime.runtime_state = uapi::DBG_RUNTIME_STATE_ENABLED;
      runtime.r_debug = args.r_debug;
      runtime.ttmp_setup =
          (args.mode_mask & uapi::KFD_RUNTIME_ENABLE_MODE_TTMP_SAVE_MASK) != 0 ? 1 : 0;
    }
    if (!process->debug_enabled) co_return 0;
    if (!process->runtime_retry) co_await activate(process);
    co_return co_await runtime_handshake(c, &held);
  }

  const bool was_enabled = runtime.runtime_state == uapi::DBG_RUNTIME_STATE_ENABLED;
  runtime.runtime_state = uapi::DBG_RUNTIME_STATE_DISABLED;
  runtime.r_debug = 0;
  if (process->debug_enabled) {
    if (was_enabled) co_await deactivate(process);
    const int error = co_await runtime_handshake(c, &held);
    if (error != 0) co_return error;
  }
  if (was_enabled) runtime.ttmp_setup = 0;
  co_return 0;
}

// --- Activation of the hardware ---

/// kfd_dbg_trap_activate; its failure shows in the runtime's state only.
task<void> driver::impl::activate(process_ptr target) {
  // kfd_dbg_set_workaround
  bool masked = false;
  for (const auto& q : target->queues) {
    q->debug_workaround = q->gpu->shape.restricts_cus_for_debug();
    masked = masked || (q->debug_workaround && q->cu_masked);
  }
  if (masked) {
    for (const auto& q : target->queues) q->debug_workaround = false;
    target->runtime.runtime_state = uapi::DBG_RUNTIME_STATE_ENABLED_BUSY;
    co_return;
  }
  std::size_t activated = 0;
  for (auto& device : target->devices) {
    gpu_node& node = *device.gpu;
    auto state = uapi::DBG_RUNTIME_STATE_ENABLED;
    {
      const auto lock = co_await node.dqm.lock();
      if (const auto injected = std::exchange(target->next_activation, std::nullopt)) {
        state = static_cast<uapi::kfd_dbg_runtime_state>(*injected);
      } else if (!node.shape.per_vmid_debug) {  // reserve_debug_trap_vmid
        if (node.debug_vmid_owner != 0) {
          state = uapi::DBG_RUNTIME_STATE_ENABLED_BUSY;
        } else {
          node.debug_vmid_owner = target->serial;
          node.model.set_vmids(node.shape.vmids - 1);
        }
      }
      if (state == uapi::DBG_RUNTIME_STATE_ENABLED) {
        const int error = co_await refresh_debugger(node);
        if (error != 0) {
          state = uapi::DBG_RUNTIME_STATE_ENABLED_ERROR;
          release_debug_vmid(node, *target);
        }
      }
    }
    if (state != uapi::DBG_RUNTIME_STATE_ENABLED) {
      target->runtime.runtime_state = state;
      co_await release_devices(target, activated);
      co_return;
    }
    ++activated;
  }
}

/// Takes debug mode from the first `count` GPUs: one cycle each.
task<void> driver::impl::release_devices(process_ptr target, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    gpu_node& node = *target->devices[i].gpu;
    const auto lock = co_await node.dqm.lock();
    node.watch_points &= ~target->devices[i].watch_points;
    target->devices[i].watch_points.reset();
    release_debug_vmid(node, *target);
    co_await refresh_debugger(node);
  }
}

/// kfd_dbg_trap_deactivate: everything runs, and the GPUs forget the debugger.
task<void> driver::impl::deactivate(process_ptr target) {
  co_await resume(target, nullptr);
  target->debug_flags = 0;
  target->trap_override = 0;
  for (const auto& q : target->queues) q->debug_workaround = false;
  co_await release_devices(target, target->devices.size());
}

/// One cycle per GPU of the target, for settings that the next map carries.
task<int> driver::impl::refresh_devices(process_ptr target) {
  for (auto& device : target->devices) {
    gpu_node& node = *device.gpu;
    const auto lock = co_await node.dqm.lock();
    const int error = co_await refresh_debugger(node);
    if (error != 0) co_return error;
  }
  co_return 0;
}

// --- DBG_TRAP: who may do what -------------------------------------------------------------------

task<int> driver::impl::dbg_trap(call_ptr c, uapi::kfd_ioctl_dbg_trap_args& args) {
  // The order of the checks is kfd_ioctl_set_debug_trap's.
  if (secondary_files_.contains(c->file)) co_return -EOPNOTSUPP;
  constexpr std::uint32_t no_hws = 2;
  if (profile_.sched_policy == no_hws) co_return -EINVAL;
  const auto pid = static_cast<pid_t>(args.pid);
  const pid_t leader = pid <= 0 ? 0 : os_.leader_of(pid);
  if (leader == 0) co_return -ESRCH;
  // get_task_mm of the very thread that was named: a main thread that has ended has none, while a
  // living thread of the same process still names it.
  if (!os_.has_memory(pid)) co_return -ESRCH;
  process_ptr target = lookup(leader);
  if (!target) {
    if (args.op != uapi::KFD_IOC_DBG_TRAP_ENABLE || pid == c->tid || os_.tracer_of(pid) != c->tid) {
      co_return -ESRCH;
    }
    auto space = os_.open_address_space(leader);
    if (!space) co_return -ESRCH;  // It ended at this moment.
    target = add_process(std::move(*space));
  }

  if (target != c->caller) {
    bool allowed = os_.tracer_of(target->pid) == c->tid;
    if (profile_.authority == trap_authority::debugger_process) {
      allowed = allowed || target->debugger == c->caller->serial;
    } else {
      allowed = allowed || args.op == uapi::KFD_IOC_DBG_TRAP_DISABLE;
    }
    if (!allowed) co_return -EPERM;
  }

  const auto held = co_await target->mutex.lock();
  if (target->gone) co_return -ESRCH;
  if (args.op != uapi::KFD_IOC_DBG_TRAP_ENABLE && !target->debug_enabled) co_return -EINVAL;
  if (is_hardware_operation(args.op) &&
      target->runtime.runtime_state != uapi::DBG_RUNTIME_STATE_ENABLED) {
    co_return -EPERM;
  }
  if (args.op == uapi::KFD_IOC_DBG_TRAP_SET_NODE_ADDRESS_WATCH &&
      target->device(args.set_node_address_watch.gpu_id) == nullptr) {
    co_return -ENODEV;
  }
  if (args.op == uapi::KFD_IOC_DBG_TRAP_CLEAR_NODE_ADDRESS_WATCH &&
      target->device(args.clear_node_address_watch.gpu_id) == nullptr) {
    co_return -ENODEV;
  }
  co_return co_await trap_operation(c, target, args);
}

task<int> driver::impl::trap_operation(call_ptr c, process_ptr target,
                                       uapi::kfd_ioctl_dbg_trap_args& args) {
  switch (args.op) {
    case uapi::KFD_IOC_DBG_TRAP_ENABLE: co_return co_await trap_enable(c, target, args.enable);
    case uapi::KFD_IOC_DBG_TRAP_DISABLE: co_await trap_disable(target); co_return 0;
    case uapi::KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT:
      co_return send_runtime_event(*target, args.send_runtime_event);
    case uapi::KFD_IOC_DBG_TRAP_SET_EXCEPTIONS_ENABLED:
      set_exceptions_enabled(*target, args.set_exceptions_enabled.exception_mask);
      co_return 0;
    case uapi::KFD_IOC_DBG_TRAP_SET_WAVE_LAUNCH_OVERRIDE: {
      // Waves have no trap masks here: what is asked for is kept and given back.
      auto& o = args.launch_override;
      const auto requested = std::exchange(o.support_request_mask, 0xffffffff);
      for (const auto& device : target->devices) {
        if (const int error =
                check_override(device.gpu->shape, o.override_mode, o.support_request_mask)) {
          co_return error;
        }
      }
      if ((requested & ~o.support_request_mask) != 0) co_return -EACCES;
      const auto previous = target->trap_override;
      target->trap_override = (previous & ~requested) | (o.enable_mask & requested);
      o.enable_mask = previous;
      co_return co_await refresh_devices(target);
    }
    case uapi::KFD_IOC_DBG_TRAP_SET_WAVE_LAUNCH_MODE: {
      // Accepted, and without effect: waves do not halt here.
      const auto mode = args.launch_mode.launch_mode;
      if (mode != uapi::KFD_DBG_TRAP_WAVE_LAUNCH_MODE_NORMAL &&
          mode != uapi::KFD_DBG_TRAP_WAVE_LAUNCH_MODE_HALT &&
          mode != uapi::KFD_DBG_TRAP_WAVE_LAUNCH_MODE_DEBUG) {
        co_return -EINVAL;
      }
      co_return co_await refresh_devices(target);
    }
    case uapi::KFD_IOC_DBG_TRAP_SUSPEND_QUEUES:
      co_return co_await suspend_queues(c, target, args.suspend_queues);
    case uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES:
      co_return co_await resume_queues(c, target, args.resume_queues);
    case uapi::KFD_IOC_DBG_TRAP_SET_NODE_ADDRESS_WATCH:
      co_return co_await set_watch(target, args.set_node_address_watch);
    case uapi::KFD_IOC_DBG_TRAP_CLEAR_NODE_ADDRESS_WATCH:
      co_return co_await clear_watch(target, args.clear_node_address_watch);
    case uapi::KFD_IOC_DBG_TRAP_SET_FLAGS: {
      const auto wanted = args.set_flags.flags;
      args.set_flags.flags = target->debug_flags;
      for (const auto& device : target->devices) {
        if ((wanted & refused_flags(device.gpu->shape)) != 0) co_return -EACCES;
      }
      target->debug_flags = wanted;
      co_return co_await refresh_devices(target);
    }
    case uapi::KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT:
      co_return query_debug_event(*target, args.query_debug_event);
    case uapi::KFD_IOC_DBG_TRAP_QUERY_EXCEPTION_INFO:
      co_return query_exception_info(*c, *target, args.query_exception_info);
    case uapi::KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT:
      co_return queue_snapshot(*c, *target, args.queue_snapshot);
    case uapi::KFD_IOC_DBG_TRAP_GET_DEVICE_SNAPSHOT:
      co_return device_snapshot(*c, *target, args.device_snapshot);
    default: co_return -EINVAL;
  }
}

// --- Sessions ------------------------------------------------------------------------------------

task<int> driver::impl::trap_enable(call_ptr c, process_ptr target,
                                    uapi::kfd_ioctl_dbg_trap_enable_args& args) {
  // Stored even if the rest fails.
  if (target != c->caller) target->debugger = c->caller->serial;
  if (target->debug_enabled) co_return -EALREADY;
  for (const auto& device : target->devices) {
    const gpu_node& node = *device.gpu;
    if (node.shape.gfx_target_version < 90000) co_return -ENODEV;  // not SOC15
    // Debug support for GWS (KFD_SUPPORT_DEBUG_GWS) is taken for given on all other GPUs.
    if (node.shape.restricts_cus_for_debug() && device.gws) co_return -EBUSY;
  }
  const auto fd = os_.take_fd(c->tid, static_cast<int>(args.dbg_fd));
  if (!fd) co_return -EBADF;
  target->debug_fd = *fd;
  if (target->runtime.runtime_state == uapi::DBG_RUNTIME_STATE_ENABLED) co_await activate(target);
  target->debug_enabled = true;
  count_debugged(*target, 1);

  int error = 0;
  const auto info = bytes_of(target->runtime);
  const auto size = std::min<std::size_t>(args.rinfo_size, info.size());
  if (!c->caller->memory->write(args.rinfo_ptr, info.first(size))) {
    co_await deactivate(target);
    error = -EFAULT;
    // Without the fixes the session stays enabled.
    if (profile_.has_fixes_of_2026()) {
      os_.close_fd(std::exchange(target->debug_fd, -1));
      count_debugged(*target, -1);
      target->debug_enabled = false;
    }
  }
  args.rinfo_size = sizeof(uapi::kfd_runtime_info);
  if (error == 0) target->enabled_exceptions = args.exception_mask;
  co_return error;
}

void driver::impl::count_debugged(const kfd_process& target, int change) {
  for (const auto& [pid, other] : live_) {
    if (other->serial == target.debugger) other->debugged += change;
  }
}

task<void> driver::impl::trap_disable(process_ptr target) {
  auto& state = target->runtime.runtime_state;
  if (state == uapi::DBG_RUNTIME_STATE_ENABLED) {
    co_await deactivate(target);
  } else if (state != uapi::DBG_RUNTIME_STATE_DISABLED) {
    state = uapi::DBG_RUNTIME_STATE_ENABLED;
  }
  if (target->debug_fd >= 0) os_.close_fd(std::exchange(target->debug_fd, -1));
  count_debugged(*target, -1);
  target->debugger = 0;
  target->debug_enabled = false;
  target->enabled_exceptions = 0;
  target->exception_status = 0;
  for (auto& device : target->devices) device.exception_status = 0;
  for (const auto& q : target->queues) q->exception_status = 0;
}

int driver::impl::send_runtime_event(kfd_process& target,
                                     const uapi::kfd_ioctl_dbg_trap_send_runtime_event_args& args) {
  std::uint64_t mask = args.exception_mask;
  const auto violation = uapi::KFD_EC_MASK(uapi::EC_DEVICE_MEMORY_VIOLATION);
  if ((mask & violation) != 0) {
    if (target.device(args.gpu_id) == nullptr) return -ENODEV;
    mask &= ~violation;
  }
  if ((mask & runtime_bit) != 0) {
    ++target.runtime_permits;
    target.runtime_wait.wake_all();
    mask &= ~runtime_bit;
  }
  if (mask == 0) return 0;

  if (const auto q = target.queue(args.queue_id)) send_to_runtime(*q, mask);
  return 0;
}

// kfd_send_exception_to_runtime: the driver reports no failure of these steps.
void driver::impl::send_to_runtime(kfd_queue& queue, std::uint64_t mask) {
  kfd_process& process = *queue.owner;
  const auto header =
      read_object<uapi::kfd_context_save_area_header>(*process.memory, queue.save_area);
  if (!header) return;
  const auto payload = read_object<std::uint64_t>(*process.memory, header->err_payload_addr);
  if (payload) (void)process.memory->write(header->err_payload_addr, bytes_of(*payload | mask));
  const auto event = process.events.find(header->err_event_id);
  if (event != process.events.end()) event->second.set();
}

void driver::impl::set_exceptions_enabled(kfd_process& target, std::uint64_t mask) {
  target.enabled_exceptions = mask;
  std::uint64_t pending = target.exception_status;
  for (const auto& device : target.devices) pending |= device.exception_status;
  for (const auto& q : target.queues) pending |= q->exception_status;
  if ((pending & mask) != 0 && target.debug_fd >= 0) os_.write_byte(target.debug_fd, '.');
}

// --- Suspend and resume --------------------------------------------------------------------------

task<int> driver::impl::suspend_queues(call_ptr c, process_ptr target,
                                       uapi::kfd_ioctl_dbg_trap_suspend_queues_args& args) {
  if (args.num_queues == 0) co_return 0;
  std::vector<std::uint32_t> ids;
  if (const int error =
          read_queue_ids(*c->caller->memory, args.queue_array_ptr, args.num_queues, ids)) {
    co_return error;
  }
  int total = 0;
  for (auto& device : target->devices) {
    gpu_node& node = *device.gpu;
    const auto lock = co_await node.dqm.lock();
    // Not as a conditional expression: g++ 12 awaits both sides of one.
    if (node.shape.scheduler == queue_scheduler::runlist)
      total +=
          co_await suspend_on_runlist(target, node, ids, args.exception_mask, args.grace_period);
    else
      total += co_await suspend_on_mes(target, node, ids, args.exception_mask);
  }
  if (total > 0) {
    for (const auto& q : target->queues) {
      if (q->is_compute() && q->save_area != 0) (void)write_wave_state(*q, q->save_area);
    }
  }
  // A failing copy back is logged by the driver, no more.
  (void)c->caller->memory->write(args.queue_array_ptr, std::as_bytes(std::span{ids}));
  co_return total;
}

task<int> driver::impl::suspend_on_runlist(process_ptr target, gpu_node& node,
                                           std::vector<std::uint32_t>& ids,
                                           std::uint64_t exception_mask,
                                           std::uint32_t grace_period) {
  int count = 0;
  for (const auto& q : target->queues) {
    std::uint32_t* entry = q->gpu == &node ? entry_of(ids, q->id) : nullptr;
    if (entry == nullptr) continue;
    if (!q->suspended) {
      if (!may_be_suspended(*q)) continue;
      q->suspended = true;
      suspension_began(*q);
      refresh_active(*q);
    }
    *entry &= ~uapi::KFD_DBG_QUEUE_INVALID_MASK;
    ++count;
  }
  if (count == 0) co_return 0;
  // Even if every one of them was suspended before.
  const int error = co_await cycle(node, cycle_kind::debug, node.suspend_cost(),
                                   grace_of(node.shape, grace_period));
  for (const auto& q : target->queues) {
    std::uint32_t* entry = q->gpu == &node ? entry_of(ids, q->id) : nullptr;
    if (entry == nullptr) continue;
    if (error != 0)
      *entry |= uapi::KFD_DBG_QUEUE_ERROR_MASK;
    else
      q->exception_status &= ~exception_mask;  // Those skipped as new included.
  }
  co_return error == 0 ? count : 0;
}

task<int> driver::impl::suspend_on_mes(process_ptr target, gpu_node& node,
                                       std::vector<std::uint32_t>& ids,
                                       std::uint64_t exception_mask) {
  int count = 0;
  const auto queues = target->queues;
  for (const auto& q : queues) {
    std::uint32_t* entry = q->gpu == &node ? entry_of(ids, q->id) : nullptr;
    if (entry == nullptr) continue;
    if (!q->suspended) {
      if (!may_be_suspended(*q)) continue;
      q->suspended = true;
      suspension_began(*q);
      const int error = co_await change_queue(q, false, cycle_kind::debug, node.suspend_cost());
      if (error != 0) {  // It counts as suspended and runs on; nobody behind it is looked at.
        *entry |= uapi::KFD_DBG_QUEUE_ERROR_MASK;
        co_return count;
      }
    }
    *entry &= ~uapi::KFD_DBG_QUEUE_INVALID_MASK;
    q->exception_status &= ~exception_mask;
    ++count;
  }
  co_return count;
}

/// copy_context_work_handler, get_wave_state: where the saved context lies, on each XCC. It is
/// empty: a debugger would look for the waves and their registers in what is said to be saved.
std::optional<uapi::kfd_context_save_area_header> driver::impl::write_wave_state(
    const kfd_queue& queue, std::uint64_t at) {
  uapi::kfd_context_save_area_header out{};
  out.wave_state.control_stack_offset = queue.control_stack_size;
  out.wave_state.wave_state_offset = queue.control_stack_size;
  for (std::uint64_t xcc = 0; xcc < queue.gpu->shape.num_xcc; ++xcc) {
    // Only the first 16 bytes: the rest of the header is the runtime's.
    if (!queue.owner->memory->write(at + xcc * queue.save_area_size, bytes_of(out.wave_state)))
      return std::nullopt;
  }
  return out;
}

/// Of a queue that is off the hardware, suspended or not: what its last save left.
task<int> driver::impl::get_wave_state(call_ptr c,
                                       uapi::kfd_ioctl_get_queue_wave_state_args& args) {
  const process_ptr process = c->caller;
  const auto held = co_await process->mutex.lock();
  if (process->gone) co_return -ESRCH;
  const auto q = process->queue(args.queue_id);
  if (!q) co_return -EFAULT;
  const auto lock = co_await q->gpu->dqm.lock();
  if (!q->is_compute() || q->active) co_return -EINVAL;
  const auto written = write_wave_state(*q, args.ctl_stack_address);
  if (!written) co_return -EFAULT;
  args.ctl_stack_used_size = written->wave_state.control_stack_size;
  args.save_area_used_size = written->wave_state.wave_state_size;
  co_return 0;
}

task<int> driver::impl::resume_queues(call_ptr c, process_ptr target,
                                      uapi::kfd_ioctl_dbg_trap_resume_queues_args& args) {
  if (args.queue_array_ptr == 0) co_return co_await resume(target, nullptr);
  if (args.num_queues == 0) co_return 0;
  std::vector<std::uint32_t> ids;
  if (const int error =
          read_queue_ids(*c->caller->memory, args.queue_array_ptr, args.num_queues, ids)) {
    co_return error;
  }
  const int total = co_await resume(target, &ids);
  (void)c->caller->memory->write(args.queue_array_ptr, std::as_bytes(std::span{ids}));
  co_return total;
}

task<int> driver::impl::resume(process_ptr target, std::vector<std::uint32_t>* ids) {
  int total = 0;
  for (auto& device : target->devices) {
    gpu_node& node = *device.gpu;
    const auto lock = co_await node.dqm.lock();
    // Not as a conditional expression: g++ 12 awaits both sides of one.
    if (node.shape.scheduler == queue_scheduler::runlist)
      total += co_await resume_on_runlist(target, node, ids);
    else
      total += co_await resume_on_mes(target, node, ids);
  }
  co_return total;
}

task<int> driver::impl::resume_on_runlist(process_ptr target, gpu_node& node,
                                          std::vector<std::uint32_t>* ids) {
  int count = 0;
  for (const auto& q : target->queues) {
    if (q->gpu != &node) continue;
    std::uint32_t* entry = ids == nullptr ? nullptr : entry_of(*ids, q->id);
    if (ids != nullptr && entry == nullptr) continue;
    if (q->suspended) {
      q->suspended = false;
      suspension_ended(*q);
      refresh_active(*q);
    }
    if (entry != nullptr) *entry &= ~uapi::KFD_DBG_QUEUE_INVALID_MASK;
    ++count;
  }
  if (count == 0) co_return 0;
  const int error = co_await cycle(node, cycle_kind::debug, node.resume_cost());
  if (error == 0) {
    node.destroy_wait.wake_all();
    co_return count;
  }
  for (const auto& q : target->queues) {
    std::uint32_t* entry = q->gpu == &node && ids != nullptr ? entry_of(*ids, q->id) : nullptr;
    if (entry != nullptr) *entry |= uapi::KFD_DBG_QUEUE_ERROR_MASK;
  }
  co_return 0;
}

task<int> driver::impl::resume_on_mes(process_ptr target, gpu_node& node,
                                      std::vector<std::uint32_t>* ids) {
  int count = 0;
  const auto queues = target->queues;
  for (const auto& q : queues) {
    if (q->gpu != &node) continue;
    std::uint32_t* entry = ids == nullptr ? nullptr : entry_of(*ids, q->id);
    if (ids != nullptr && entry == nullptr) continue;
    if (q->suspended) {
      q->suspended = false;
      suspension_ended(*q);
      if (q->should_be_active()) {
        const int error = co_await change_queue(q, true, cycle_kind::debug, node.resume_cost());
        if (error != 0) {
          if (entry != nullptr) *entry |= uapi::KFD_DBG_QUEUE_ERROR_MASK;
          co_return count;
        }
      }
    }
    if (entry != nullptr) *entry &= ~uapi::KFD_DBG_QUEUE_INVALID_MASK;
    ++count;
    node.destroy_wait.wake_all();
  }
  co_return count;
}

// --- Watch points ---

task<int> driver::impl::set_watch(process_ptr target,
                                  uapi::kfd_ioctl_dbg_trap_set_node_address_watch_args& args) {
  process_device& device = *target->device(args.gpu_id);
  std::uint32_t id = 0;
  auto& taken = device.gpu->watch_points;
  while (id < taken.size() && taken.test(id)) ++id;
  if (id == taken.size()) co_return -ENOMEM;
  taken.set(id);
  device.watch_points.set(id);
  args.id = id;
  const auto lock = co_await device.gpu->dqm.lock();
  const int error = co_await refresh_debugger(*device.gpu);
  if (error != 0) {
    device.watch_points.reset(id);
    taken.reset(id);
  }
  co_return error;
}

task<int> driver::impl::clear_watch(process_ptr target,
                                    uapi::kfd_ioctl_dbg_trap_clear_node_address_watch_args& args) {
  process_device& device = *target->device(args.gpu_id);
  if (args.id >= device.watch_points.size() || !device.watch_points.test(args.id)) {
    co_return -EINVAL;
  }
  device.watch_points.reset(args.id);
  device.gpu->watch_points.reset(args.id);
  const auto lock = co_await device.gpu->dqm.lock();
  co_return co_await refresh_debugger(*device.gpu);
}

// --- Queries -------------------------------------------------------------------------------------

int driver::impl::query_debug_event(kfd_process& target,
                                    uapi::kfd_ioctl_dbg_trap_query_debug_event_args& args) {
  const std::uint64_t clear = args.exception_mask;
  args = {};
  // \return whether this source is the one to report.
  const auto report = [&](std::uint64_t& status, std::uint32_t gpu, std::uint32_t queue) {
    if ((status & target.enabled_exceptions) == 0) return false;
    args = {.exception_mask = status, .gpu_id = gpu, .queue_id = queue};
    status &= ~clear;
    return true;
  };
  for (const auto& q : target.queues) {
    if (report(q->exception_status, q->gpu->shape.gpu_id, q->id)) return 0;
  }
  for (auto& device : target.devices) {
    if (report(device.exception_status, device.gpu->shape.gpu_id, 0)) return 0;
  }
  return report(target.exception_status, 0, 0) ? 0 : -EAGAIN;
}

int driver::impl::query_exception_info(call& c, kfd_process& target,
                                       uapi::kfd_ioctl_dbg_trap_query_exception_info_args& args) {
  if (args.info_ptr == 0) return -EINVAL;
  const std::uint32_t code = args.exception_code;
  if (code == 0 || code >= uapi::EC_MAX) return -EINVAL;
  const auto bit = std::uint64_t{1} << (code - 1);
  std::uint64_t* status = nullptr;
  std::span<const std::byte> info;
  // What a memory violation would describe; none is ever raised on a device.
  const uapi::kfd_hsa_memory_exception_data violation{};
  if ((bit & uapi::KFD_EC_MASK_QUEUE) != 0) {
    const auto q = target.queue(args.source_id);
    if (!q) return -EINVAL;
    status = &q->exception_status;
  } else if ((bit & uapi::KFD_EC_MASK_DEVICE) != 0) {
    process_device* device = target.device(args.source_id);
    if (device == nullptr) return -EINVAL;
    status = &device->exception_status;
    if (code == uapi::EC_DEVICE_MEMORY_VIOLATION) info = bytes_of(violation);
  } else if ((bit & uapi::KFD_EC_MASK_PROCESS) != 0) {
    status = &target.exception_status;
    if (code == uapi::EC_PROCESS_RUNTIME) info = bytes_of(target.runtime);
  } else {
    return -EINVAL;
  }
  if ((*status & bit) == 0) return -ENODATA;
  const auto size = std::min<std::size_t>(args.info_size, info.size());
  if (size > 0 && !c.caller->memory->write(args.info_ptr, info.first(size))) return -EFAULT;
  args.info_size = static_cast<std::uint32_t>(info.size());
  if (args.clear_exception != 0) *status &= ~bit;
  return 0;
}

int driver::impl::queue_snapshot(call& c, kfd_process& target,
                                 uapi::kfd_ioctl_dbg_trap_queue_snapshot_args& args) {
  const std::uint64_t stride = args.entry_size;
  const std::uint32_t room = args.num_queues;
  args.num_queues = 0;
  if (stride == 0) return -EINVAL;
  args.entry_size = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(stride, sizeof(uapi::kfd_queue_snapshot_entry)));
  std::uint64_t at = args.snapshot_buf_ptr;
  for (const auto& q : target.queues) {
    if (args.num_queues < room) {
      const uapi::kfd_queue_snapshot_entry entry{.exception_status = q->exception_status,
                                                 .ring_base_address = q->ring_base,
                                                 .write_pointer_address = q->write_pointer,
                                                 .read_pointer_address = q->read_pointer,
                                                 .ctx_save_restore_address = q->save_area,
                                                 .queue_id = q->id,
                                                 .gpu_id = q->gpu->shape.gpu_id,
                                                 .ring_size = q->ring_size,
                                                 .queue_type = q->type,
                                                 .ctx_save_restore_area_size = q->save_area_size,
                                                 .reserved = 0};
      q->exception_status &= ~args.exception_mask;
      if (!c.caller->memory->write(at, bytes_of(entry).first(args.entry_size))) return -EFAULT;
      at += stride;
    }
    ++args.num_queues;
  }
  return 0;
}

int driver::impl::device_snapshot(call& c, kfd_process& target,
                                  uapi::kfd_ioctl_dbg_trap_device_snapshot_args& args) {
  if (args.snapshot_buf_ptr == 0) return -EINVAL;
  const std::uint64_t stride = args.entry_size;
  const auto count = std::min<std::size_t>(args.num_devices, target.devices.size());
  args.num_devices = static_cast<std::uint32_t>(target.devices.size());
  args.entry_size = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(stride, sizeof(uapi::kfd_dbg_device_info_entry)));
  for (std::size_t i = 0; i < count; ++i) {
    process_device& device = target.devices[i];
    const gpu_profile& shape = device.gpu->shape;
    uapi::kfd_dbg_device_info_entry entry{};
    entry.exception_status = device.exception_status;
    entry.lds_base = 0x1000000000000;
    entry.lds_limit = 0x10000ffffffff;
    entry.scratch_base = 0x2000000000000;
    entry.scratch_limit = 0x20000ffffffff;
    entry.gpuvm_base = 0x4000;
    entry.gpuvm_limit = 0x7fffffffffff;
    entry.gpu_id = shape.gpu_id;
    entry.location_id = shape.location(device.gpu->index);
    entry.vendor_id = 0x1002;
    entry.device_id = shape.device_id;
    entry.gfx_target_version = shape.gfx_target_version;
    entry.simd_count = shape.compute_units * shape.simd_per_cu;
    entry.max_waves_per_simd = shape.waves_per_simd;
    entry.array_count = shape.shader_arrays;
    entry.simd_arrays_per_engine = shape.arrays_per_engine;
    entry.num_xcc = shape.num_xcc;
    entry.capability = capability_of(shape);
    entry.debug_prop = debug_properties_of(shape);
    const auto before = device.exception_status;
    device.exception_status &= ~args.exception_mask;
    if (!c.caller->memory->write(args.snapshot_buf_ptr + i * stride,
                                 bytes_of(entry).first(args.entry_size))) {
      device.exception_status = before;
      return -EFAULT;
    }
  }
  return 0;
}

}  // namespace sluice::sim
