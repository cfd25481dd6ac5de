#include "driver.hpp"

#include "driver_state.hpp"

#include <linux/capability.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace sluice::sim {

// --- The public face -----------------------------------------------------------------------------

driver::driver(engine& events, os& system, const profile& node)
    : impl_{std::make_unique<impl>(*this, events, system, node)} {}
driver::~driver() = default;

int driver::open(pid_t tid, std::uint32_t, file_id& out) { return impl_->open(tid, out); }
void driver::release(file_id file) { impl_->release(file); }
request_id driver::ioctl(pid_t tid, file_id file, std::uint32_t command,
                         std::span<const std::byte> in, ioctl_done done) {
  return impl_->ioctl(tid, file, command, in, std::move(done));
}
void driver::interrupt(request_id request) { impl_->interrupt(request); }
void driver::reap() { impl_->reap(); }
std::string driver::mqds() const { return impl_->mqds(); }
std::string driver::hqds() const { return impl_->hqds(); }
std::string driver::rls() const { return impl_->rls(); }
std::string driver::mem_limit() const { return impl_->mem_limit(); }
bool driver::file_promised(std::uint64_t number, pid_t tid) const {
  return impl_->file_promised(number, tid);
}
int driver::file_open(std::uint64_t number, pid_t tid) { return impl_->file_open(number, tid); }
void driver::file_release(std::uint64_t number) { impl_->file_release(number); }
std::uint64_t driver::file_size(std::uint64_t number) const { return impl_->file_size(number); }
int driver::smi_write(std::uint64_t number, std::span<const std::byte> mask) {
  return impl_->smi_write(number, mask);
}
int driver::smi_read(std::uint64_t number, std::size_t room, std::string& out) {
  return impl_->smi_read(number, room, out);
}
bool driver::smi_readable(std::uint64_t number) const { return impl_->smi_readable(number); }
std::string driver::stats_json() const { return impl_->stats_json(); }

void driver::fail_next_cycle(std::uint32_t gpu_id, duration lasts, after_failure then) {
  if (gpu_node* node = impl_->gpu(gpu_id)) {
    node->failing = failing_cycle{lasts, then == after_failure::reset};
  }
}

std::vector<pid_t> driver::process_pids() const {
  std::vector<pid_t> pids;
  for (const auto& [pid, process] : impl_->live_) pids.push_back(pid);
  return pids;
}

bool driver::has_process(pid_t pid) const { return impl_->find(pid) != nullptr; }

std::vector<driver::sysfs_queue> driver::queues_of(pid_t pid) const {
  std::vector<sysfs_queue> out;
  const kfd_process* process = impl_->find(pid);
  if (process == nullptr) return out;
  // enum kfd_queue_type: compute 0 (PM4 and AQL alike), SDMA 1, HIQ 2, [DIQ 3,] SDMA over XGMI.
  const int xgmi = impl_->profile_.diq_type_exists ? 4 : 3;
  for (const auto& q : process->queues) {
    const int type = q->is_compute() ? 0 : q->type == uapi::KFD_IOC_QUEUE_TYPE_SDMA ? 1 : xgmi;
    out.push_back({q->id, q->serial, q->ring_size, type, q->gpu->shape.gpu_id});
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return out;
}

std::vector<std::uint32_t> driver::gpus_of(pid_t pid) const {
  std::vector<std::uint32_t> out;
  if (const kfd_process* process = impl_->find(pid)) {
    for (const auto& device : process->devices) out.push_back(device.gpu->shape.gpu_id);
  }
  return out;
}

std::uint32_t driver::pasid_of(pid_t pid) const {
  const kfd_process* process = impl_->find(pid);
  return process == nullptr || impl_->profile_.header != mqds_header::pasid ? 0 : process->pasid;
}

std::uint32_t driver::pasid_of(pid_t pid, std::uint32_t gpu_id) const {
  const kfd_process* process = impl_->find(pid);
  if (process == nullptr) return 0;
  for (const auto& device : process->devices) {
    if (device.gpu->shape.gpu_id == gpu_id) return device.pasid;
  }
  return 0;
}

std::optional<std::uint32_t> driver::cu_occupancy(pid_t pid, std::uint32_t gpu_id) const {
  const gpu_node* node = impl_->gpu(gpu_id);
  if (node == nullptr || !node->shape.counts_occupancy()) return std::nullopt;
  const kfd_process* process = impl_->find(pid);
  if (process == nullptr) return 0;
  const auto waves = node->model.running_waves(static_cast<model_process>(process->serial));
  const auto per_unit = node->shape.simd_per_cu * node->shape.waves_per_simd;
  return (waves + per_unit - 1) / per_unit;
}

// --- Objects -------------------------------------------------------------------------------------

process_device* kfd_process::device(std::uint32_t gpu_id) {
  for (auto& each : devices) {
    if (each.gpu->shape.gpu_id == gpu_id) return &each;
  }
  return nullptr;
}

std::shared_ptr<kfd_queue> kfd_process::queue(std::uint32_t id) const {
  for (const auto& each : queues) {
    if (each->id == id) return each;
  }
  return nullptr;
}

driver::impl::impl(driver& outer, engine& events, os& system, const profile& node)
    : outer_{outer}, engine_{events}, os_{system}, profile_{node} {
  for (const auto& shape : profile_.gpus) {
    const auto index = gpus_.size();
    gpus_.push_back(std::make_unique<gpu_node>(
        engine_, shape, index,
        [this, index](model_queue queue, std::uint64_t cookie, time_point) {
          kernel_started(*gpus_[index], queue, cookie);
        },
        [this, index](model_queue queue, std::uint64_t cookie, time_point start, time_point end) {
          kernel_completed(*gpus_[index], queue, cookie, start, end);
        }));
    gpus_.back()->model.on_unmapped = [node = gpus_.back().get()](model_queue id,
                                                                  gpu_model::seat seat) {
      auto& q = *node->queues.at(id);
      q.mqd = {.saved = true, .vmid = seat.vmid, .read = q.consumed, .write = q.write_seen};
    };
  }
}

driver::impl::~impl() {
  for (const auto& node : gpus_) {
    for (const auto& [id, queue] : node->queues) {
      engine_.cancel(queue->poll);
      close_doorbell(*queue);
    }
  }
  for (const auto& [pid, process] : live_) {
    if (process->debug_fd >= 0) os_.close_fd(std::exchange(process->debug_fd, -1));
  }
  for (const auto& process : exited_) {  // A teardown may have been going on.
    if (process->debug_fd >= 0) os_.close_fd(std::exchange(process->debug_fd, -1));
  }
  for (const auto& node : gpus_) node->handles.clear();  // They can refer to other GPUs.
}

gpu_node* driver::impl::gpu(std::uint32_t gpu_id) {
  for (const auto& node : gpus_) {
    if (node->shape.gpu_id == gpu_id) return node.get();
  }
  return nullptr;
}

// --- Processes -----------------------------------------------------------------------------------

namespace {

/// What is left of a released address space, so that the real one's descriptors can go.
class released_address_space final : public address_space {
 public:
  explicit released_address_space(pid_t pid) : pid_{pid} {}
  pid_t pid() const noexcept override { return pid_; }
  bool alive() const noexcept override { return false; }
  result<void> read(std::uint64_t, std::span<std::byte>) override { return gone(); }
  result<void> write(std::uint64_t, std::span<const std::byte>) override { return gone(); }
  result<void> write_words(std::span<const patch>) override { return gone(); }

 private:
  static error_code gone() { return {ESRCH, boost::system::system_category()}; }
  pid_t pid_;
};

}  // namespace

const kfd_process* driver::impl::find(pid_t pid) const {
  const auto it = live_.find(pid);
  return it == live_.end() ? nullptr : it->second.get();
}

driver::impl::process_ptr driver::impl::add_process(std::unique_ptr<address_space> space) {
  auto name = os_.name_of(space->pid());
  auto process = std::make_shared<kfd_process>(engine_, std::move(space), std::move(name));
  process->serial = ++last_serial_;
  process->pasid = ++last_pasid_;
  // kfd_init_apertures: a process is bound to every GPU from its first open on.
  for (const auto& node : gpus_) {
    auto& device = process->devices.emplace_back();
    device.gpu = node.get();
    // One for all GPUs, or (about 6.14 on) one for each.
    device.pasid = profile_.header == mqds_header::pasid ? process->pasid : ++last_pasid_;
  }
  live_.emplace(process->pid, process);
  if (outer_.on_process) outer_.on_process(process->pid, true);
  return process;
}

driver::impl::process_ptr driver::impl::lookup(pid_t leader) {
  const auto it = live_.find(leader);
  if (it == live_.end()) return nullptr;
  auto process = it->second;
  if (os_.same_address_space(leader, *process->memory)) return process;
  bury(process);
  return nullptr;
}

int driver::impl::open(pid_t tid, file_id& out) {
  const pid_t leader = os_.leader_of(tid);
  if (leader == 0) return -ESRCH;
  if (is_resetting()) return -EAGAIN;
  auto process = lookup(leader);
  if (!process) {
    auto space = os_.open_address_space(leader);
    if (!space) return -space.error().value();
    process = add_process(std::move(*space));
  }
  out = ++last_file_;
  files_.emplace(out, std::move(process));
  return 0;
}

void driver::impl::release(file_id file) {
  files_.erase(file);
  secondary_files_.erase(file);
  scope_.start(release_holds(file));
}

void driver::impl::reap() {
  std::vector<process_ptr> dead;
  for (const auto& [pid, process] : live_) {
    if (!process->memory->alive()) dead.push_back(process);
  }
  for (auto& process : dead) bury(std::move(process));
}

/// The mm is released: nobody finds the process any more, its calls come to an end, its queues and
/// sessions are cleaned up (kfd_process_notifier_release).
void driver::impl::bury(process_ptr process) {
  if (process->gone) return;
  process->gone = true;
  process->memory = std::make_unique<released_address_space>(process->pid);
  live_.erase(process->pid);
  exited_.push_back(process);
  static constexpr std::size_t remembered = 256;
  for (auto it = exited_.begin(); exited_.size() > remembered && it != exited_.end();) {
    if (!(*it)->torn_down) {
      ++it;
      continue;
    }
    for (const auto& node : gpus_) node->model.forget(static_cast<model_process>((*it)->serial));
    it = exited_.erase(it);
  }
  if (outer_.on_process) outer_.on_process(process->pid, false);
  std::vector<call_ptr> calls;
  for (const auto& [id, c] : calls_) {
    if (c->caller == process) calls.push_back(c);
  }
  for (const auto& c : calls) c->signal.raise();
  for (const auto& [file, owner] : files_) {
    if (owner == process) scope_.start(release_holds(file));
  }
  scope_.start(tear_down(std::move(process)));
}

task<void> driver::impl::tear_down(process_ptr process) {
  // A debugger terminates: its targets go on as if it had never been. The driver looks for them
  // only while it counts any: one whose session it took over by a refused ENABLE is not counted.
  std::vector<process_ptr> targets;
  for (const auto& [pid, other] : live_) {
    if (other->debugger == process->serial) targets.push_back(other);
  }
  for (const auto& target : targets) {
    if (process->debugged <= 0) break;
    const auto held = co_await target->mutex.lock();
    if (target->debugger != process->serial || !target->debug_enabled) continue;
    co_await trap_disable(target);
    --process->debugged;
  }

  auto held = co_await process->mutex.lock();
  if (process->debug_enabled) co_await trap_disable(process);
  for (auto& device : process->devices) {
    gpu_node& node = *device.gpu;
    const auto lock = co_await node.dqm.lock();
    bool was_active = false;
    const auto queues = process->queues;
    for (const auto& q : queues) {
      if (q->gpu != &node || !q->active) continue;
      if (node.shape.scheduler == queue_scheduler::mes) {
        co_await change_queue(q, false, cycle_kind::ordinary, node.shape.cycle_cost);
      } else {
        was_active = true;
        set_active(*q, false);
      }
    }
    if (was_active) co_await cycle(node, cycle_kind::ordinary, node.shape.cycle_cost);
  }
  while (!process->queues.empty()) {
    const auto q = process->queues.back();
    drop_queue(*process, q);
  }
  for (auto& device : process->devices) smi_process(device, *process, false);
  process->events.clear();
  free_all_memory(*process);
  process->updates.clear();
  process->torn_down = true;
}

// --- Dispatch ------------------------------------------------------------------------------------

namespace {

/// The driver's table of commands (amdkfd_ioctls), by number; 0: no such command.
std::uint32_t command_of(std::uint32_t number, const profile& about) {
  static constexpr std::array<std::uint32_t, uapi::AMDKFD_COMMAND_END> table{
      0,
      uapi::AMDKFD_IOC_GET_VERSION,
      uapi::AMDKFD_IOC_CREATE_QUEUE,
      uapi::AMDKFD_IOC_DESTROY_QUEUE,
      uapi::AMDKFD_IOC_SET_MEMORY_POLICY,
      uapi::AMDKFD_IOC_GET_CLOCK_COUNTERS,
      uapi::AMDKFD_IOC_GET_PROCESS_APERTURES,
      uapi::AMDKFD_IOC_UPDATE_QUEUE,
      uapi::AMDKFD_IOC_CREATE_EVENT,
      uapi::AMDKFD_IOC_DESTROY_EVENT,
      uapi::AMDKFD_IOC_SET_EVENT,
      uapi::AMDKFD_IOC_RESET_EVENT,
      uapi::AMDKFD_IOC_WAIT_EVENTS,
      uapi::AMDKFD_IOC_DBG_REGISTER_DEPRECATED,
      uapi::AMDKFD_IOC_DBG_UNREGISTER_DEPRECATED,
      uapi::AMDKFD_IOC_DBG_ADDRESS_WATCH_DEPRECATED,
      uapi::AMDKFD_IOC_DBG_WAVE_CONTROL_DEPRECATED,
      uapi::AMDKFD_IOC_SET_SCRATCH_BACKING_VA,
      uapi::AMDKFD_IOC_GET_TILE_CONFIG,
      uapi::AMDKFD_IOC_SET_TRAP_HANDLER,
      uapi::AMDKFD_IOC_GET_PROCESS_APERTURES_NEW,
      uapi::AMDKFD_IOC_ACQUIRE_VM,
      uapi::AMDKFD_IOC_ALLOC_MEMORY_OF_GPU,
      uapi::AMDKFD_IOC_FREE_MEMORY_OF_GPU,
      uapi::AMDKFD_IOC_MAP_MEMORY_TO_GPU,
      uapi::AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU,
      uapi::AMDKFD_IOC_SET_CU_MASK,
      uapi::AMDKFD_IOC_GET_QUEUE_WAVE_STATE,
      uapi::AMDKFD_IOC_GET_DMABUF_INFO,
      uapi::AMDKFD_IOC_IMPORT_DMABUF,
      uapi::AMDKFD_IOC_ALLOC_QUEUE_GWS,
      uapi::AMDKFD_IOC_SMI_EVENTS,
      uapi::AMDKFD_IOC_SVM,
      uapi::AMDKFD_IOC_SET_XNACK_MODE,
      uapi::AMDKFD_IOC_CRIU_OP,
      uapi::AMDKFD_IOC_AVAILABLE_MEMORY,
      uapi::AMDKFD_IOC_EXPORT_DMABUF,
      uapi::AMDKFD_IOC_RUNTIME_ENABLE,
      uapi::AMDKFD_IOC_DBG_TRAP,
      uapi::AMDKFD_IOC_CREATE_PROCESS,
  };
  if (number == _IOC_NR(SLUICE_SIM_IOC_SET_DOORBELL)) return SLUICE_SIM_IOC_SET_DOORBELL;
  if (about.batch_commands) {
    for (const auto batch : {uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES, uapi::AMDKFD_IOC_FAST_REMAP,
                             uapi::AMDKFD_IOC_SET_HQD_RESERVATION}) {
      if (number == _IOC_NR(batch)) return batch;
    }
  }
  if (number >= table.size()) return 0;
  const std::uint32_t command = table[number];
  // What came with a later ABI does not exist before it.
  if (command == uapi::AMDKFD_IOC_RUNTIME_ENABLE || command == uapi::AMDKFD_IOC_DBG_TRAP) {
    return about.abi_minor >= uapi::KFD_IOCTL_MINOR_VERSION_DEBUGGER ? command : 0;
  }
  if (command == uapi::AMDKFD_IOC_CREATE_PROCESS)
    return about.abi_minor >= uapi::KFD_IOCTL_MINOR_VERSION_SECONDARY ? command : 0;
  return command;
}

}  // namespace

request_id driver::impl::ioctl(pid_t tid, file_id file, std::uint32_t command,
                               std::span<const std::byte> in, ioctl_done done) {
  const auto fail = [&done](int error) {
    done({.result = -error, .out = {}});
    return request_id{0};
  };
  // kfd_ioctl: the number alone selects the handler...
  const std::uint32_t own = command_of(_IOC_NR(command), profile_);
  if (own == 0) return fail(profile_.einval_for_unknown_commands ? EINVAL : ENOTTY);
  const auto opened = files_.find(file);
  if (opened == files_.end()) return fail(EBADF);
  const process_ptr process = opened->second;
  // CRIU's commands are the tracer's too, on a descriptor that it got from its tracee.
  const bool criu = own == uapi::AMDKFD_IOC_CRIU_OP;
  if (os_.leader_of(tid) != process->pid && !(criu && os_.tracer_of(process->pid) == tid)) {
    return fail(EBADF);
  }
  if (criu && !os_.has_capability(tid, CAP_CHECKPOINT_RESTORE) &&
      !os_.has_capability(tid, CAP_SYS_ADMIN)) {
    return fail(EACCES);
  }
  if (process->gone) return fail(ESRCH);  // It exec'd and kept the descriptor.

  const auto c = std::make_shared<call>();
  c->id = ++last_call_;
  c->tid = tid;
  c->file = file;
  c->caller = process;
  c->command = own;
  c->user_size = _IOC_SIZE(command);
  c->data.resize(std::max<std::size_t>(c->user_size, _IOC_SIZE(own)));
  // ...and the caller's size is what is copied, the rest of the driver's struct reading as zero.
  if ((_IOC_DIR(own) & _IOC_WRITE) != 0) {
    std::copy_n(in.begin(), std::min(in.size(), c->user_size), c->data.begin());
  }
  c->done = std::move(done);
  calls_.emplace(c->id, c);
  scope_.start(serve(c));
  return calls_.contains(c->id) ? c->id : 0;
}

void driver::impl::interrupt(request_id request) {
  const auto it = calls_.find(request);
  if (it == calls_.end()) return;
  const call_ptr c = it->second;
  c->signal.raise();
}

task<void> driver::impl::serve(call_ptr c) {
  ioctl_reply reply;
  reply.result = co_await perform(c);
  // Copied back whatever the result was.
  if ((_IOC_DIR(c->command) & _IOC_READ) != 0) {
    c->data.resize(c->user_size);
    reply.out = std::move(c->data);
  }
  calls_.erase(c->id);
  const auto done = std::move(c->done);
  done(std::move(reply));
}

template <class Args>
task<int> driver::impl::with(call_ptr c, task<int> (impl::*handler)(call_ptr, Args&)) {
  Args args;
  std::memcpy(&args, c->data.data(), sizeof args);
  const int result = co_await (this->*handler)(c, args);
  std::memcpy(c->data.data(), &args, sizeof args);
  co_return result;
}

template <class Args>
int driver::impl::with(call& c, int (impl::*handler)(call&, Args&)) {
  Args args;
  std::memcpy(&args, c.data.data(), sizeof args);
  const int result = (this->*handler)(c, args);
  std::memcpy(c.data.data(), &args, sizeof args);
  return result;
}

task<int> driver::impl::dispatch(call_ptr c) {
  if (secondary_files_.contains(c->file) && c->command != uapi::AMDKFD_IOC_GET_VERSION &&
      c->command != uapi::AMDKFD_IOC_DBG_TRAP) {
    co_return -EOPNOTSUPP;  // What a secondary context can do is not simulated.
  }
  switch (c->command) {
    case uapi::AMDKFD_IOC_GET_VERSION: co_return with(*c, &impl::get_version);
    case uapi::AMDKFD_IOC_CREATE_QUEUE: co_return co_await with(c, &impl::create_queue);
    case uapi::AMDKFD_IOC_DESTROY_QUEUE: co_return co_await with(c, &impl::destroy_queue);
    case uapi::AMDKFD_IOC_GET_CLOCK_COUNTERS: co_return with(*c, &impl::get_clock_counters);
    case uapi::AMDKFD_IOC_UPDATE_QUEUE: co_return co_await with(c, &impl::update_queue);
    case uapi::AMDKFD_IOC_CREATE_EVENT: co_return with(*c, &impl::create_event);
    case uapi::AMDKFD_IOC_DESTROY_EVENT: co_return with(*c, &impl::destroy_event);
    case uapi::AMDKFD_IOC_SET_EVENT: co_return with(*c, &impl::set_event);
    case uapi::AMDKFD_IOC_RESET_EVENT: co_return with(*c, &impl::reset_event);
    case uapi::AMDKFD_IOC_WAIT_EVENTS: co_return co_await with(c, &impl::wait_events);
    case uapi::AMDKFD_IOC_DBG_REGISTER_DEPRECATED:
    case uapi::AMDKFD_IOC_DBG_UNREGISTER_DEPRECATED:
    case uapi::AMDKFD_IOC_DBG_ADDRESS_WATCH_DEPRECATED:
    case uapi::AMDKFD_IOC_DBG_WAVE_CONTROL_DEPRECATED:
      co_return -EPERM;  // kfd_ioctl_dbg_register and its like, since they are deprecated.
    case uapi::AMDKFD_IOC_GET_PROCESS_APERTURES_NEW: co_return with(*c, &impl::get_apertures);
    case uapi::AMDKFD_IOC_ACQUIRE_VM: co_return with(*c, &impl::acquire_vm);
    case uapi::AMDKFD_IOC_GET_PROCESS_APERTURES: co_return with(*c, &impl::get_apertures_old);
    case uapi::AMDKFD_IOC_SET_MEMORY_POLICY: co_return with(*c, &impl::set_memory_policy);
    case uapi::AMDKFD_IOC_SET_SCRATCH_BACKING_VA: co_return with(*c, &impl::set_scratch_backing);
    case uapi::AMDKFD_IOC_SET_TRAP_HANDLER: co_return with(*c, &impl::set_trap_handler);
    case uapi::AMDKFD_IOC_GET_TILE_CONFIG: co_return with(*c, &impl::get_tile_config);
    case uapi::AMDKFD_IOC_AVAILABLE_MEMORY: co_return with(*c, &impl::available_memory);
    case uapi::AMDKFD_IOC_ALLOC_MEMORY_OF_GPU: co_return with(*c, &impl::alloc_memory);
    case uapi::AMDKFD_IOC_FREE_MEMORY_OF_GPU: co_return with(*c, &impl::free_memory);
    case uapi::AMDKFD_IOC_MAP_MEMORY_TO_GPU: co_return with(*c, &impl::map_memory);
    case uapi::AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU: co_return with(*c, &impl::unmap_memory);
    case uapi::AMDKFD_IOC_EXPORT_DMABUF: co_return co_await with(c, &impl::export_dmabuf);
    case uapi::AMDKFD_IOC_IMPORT_DMABUF: co_return with(*c, &impl::import_dmabuf);
    case uapi::AMDKFD_IOC_GET_DMABUF_INFO: co_return with(*c, &impl::dmabuf_info);
    // As a kernel built without CONFIG_HSA_AMD_SVM; the topology's capability has no bit for it.
    case uapi::AMDKFD_IOC_SVM:
    case uapi::AMDKFD_IOC_SET_XNACK_MODE: co_return -EPERM;
    case uapi::AMDKFD_IOC_SET_CU_MASK: co_return co_await with(c, &impl::set_cu_mask);
    case uapi::AMDKFD_IOC_SMI_EVENTS: co_return co_await with(c, &impl::smi_events);
    case uapi::AMDKFD_IOC_ALLOC_QUEUE_GWS: co_return co_await with(c, &impl::alloc_queue_gws);
    case uapi::AMDKFD_IOC_CREATE_PROCESS: secondary_files_.insert(c->file); co_return 0;
    case uapi::AMDKFD_IOC_CRIU_OP: co_return co_await with(c, &impl::criu_op);
    case uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES: co_return co_await with(c, &impl::batch_unmap);
    case uapi::AMDKFD_IOC_FAST_REMAP: co_return co_await with(c, &impl::fast_remap);
    case uapi::AMDKFD_IOC_SET_HQD_RESERVATION:
      co_return co_await with(c, &impl::set_hqd_reservation);
    case uapi::AMDKFD_IOC_GET_QUEUE_WAVE_STATE: co_return co_await with(c, &impl::get_wave_state);
    case uapi::AMDKFD_IOC_RUNTIME_ENABLE: co_return co_await with(c, &impl::runtime_enable);
    case uapi::AMDKFD_IOC_DBG_TRAP: co_return co_await with(c, &impl::dbg_trap);
    case SLUICE_SIM_IOC_SET_DOORBELL: co_return with(*c, &impl::set_doorbell);
    default: co_return -EOPNOTSUPP;
  }
}

int driver::impl::get_version(call&, uapi::kfd_ioctl_get_version_args& args) {
  args.major_version = uapi::KFD_IOCTL_MAJOR_VERSION;
  args.minor_version = profile_.abi_minor;
  return 0;
}

int driver::impl::get_clock_counters(call& c, uapi::kfd_ioctl_get_clock_counters_args& args) {
  const auto now = static_cast<std::uint64_t>(engine_.now().time_since_epoch().count());
  // The reference clock of gfx9 runs at 100 MHz. An unknown GPU reads 0, as in the driver.
  args.gpu_clock_counter = c.caller->device(args.gpu_id) == nullptr ? 0 : now / 10;
  args.cpu_clock_counter = now;
  args.system_clock_counter = now;
  args.system_clock_freq = 1'000'000'000;
  return 0;
}

int driver::impl::get_apertures(call& c, uapi::kfd_ioctl_get_process_apertures_new_args& args) {
  auto out = apertures_of(*c.caller);
  if (args.num_of_nodes == 0) {
    args.num_of_nodes = static_cast<std::uint32_t>(out.size());
    return 0;
  }
  out.resize(std::min<std::size_t>(out.size(), args.num_of_nodes));
  args.num_of_nodes = static_cast<std::uint32_t>(out.size());
  const auto written =
      c.caller->memory->write(args.kfd_process_device_apertures_ptr, std::as_bytes(std::span{out}));
  return written ? 0 : -EFAULT;
}

std::vector<uapi::kfd_process_device_apertures> driver::impl::apertures_of(
    const kfd_process& process) {
  std::vector<uapi::kfd_process_device_apertures> out;
  for (const auto& device : process.devices) {
    // kfd_init_apertures_v9: the same windows on every GPU.
    out.push_back({.lds_base = 0x1000000000000,
                   .lds_limit = 0x10000ffffffff,
                   .scratch_base = 0x2000000000000,
                   .scratch_limit = 0x20000ffffffff,
                   .gpuvm_base = 0x4000,
                   .gpuvm_limit = 0x7fffffffffff,
                   .gpu_id = device.gpu->shape.gpu_id,
                   .pad = 0});
  }
  return out;
}

int driver::impl::acquire_vm(call& c, uapi::kfd_ioctl_acquire_vm_args& args) {
  const auto taken = os_.take_fd(c.tid, static_cast<int>(args.drm_fd));
  if (!taken) return -EINVAL;
  const int error = use_render_node(*c.caller, args.gpu_id, *taken);
  if (error <= 0) os_.close_fd(*taken);
  return std::min(error, 0);
}

/// \return 1: the process has it from now on. 0: it had it already. Or an error.
int driver::impl::use_render_node(kfd_process& process, std::uint32_t gpu_id, int fd) {
  process_device* device = process.device(gpu_id);
  if (device == nullptr) return -EINVAL;
  if (device->render >= 0) return os_.same_file(device->render, fd) ? 0 : -EBUSY;
  if (!os_.is_render_node(fd)) return -EINVAL;
  // An address space serves one process (amdgpu_amdkfd_gpuvm_acquire_process_vm).
  for (const auto& [pid, other] : live_) {
    for (const auto& used : other->devices) {
      if (used.render >= 0 && os_.same_file(used.render, fd)) return -EINVAL;
    }
  }
  device->render = fd;
  constexpr std::uint64_t trap_handler_size = 0x2000;  // kfd_process_device_init_cwsr_dgpu
  device->trap_handler =
      make_buffer(*device->gpu, uapi::KFD_IOC_ALLOC_MEM_FLAGS_GTT, trap_handler_size);
  smi_process(*device, process, true);
  return 1;
}

}  // namespace sluice::sim
