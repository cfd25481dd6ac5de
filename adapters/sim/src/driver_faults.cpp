/// What tests do to the driver: calls that fail or take long, evictions, resets.

#include "driver_state.hpp"
#include "parse_number.hpp"

#include <algorithm>
#include <cerrno>

namespace sluice::sim {

void driver::inject(const call_fault& fault) { impl_->faults_.push_back(fault); }
void driver::forget_faults() { impl_->faults_.clear(); }

int driver::set_next_activation(pid_t pid, std::uint32_t state) {
  const auto it = impl_->live_.find(pid);
  if (it == impl_->live_.end()) return -ESRCH;
  it->second->next_activation = state;
  return 0;
}

task<void> driver::impl::evict_on(process_ptr process, std::vector<gpu_node*> nodes,
                                  bool evicting) {
  for (gpu_node* node : nodes) {
    if (evicting)
      co_await evict(process, *node, smi_eviction_trigger::ttm);
    else
      co_await restore(process, *node);
  }
}

int driver::impl::start_on(pid_t pid, std::uint32_t gpu_id, bool evicting) {
  const auto it = live_.find(pid);
  if (it == live_.end()) return -ESRCH;
  std::vector<gpu_node*> nodes;
  for (const auto& node : gpus_) {
    if (gpu_id == 0 || node->shape.gpu_id == gpu_id) nodes.push_back(node.get());
  }
  if (nodes.empty()) return -ENODEV;
  scope_.start(evict_on(it->second, std::move(nodes), evicting));
  return 0;
}

int driver::evict(pid_t pid, std::uint32_t gpu_id) { return impl_->start_on(pid, gpu_id, true); }
int driver::restore(pid_t pid, std::uint32_t gpu_id) { return impl_->start_on(pid, gpu_id, false); }

int driver::reset(std::uint32_t gpu_id) {
  gpu_node* node = impl_->gpu(gpu_id);
  if (node == nullptr) return -ENODEV;
  impl_->start_reset(*node);
  return 0;
}

void driver::hang_hws(std::string_view text, std::function<void(int)> done) {
  impl_->hang_hws(text, std::move(done));
}

/// kfd_debugfs_hang_hws_write, kstrtoint
void driver::impl::hang_hws(std::string_view text, std::function<void(int)> done) {
  constexpr std::size_t too_long = 16;
  const auto size = text.size();
  text = text.substr(0, text.find('\0'));
  if (text.starts_with('+')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  const auto id = parse_number<int>(text);
  gpu_node* node = id && size < too_long ? gpu(static_cast<std::uint32_t>(*id)) : nullptr;
  if (node == nullptr) {
    done(-EINVAL);
  } else if (node->shape.scheduler == queue_scheduler::mes) {
    done(0);
  } else {
    scope_.start(hang_scheduler(*node, std::move(done)));
  }
}

/// dqm_debugfs_hang_hws: a runlist cycle behind an invalid packet.
task<void> driver::impl::hang_scheduler(gpu_node& node, std::function<void(int)> done) {
  {
    const auto lock = co_await node.dqm.lock();
    if (!node.resetting) {
      node.failing = failing_cycle{profile_.preemption_timeout};
      co_await cycle(node, cycle_kind::ordinary, {});
    }
  }
  done(0);
}

std::uint64_t driver::evicted_ms(pid_t pid, std::uint32_t gpu_id) const {
  const auto it = impl_->live_.find(pid);
  const process_device* device = it == impl_->live_.end() ? nullptr : it->second->device(gpu_id);
  if (device == nullptr) return 0;
  duration total = device->evicted_total;
  if (device->evictions > 0) total += impl_->engine_.now() - device->evicted_since;
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(total).count());
}

std::optional<driver::call_fault> driver::impl::fault_of(const call& c) {
  if (faults_.empty()) return std::nullopt;
  std::optional<std::uint32_t> op;
  pid_t target = 0;
  if (c.command == uapi::AMDKFD_IOC_DBG_TRAP) {
    uapi::kfd_ioctl_dbg_trap_args args;
    std::memcpy(&args, c.data.data(), sizeof args);
    op = args.op;
    target = os_.leader_of(static_cast<pid_t>(args.pid));
  } else if (c.command == uapi::AMDKFD_IOC_CRIU_OP) {
    uapi::kfd_ioctl_criu_args args;
    std::memcpy(&args, c.data.data(), sizeof args);
    op = args.op;
  }
  const auto it = std::find_if(faults_.begin(), faults_.end(), [&](const auto& fault) {
    return fault.number == _IOC_NR(c.command) && (!fault.op || fault.op == op) &&
           (fault.caller == 0 || fault.caller == c.caller->pid) &&
           (fault.target == 0 || fault.target == target);
  });
  if (it == faults_.end()) return std::nullopt;
  auto met = *it;
  if (met.kill_target) met.target = target;
  if (--it->times == 0) faults_.erase(it);
  return met;
}

task<void> driver::impl::kill_later(pid_t pid, duration after) {
  co_await sleep_until{engine_, engine_.now() + after};
  os_.kill_process(pid);
}

task<int> driver::impl::perform(call_ptr c) {
  if (const auto fault = fault_of(*c)) {
    if (fault->kill_target) {
      if (fault->target > 0) scope_.start(kill_later(fault->target, fault->delay));
    } else {
      co_await sleep_until{engine_, engine_.now() + fault->delay};
      if (fault->error != 0) co_return -fault->error;
    }
  }
  co_return co_await dispatch(c);
}

}  // namespace sluice::sim
