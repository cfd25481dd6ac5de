#include "breakers.hpp"

#include "output.hpp"

#include <unistd.h>

#include <chrono>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "sluice/roles/role_store.hpp"

namespace sluice::cli {

namespace {

namespace json = boost::json;

/// When a process began, on the wall: start times are ticks since boot.
wall_time began(const process_description& process) {
  const auto ticks = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  const std::chrono::milliseconds since_boot{process.start_time * 1000 / ticks};
  return wall_time_now() - (roles::boot_time_now() - since_boot);
}

}  // namespace

void drop_over(stored_breakers& all) {
  std::erase_if(all, [now = wall_time_now()](const auto& each) { return each.second.over(now); });
}

std::string gpu_name(const node_view& node, gpu_id id) {
  const auto* const gpu = node.find(id);
  if (gpu == nullptr) return fmt::format("the GPU with gpu_id {}", number(id));
  return fmt::format("GPU {} (gpu_id {})", gpu->ordinal, number(id));
}

std::string breaker_text(gpu_id gpu, const stored_breaker& which, const node_view& node) {
  return fmt::format("{}{}; since {}, until {}", words_of(which.why),
                     which.first == gpu ? ""
                                        : fmt::format(" (the failure was on {} of the same hive)",
                                                      gpu_name(node, which.first)),
                     wall_text(which.since), which.until ? wall_text(*which.until) : "re-armed");
}

json::value breakers_json(const stored_breakers& all) {
  json::array list;
  for (const auto& [gpu, each] : all)
    list.push_back(json::object{
        {"gpu_id", number(gpu)},
        {"cause", to_string(each.why)},
        {"first_gpu_id", number(each.first)},
        {"since_unix_ms", each.since.time_since_epoch().count()},
        {"until_unix_ms",
         each.until ? json::value(each.until->time_since_epoch().count()) : json::value(nullptr)},
    });
  return list;
}

std::vector<std::string> breaker_warnings(const node_view& node, const stored_breakers& all) {
  std::vector<std::string> said;
  for (const auto& [gpu, each] : all) {
    // At a reset, the driver stops the queues of all processes on all GPUs.
    const bool on_all_gpus = each.why != breaker_cause::stuck_call;
    std::string older;
    for (const auto& process : node.processes) {
      bool uses = false;
      for (const auto& queue : process.queues) uses |= on_all_gpus || queue.gpu == gpu;
      if (uses && began(process) <= each.since)
        older += fmt::format("{}{}", older.empty() ? "" : ", ", process.pid);
    }
    std::string sentence = fmt::format("{}: its breaker is open: {}", gpu_name(node, gpu),
                                       breaker_text(gpu, each, node));
    if (!older.empty())
      sentence += fmt::format(
          "; end process{} {}: queues that are older than the failure may be lost although they "
          "look normal",
          older.find(',') == older.npos ? "" : "es", older);
    said.push_back(sentence + fmt::format("; when the GPU works again, run sluice breaker rearm {}",
                                          number(gpu)));
  }
  return said;
}

breaker_store default_breaker_store(const driver& of) {
  return breaker_store{breaker_store::default_path(of.device_key())};
}

stored_breakers open_breakers(const driver& of) {
  std::string message;
  auto all = default_breaker_store(of).read(message);
  if (!all) {
    complain("warning: " + message + "; cannot check for open breakers");
    return {};
  }
  drop_over(*all);
  return *all;
}

}  // namespace sluice::cli
