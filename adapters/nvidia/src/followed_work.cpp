#include "followed_work.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "sluice/os/proc.hpp"

namespace sluice::nvidia {

namespace {

using namespace std::chrono_literals;

/// Between two looks at which mappings there are: some tenths of a millisecond.
constexpr duration look_at_mappings = 500ms;

}  // namespace

result<std::unique_ptr<agent::followed_process>> followed_work::open(const roots& where,
                                                                     const message_sink& say,
                                                                     pid_t pid,
                                                                     std::uint64_t start_time) {
  auto memory = address_space::open(pid);
  if (!memory) return memory.error();
  if (start_time_of(pid) != start_time) return errc::unknown_target;
  return std::unique_ptr<agent::followed_process>{
      new followed_work{where, say, pid, start_time, std::move(*memory)}};
}

/// \return false when the process has ended.
bool followed_work::follow_mappings() {
  if (!memory_.is_alive()) {
    // Another program, or none.
    auto anew = address_space::open(pid_);
    if (!anew || start_time_of(pid_) != start_time_ || !anew->is_alive()) return false;
    memory_ = std::move(*anew);
    view_ = {};
    told_ = false;
  }
  if (gpus_.empty())
    if (auto read = read_gpus(where_)) gpus_ = std::move(*read);
  view_.set_mappings(memory_.device_mappings([&](unsigned minor) -> std::optional<gpu_id> {
    const auto found = std::ranges::find(gpus_, minor, &gpu_information::minor);
    if (found == gpus_.end()) return {};
    return found->id;
  }));
  return true;
}

void followed_work::tell_why_unsure() {
  if (told_) return;
  const std::string why = view_.why_unsure();
  if (why.empty()) return;
  told_ = true;
  say_("of the work of online process " + std::to_string(pid_) + " (" + command_of(pid_) +
       ") only submissions are seen, and no ends: " + why +
       "; a policy assumes an end after a pause, or let a client mark its requests");
}

bool followed_work::look(time_point now, std::vector<work>& found) {
  if (now >= mappings_due_) {
    if (!follow_mappings()) return false;
    tell_why_unsure();
    mappings_due_ = now + look_at_mappings;
  }
  view_.look(
      [this](std::uint64_t at, std::span<std::uint32_t> into) { return memory_.read(at, into); },
      now);
  for (const auto& each : view_.places())
    found.push_back({each.gpu, each.work, each.came, each.waiting});
  return true;
}

}  // namespace sluice::nvidia
