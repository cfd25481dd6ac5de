#include "own_queues.hpp"

#include "gpu_nodes.hpp"
#include "queue_status.hpp"
#include "runtime_wait.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "sluice/kfd/queue_type.hpp"
#include "sluice/kfd/uapi.hpp"

namespace sluice::kfd {

namespace {

constexpr std::uint64_t queue_new = uapi::KFD_EC_MASK(uapi::EC_QUEUE_NEW);
constexpr std::uint64_t process_runtime = uapi::KFD_EC_MASK(uapi::EC_PROCESS_RUNTIME);
/// A process's queue ids come from a map of 1024 bits.
constexpr std::size_t most_queues = 1024;

std::uint64_t address_of(const void* where) noexcept {
  return reinterpret_cast<std::uintptr_t>(where);  // NOLINT: the ABI carries pointers as integers
}

uapi::kfd_ioctl_dbg_trap_args trap(uapi::kfd_dbg_trap_operations operation) noexcept {
  uapi::kfd_ioctl_dbg_trap_args args{};
  args.pid = static_cast<std::uint32_t>(::getpid());
  args.op = operation;
  return args;
}

hold_failure refused(const std::string& what, const error_code& error) {
  return {error.value(), "the driver refused to " + what + " this process: " + error.message()};
}

}  // namespace

hold_failure own_queues::enable() {
  if (enabled_) return {};
  if (!driver_end_) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
      return {errno, "out of file descriptors; close some, or raise the limit (ulimit -n)"};
    events_ = unique_fd{ends[0]};
    driver_end_ = unique_fd{ends[1]};
  }
  uapi::kfd_runtime_info info{};
  auto args = trap(uapi::KFD_IOC_DBG_TRAP_ENABLE);
  args.enable.exception_mask = process_runtime;
  args.enable.rinfo_ptr = address_of(&info);
  args.enable.rinfo_size = sizeof info;
  args.enable.dbg_fd = static_cast<std::uint32_t>(driver_end_.get());
  const auto enabled = node_.call(uapi::AMDKFD_IOC_DBG_TRAP, &args);
  if (!enabled) {
    if (enabled.error().value() == EALREADY)
      return {EBUSY,
              "another process (for example a scheduler or rocgdb) has a debug session with this "
              "process; detach it first"};
    return refused("open a debug session with", enabled.error());
  }
  enabled_ = true;
  if (info.runtime_state == uapi::DBG_RUNTIME_STATE_ENABLED) return {};
  (void)end();
  if (info.runtime_state == uapi::DBG_RUNTIME_STATE_ENABLED_BUSY)
    return {
        EBUSY,
        "the GPU supports one debugged process at a time, and another process is being debugged; "
        "or this process has set a CU mask (gfx11.0)"};
  return {EPERM,
          "the GPU runtime of this process has not enabled debugging; run 'sluice doctor' to check "
          "whether the firmware supports it"};
}

own_queues::refusal own_queues::suspend(std::vector<order>& orders) {
  const auto gpus = find_gpu_nodes(sysfs_, node_.path());
  if (const auto missing = gpu_without_address_space(::getpid(), gpus, sysfs_))
    return {{EPERM, "this process " + text_without_address_space(*missing)}, true};
  if (auto no = enable()) return {std::move(no), true};
  std::vector<uapi::kfd_queue_snapshot_entry> existing(most_queues);
  auto args = trap(uapi::KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT);
  args.queue_snapshot.exception_mask = queue_new;  // a new queue cannot be suspended
  args.queue_snapshot.snapshot_buf_ptr = address_of(existing.data());
  args.queue_snapshot.num_queues = static_cast<std::uint32_t>(existing.size());
  args.queue_snapshot.entry_size = sizeof existing[0];
  if (const auto listed = node_.call(uapi::AMDKFD_IOC_DBG_TRAP, &args); !listed) {
    auto why = refused("list the queues of", listed.error());
    end_if_unused();
    return {std::move(why), true};
  }
  existing.resize(std::min<std::size_t>(existing.size(), args.queue_snapshot.num_queues));

  if (orders.empty()) {
    for (const auto& queue : existing)
      if (kind_of(static_cast<queue_type>(queue.queue_type)) == queue_kind::compute)
        orders.push_back({.queue = driver_queue_id{queue.queue_id}});
    std::ranges::sort(orders, {}, &order::queue);
  }
  std::vector<std::uint32_t> ids;
  for (order& each : orders) {
    const auto known = std::ranges::find(existing, static_cast<std::uint32_t>(each.queue),
                                         &uapi::kfd_queue_snapshot_entry::queue_id);
    each.error = known == existing.end() ? ENOENT : 0;
    if (each.error != 0) continue;
    each.gpu = gpu_id{known->gpu_id};
    if (std::ranges::find(ids, known->queue_id) == ids.end()) ids.push_back(known->queue_id);
  }
  hold_failure first;
  if (!ids.empty()) {
    auto words = ids;
    args = trap(uapi::KFD_IOC_DBG_TRAP_SUSPEND_QUEUES);
    args.suspend_queues.queue_array_ptr = address_of(words.data());
    args.suspend_queues.num_queues = static_cast<std::uint32_t>(words.size());
    if (const auto called = node_.call(uapi::AMDKFD_IOC_DBG_TRAP, &args); !called) {
      auto why = refused("suspend queues of", called.error());
      end_if_unused();
      return {std::move(why), true};
    }
    for (std::size_t index = 0; index < ids.size(); ++index) {
      const outcome what = decode_status(ids[index], words[index]);
      if (what == outcome::done) continue;
      for (order& each : orders)
        if (static_cast<std::uint32_t>(each.queue) == ids[index])
          each.error = what == outcome::invalid ? EBUSY : EIO;
    }
  }
  for (const order& each : orders) {
    if (each.error == 0 || first) continue;
    first = {each.error,
             "queue " + std::to_string(static_cast<std::uint32_t>(each.queue)) +
                 " of this process was not suspended: " +
                 (each.error == ENOENT  ? "it does not exist"
                  : each.error == EBUSY ? "it is being destroyed"
                                        : "the hardware failed; all queues were resumed")};
  }
  // What failed counts as suspended for the driver; the end of the session resumes it.
  if (std::ranges::any_of(orders, [](const order& each) { return each.error == EIO; })) {
    for (order& each : orders)
      if (each.error == 0) each.error = EIO;
    (void)resume();
  }
  if (std::ranges::any_of(orders, [](const order& each) { return each.error == 0; }))
    suspended_ = true;
  else
    end_if_unused();
  return {std::move(first), false};
}

hold_failure own_queues::resume() {
  if (!enabled_) return {};
  auto args = trap(uapi::KFD_IOC_DBG_TRAP_RESUME_QUEUES);  // no array: every queue
  (void)node_.call(uapi::AMDKFD_IOC_DBG_TRAP, &args);      // the end of the session does it, too
  return end();
}

/// A thread of this process that ends (or starts) its runtime waits for an answer, and would go on
/// waiting without a session.
void own_queues::answer_runtime() const {
  for (;;) {
    auto args = trap(uapi::KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT);
    args.query_debug_event.exception_mask = process_runtime;
    if (!node_.call(uapi::AMDKFD_IOC_DBG_TRAP, &args)) return;  // EAGAIN: none is left
    if ((args.query_debug_event.exception_mask & process_runtime) == 0) return;
    args = trap(uapi::KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT);
    args.send_runtime_event.exception_mask = process_runtime;
    (void)node_.call(uapi::AMDKFD_IOC_DBG_TRAP, &args);
  }
}

hold_failure own_queues::end() {
  answer_runtime();
  auto args = trap(uapi::KFD_IOC_DBG_TRAP_DISABLE);
  const auto ended = node_.call(uapi::AMDKFD_IOC_DBG_TRAP, &args);
  if (!ended && ended.error().value() != EINVAL)  // EINVAL: there is no session any more
    return refused("end the debug session with", ended.error());
  enabled_ = suspended_ = false;
  // The runtime may have begun to end after the last event was read: DISABLE drops that event and
  // leaves its thread waiting. Rare, and found by looking, as debug_session does.
  for (int round = 0; round < 3 && waits_in_runtime_enable(::getpid()); ++round) {
    uapi::kfd_runtime_info info{};
    args = trap(uapi::KFD_IOC_DBG_TRAP_ENABLE);
    args.enable.exception_mask = process_runtime;
    args.enable.rinfo_ptr = address_of(&info);
    args.enable.rinfo_size = sizeof info;
    args.enable.dbg_fd = static_cast<std::uint32_t>(driver_end_.get());
    if (!node_.call(uapi::AMDKFD_IOC_DBG_TRAP, &args)) break;
    args = trap(uapi::KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT);
    args.send_runtime_event.exception_mask = process_runtime;
    (void)node_.call(uapi::AMDKFD_IOC_DBG_TRAP, &args);
    args = trap(uapi::KFD_IOC_DBG_TRAP_DISABLE);
    (void)node_.call(uapi::AMDKFD_IOC_DBG_TRAP, &args);
  }
  return {};
}

void own_queues::end_if_unused() {
  if (enabled_ && !suspended_) (void)end();
}

}  // namespace sluice::kfd
