#include "lost_queues.hpp"

#include "breakers.hpp"
#include "output.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "sluice/config.hpp"
#include "sluice/kfd/driver.hpp"
#include "sluice/kfd/uapi.hpp"

namespace sluice::cli {

namespace {

namespace uapi = kfd::uapi;

constexpr std::array exceptions_by_name{
    std::pair{uapi::EC_QUEUE_WAVE_ABORT, "QUEUE_WAVE_ABORT"},
    std::pair{uapi::EC_QUEUE_WAVE_TRAP, "QUEUE_WAVE_TRAP"},
    std::pair{uapi::EC_QUEUE_WAVE_MATH_ERROR, "QUEUE_WAVE_MATH_ERROR"},
    std::pair{uapi::EC_QUEUE_WAVE_ILLEGAL_INSTRUCTION, "QUEUE_WAVE_ILLEGAL_INSTRUCTION"},
    std::pair{uapi::EC_QUEUE_WAVE_MEMORY_VIOLATION, "QUEUE_WAVE_MEMORY_VIOLATION"},
    std::pair{uapi::EC_QUEUE_WAVE_APERTURE_VIOLATION, "QUEUE_WAVE_APERTURE_VIOLATION"},
    std::pair{uapi::EC_QUEUE_PACKET_DISPATCH_DIM_INVALID, "QUEUE_PACKET_DISPATCH_DIM_INVALID"},
    std::pair{uapi::EC_QUEUE_PACKET_DISPATCH_GROUP_SEGMENT_SIZE_INVALID,
              "QUEUE_PACKET_DISPATCH_GROUP_SEGMENT_SIZE_INVALID"},
    std::pair{uapi::EC_QUEUE_PACKET_DISPATCH_CODE_INVALID, "QUEUE_PACKET_DISPATCH_CODE_INVALID"},
    std::pair{uapi::EC_QUEUE_PACKET_RESERVED, "QUEUE_PACKET_RESERVED"},
    std::pair{uapi::EC_QUEUE_PACKET_UNSUPPORTED, "QUEUE_PACKET_UNSUPPORTED"},
    std::pair{uapi::EC_QUEUE_PACKET_DISPATCH_WORK_GROUP_SIZE_INVALID,
              "QUEUE_PACKET_DISPATCH_WORK_GROUP_SIZE_INVALID"},
    std::pair{uapi::EC_QUEUE_PACKET_DISPATCH_REGISTER_INVALID,
              "QUEUE_PACKET_DISPATCH_REGISTER_INVALID"},
    std::pair{uapi::EC_QUEUE_PACKET_VENDOR_UNSUPPORTED, "QUEUE_PACKET_VENDOR_UNSUPPORTED"},
    std::pair{uapi::EC_QUEUE_PREEMPTION_ERROR, "QUEUE_PREEMPTION_ERROR"},
};

}  // namespace

std::string exception_names(std::uint64_t exceptions) {
  std::string text;
  for (unsigned code = 1; code <= 64; ++code) {
    if ((exceptions >> (code - 1) & 1U) == 0) continue;
    const auto known = std::ranges::find(exceptions_by_name, code,
                                         [](const auto& each) { return unsigned{each.first}; });
    text += text.empty() ? "" : ", ";
    text += known != exceptions_by_name.end() ? known->second : "exception " + std::to_string(code);
  }
  return text;
}

std::vector<std::string> error_states(pid_t pid, const std::vector<kfd::held_queue>& queues) {
  std::vector<std::string> said;
  for (const auto& queue : queues)
    if (queue.about.fault != 0)
      said.push_back(fmt::format(
          "queue {} of process {} is in an error state ({}) and may never run again; see dmesg and "
          "the output of the process, and restart the process",
          number(queue.about.id), pid, exception_names(queue.about.fault)));
  return said;
}

std::vector<std::string> breakers_of(pid_t pid) {
  const auto driver = kfd::make_driver();
  auto all = open_breakers(*driver);
  if (all.empty()) return {};
  auto node = driver->look();
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

void open_breakers_of(const std::vector<kfd::gpu_failure>& failed) {
  const auto driver = kfd::make_driver();
  const auto known = open_breakers(*driver);
  node_view node;
  if (auto seen = driver->look()) node = std::move(*seen);
  stored_breakers made;
  const auto open = [&](gpu_id gpu, const kfd::gpu_failure& by) {
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
  const breaker_store store = default_breaker_store(*driver);
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
