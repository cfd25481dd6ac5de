/// The batch commands of a patched driver, as uapi_batch.hpp proposes them.

#include "driver_state.hpp"

#include <linux/capability.h>

#include <algorithm>
#include <cerrno>
#include <tuple>
#include <utility>

namespace sluice::sim {

namespace {

constexpr std::uint32_t status_bits =
    uapi::KFD_DBG_QUEUE_INVALID_MASK | uapi::KFD_DBG_QUEUE_ERROR_MASK;

/// Rounded up to 1000 GPU clocks, at most 255 of these. Of 0, the driver makes 1000 clocks, which
/// no profile resolves.
duration batch_grace(const gpu_profile& shape, std::uint32_t microseconds) {
  if (microseconds == 0 || microseconds == 0xffffffff) return duration::zero();
  const std::uint64_t clocks = std::uint64_t{microseconds} * shape.gpu_clock_mhz;
  const auto units = std::min<std::uint64_t>((clocks + 999) / 1000, 255);
  return std::chrono::nanoseconds{units * 1'000'000 / shape.gpu_clock_mhz};
}

}  // namespace

int driver::impl::read_batch(call& c, std::uint64_t address, std::uint32_t count,
                             std::vector<uapi::kfd_batch_queue_entry>& entries, batch_plan& plan,
                             file_id kfd_queue::*own) {
  if (count > uapi::KFD_BATCH_MAX_QUEUES) return -EINVAL;
  entries.resize(count);
  if (!c.caller->memory->read(address, std::as_writable_bytes(std::span{entries}))) return -EFAULT;
  // One look per process, not per entry.
  struct named {
    process_ptr process;
    bool authorised = false;
  };
  std::map<std::int32_t, named> known;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    auto& entry = entries[i];
    entry.queue_id = (entry.queue_id & ~status_bits) | uapi::KFD_DBG_QUEUE_INVALID_MASK;
    auto found = known.find(entry.pid);
    if (found == known.end()) {
      const pid_t leader = entry.pid <= 0 ? 0 : os_.leader_of(entry.pid);
      process_ptr process = leader == 0 ? nullptr : lookup(leader);
      const bool authorised = process && os_.may_attach(c.tid, leader);
      found = known.emplace(entry.pid, named{std::move(process), authorised}).first;
    }
    const auto& [process, authorised] = found->second;
    if (!process) continue;
    auto queue = process->queue(entry.queue_id & ~status_bits);
    if (!queue) continue;
    if (!authorised && (own == nullptr || *queue.*own != c.file)) continue;
    gpu_node* node = queue->gpu;
    auto place = std::find_if(plan.begin(), plan.end(),
                              [node](const auto& each) { return each.first == node; });
    if (place == plan.end()) place = plan.insert(plan.end(), {node, {}});
    auto& items = place->second;
    const bool repeated = std::any_of(items.begin(), items.end(),
                                      [&queue](const auto& item) { return item.queue == queue; });
    if (!repeated) items.push_back({i, std::move(queue)});
  }
  std::ranges::sort(plan, {}, [](const auto& each) { return each.first->index; });
  return 0;
}

task<int> driver::impl::batch_unmap(call_ptr c, uapi::kfd_ioctl_batch_unmap_queues_args& args) {
  const bool mark = (args.flags & uapi::KFD_BATCH_FLAG_MARK_OFFLINE) != 0;
  const bool unmark = args.flags == uapi::KFD_BATCH_FLAG_UNMARK;
  const bool only_mark = (args.flags & uapi::KFD_BATCH_FLAG_MARK_ONLY) != 0;
  constexpr std::uint32_t marking =
      uapi::KFD_BATCH_FLAG_MARK_OFFLINE | uapi::KFD_BATCH_FLAG_MARK_ONLY;
  if (!unmark && ((args.flags & ~marking) != 0 || (only_mark && !mark))) co_return -EINVAL;
  if (args.pad != 0) co_return -EINVAL;
  if (args.num_queues == 0) co_return 0;
  const bool holds = !only_mark && !unmark;
  const file_id file = c->file;
  std::vector<uapi::kfd_batch_queue_entry> entries;
  batch_plan plan;
  if (const int error = read_batch(*c, args.queue_array_ptr, args.num_queues, entries, plan,
                                   unmark ? &kfd_queue::marked_by : nullptr)) {
    co_return error;
  }
  int total = 0;
  for (auto& [gpu, items] : plan) {
    gpu_node& node = *gpu;
    const auto lock = co_await node.dqm.lock();
    const bool runlist = node.shape.scheduler == queue_scheduler::runlist;
    bool changed = false;
    std::vector<std::size_t> held;
    for (auto& [at, q] : items) {
      auto& entry = entries[at].queue_id;
      if (unmark ? q->marked_by != file : q->destroyed || q->being_destroyed) continue;
      if (mark && q->marked_by != 0 && q->marked_by != file) continue;
      if (holds && q->held_by != 0 && q->held_by != file) continue;
      // A held queue is active if MES has failed to remove it.
      if (holds && (q->held_by == 0 || q->active)) {
        if (std::exchange(q->held_by, file) == 0) suspension_began(*q);
        if (runlist) {
          changed = changed || q->active;
          refresh_active(*q);
        } else if (q->active) {
          const int error =
              co_await change_queue(q, false, cycle_kind::debug, node.shape.batch_unmap_cost);
          if (error != 0) {
            entry |= uapi::KFD_DBG_QUEUE_ERROR_MASK;
            break;
          }
        }
      }
      if (const auto marked_by = unmark ? 0
                                 : mark ? file
                                        : q->marked_by;
          std::exchange(q->marked_by, marked_by) != marked_by) {
        changed = changed || node.reservation_of == file;
      }
      entry &= ~uapi::KFD_DBG_QUEUE_INVALID_MASK;
      held.push_back(at);
    }
    apply_reservation(node);
    int error = 0;
    if (changed) {
      error = co_await cycle(node, cycle_kind::debug, node.shape.batch_unmap_cost,
                             batch_grace(node.shape, args.grace_period_us));
    }
    if (error == 0) {
      total += static_cast<int>(held.size());
    } else {
      for (const auto at : held) entries[at].queue_id |= uapi::KFD_DBG_QUEUE_ERROR_MASK;
    }
  }
  const auto written =
      c->caller->memory->write(args.queue_array_ptr, std::as_bytes(std::span{entries}));
  // It was closed, or its process went, while the call was under way: nobody else would end these.
  if (!files_.contains(file) || c->caller->gone) co_await release_holds(file);
  co_return written ? total : -EFAULT;
}

task<int> driver::impl::end_holds(gpu_node& node, file_id file,
                                  std::vector<std::shared_ptr<kfd_queue>> held,
                                  std::vector<bool>* done) {
  const bool runlist = node.shape.scheduler == queue_scheduler::runlist;
  std::vector<std::shared_ptr<kfd_queue>> changed;
  int error = 0;
  for (const auto& q : held) {
    q->held_by = 0;
    if (!q->destroyed) suspension_ended(*q);
    if (!q->destroyed && q->should_be_active() && !q->active) {
      if (runlist) {
        refresh_active(*q);
        changed.push_back(q);
      } else {
        error = co_await change_queue(q, true, cycle_kind::debug, node.shape.batch_remap_cost);
        if (error != 0) q->held_by = file;
      }
    }
    if (done != nullptr) done->push_back(error == 0);
    if (error != 0) co_return error;
  }
  if (!changed.empty()) {
    error = co_await cycle(node, cycle_kind::debug, node.shape.batch_remap_cost);
    for (const auto& q : changed) {
      if (error == 0 || q->destroyed) continue;
      q->held_by = file;
      refresh_active(*q);
    }
  }
  co_return error;
}

task<int> driver::impl::fast_remap(call_ptr c, uapi::kfd_ioctl_fast_remap_args& args) {
  if (args.pad != 0) co_return -EINVAL;
  const file_id file = c->file;
  int total = 0;
  if (args.queue_array_ptr == 0) {
    for (const auto& each : gpus_) {
      gpu_node& node = *each;
      const auto lock = co_await node.dqm.lock();
      std::vector<bool> done;
      const int error = co_await end_holds(node, file, held_on(node, file), &done);
      if (error == 0 || node.shape.scheduler == queue_scheduler::mes) {
        total += static_cast<int>(std::count(done.begin(), done.end(), true));
      }
    }
    co_return total;
  }
  if (args.num_queues == 0) co_return 0;
  std::vector<uapi::kfd_batch_queue_entry> entries;
  batch_plan plan;
  if (const int error = read_batch(*c, args.queue_array_ptr, args.num_queues, entries, plan,
                                   &kfd_queue::held_by)) {
    co_return error;
  }
  for (auto& [gpu, items] : plan) {
    gpu_node& node = *gpu;
    const auto lock = co_await node.dqm.lock();
    std::vector<std::shared_ptr<kfd_queue>> held;
    std::vector<std::size_t> at;
    for (auto& item : items) {
      if (item.queue->held_by != file || item.queue->destroyed) continue;
      held.push_back(item.queue);
      at.push_back(item.entry);
    }
    std::vector<bool> done;
    const int error = co_await end_holds(node, file, held, &done);
    const bool runlist = node.shape.scheduler == queue_scheduler::runlist;
    // MES stops at the first failure: what is behind it stays held.
    for (std::size_t i = done.size(); i < at.size(); ++i)
      entries[at[i]].queue_id |= uapi::KFD_DBG_QUEUE_ERROR_MASK;
    for (std::size_t i = 0; i < done.size(); ++i) {
      auto& entry = entries[at[i]].queue_id;
      const bool failed = runlist ? error != 0 : !done[i];
      if (failed) entry |= uapi::KFD_DBG_QUEUE_ERROR_MASK;
      if (!failed || runlist) entry &= ~uapi::KFD_DBG_QUEUE_INVALID_MASK;
      if (!failed) ++total;
    }
  }
  if (!c->caller->memory->write(args.queue_array_ptr, std::as_bytes(std::span{entries})))
    co_return -EFAULT;
  co_return total;
}

std::vector<std::shared_ptr<kfd_queue>> driver::impl::held_on(const gpu_node& node,
                                                              file_id file) const {
  std::vector<std::shared_ptr<kfd_queue>> held;
  for (const auto& [pid, process] : live_) {
    for (const auto& q : process->queues) {
      if (q->gpu == &node && q->held_by == file) held.push_back(q);
    }
  }
  return held;
}

void driver::impl::apply_reservation(gpu_node& node) {
  const auto file = node.reservation_of;
  node.model.limit_marked(file == 0 ? std::nullopt : std::optional{node.reserved_slots});
  for (const auto& [id, q] : node.queues)
    node.model.set_marked(id, file != 0 && q->marked_by == file);
}

task<int> driver::impl::set_hqd_reservation(call_ptr c,
                                            uapi::kfd_ioctl_set_hqd_reservation_args& args) {
  if (!os_.has_capability(c->tid, CAP_SYS_ADMIN)) co_return -EPERM;
  gpu_node* found = gpu(args.gpu_id);
  constexpr std::uint32_t whole = 100;
  if (found == nullptr || args.pad != 0 || args.online_percent > whole ||
      args.offline_percent > whole - args.online_percent) {
    co_return -EINVAL;
  }
  gpu_node& node = *found;
  if (node.shape.scheduler == queue_scheduler::mes) co_return -EOPNOTSUPP;
  const auto lock = co_await node.dqm.lock();
  if (node.reservation_of != 0 && node.reservation_of != c->file) co_return -EBUSY;
  if (args.offline_percent == whole && node.reservation_of == 0) co_return 0;
  const auto before = std::pair{node.reservation_of, node.reserved_slots};
  node.reservation_of = args.offline_percent == whole ? 0 : c->file;
  const auto share = node.shape.hqd_slots * args.offline_percent / whole;
  node.reserved_slots = args.offline_percent == 0 ? 0 : std::max(share, 1U);
  apply_reservation(node);
  const int error = co_await cycle(node, cycle_kind::debug, node.shape.cycle_cost);
  if (error != 0) {
    std::tie(node.reservation_of, node.reserved_slots) = before;
    apply_reservation(node);
  }
  co_return error;
}

task<void> driver::impl::release_holds(file_id file) {
  for (const auto& each : gpus_) {
    gpu_node& node = *each;
    const auto lock = co_await node.dqm.lock();
    const bool reserved = node.reservation_of == file;
    if (reserved) node.reservation_of = 0;
    for (const auto& [id, q] : node.queues)
      if (q->marked_by == file) q->marked_by = 0;
    apply_reservation(node);
    const auto before = node.model.cycles();
    // Nobody is left who could try again, so this does, until it works: each failure is one that
    // was injected. On hardware a failure has the GPU reset, which ends it too.
    int error = 0;
    do {
      error = co_await end_holds(node, file, held_on(node, file), nullptr);
    } while (error != 0);
    if (reserved && node.model.cycles() == before) {
      co_await cycle(node, cycle_kind::debug, node.shape.cycle_cost);
    }
  }
}

}  // namespace sluice::sim
