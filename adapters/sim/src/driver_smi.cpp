/// SMI events: what the driver tells system management of one GPU, as lines in a descriptor's FIFO
/// (kfd_smi_events.c).

#include "driver_state.hpp"

#include <linux/capability.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <string_view>

namespace sluice::sim {

namespace {

constexpr std::uint64_t mask_of(uapi::kfd_smi_event event) {
  return std::uint64_t{1} << (static_cast<unsigned>(event) - 1U);
}

std::string hexadecimal(std::uint64_t value) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
  return {digits.data(), end};
}

/// "<when> -<pid> <gpu>", as most of them begin.
std::string stamp(std::int64_t nanoseconds, pid_t pid, std::uint32_t gpu_id) {
  return std::to_string(nanoseconds) + " -" + std::to_string(pid) + " " + hexadecimal(gpu_id);
}

}  // namespace

namespace smi_payload {

std::string vm_fault(pid_t pid, std::string_view name) {
  return hexadecimal(static_cast<std::uint32_t>(pid)) + ":" + std::string{name} + "\n";
}

std::string gpu_reset(std::uint32_t sequence, std::string_view cause) {
  return hexadecimal(sequence) + (cause.empty() ? "" : " " + std::string{cause}) + "\n";
}

std::string queue_eviction(std::int64_t nanoseconds, pid_t pid, std::uint32_t gpu_id,
                           smi_eviction_trigger trigger) {
  return stamp(nanoseconds, pid, gpu_id) + " " + std::to_string(static_cast<int>(trigger)) + "\n";
}

std::string queue_restore(std::int64_t nanoseconds, pid_t pid, std::uint32_t gpu_id,
                          std::optional<bool> rescheduled) {
  auto text = stamp(nanoseconds, pid, gpu_id);
  if (rescheduled) {
    text += ' ';
    text += *rescheduled ? 'R' : '\0';
  }
  return text + "\n";
}

std::string process(pid_t pid, std::string_view name) {
  return hexadecimal(static_cast<std::uint32_t>(pid)) + " " + std::string{name} + "\n";
}

}  // namespace smi_payload

bool sees(const smi_client& client, uapi::kfd_smi_event event, smi_audience audience) {
  if ((client.events & mask_of(event)) == 0) return false;
  if (audience.owner == 0 || audience.owner == client.pid) return true;
  constexpr auto all_processes = mask_of(uapi::KFD_SMI_EVENT_ALL_PROCESS);
  return client.administrator &&
         (audience.administrators_need_not_ask || (client.events & all_processes) != 0);
}

task<int> driver::impl::smi_events(call_ptr c, uapi::kfd_ioctl_smi_events_args& args) {
  const process_device* device = c->caller->device(args.gpuid);
  if (device == nullptr) co_return -EINVAL;
  const auto number = promise_file(c->tid);
  auto& client = smi_clients_[number];
  client.gpu = device->gpu;
  client.pid = c->caller->pid;
  client.administrator = os_.has_capability(c->tid, CAP_SYS_ADMIN);
  co_return co_await hand_over(c, number,
                               {.offset = offsetof(uapi::kfd_ioctl_smi_events_args, anon_fd)});
}

int driver::impl::smi_write(std::uint64_t number, std::span<const std::byte> mask) {
  const auto found = smi_clients_.find(number);
  if (found == smi_clients_.end()) return -EINVAL;  // As of a dma-buf.
  if (mask.size() < sizeof found->second.events) return -EFAULT;
  std::memcpy(&found->second.events, mask.data(), sizeof found->second.events);
  return sizeof found->second.events;
}

int driver::impl::smi_read(std::uint64_t number, std::size_t room, std::string& out) {
  const auto found = smi_clients_.find(number);
  if (found == smi_clients_.end()) return -EINVAL;  // As of a dma-buf.
  auto& queued = found->second.fifo;
  if (queued.empty()) return -EAGAIN;
  out = queued.substr(0, room);
  queued.erase(0, out.size());
  return 0;
}

bool driver::impl::smi_readable(std::uint64_t number) const {
  const auto found = smi_clients_.find(number);
  // No work delays the use of a dma-buf.
  return found == smi_clients_.end() || !found->second.fifo.empty();
}

void driver::impl::smi_event(const gpu_node& node, uapi::kfd_smi_event event, smi_audience audience,
                             std::string_view payload) {
  auto line = hexadecimal(event) + " " + std::string{payload};
  line.resize(std::min(line.size(), uapi::KFD_SMI_EVENT_MSG_SIZE));
  for (auto& [number, client] : smi_clients_) {
    if (client.gpu != &node || !sees(client, event, audience)) continue;
    if (client.fifo.size() + line.size() > profile_.smi_fifo_bytes) continue;
    client.fifo += line;
    if (outer_.on_smi_event) outer_.on_smi_event(number);
  }
}

void driver::impl::smi_queue_eviction(const kfd_process& process, const gpu_node& node,
                                      smi_eviction_trigger trigger) {
  smi_event(node, uapi::KFD_SMI_EVENT_QUEUE_EVICTION, {.owner = process.pid},
            smi_payload::queue_eviction(smi_time(), process.pid, node.shape.gpu_id, trigger));
}

void driver::impl::smi_queue_restore(const kfd_process& process, const gpu_node& node,
                                     bool rescheduled) {
  const auto flag = profile_.smi_restore_flag ? std::optional{rescheduled} : std::nullopt;
  smi_event(node, uapi::KFD_SMI_EVENT_QUEUE_RESTORE, {.owner = process.pid},
            smi_payload::queue_restore(smi_time(), process.pid, node.shape.gpu_id, flag));
}

void driver::impl::smi_gpu_pre_reset(gpu_node& node) {
  // amdgpu_reset_get_desc: the scheduler's hang, whatever made us reset (assumption).
  const auto* cause = node.shape.scheduler == queue_scheduler::mes ? "MES hang" : "HWS hang";
  smi_event(node, uapi::KFD_SMI_EVENT_GPU_PRE_RESET, {},
            smi_payload::gpu_reset(++node.reset_sequence, profile_.smi_reset_cause ? cause : ""));
}

void driver::impl::smi_gpu_post_reset(const gpu_node& node) {
  smi_event(node, uapi::KFD_SMI_EVENT_GPU_POST_RESET, {},
            smi_payload::gpu_reset(node.reset_sequence, ""));
}

void driver::impl::smi_process(process_device& device, const kfd_process& process, bool starts) {
  if (starts == device.started) return;
  device.started = starts;
  if (!profile_.smi_process_events) return;
  // Everybody's until the fix of mid-2026; then the owner's, and administrators'.
  const bool fixed = profile_.has_fixes_of_2026();
  smi_event(*device.gpu,
            starts ? uapi::KFD_SMI_EVENT_PROCESS_START : uapi::KFD_SMI_EVENT_PROCESS_END,
            {.owner = fixed ? process.pid : 0, .administrators_need_not_ask = true},
            smi_payload::process(process.pid, process.name));
}

}  // namespace sluice::sim
