#include "queue_orders.hpp"

#include <algorithm>
#include <cerrno>

#include <boost/system/system_error.hpp>

namespace sluice::kfd {
namespace {

std::string number_of(gpu_id gpu) { return std::to_string(static_cast<std::uint32_t>(gpu)); }

}  // namespace

held_process* find(const std::vector<std::shared_ptr<held_process>>& among, pid_t pid) {
  const auto found =
      std::ranges::find_if(among, [&](const auto& each) { return each->pid == pid; });
  return found == among.end() ? nullptr : found->get();
}

void settle_buried(std::span<queue_order> orders,
                   const std::vector<std::shared_ptr<held_process>>& whom) {
  for (queue_order& order : orders) {
    auto* const who = find(whom, order.pid);
    if (who == nullptr) continue;
    const auto lost = who->buried.find(order.queue);
    if (lost == who->buried.end()) continue;
    order = order_of_dead(order.pid, order.queue, lost->second);
  }
  // Afterwards, because several orders may name the same queue.
  for (const queue_order& order : orders) {
    if (!order.hardware) continue;
    auto* const who = find(whom, order.pid);
    who->buried.erase(order.queue);
    who->reported.insert(order.gpu);
  }
}

queue_order order_of_dead(pid_t pid, driver_queue_id queue, gpu_id gpu) {
  return {.pid = pid, .queue = queue, .gpu = gpu, .error = EIO, .hardware = breaker_cause::reset};
}

batch next_batch(command_kind kind, std::span<queue_order> orders, const held_process& who) {
  batch work;
  work.kind = kind;
  for (queue_order& order : orders) {
    if (order.pid != who.pid || order.error != EINPROGRESS) continue;
    const auto known = who.queues.find(order.queue);
    order.gpu = known != who.queues.end() ? known->second.about.gpu : gpu_id::none;
    if (work.count == 0) work.gpu = order.gpu;
    if (order.gpu != work.gpu || work.count == max_batch_queues) continue;
    const auto listed = std::span{work.queues}.first(work.count);
    if (std::ranges::find(listed, order.queue) != listed.end()) continue;  // a repeated order
    work.queues[work.count++] = order.queue;
  }
  return work;
}

void settle(std::span<queue_order> orders, const held_process& who, const batch& work, int error) {
  for (std::size_t i = 0; i < work.count; ++i) settle(orders, who, work.queues[i], error);
}

void settle(std::span<queue_order> orders, const held_process& who, driver_queue_id queue,
            int error, std::optional<breaker_cause> hardware) {
  const auto known = who.queues.find(queue);
  for (queue_order& order : orders) {
    if (order.pid != who.pid || order.queue != queue || order.error != EINPROGRESS) continue;
    order.error = error;
    order.hardware = hardware;
    if (known != who.queues.end()) order.gpu = known->second.about.gpu;
  }
}

int error_of(const held_process& who, const batch_result& answer, std::size_t index) {
  switch (answer.outcomes[index]) {
    case outcome::done: return 0;
    case outcome::target_gone: return ESRCH;
    case outcome::failed: return EIO;
    case outcome::invalid: break;
  }
  // What it does not have is not there, whatever the driver says of the process beside that.
  const bool known = who.queues.contains(answer.queues[index]);
  if (!known && (answer.driver_errno == 0 || answer.driver_errno == EPERM)) return ENOENT;
  return answer.driver_errno != 0 ? answer.driver_errno : EBUSY;
}

std::string sentence_for(command_kind kind, const queue_order& order) {
  return std::string{"cannot "} + (kind == command_kind::suspend ? "suspend" : "resume") +
         " queue " + std::to_string(static_cast<std::uint32_t>(order.queue)) + " of " +
         name_of(order.pid) + ": " + reason_of(kind, order);
}

std::string reason_of(command_kind kind, const queue_order& order) {
  switch (order.error) {
    case ENOENT: return "the process has no such queue; 'sluice queues' lists its queues";
    case EBUSY: return "the process is creating or destroying the queue";
    case EIO:
      if (order.hardware == breaker_cause::reset)
        return "GPU " + number_of(order.gpu) +
               " was reset while the process was held; the queue is dead, and its work is lost; "
               "see dmesg";
      if (order.hardware)
        return "the preemption failed in hardware; the driver resets GPU " + number_of(order.gpu) +
               " and its hive, and all GPU work on this node may be lost; see dmesg";
      return kind == command_kind::suspend
                 ? "the driver call failed; no queue of the process stays suspended; see dmesg"
                 : "the driver refused to resume the queue; sluice ends the debug session, which "
                   "resumes all queues of the process; see dmesg";
    case ESRCH: return "the process or the debug session with it has ended";
    case ETIMEDOUT:
      return "the driver did not answer in time; when it answers, all queues of the process are "
             "resumed; see dmesg";
    case EPERM:
      return "the ROCm runtime of the process has not enabled debugging, or has disabled it again";
    default: return boost::system::system_category().message(order.error);
  }
}

}  // namespace sluice::kfd
