/// What the resource manager counts, as the JSON text that demo and tests read.

#include "rm_state.hpp"
#include "stats_text.hpp"

#include <algorithm>

namespace sluice::sim {

std::string rm_driver::impl::stats_json() const {
  struct sums {
    account work;
    std::uint32_t channels = 0;
    std::uint32_t held = 0;
    duration longest_hold{};
  };
  std::map<const rm_process*, sums> living;
  std::vector<std::string> clients;
  std::uint32_t all_held = 0;
  for (const auto& [handle, client] : clients_) {
    auto& sum = living[client.owner.get()];
    std::vector<std::string> groups;
    std::uint32_t channels = 0;
    std::uint32_t held = 0;
    std::uint64_t memory = 0;
    for (const auto& [number, object] : client.objects) {
      memory += object.memory;
      if (object.cls == rm::KEPLER_CHANNEL_GROUP_A) {
        groups.push_back(json_object{}
                             .add("handle", number)
                             .add("timeslice_us", timeslice_of(*object.group))
                             .text());
        const auto work = object.gpu->model.process_account(object.group->model);
        sum.work.busy += work.busy;
        sum.work.unfinished += work.unfinished;
        sum.work.started += work.started;
        sum.work.completed += work.completed;
      } else if (object.cls == rm::HOPPER_CHANNEL_GPFIFO_A) {
        ++channels;
        if (object.channel->disables == 0) continue;
        ++held;
        sum.longest_hold = std::max(sum.longest_hold, engine_.now() - object.channel->off_since);
      }
    }
    sum.channels += channels;
    sum.held += held;
    all_held += held;
    clients.push_back(json_object{}
                          .add("client", handle)
                          .add("pid", client.owner->pid)
                          .add("channels", channels)
                          .add("held_channels", held)
                          .add("memory_bytes", memory)
                          .add("groups", json_array(groups))
                          .text());
  }
  std::vector<std::string> gpus;
  for (const auto& gpu : gpus_) {
    gpus.push_back(json_object{}
                       .add("gpu_id", gpu->shape.gpu_id)
                       .add("channels", gpu->channels)
                       .add("memory_bytes", gpu->memory_used)
                       .text());
  }
  std::vector<std::string> processes;
  const auto describe = [&](const rm_process& process) {
    const auto found = living.find(&process);
    const sums now = found == living.end() ? sums{} : found->second;
    const auto& past = process.past;
    processes.push_back(
        json_object{}
            .add("pid", process.pid)
            .add("alive", std::string{process.clients != 0 ? "true" : "false"})
            .add("queues", now.channels)
            .add("suspended_queues", now.held)
            .add("queue_suspends", process.channel_holds)
            .add("longest_suspension_ns", std::max(process.longest_hold, now.longest_hold))
            .add("kernels_started", past.started + now.work.started)
            .add("kernels_completed", past.completed + now.work.completed)
            .add("busy_ns", past.busy + now.work.busy)
            .add("unfinished_ns", past.unfinished + now.work.unfinished)
            .add("broken_queues", process.broken_channels)
            .text());
  };
  for (const auto& process : exited_) describe(*process);
  for (const auto& [pid, process] : processes_) describe(*process);
  json_object calls;
  for (const auto& each : rm_calls) {
    const auto made = calls_made_.find(each.number);
    calls.add(std::string{each.name}.c_str(), made == calls_made_.end() ? 0 : made->second);
  }
  return json_object{}
             .add("now_ns", engine_.now().time_since_epoch().count())
             .add("profile", json_string(profile_.name))
             .add("lateness_ns", outer_.lateness.json())
             .add("held_channels", all_held)
             .add("calls", calls.text())
             .add("gpus", json_array(gpus))
             .add("clients", json_array(clients))
             .add("processes", json_array(processes))
             .text() +
         "\n";
}

}  // namespace sluice::sim
