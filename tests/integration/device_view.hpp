#pragma once
/// \file
/// What the simulated device says of a process: sim/stats.json of its directory.

#include "simulated_device.hpp"

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

namespace sluice::test {

class device_view {
 public:
  explicit device_view(std::string root) : path_{std::move(root) + "/sim/stats.json"} {}

  struct process_view {
    bool known = false;
    std::uint64_t queues = 0;
    std::uint64_t suspended_queues = 0;  ///< Or held by batch commands.
    std::uint64_t queue_suspends = 0;    ///< Ever: what a look at the state now would miss.
    std::uint64_t kernels_completed = 0;
    bool alive = false;
    std::uint64_t kernels_started = 0;
    std::uint64_t longest_suspension = 0;  ///< ns, of one queue without a break.
    std::chrono::nanoseconds busy{};       ///< With at least one of its kernels running.
  };

  /// All zero for a process that the device does not know (any more).
  process_view process(pid_t pid) const { return process(pid, text()); }
  /// The same of a text(), for who looks at several.
  static process_view process(pid_t pid, const std::string& text) {
    // The youngest: pids are used again.
    const auto start = text.rfind("{\"pid\":" + std::to_string(pid) + ",");
    if (start == std::string::npos) return {};
    const std::string entry = text.substr(start, text.find('}', start) - start);
    return {.known = true,
            .queues = number(entry, "queues"),
            .suspended_queues = number(entry, "suspended_queues") + number(entry, "held_queues"),
            .queue_suspends = number(entry, "queue_suspends"),
            .kernels_completed = number(entry, "kernels_completed"),
            .alive = entry.find("\"alive\":true") != std::string::npos,
            .kernels_started = number(entry, "kernels_started"),
            .longest_suspension = number(entry, "longest_suspension_ns"),
            .busy = std::chrono::nanoseconds(number(entry, "busy_ns"))};
  }

  /// All of it, as JSON.
  std::string text() const { return read_file(path_); }

  /// A number of the (first) GPU.
  std::uint64_t gpu_count(const std::string& key) const {
    const std::string all = text();
    const auto start = all.find("{\"gpu_id\":");
    if (start == std::string::npos) return 0;
    return number(all.substr(start, all.find('}', start) - start), key);
  }

 private:
  static std::uint64_t number(const std::string& entry, const std::string& key) {
    const std::string label = "\"" + key + "\":";
    const auto at = entry.find(label);
    return at == std::string::npos ? 0
                                   : std::strtoull(entry.c_str() + at + label.size(), nullptr, 10);
  }

  std::string path_;
};

}  // namespace sluice::test
