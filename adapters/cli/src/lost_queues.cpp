#include "lost_queues.hpp"

#include "breakers.hpp"
#include "output.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

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
  auto all = open_breakers();
  if (all.empty()) return {};
  auto node = kfd::look_at_node(kfd::roots::from_environment());
  if (!node) return {};
  std::erase_if(node->processes, [&](const auto& process) { return process.pid != pid; });
  std::erase_if(all, [&](const auto& each) {
    return std::ranges::none_of(node->processes, [&](const auto& process) {
      return std::ranges::find(process.queues, each.first, &kfd::queue_description::gpu) !=
             process.queues.end();
    });
  });
  return breaker_warnings(*node, all);
}

}  // namespace sluice::cli
