#include "lost_queues.hpp"

#include "breakers.hpp"
#include "output.hpp"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "sluice/config.hpp"

namespace sluice::cli {

std::vector<std::string> error_states(const queue_holder& by, pid_t pid,
                                      const std::vector<held_queue>& queues) {
  std::vector<std::string> said;
  for (const auto& queue : queues)
    if (queue.about.fault != 0)
      said.push_back(fmt::format(
          "queue {} of process {} is in an error state ({}) and may never run again; see dmesg and "
          "the output of the process, and restart the process",
          number(queue.about.id), pid, by.words_of_fault(queue.about.fault)));
  return said;
}

std::vector<std::string> breakers_of(const driver& on, pid_t pid) {
  auto all = open_breakers(on);
  if (all.empty()) return {};
  auto node = on.look();
  if (!node) return {};
  std::erase_if(node->processes, [&](const auto& process) { return process.pid != pid; });
  std::erase_if(all, [&](const auto& each) {
    return std::ranges::none_of(node->processes, [&](const auto& process) {
      return std::ranges::find(process.queues, each.first, &queue_description::gpu) !=
             process.queues.end();
    });
  });
  return breaker_warnings(*node, all);
}

void open_breakers_of(const driver& on, const std::vector<gpu_failure>& failed) {
  const auto known = open_breakers(on);
  node_view node;
  if (auto seen = on.look()) node = std::move(*seen);
  stored_breakers made;
  const auto open = [&](gpu_id gpu, const gpu_failure& by) {
    if (known.contains(gpu)) return;
    const auto now = wall_time_now();
    made.emplace(gpu, stored_breaker{.why = by.why,
                                     .first = by.gpu,
                                     .since = now,
                                     .until = now + std::chrono::ceil<std::chrono::milliseconds>(
                                                        scheduler_config{}.breaker_rearm)});
  };
  for (const auto& each : failed) {
    open(each.gpu, each);
    const auto* const about = node.find(each.gpu);
    if (about == nullptr || about->reset_domain == 0) continue;
    for (const auto& other : node.gpus)
      if (other.reset_domain == about->reset_domain) open(other.id, each);
  }
  if (made.empty()) return;
  const breaker_store store = default_breaker_store(on);
  std::string message;
  if (!store.change(made, {}, message)) {
    complain(message +
             "; schedulers do not know of this failure: do not suspend queues on this GPU and its "
             "hive until the GPU works again");
    return;
  }
  for (const auto& [gpu, each] : made)
    complain(
        fmt::format("{}: its breaker is open now (file {}): sluice suspends no queue on this GPU; "
                    "when the GPU works again, run sluice breaker rearm {}",
                    gpu_name(node, gpu), store.path(), number(gpu)));
}

}  // namespace sluice::cli
