/// What takes queues away from their owner without a debugger: eviction by memory management,
/// CRIU's pause, a page fault, and a reset of the GPU (kfd_process.c, kfd_chardev.c's CRIU
/// commands, kfd_debug.c, kfd_device.c).

#include "driver_state.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace sluice::sim {

namespace {

/// CRIU's sizes are private to the driver: a plausible constant for each object.
constexpr std::uint64_t private_bytes_per_object = 128;

std::vector<std::shared_ptr<kfd_queue>> queues_on(const kfd_process& process,
                                                  const gpu_node& node) {
  std::vector<std::shared_ptr<kfd_queue>> out;
  for (const auto& q : process.queues) {
    if (q->gpu == &node) out.push_back(q);
  }
  return out;
}

}  // namespace

// --- Eviction ------------------------------------------------------------------------------------

task<int> driver::impl::evict(process_ptr process, gpu_node& node,
                              std::optional<smi_eviction_trigger> trigger) {
  const auto lock = co_await node.dqm.lock();
  co_return co_await evict_locked(std::move(process), node, trigger);
}

task<int> driver::impl::evict_locked(process_ptr process, gpu_node& node,
                                     std::optional<smi_eviction_trigger> trigger) {
  process_device* device = process->device(node.shape.gpu_id);
  if (process->gone || device == nullptr) co_return -ESRCH;
  if (trigger) smi_queue_eviction(*process, node, *trigger);
  if (device->evictions++ > 0) co_return 0;
  device->evicted_since = engine_.now();
  const auto queues = queues_on(*process, node);
  int error = 0;
  for (const auto& q : queues) {
    q->evicted = true;
    if (node.shape.scheduler == queue_scheduler::runlist || node.resetting) {
      refresh_active(*q);
    } else if (q->active && !q->destroyed) {
      const int one = co_await change_queue(q, false, cycle_kind::ordinary, node.shape.cycle_cost);
      if (error == 0) error = one;
    }
  }
  // evict_process_queues_cpsch: a cycle even when none of them was mapped, but not without queues,
  // and not on a GPU that hangs.
  if (node.shape.scheduler == queue_scheduler::runlist && !queues.empty() && !node.resetting) {
    error = co_await cycle(node, cycle_kind::ordinary, node.shape.cycle_cost);
  }
  co_return error;
}

task<int> driver::impl::restore(process_ptr process, gpu_node& node) {
  const auto lock = co_await node.dqm.lock();
  process_device* device = process->device(node.shape.gpu_id);
  if (process->gone || device == nullptr) co_return -ESRCH;
  if (device->evictions == 0) co_return 0;
  smi_queue_restore(*process, node, false);
  if (--device->evictions > 0) co_return 0;
  device->evicted_total += engine_.now() - device->evicted_since;
  bool any = false;
  int error = 0;
  for (const auto& q : queues_on(*process, node)) {
    q->evicted = false;  // A suspended queue stays inactive.
    if (!q->should_be_active() || q->destroyed) continue;
    any = true;
    if (node.shape.scheduler == queue_scheduler::runlist) {
      refresh_active(*q);
    } else {
      const int one = co_await change_queue(q, true, cycle_kind::ordinary, node.shape.cycle_cost);
      if (error == 0) error = one;
    }
  }
  if (node.shape.scheduler == queue_scheduler::runlist && any) {
    error = co_await cycle(node, cycle_kind::ordinary, node.shape.cycle_cost);
  }
  co_return error;
}

task<int> driver::impl::evict_everywhere(process_ptr process) {
  for (const auto& node : gpus_) {
    const int error = co_await evict(process, *node, smi_eviction_trigger::criu_checkpoint);
    if (error != 0) co_return error;
  }
  co_return 0;
}

task<int> driver::impl::restore_everywhere(process_ptr process) {
  int error = 0;
  for (const auto& node : gpus_) {
    const int one = co_await restore(process, *node);
    if (error == 0) error = one;
  }
  co_return error;
}

// --- CRIU ----------------------------------------------------------------------------------------

/// The caller of a CRIU command is whose descriptor it is, be it used by its tracer.
task<int> driver::impl::criu_op(call_ptr c, uapi::kfd_ioctl_criu_args& args) {
  const process_ptr process = c->caller;
  const auto held = co_await process->mutex.lock();
  if (process->gone) co_return -ESRCH;
  switch (args.op) {
    case uapi::KFD_CRIU_OP_PROCESS_INFO: {
      if (process->devices.empty()) co_return -ENODEV;
      // Without the fixes each pause evicts, and UNPAUSE restores once.
      if (!process->queues_paused || !profile_.has_fixes_of_2026()) {
        const int error = co_await evict_everywhere(process);
        if (error != 0) {
          co_await restore_everywhere(process);
          co_return error;
        }
      }
      process->queues_paused = true;
      args.pid = static_cast<std::uint32_t>(process->pid);
      args.num_devices = static_cast<std::uint32_t>(process->devices.size());
      args.num_bos = 0;
      for (const auto& device : process->devices)
        args.num_bos += static_cast<std::uint32_t>(device.memory.size());
      args.num_objects =
          static_cast<std::uint32_t>(process->queues.size() + process->events.size());
      args.priv_data_size = private_bytes_per_object * (1 + args.num_devices + args.num_objects);
      co_return 0;
    }
    case uapi::KFD_CRIU_OP_UNPAUSE:
      // One restore, however often it was paused.
      if (!process->queues_paused) co_return -EINVAL;
      process->queues_paused = false;
      co_return co_await restore_everywhere(process);
    case uapi::KFD_CRIU_OP_CHECKPOINT:
    case uapi::KFD_CRIU_OP_RESTORE:
    case uapi::KFD_CRIU_OP_RESUME: co_return -EOPNOTSUPP;  // Not simulated: nothing is saved here.
    default: co_return -EINVAL;
  }
}

// --- Reset ---------------------------------------------------------------------------------------

/// A preemption timed out, or a test asks for it: resets the GPU and its hive. The reset begins
/// when the dqm of each of these GPUs is free.
void driver::impl::start_reset(gpu_node& node) {
  const bool first = !is_resetting();
  std::vector<gpu_node*> hive;
  for (const auto& each : gpus_) {
    const bool linked = node.shape.hive_id != 0 && each->shape.hive_id == node.shape.hive_id;
    if ((each.get() == &node || linked) && !each->resetting) hive.push_back(each.get());
  }
  for (auto* each : hive) each->resetting = true;
  if (!hive.empty()) scope_.start(reset_hive(std::move(hive), first));
}

/// kfd_is_locked().
bool driver::impl::is_resetting() const {
  return std::any_of(gpus_.begin(), gpus_.end(), [](const auto& node) { return node->resetting; });
}

/// kfd_suspend_all_processes(), which kgd2kfd_pre_reset() calls. Nothing restores the processes
/// (see the comment at kgd2kfd_post_reset()). \param hive its dqm are locked.
task<void> driver::impl::evict_all_processes(const std::vector<gpu_node*>& hive) {
  std::vector<process_ptr> all;
  for (const auto& [pid, process] : live_) all.push_back(process);
  for (const auto& process : all) {
    for (const auto& node : gpus_) {
      constexpr auto trigger = smi_eviction_trigger::suspend;
      if (std::find(hive.begin(), hive.end(), node.get()) != hive.end()) {
        co_await evict_locked(process, *node, trigger);
      } else {
        co_await evict(process, *node, trigger);
      }
    }
  }
}

/// \param first no other hive is being reset.
task<void> driver::impl::reset_hive(std::vector<gpu_node*> hive, bool first) {
  std::vector<async_mutex::guard> locks;
  for (gpu_node* node : hive) {
    locks.push_back(co_await node->dqm.lock());
    smi_gpu_pre_reset(*node);
  }
  if (first) co_await evict_all_processes(hive);
  for (gpu_node* node : hive) {
    signal_reset(*node);
    // What ran is lost. An assumption: these queues do not run again even if their process is
    // restored, for example by CRIU.
    node->model.begin_cycle(cycle_kind::ordinary);
    for (const auto& [id, q] : node->queues) {
      // One that was lost before, or had stopped at a broken packet, is no other queue now.
      if (!std::exchange(q->failed, true)) ++q->owner->broken_queues;
      q->was_reset = true;
      set_active(*q, false);
      node->model.lose_kernels(id);
      engine_.cancel(std::exchange(q->poll, {}));
    }
  }
  co_await sleep_until{engine_, engine_.now() + hive.front()->shape.reset_time};
  for (gpu_node* node : hive) {
    node->model.end_cycle();
    node->resetting = false;
    ++node->resets;
    smi_gpu_post_reset(*node);
    node->destroy_wait.wake_all();
  }
}

/// kfd_signal_reset_event.
void driver::impl::signal_reset(gpu_node& node) {
  for (const auto& [pid, process] : live_) {
    if (process->device(node.shape.gpu_id) == nullptr) continue;
    for (auto& [id, event] : process->events) {
      if (event.type != uapi::KFD_IOC_EVENT_HW_EXCEPTION) continue;
      event.gpu = node.shape.gpu_id;
      event.set();
    }
  }
}

/// kfd_set_dbg_ev_from_interrupt: a process whose debugger did not subscribe to page faults stays
/// evicted from this GPU, and its runtime gets the event.
task<void> driver::impl::vm_fault(process_ptr process, gpu_node& node) {
  auto& status = process->device(node.shape.gpu_id)->exception_status;
  if (!raise(*process, status, uapi::EC_DEVICE_MEMORY_VIOLATION)) {
    co_await evict(process, node, std::nullopt);
    for (auto& [id, event] : process->events) {
      if (event.type != uapi::KFD_IOC_EVENT_MEMORY) continue;
      event.gpu = node.shape.gpu_id;
      event.set();
    }
  }
  smi_event(node, uapi::KFD_SMI_EVENT_VMFAULT, {},
            smi_payload::vm_fault(process->pid, process->name));
}

}  // namespace sluice::sim
