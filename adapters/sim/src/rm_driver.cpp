#include "rm_driver.hpp"

#include "rm_state.hpp"

#include <algorithm>
#include <cerrno>

namespace sluice::sim {

// --- The public face -----------------------------------------------------------------------------

rm_driver::rm_driver(engine& events, os& system, const profile& node)
    : impl_{std::make_unique<impl>(*this, events, system, node)} {}
rm_driver::~rm_driver() = default;

int rm_driver::open(pid_t tid, std::uint32_t node, file_id& out) {
  return impl_->open(tid, node, out);
}
void rm_driver::release(file_id file) { impl_->release(file); }
request_id rm_driver::ioctl(pid_t tid, file_id file, std::uint32_t command,
                            std::span<const std::byte> in, ioctl_done done) {
  return impl_->ioctl(tid, file, command, in, std::move(done));
}
void rm_driver::interrupt(request_id request) { impl_->interrupt(request); }
void rm_driver::reap() { impl_->reap(); }
int rm_driver::control(std::string_view line, std::string& problem) {
  return impl_->control(line, problem);
}
std::string rm_driver::stats_json() const { return impl_->stats_json(); }

// --- Files and callers ---------------------------------------------------------------------------

rm_driver::impl::impl(rm_driver& outer, engine& events, os& system, const profile& node)
    : outer_{outer}, engine_{events}, os_{system}, profile_{node}, faults_forgotten_{events} {
  for (const auto& shape : profile_.gpus) {
    const auto index = gpus_.size();
    gpus_.push_back(std::make_unique<rm_gpu>(
        engine_, shape,
        [this, index](model_queue queue, std::uint64_t kernel, time_point at) {
          const auto& channel = gpus_[index]->queues.at(queue);
          channel->started = kernel + 1;
          const auto ago = clock::now() - at;
          channel->began_at = std::chrono::system_clock::now().time_since_epoch() - ago;
          note(channel);
        },
        [this, index](model_queue queue, std::uint64_t kernel, time_point start, time_point end) {
          const auto& channel = gpus_[index]->queues.at(queue);
          channel->completed = kernel + 1;
          channel->news.push_back({start, end});
          note(channel);
        }));
  }
}

rm_driver::impl::~impl() = default;

int rm_driver::impl::open(pid_t tid, std::uint32_t node, file_id& out) {
  if (os_.leader_of(tid) == 0) return -ESRCH;
  out = ++last_file_;
  files_.emplace(out, node);
  return 0;
}

void rm_driver::impl::release(file_id file) {
  files_.erase(file);
  std::vector<rm::NvHandle> owned;
  for (const auto& [handle, client] : clients_) {
    if (client.file == file) owned.push_back(handle);
  }
  for (const auto handle : owned) free_client(handle);
}

std::shared_ptr<rm_caller> rm_driver::impl::caller_of(pid_t tid) {
  const pid_t leader = os_.leader_of(tid);
  if (leader == 0) return nullptr;
  if (const auto it = callers_.find(leader); it != callers_.end()) {
    auto known = it->second;
    if (os_.same_address_space(leader, *known->memory)) return known;
    forget(known);
  }
  auto memory = os_.open_address_space(leader);
  if (!memory) return nullptr;
  auto made = std::make_shared<rm_caller>(rm_caller{leader, std::move(*memory)});
  callers_.emplace(leader, made);
  if (outer_.on_process) outer_.on_process(leader, true);
  return made;
}

void rm_driver::impl::forget(const std::shared_ptr<rm_caller>& caller) {
  caller->memory.reset();
  callers_.erase(caller->pid);
  if (outer_.on_process) outer_.on_process(caller->pid, false);
}

void rm_driver::impl::reap() {
  std::vector<std::shared_ptr<rm_caller>> gone;
  for (const auto& [pid, caller] : callers_) {
    if (!caller->memory->alive()) gone.push_back(caller);
  }
  for (const auto& caller : gone) forget(caller);
}

// --- Dispatch ------------------------------------------------------------------------------------

namespace {

/// The ioctls of nvidiactl, of the number that alone selects them (nvidia_ioctl); 0: another one.
std::uint32_t command_of_rm(std::uint32_t number) {
  for (const auto each : {rm::NV_RM_ALLOC, rm::NV_RM_FREE, rm::NV_RM_CONTROL,
                          nvidia_abi::SLUICE_SIM_BIND_CHANNEL, nvidia_abi::SLUICE_SIM_SUBMIT,
                          nvidia_abi::SLUICE_SIM_WAIT, nvidia_abi::SLUICE_SIM_GPU_INFO}) {
    if (_IOC_NR(each) == number) return each;
  }
  return 0;
}

}  // namespace

request_id rm_driver::impl::ioctl(pid_t tid, file_id file, std::uint32_t command,
                                  std::span<const std::byte> in, ioctl_done done) {
  const auto fail = [&done](int error) {
    done({.result = -error, .out = {}});
    return request_id{0};
  };
  const std::uint32_t own = command_of_rm(_IOC_NR(command));
  // A structure of another size, and a node of a GPU (NV_CTL_DEVICE_ONLY), get the same answer.
  if (own == 0 || _IOC_SIZE(command) != _IOC_SIZE(own) || in.size() != _IOC_SIZE(own))
    return fail(EINVAL);
  const auto opened = files_.find(file);
  if (opened == files_.end()) return fail(EBADF);
  if (opened->second != 0) return fail(EINVAL);
  auto caller = caller_of(tid);
  if (!caller) return fail(ESRCH);

  const auto c = std::make_shared<rm_call>();
  c->id = ++last_call_;
  c->tid = tid;
  c->file = file;
  c->caller = std::move(caller);
  c->data.assign(in.begin(), in.end());
  c->done = std::move(done);
  calls_.emplace(c->id, c);
  scope_.start(serve(c, own));
  return calls_.contains(c->id) ? c->id : 0;
}

void rm_driver::impl::interrupt(request_id request) {
  const auto it = calls_.find(request);
  if (it == calls_.end()) return;
  const call_ptr c = it->second;
  c->signal.raise();
}

template <class Args>
task<void> rm_driver::impl::with(call_ptr c, task<status> (impl::*handler)(call_ptr, Args&)) {
  Args args;
  std::memcpy(&args, c->data.data(), sizeof args);
  args.status = co_await (this->*handler)(c, args);
  std::memcpy(c->data.data(), &args, sizeof args);
}

task<void> rm_driver::impl::serve(call_ptr c, std::uint32_t command) {
  switch (command) {
    case rm::NV_RM_ALLOC: co_await with(c, &impl::alloc); break;
    case rm::NV_RM_FREE: co_await with(c, &impl::free); break;
    case rm::NV_RM_CONTROL: co_await with(c, &impl::control_object); break;
    case nvidia_abi::SLUICE_SIM_BIND_CHANNEL: co_await with(c, &impl::bind_channel); break;
    case nvidia_abi::SLUICE_SIM_SUBMIT: co_await with(c, &impl::submit); break;
    case nvidia_abi::SLUICE_SIM_WAIT: co_await with(c, &impl::wait); break;
    default: co_await with(c, &impl::gpu_info); break;
  }
  calls_.erase(c->id);
  const auto done = std::move(c->done);
  done({.result = c->result, .out = std::move(c->data)});
}

rm_client* rm_driver::impl::find(rm::NvHandle client, file_id file) {
  const auto it = clients_.find(client);
  return it == clients_.end() || it->second.file != file ? nullptr : &it->second;
}

}  // namespace sluice::sim
