/// What the simulation counts of itself, as the JSON text that demo and tests read.

#include "driver_state.hpp"
#include "stats_text.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace sluice::sim {

void driver::impl::suspension_began(kfd_queue& queue) const {
  ++queue.owner->queue_suspends;
  if (!queue.suspended || queue.held_by == 0) queue.off_since = engine_.now();
}

void driver::impl::suspension_ended(kfd_queue& queue) const {
  if (queue.suspended || queue.held_by != 0) return;
  auto& longest = queue.owner->longest_suspension;
  longest = std::max(longest, engine_.now() - queue.off_since);
}

std::string driver::impl::stats_json() const {
  std::vector<std::string> gpus;
  for (const auto& node : gpus_) {
    gpus.push_back(json_object{}
                       .add("gpu_id", node->shape.gpu_id)
                       .add("cycles", node->model.cycles())
                       .add("cycle_ns", node->model.cycle_time())
                       .add("debug_cycles", node->model.debug_cycles())
                       .add("runlist_switches", node->model.switches())
                       .add("resets", node->resets)
                       .text());
  }
  std::vector<std::string> processes;
  const auto describe = [this, &processes](const kfd_process& process) {
    account sum;
    for (const auto& node : gpus_) {
      const auto one = node->model.process_account(static_cast<model_process>(process.serial));
      sum.busy += one.busy;
      sum.unfinished += one.unfinished;
      sum.disturbed += one.disturbed;
      sum.started += one.started;
      sum.completed += one.completed;
    }
    const auto suspended = std::count_if(process.queues.begin(), process.queues.end(),
                                         [](const auto& q) { return q->suspended; });
    const auto held = std::count_if(process.queues.begin(), process.queues.end(),
                                    [](const auto& q) { return q->held_by != 0; });
    duration longest = process.longest_suspension;
    for (const auto& q : process.queues) {
      if (q->suspended || q->held_by != 0)
        longest = std::max(longest, engine_.now() - q->off_since);
    }
    processes.push_back(json_object{}
                            .add("pid", process.pid)
                            .add("alive", std::string{process.gone ? "false" : "true"})
                            .add("queues", process.queues.size())
                            .add("suspended_queues", suspended)
                            .add("held_queues", held)
                            .add("queue_suspends", process.queue_suspends)
                            .add("longest_suspension_ns", longest)
                            .add("kernels_started", sum.started)
                            .add("kernels_completed", sum.completed)
                            .add("busy_ns", sum.busy)
                            .add("unfinished_ns", sum.unfinished)
                            .add("disturbed_ns", sum.disturbed)
                            .add("broken_queues", process.broken_queues)
                            .text());
  };
  for (const auto& process : exited_) describe(*process);
  for (const auto& [pid, process] : live_) describe(*process);
  return json_object{}
             .add("now_ns", engine_.now().time_since_epoch().count())
             .add("profile", json_string(profile_.name))
             .add("lateness_ns", outer_.lateness.json())
             .add("gpus", json_array(gpus))
             .add("processes", json_array(processes))
             .text() +
         "\n";
}

}  // namespace sluice::sim
